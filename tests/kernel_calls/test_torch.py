"""Kernels of users in PyTorch programs: torch.compile, fuser.compile, triton_op."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.triton as triton
from fuser.dtypes import f32
from fuser.errors import UnsupportedError
from tests.kernel_calls.kernels import (
    add_in_place,
    add_scaled,
    attention,
    attention_of,
    blocks,
    int8_matmul,
    int8_matmul_of,
    rms_norm,
    rms_norm_backward,
    rms_norm_of,
    sum_and_product,
)
from tests.numerics import assert_close

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("error:fuser leaves")


@pytest.fixture(autouse=True)
def same_codes() -> None:
    torch.manual_seed(0)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="fuser", fullgraph=True)  # type: ignore[no-any-return]


def floats(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def forward(x: Any, w: Any) -> tuple[Any, Any]:
    out, inverse = torch.empty_like(x), torch.empty(x.shape[0], device=x.device)
    rms_norm[(x.shape[0],)](x, w, out, inverse, x.shape[1], 1e-5, BLOCK=64)
    return out, inverse


def backward(dy: Any, x: Any, w: Any, inverse: Any) -> tuple[Any, Any]:
    dx, dw = torch.empty_like(x), torch.zeros_like(w)
    rms_norm_backward[(x.shape[0],)](dy, x, w, inverse, dx, dw, x.shape[1], BLOCK=64)
    return dx, dw


def attend(q: Any, k: Any, v: Any) -> Any:
    heads, rows, depth = q.shape
    out = torch.empty(heads, rows, depth)
    attention[(triton.cdiv(rows, 16), heads)](
        q, k, v, out, rows, k.shape[1], depth**-0.5, q.stride(0), q.stride(1), k.stride(0),
        k.stride(1), out.stride(0), out.stride(1), D=depth, M=16, N=32,
    )  # fmt: skip
    return out


def multiply(x: Any, codes: Any, scale: Any, transposed: bool = False) -> Any:
    rows, depth = x.shape
    columns = codes.shape[0 if transposed else 1]
    out = torch.empty(rows, columns)
    int8_matmul[(triton.cdiv(rows, 16), triton.cdiv(columns, 32))](
        x, codes, scale, out, rows, columns, depth, M=16, N=32, K=32, TRANSPOSED=transposed
    )
    return out


class Norm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        out, inverse = forward(x, w)
        ctx.save_for_backward(x, w, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return backward(dy.contiguous(), *ctx.saved_tensors)


class Multiply(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, codes: Any, scale: Any) -> Any:
        ctx.save_for_backward(codes, scale)
        return multiply(x, codes, scale)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return multiply(dy.contiguous(), *ctx.saved_tensors, transposed=True), None, None


@torch.library.triton_op("fuser_tests::rms_norm", mutates_args={})  # type: ignore[misc]
def norm_op(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return forward(x, w)


@torch.library.triton_op("fuser_tests::rms_norm_backward", mutates_args={})  # type: ignore[misc]
def norm_backward_op(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, inverse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return backward(dy, x, w, inverse)


norm_op.register_autograd(
    lambda ctx, dy, _: norm_backward_op(dy.contiguous(), *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output[1]),
)


def reference(x: Any, w: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w


@pytest.mark.parametrize("grad", [False, True])
def test_a_kernel_called_in_a_compiled_function(grad: bool) -> None:
    x, w = floats(7, 45), floats(45)
    with torch.set_grad_enabled(grad):
        found = compiled(lambda x, w: forward(x.exp(), w)[0].sin() + x)(x, w)
    wide = x.double().numpy()
    want = np.sin(rms_norm_of(np.exp(wide), w.numpy(), 1e-5)) + wide
    assert_close(found.numpy(), want, f32, 45)


def test_functions_whose_gradients_are_lost_run_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with PyTorch before 2.13, where the results of a traced autograd.Function that a kernel
    writes have gradients of 0."""
    from fuser.frontends.torch import kernels

    monkeypatch.setattr(kernels, "FOLLOWS_WRITES", False)
    x, w = floats(7, 45).requires_grad_(), floats(45).requires_grad_()
    torch._dynamo.reset()
    step = torch.compile(lambda x, w: Norm.apply(x.tanh(), w).exp().sum(), backend="fuser")
    step(x, w).backward()
    exact = [item.detach().double().requires_grad_() for item in (x, w)]
    reference(exact[0].tanh(), exact[1]).exp().sum().backward()
    for leaf, other in zip((x, w), exact, strict=True):
        assert_close(leaf.grad.numpy(), other.grad.numpy(), f32, 45 * 7)
    torch._dynamo.reset()
    whole = torch.compile(lambda x, w: Norm.apply(x, w), backend="fuser", fullgraph=True)
    with pytest.raises(Exception, match="register_autograd is traced"):
        whole(x, w)


@pytest.mark.parametrize("way", ["autograd.Function", "triton_op"])
def test_gradients(way: str) -> None:
    norm = Norm.apply if way == "autograd.Function" else lambda x, w: norm_op(x, w)[0]

    def loss(norm: Any, x: Any, w: Any) -> Any:
        return (norm(x.exp(), w) * x.cos()).sum()

    x, w = floats(7, 45).requires_grad_(), floats(45).requires_grad_()
    found = compiled(lambda x, w: loss(norm, x, w))(x, w)
    found.backward()
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    want = loss(reference, *wide)
    want.backward()
    assert_close(found.detach().numpy(), want.detach().numpy(), f32, 45)
    for mine, theirs in zip((x, w), wide, strict=True):
        assert_close(mine.grad.numpy(), theirs.grad.numpy(), f32, 45 * 7)


def test_a_quantised_matmul_and_its_gradient() -> None:
    x, scale = floats(5, 70).requires_grad_(), floats(37)
    codes = torch.randint(-127, 128, (70, 37), dtype=torch.int8)
    found = compiled(lambda x: Multiply.apply(x.tanh(), codes, scale).sin())(x)
    found.sum().backward()
    wide = x.detach().double().requires_grad_()
    want = (wide.tanh() @ (codes.double() * scale.double())).sin()
    want.sum().backward()
    np.testing.assert_allclose(found.detach().numpy(), want.detach().numpy(), atol=2e-2)
    assert_close(found.detach().numpy(), want.detach().numpy(), f32, 70 * 127**2)
    assert_close(x.grad.numpy(), wide.grad.numpy(), f32, 70 * 127**2)


def test_attention_of_views_with_gaps() -> None:
    qkv = floats(2, 19, 48)

    def f(qkv: Any) -> Any:
        q, k, v = qkv.view(2, 19, 3, 16).unbind(2)
        return attend(q, k, v)

    q, k, v = (t.numpy() for t in qkv.view(2, 19, 3, 16).unbind(2))
    assert_close(compiled(f)(qkv).numpy(), attention_of(q, k, v, 0.25), f32, 19 * 16)


class Block(torch.nn.Module):  # type: ignore[misc]
    """Three kernels and what is between them."""

    def __init__(self, op: bool) -> None:
        super().__init__()
        self.op = op
        self.w = torch.nn.Parameter(floats(16))
        self.scale = torch.nn.Parameter(floats(33))
        self.codes = torch.nn.Buffer(torch.randint(-127, 128, (16, 33), dtype=torch.int8))

    def forward(self, x: Any, k: Any, v: Any) -> Any:
        rows = x.reshape(46, 16)
        y = norm_op(rows, self.w)[0] if self.op else forward(rows, self.w)[0]
        q = y.reshape(2, 23, 16).tanh()
        y = attend(q, k, v) + x
        return multiply(y.reshape(46, 16), self.codes, self.scale) * 2.0


@pytest.mark.parametrize("op", [False, True])
def test_three_kernels_in_a_module(op: bool) -> None:
    module, x, k, v = Block(op), floats(2, 23, 16), floats(2, 29, 16), floats(2, 29, 16)
    given = (x, k, v)
    w, codes, scale = (t.detach().numpy() for t in (module.w, module.codes, module.scale))
    q = np.tanh(rms_norm_of(x.numpy().reshape(46, 16), w, 1e-5)).reshape(2, 23, 16)
    y = attention_of(q, k.numpy(), v.numpy(), 0.25) + x.double().numpy()
    want = int8_matmul_of(y.reshape(46, 16), codes, scale) * 2
    found = fuser.compile(module)
    with torch.no_grad():
        assert_close(found(*given).numpy(), want, f32, 16 * 29)
        assert_close(compiled(module)(*given).numpy(), want, f32, 16 * 29)
    report = found.report(*given).to_dict()
    assert sum(item["kind"] == "kernel" for item in report["launches"]) == 3


def test_an_argument_is_changed_in_place() -> None:
    def f(x: Any) -> Any:
        before = x.clone()
        add_in_place[blocks(x.numel(), 32)](x, x.numel(), 1.0, BLOCK=32)
        return x * before

    x = floats(5, 9)
    given = x.clone()
    found = compiled(f)(given)
    torch.testing.assert_close(given, x + 1, rtol=0, atol=0)
    torch.testing.assert_close(found, (x + 1) * x, rtol=0, atol=0)


def test_a_view_is_changed_in_place() -> None:
    def f(x: Any) -> Any:
        y = x.clone()
        add_in_place[(1,)](y[1], 9, 1.0, BLOCK=16)
        return y

    x = floats(5, 9)
    want = x.clone()
    want[1] += 1
    torch.testing.assert_close(compiled(f)(x), want, rtol=0, atol=0)


def test_several_results_and_two_kernels_in_a_row() -> None:
    def f(x: Any, y: Any) -> Any:
        total, product = torch.empty_like(x), torch.empty_like(x)
        sum_and_product[blocks(45, 16)](x, y, total, product, 45, BLOCK=16)
        out = torch.empty_like(x)
        add_scaled[blocks(45, 16)](total, product, out, 45, 0.5, BLOCK=16)
        return out, total

    x, y = floats(5, 9), floats(5, 9).flip(0)
    out, total = compiled(f)(x, y)
    a, b = x.double(), y.double()
    assert_close(total.numpy(), (a + b).numpy(), f32, 2)
    assert_close(out.numpy(), ((a + b) * 0.5 + a * b).numpy(), f32, 4)


def test_a_transposed_tensor() -> None:
    def f(x: Any) -> Any:
        y = torch.empty_like(x)
        add_scaled[blocks(45, 16)](x, x, y, 45, 1.0, BLOCK=16)
        return y

    x = floats(9, 5).t()
    found = compiled(f)(x)
    torch.testing.assert_close(found, 2 * x, rtol=0, atol=0)
    assert found.stride() == x.stride()


def test_sizes_change() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        grid = lambda meta: blocks(y.numel(), meta["BLOCK"])  # noqa: E731
        add_in_place[grid](y, y.numel(), 1.0, BLOCK=16)
        return y + 1

    run = compiled(f)
    for n in (5, 6, 40):
        x = floats(n)
        torch.testing.assert_close(run(x), x * 2 + 2, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["autotune", "heuristics"])
def test_kernels_that_choose_their_constants(kind: str) -> None:
    if kind == "autotune":
        configs = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})]
        kernel = triton.autotune(configs, key=["n"])(add_in_place)
    else:
        chosen = {"BLOCK": lambda args: 32 if args["x"].shape[0] > 4 else 16}
        kernel = triton.heuristics(chosen)(add_in_place)

    def f(x: Any) -> Any:
        y = x + 0
        kernel[lambda meta: blocks(y.numel(), meta["BLOCK"])](y, y.numel(), 1.0)
        return y

    x = floats(7, 5)
    torch.testing.assert_close(compiled(f)(x), x + 1, rtol=0, atol=0)


def test_memory_that_two_arguments_share_is_refused() -> None:
    def f(x: Any) -> Any:
        y = x.clone()
        add_scaled[(1,)](y[:6], y[2:8], y[1:7], 6, 1.0, BLOCK=8)
        return y

    with pytest.raises(Exception, match="shares its memory with another argument"):
        compiled(f)(floats(9))


def test_what_pytorch_runs_itself() -> None:
    """A graph with an operator that fuser does not have: the kernel is a part of it."""

    def f(x: Any) -> Any:
        y = torch.histc(x, 5)
        add_in_place[(1,)](y, 5, 1.0, BLOCK=8)
        return y.exp()

    x = floats(40)
    torch._dynamo.reset()
    run = torch.compile(f, backend="fuser")
    torch.testing.assert_close(run(x), (torch.histc(x, 5) + 1).exp())


def test_other_back_ends_run_it_too() -> None:
    x, w = floats(7, 45), floats(45)
    torch._dynamo.reset()
    found = torch.compile(lambda x, w: forward(x * 2, w)[0], backend="aot_eager")(x, w)
    assert_close(found.numpy(), rms_norm_of(2 * x.numpy(), w.numpy(), 1e-5), f32, 45)


def test_strides_that_are_no_array() -> None:
    from fuser.frontends.torch.kernels import rows_of

    assert rows_of((3, 4), (4, 1), "k") is None
    assert rows_of((1, 4), (99, 1), "k") is None
    found = rows_of((4, 3), (1, 4), "k")
    assert found is not None and found.order == (1, 0) and found.blocks == (3, 4)
    with pytest.raises(UnsupportedError, match="cannot be given"):
        rows_of((3, 4), (3, 1), "k")


def test_wrap_triton_in_a_package_whose_imports_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrapped_kernels.py").write_text(
        "import torch\nimport triton\nimport triton.language as tl\n"
        "from torch.library import triton_op, wrap_triton\n"
        "@triton.jit\n"
        "def twice(x, out, n, BLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)\n"
        "@triton_op('fuser_tests::twice', mutates_args={})\n"
        "def op(x: torch.Tensor) -> torch.Tensor:\n"
        "    out = torch.empty_like(x)\n"
        "    wrap_triton(twice)[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), 16)\n"
        "    return out\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with triton.imports("wrapped_kernels"):
        import wrapped_kernels
    x = floats(5, 9)
    assert torch.equal(wrapped_kernels.op(x), 2 * x)
    assert torch.equal(compiled(lambda x: wrapped_kernels.op(x + 1) - 1)(x), 2 * (x + 1) - 1)


def test_what_pytorch_traces_of_kernels_itself() -> None:
    """Where PyTorch finds a Triton, which is fuser's here."""
    command = [sys.executable, "-m", "tests.kernel_calls.answered"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert found.stdout.endswith("as it should be\n"), found.stderr[-2000:]
