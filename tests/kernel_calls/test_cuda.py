"""Kernels of users in compiled programs on a GPU, through the four doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.triton as triton
from tests.kernel_calls.kernels import (
    add_in_place,
    attention,
    attention_of,
    blocks,
    int8_matmul,
    int8_matmul_of,
    rms_norm,
    rms_norm_of,
)
from tests.kernel_calls.test_onnx import floats, register, three_kernels

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.cuda

TF32 = 2e-3
"""Relative error of matmuls of float32, which tensor cores round to 10 bits."""
HEADS, ROWS, DEPTH, COLUMNS = 2, 23, 16, 33


def far(have: Any, want: Any) -> float:
    """The relative difference in the norm."""
    return float(np.linalg.norm(np.asarray(have, np.float64) - want) / np.linalg.norm(want))


def weights() -> dict[str, Any]:
    codes = np.random.default_rng(4).integers(-127, 128, (DEPTH, COLUMNS)).astype(np.int8)
    return {
        "w": floats(DEPTH), "k": floats(HEADS, 29, DEPTH), "v": floats(HEADS, 29, DEPTH),
        "scale": floats(COLUMNS), "codes": codes,
    }  # fmt: skip


def wanted(x: Any, w: Any, k: Any, v: Any, scale: Any, codes: Any) -> Any:
    q = np.tanh(rms_norm_of(x, w, 1e-5))
    mixed = attention_of(q, k, v, 0.25) + x.astype(np.float64)
    return int8_matmul_of(mixed.reshape(-1, DEPTH), codes, scale)


def network(lib: Any, empty: Callable[..., Any]) -> Callable[..., Any]:
    """A norm, an attention and a matmul, with elementwise operators between them."""

    def run(x: Any, w: Any, k: Any, v: Any, scale: Any, codes: Any) -> Any:
        out, inverse = empty((HEADS, ROWS, DEPTH), x), empty((HEADS * ROWS,), x)
        rms_norm[(HEADS * ROWS,)](x, w, out, inverse, DEPTH, 1e-5, BLOCK=16)
        q, mixed = lib.tanh(out), empty((HEADS, ROWS, DEPTH), x)
        attention[(triton.cdiv(ROWS, 16), HEADS)](
            q, k, v, mixed, ROWS, 29, 0.25, ROWS * DEPTH, DEPTH, 29 * DEPTH, DEPTH, ROWS * DEPTH,
            DEPTH, D=DEPTH, M=16, N=32,
        )  # fmt: skip
        rows = (mixed + x).reshape(HEADS * ROWS, DEPTH)
        y = empty((HEADS * ROWS, COLUMNS), x)
        int8_matmul[(triton.cdiv(HEADS * ROWS, 16), triton.cdiv(COLUMNS, 32))](
            rows, codes, scale, y, HEADS * ROWS, COLUMNS, DEPTH, M=16, N=32, K=32, TRANSPOSED=False
        )
        return y

    return run


def test_numpy_functions() -> None:
    x, given = floats(HEADS, ROWS, DEPTH), weights()
    run = network(np, lambda shape, x: np.empty(shape, np.float32, like=x))
    found = fuser.jit(device="cuda")(run)(x, *given.values())
    assert far(found, wanted(x, **given)) <= TF32


def test_torch_compile() -> None:
    x, given = floats(HEADS, ROWS, DEPTH), weights()
    run = network(torch, lambda shape, x: torch.empty(shape, device=x.device))
    torch._dynamo.reset()
    compiled = torch.compile(run, backend="fuser", fullgraph=True)
    found = compiled(*(torch.from_numpy(item).cuda() for item in (x, *given.values())))
    assert far(found.cpu(), wanted(x, **given)) <= TF32


class Network(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        for name, item in weights().items():
            self.register_buffer(name, torch.from_numpy(item))
        self.run = network(torch, lambda shape, x: torch.empty(shape, device=x.device))

    def forward(self, x: Any) -> Any:
        return self.run(x, self.w, self.k, self.v, self.scale, self.codes)


def test_a_module() -> None:
    x = floats(HEADS, ROWS, DEPTH)
    there = torch.from_numpy(x).cuda()
    found = fuser.compile(Network().cuda())(there)
    assert far(found.cpu(), wanted(x, **weights())) <= TF32


def test_an_onnx_model() -> None:
    register()
    proto = three_kernels(weights())
    x = floats(HEADS, ROWS, DEPTH)
    plan = fuser.compile(proto, device="cuda")
    assert far(plan.run({"x": x})["y"], wanted(x, **weights())) <= TF32
    assert launched(lambda: plan.run({"x": x})) == 3
    assert plan.report().to_dict()["kernels"]["after"] == 3


def launched(call: Callable[[], Any]) -> int:
    """Kernels of a call, as a profiler counts them."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA
    names = [event.name for event in profiler.events() if event.device_type == kind]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names)


def test_gradients() -> None:
    from tests.kernel_calls.test_torch import Norm, reference

    x, w = (torch.from_numpy(floats(*shape)).cuda() for shape in ((7, 45), (45,)))
    leaves = [item.clone().requires_grad_() for item in (x, w)]
    torch._dynamo.reset()
    step = torch.compile(lambda x, w: Norm.apply(x.tanh(), w).exp().sum(), backend="fuser")
    step(*leaves).backward()
    exact = [item.double().requires_grad_() for item in (x, w)]
    reference(exact[0].tanh(), exact[1]).exp().sum().backward()
    for leaf, other in zip(leaves, exact, strict=True):
        assert far(leaf.grad.cpu(), other.grad.cpu().numpy()) <= 1e-5


def test_a_value_that_is_changed_in_place() -> None:
    x = floats(1000)

    @fuser.jit(device="cuda")
    def run(x: Any) -> Any:
        y = np.exp(x)
        add_in_place[blocks(1000, 64)](y, 1000, 2.0, BLOCK=64)
        return y * x

    np.testing.assert_allclose(run(x), (np.exp(x.astype(np.float64)) + 2) * x, rtol=1e-6)
