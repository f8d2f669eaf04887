"""Adaptive pooling and interpolation through PyTorch: what an output does not see does not change
it, whatever it is, and 16-bit floats are rounded once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from tests.frontends.torch.compared import (  # noqa: E402
    assert_as_eager,
    assert_gradients_as_eager,
    compiled,
    gradients,
)

pytestmark = pytest.mark.export

INF, NAN = float("inf"), float("nan")

WAYS: dict[str, Callable[[Any], Any]] = {
    "adaptive average": lambda x: functional.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive average of one axis": lambda x: functional.adaptive_avg_pool2d(x, (5, 4)),
    "adaptive average to more": lambda x: functional.adaptive_avg_pool2d(x, (7, 9)),
    "adaptive average of vectors": lambda x: functional.adaptive_avg_pool1d(x[0], 4),
    "adaptive average of volumes": lambda x: functional.adaptive_avg_pool3d(x, (1, 3, 4)),
    "area": lambda x: functional.interpolate(x, scale_factor=1.5, mode="area"),
    "adaptive maximum": lambda x: functional.adaptive_max_pool2d(x, (3, 4)),
    "linear": lambda x: functional.interpolate(x, size=(7, 9), mode="bilinear"),
    "linear between corners": lambda x: functional.interpolate(
        x, size=(9, 11), mode="bilinear", align_corners=True
    ),
    "linear to fewer": lambda x: functional.interpolate(x, size=(3, 4), mode="bilinear"),
    "cubic": lambda x: functional.interpolate(x, size=(7, 9), mode="bicubic"),
    "nearest": lambda x: functional.interpolate(x, size=(7, 9)),
}


def image(*shape: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(5)
    return (torch.randn(shape, generator=generator) * 4).to(dtype)


@pytest.mark.parametrize("name", WAYS)
def test_values_where_some_are_not_finite(name: str) -> None:
    plain, odd = image(1, 2, 5, 6), image(1, 2, 5, 6)
    odd[0, 0, 0, 0], odd[0, 0, 4, 3], odd[0, 1, 2, 5] = NAN, INF, -INF
    if name.startswith("linear"):  # what PyTorch traces subtracts neighbours, which may be infinite
        odd = odd.masked_fill(odd.isinf(), NAN)
    way = WAYS[name]
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        fused = torch.compile(way, backend="fuser", dynamic=False)
        for x in (plain, odd):
            torch.testing.assert_close(fused(x), way(x), equal_nan=True)


@pytest.mark.parametrize("name", ["adaptive average", "area", "adaptive average of vectors"])
def test_gradients_where_some_are_not_finite(name: str) -> None:
    way = WAYS[name]

    def marked(x: Any) -> Any:
        y = way(x)
        return torch.where(torch.arange(y.numel()).reshape(y.shape) == 5, y * NAN, y)

    assert_gradients_as_eager(marked, image(1, 2, 5, 6).requires_grad_())


HALF_WAYS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "three axes": ((2, 3, 9, 8, 11), lambda x: functional.adaptive_avg_pool3d(x, (5, 7, 4))),
    "two axes": ((2, 3, 9, 11), lambda x: functional.adaptive_avg_pool2d(x, (5, 4))),
    "one axis": ((2, 3, 11), lambda x: functional.adaptive_avg_pool1d(x, 4)),
    "divisors": ((2, 3, 8, 12), lambda x: functional.adaptive_avg_pool2d(x, (4, 3))),
    "one": ((2, 3, 7, 5), lambda x: functional.adaptive_avg_pool2d(x, 1)),
    "area": ((2, 3, 9, 11), lambda x: functional.interpolate(x, (7, 6), mode="area")),
    "linear": ((2, 3, 9, 11), lambda x: functional.interpolate(x, (7, 16), mode="bilinear")),
}


@pytest.mark.parametrize("name", HALF_WAYS)
def test_halves_are_rounded_once(name: str) -> None:
    """Within half a unit of the last place of float64, and what float32 adds to that."""
    shape, way = HALF_WAYS[name]
    dtype = torch.float16 if len(shape) > 3 else torch.bfloat16
    x = image(*shape, dtype=dtype)
    with torch.no_grad():
        found, exact = compiled(way, x).double(), way(x.double())
    unit = torch.finfo(dtype).eps / 2
    scale = way(x.double().abs())  # sums of float32 lose by the size of their terms
    assert ((found - exact).abs() <= exact.abs() * unit + scale * 1e-6 + 1e-7).all()


def test_gradients_of_halves_are_rounded_once() -> None:
    x = image(2, 3, 9, 11, dtype=torch.bfloat16).requires_grad_()
    way = HALF_WAYS["two axes"][1]
    wide = gradients(way, x.detach().double().requires_grad_())[0]
    torch._dynamo.reset()
    found = gradients(torch.compile(way, backend="fuser", dynamic=False), x)[0].double()
    assert ((found - wide).abs() <= wide.abs() * 2**-8 + 1e-6).all()


MAXIMA: dict[str, tuple[tuple[int, ...], Any]] = {
    "more": ((2, 5, 6), (7, 9)),
    "fewer": ((2, 1, 5, 6), (3, 4)),
    "divisors": ((1, 2, 6, 8), (3, 2)),
    "one": ((2, 7, 5), 1),
    "as many": ((1, 1, 3, 4), (None, 2)),
}


@pytest.mark.parametrize("name", MAXIMA)
def test_maxima_and_their_places(name: str) -> None:
    """Of equal elements the first has the place, of several NaN the last."""
    shape, size = MAXIMA[name]
    plain = (image(*shape) * 0.5).round()
    odd = plain.clone()
    odd[..., 0, 0], odd[..., 0, 1], odd[..., -1, -1], odd[..., 1, 2] = NAN, NAN, -INF, INF

    def places(x: Any) -> Any:
        return functional.adaptive_max_pool2d(x, size, return_indices=True)

    for x in (plain, odd, plain.bfloat16()):
        assert_as_eager(places, x)


def test_maxima_of_vectors_and_volumes() -> None:
    def places(x: Any) -> tuple[Any, ...]:
        line = functional.adaptive_max_pool1d(x[0, 0], 4, return_indices=True)
        return *line, *functional.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True)

    assert_as_eager(places, image(2, 3, 5, 4, 7))


GRIDS = {
    "bilinear": [("zeros", False), ("border", True), ("reflection", False), ("reflection", True)],
    "nearest": [("zeros", True), ("border", False), ("reflection", False)],
    "bicubic": [("zeros", False)],
}


@pytest.mark.parametrize("mode", GRIDS)
def test_samples_at_a_grid(mode: str) -> None:
    def samples(x: Any, grid: Any) -> list[Any]:
        return [functional.grid_sample(x, grid, mode, *way) for way in GRIDS[mode]]

    grid = image(2, 4, 3, 2) * 0.3
    odd = image(2, 3, 5, 6)
    odd[0, 0, 2, 3] = INF
    for x in (image(2, 3, 5, 6), odd):
        with torch.no_grad():
            found, wanted = compiled(samples, x, grid), samples(x, grid)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-5)
