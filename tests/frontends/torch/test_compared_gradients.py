"""Gradients of what compares: whatever the dtype, the backward graph finds what the forward had."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import layer_norm, max_pool2d  # noqa: E402

from fuser import dtypes  # noqa: E402
from fuser.dtypes import DType  # noqa: E402
from fuser.graph.builder import Builder  # noqa: E402
from fuser.graph.ir import Graph, TensorType  # noqa: E402
from fuser.graph.rounding import as_stored  # noqa: E402
from fuser.pipeline.compiler import compile_graph  # noqa: E402
from fuser.pipeline.options import CompileOptions  # noqa: E402

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(3)
    torch._dynamo.reset()
    yield


MADE: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda x: (x * 1.1).tanh(),
    "square": lambda x: (x.abs() + 0.1) ** 2,
    "norm": lambda x: layer_norm(x, x.shape[-1:]).sigmoid(),
}
"""How the compared tensor is computed."""

EXTREMES: dict[str, Callable[[Any], Any]] = {
    "amax": lambda y: y.amax(-1),
    "amin of two": lambda y: y.amin((-2, -1)),
    "max": lambda y: y.max(),
    "max of one": lambda y: y.max(-1).values,
    "norm": lambda y: y.norm(p=float("inf"), dim=-1),
    "median": lambda y: y.median(-1).values,
    "pool": lambda y: max_pool2d(y[None, None], 2),
    "sorted": lambda y: y.sort(-1).values[..., -1],
}
"""The gradient of each result reaches its operand whole, in parts where elements are equal."""

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def of_operand(f: Any, made: Any, x: Any) -> Any:
    """The gradient of the tensor that f compares."""
    leaf = x.clone().requires_grad_()
    beside = torch.zeros(x.shape, dtype=x.dtype, requires_grad=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        result = torch.compile(lambda x, d: f(made(x) + d), backend="fuser")(leaf, beside)
    result.float().sum().backward()
    assert leaf.grad.isfinite().all()
    return result.detach(), beside.grad.float()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("made", MADE)
def test_the_gradient_of_an_extreme_is_whole(made: str, name: str, dtype: Any) -> None:
    x = torch.randn(6, 34).to(dtype)
    result, gradient = of_operand(EXTREMES[name], MADE[made], x)
    sizes = gradient.abs()
    assert sizes.sum().item() == pytest.approx(result.numel(), rel=2e-2)
    assert (sizes > 0).sum() >= result.numel()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_elements_of_two_tensors_share_a_gradient(dtype: Any) -> None:
    """Elements that differ by less than the dtype tells are equal, in every comparison."""
    x = torch.randn(40).to(dtype)
    left, right = (x.clone().requires_grad_() for _ in range(2))
    f = torch.compile(lambda a, b: torch.maximum(a * 1.1, b * (1.1 + 1e-7)), backend="fuser")
    f(left, right).float().sum().backward()
    total = left.grad.float() + right.grad.float()
    torch.testing.assert_close(total, torch.full_like(total, 1.1), rtol=2e-2, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_range_is_scaled(dtype: Any) -> None:
    def scaled(x: Any) -> Any:
        y = (x * 1.1).tanh()
        low, high = y.amin(-1, keepdim=True), y.amax(-1, keepdim=True)
        return (y - low) / (high - low)

    gradients = []
    x = torch.linspace(-1, 1, 4 * 19).reshape(4, 19).to(dtype)
    weigh = torch.randn(4, 19)
    for f in (torch.compile(scaled, backend="fuser"), scaled):
        leaf = x.clone().requires_grad_()
        (f(leaf).float() * weigh).sum().backward()
        gradients.append(leaf.grad.double())
    ours, theirs = gradients
    assert (ours - theirs).norm() <= 16 * torch.finfo(dtype).eps * theirs.norm()


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=str)
def test_rounding_is_that_of_memory(dtype: DType) -> None:
    """Of every value of the dtype, those half way between two, and those beside them."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    every = codes.view(dtype.numpy).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    with np.errstate(over="ignore"):
        middles = (finite[1:] / 2 + finite[:-1] / 2).astype(np.float32)
        ends = np.array([65504, 65519.996, 65520, 65536, 1e9, 3.4e38, 1e-40], np.float32)
        given = np.concatenate([
            every, middles, np.nextafter(middles, np.float32(np.inf)),
            np.nextafter(middles, np.float32(-np.inf)), ends, -ends,
        ])  # fmt: skip
        wanted = given.astype(dtype.numpy).astype(np.float32)
    graph = Graph("rounded")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(dtypes.f32, (len(given),)))
    narrow = b.cast(b.map("mul", x, 1.0), dtype)
    graph.outputs = [b.cast(as_stored(b, narrow), dtypes.f32)]
    graph.output_names = ["y"]
    (found,) = compile_graph(graph, CompileOptions()).run({"x": given}).values()
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))
