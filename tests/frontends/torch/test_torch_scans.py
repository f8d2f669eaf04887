"""Running sums, products, maxima and minima through PyTorch, and logarithms of sums."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.compared import (  # noqa: E402
    assert_as_eager,
    assert_gradients_as_eager,
)

pytestmark = pytest.mark.export

INF, NAN = float("inf"), float("nan")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int32, torch.uint8, torch.bool]
MAXIMA = [torch.cummax, torch.cummin]

ODD = [
    [0.0, -0.0, 0.0, 1.0, 1.0], [INF, 1.0, NAN, 2.0, NAN], [-INF, -INF, -1.0, INF, INF],
    [NAN, 1.0, 2.0, NAN, 3.0], [-0.0, 0.0, -0.0, -1.0, -0.0],
]  # fmt: skip


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(3)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 9, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def all_of(function: Any, axis: int) -> Any:
    """Of every argument in one graph."""
    return lambda *arguments: [function(x, axis) for x in arguments]


@pytest.mark.parametrize("function", MAXIMA)
def test_running_extremes_and_their_places(function: Any) -> None:
    given = [drawn(3, 7, 5, dtype=dtype) for dtype in (*FLOATS, *INTEGERS)]
    for axis in (0, -1):
        assert_as_eager(all_of(function, axis), *given)


@pytest.mark.parametrize("function", MAXIMA)
def test_running_extremes_at_nan_infinity_and_zeros(function: Any) -> None:
    given = [torch.tensor(ODD).to(dtype) for dtype in FLOATS]
    for axis in (0, 1):
        assert_as_eager(all_of(function, axis), *given)


@pytest.mark.parametrize("function", MAXIMA)
def test_running_extremes_of_rows_of_any_length(function: Any) -> None:
    given = [drawn(2, size) for size in (1, 255, 256, 257, 1000)]
    given[-1][1, 500] = NAN
    assert_as_eager(all_of(function, 1), *given)


@pytest.mark.parametrize("function", [*MAXIMA, torch.cumprod, torch.logcumsumexp])
def test_nothing_and_single_numbers(function: Any) -> None:
    shapes = [(0,), (2, 0), (0, 3), ()]
    assert_as_eager(all_of(function, -1), *(torch.full(shape, 2.5) for shape in shapes))


@pytest.mark.parametrize("axis", [0, 1])
def test_running_products(axis: int) -> None:
    given = [drawn(4, 9, dtype=dtype) for dtype in (*FLOATS, torch.int32, torch.bool)]
    assert_as_eager(all_of(torch.cumprod, axis), *given, torch.tensor(ODD))


@pytest.mark.parametrize("axis", [0, 1])
def test_running_logarithms_of_sums(axis: int) -> None:
    sizes = [(3, 2), (3, 13)]
    given = [drawn(*size, dtype=dtype) * 5 for dtype in FLOATS for size in sizes]
    assert_as_eager(all_of(torch.logcumsumexp, axis), *given)


def test_running_logarithms_of_sums_at_the_ends() -> None:
    large = torch.finfo(torch.float32).max
    rows = [
        *ODD, [0.0, 1000.0, 0.0, -1000.0, 1000.0], [large, -large, large, 1.0, large],
        [-INF, -INF, -INF, -INF, -INF],
    ]  # fmt: skip
    assert_as_eager(all_of(torch.logcumsumexp, 1), torch.tensor(rows))


def test_gradients() -> None:
    def every(x: Any) -> Any:
        found = torch.cummax(x, 1)[0], torch.cummin(x, 1)[0]
        return *found, torch.cumprod(x, 1), torch.logcumsumexp(x, 1)

    assert_gradients_as_eager(every, drawn(3, 6).requires_grad_())


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_zeros_of_logarithms_of_sums(size: int, dtype: Any) -> None:
    x = torch.tensor([-0.0, -INF, -0.0, 1.0, NAN][:size], dtype=dtype).reshape(1, size)

    def signs(x: Any) -> list[Any]:
        sums = [torch.logcumsumexp(x, 1), torch.logsumexp(x, 1), torch.logaddexp(x, x - INF)]
        return [torch.signbit(y).logical_and(y == 0) for y in sums]

    assert_as_eager(signs, x)
