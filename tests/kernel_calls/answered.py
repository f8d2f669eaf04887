"""A program whose triton is fuser's for everybody: what PyTorch traces of kernels itself.

Run by test_torch.py in a process of its own."""

from __future__ import annotations

from fuser.triton.imports import everywhere

everywhere()

import logging  # noqa: E402
import warnings  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from torch.library import triton_op, wrap_triton  # noqa: E402

from fuser.frontends.torch.kernels import as_ours  # noqa: E402

logging.getLogger("torch").setLevel(logging.ERROR)  # it looks for stages of Triton's compiler
warnings.simplefilter("error", RuntimeWarning)


@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


tuned = triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])(
    twice
)


def called(x):
    out = torch.empty_like(x)
    twice[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), 16)
    return out


@triton_op("answered::twice", mutates_args={})
def op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
    wrap_triton(tuned)[grid](x, out, x.numel())
    return out


for given in (torch.randn(5, 9), torch.randn(9, 5).t()):
    for kernel in (called, op):
        torch._dynamo.reset()
        run = torch.compile(lambda x, k=kernel: k(x.exp()) + 1, backend="fuser", fullgraph=True)
        torch.testing.assert_close(run(given), 2 * given.exp() + 1)

real = SimpleNamespace(fn=twice.fn, arg_names=twice.arg_names)  # as an installed Triton has it
assert as_ours(twice) is twice
assert as_ours(real) is as_ours(real) and as_ours(real).fn is twice.fn
print("as it should be")
