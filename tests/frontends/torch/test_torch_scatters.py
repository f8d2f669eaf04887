"""Scatters with every reduction, of diagonals and of strided places, through PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from tests.frontends.torch.compared import (  # noqa: E402
    assert_as_eager,
    assert_gradients_as_eager,
)

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:index_reduce")]

INF, NAN = float("inf"), float("nan")
REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]
INDEX = torch.tensor([[0, 2, 2, 1, 0], [3, 3, 3, 3, 3], [1, 0, 1, 0, 1]])
DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def numbers(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 4).to(dtype)


def scattered(reduce: str, axis: int, index: Any) -> Any:
    """Both with the elements that are written to, and without them."""

    def every(*given: Any) -> list[Any]:
        pairs = zip(given[::2], given[1::2], strict=True)
        return [
            torch.scatter_reduce(x, axis, index, source, reduce, include_self=own)
            for x, source in pairs
            for own in (True, False)
        ]

    return every


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions_of_dtypes(reduce: str) -> None:
    given = [
        one
        for dtype in DTYPES
        for one in (numbers(3, 4, dtype=dtype), numbers(3, 5, dtype=dtype, seed=1))
    ]
    assert_as_eager(scattered(reduce, 1, INDEX), *given)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions_at_nan_and_infinity(reduce: str) -> None:
    x = torch.tensor([1.0, NAN, -INF, INF, 0.0, 3.0])
    source = torch.tensor([NAN, 2.0, INF, -INF, 5.0, 7.0, 1.0])
    index = torch.tensor([0, 1, 2, 3, 4, 4, 0])
    assert_as_eager(scattered(reduce, 0, index), x, source)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_sources_that_are_larger_and_indices_without_elements(reduce: str) -> None:
    for index in (INDEX[:2, :3], INDEX[:0]):
        assert_as_eager(scattered(reduce, 0, index), numbers(4, 6), numbers(5, 6, seed=2))


@pytest.mark.parametrize("reduce", REDUCTIONS[1:])
def test_reductions_of_slices(reduce: str) -> None:
    index = torch.tensor([3, 0, 3, 1])

    def every(x: Any, source: Any) -> list[Any]:
        return [
            torch.index_reduce(x, 1, index, source, reduce, include_self=own)
            for own in (True, False)
        ]

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x, source = numbers(2, 5, 3, dtype=dtype), numbers(2, 4, 3, dtype=dtype, seed=1)
        assert_as_eager(every, x, source)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients(reduce: str) -> None:
    x, source = numbers(3, 4).requires_grad_(), numbers(3, 5, seed=1).requires_grad_()
    assert_gradients_as_eager(lambda x, s: scattered(reduce, 1, INDEX)(x, s), x, source)


@pytest.mark.parametrize("offset", [0, 2, -1, 9, -9])
def test_diagonals(offset: int) -> None:
    x = numbers(3, 4, 5)
    pairs = [(0, 1), (-2, -1), (2, 0)]
    sources = [torch.diagonal(x, offset, *pair) * 0 + 7 for pair in pairs]

    def every(x: Any, *sources: Any) -> list[Any]:
        return [
            torch.diagonal_scatter(x, source, offset, *pair)
            for source, pair in zip(sources, pairs, strict=True)
        ]

    assert_as_eager(every, x, *sources)


def test_strided_places() -> None:
    x = numbers(4, 5)

    def every(x: Any, source: Any) -> tuple[Any, ...]:
        return (
            torch.as_strided_scatter(x, source, (2, 3), (5, 2), 1),
            torch.as_strided_scatter(x, source[0], (3,), (6,)),
            torch.as_strided_scatter(x, source[:0], (0, 3), (1, 1), 7),
        )

    assert_as_eager(every, x, numbers(2, 3, seed=1))


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular", "constant"])
def test_gradients_of_padding(mode: str) -> None:
    """A NaN of the gradient reaches what it belongs to alone."""

    def padded(x: Any) -> Any:
        y = torch.nn.functional.pad(x, (2, 1, 0, 3), mode=mode)
        return torch.where(torch.arange(y.numel()).reshape(y.shape) == 9, y * NAN, y)

    assert_gradients_as_eager(padded, numbers(2, 3, 4, 5).requires_grad_())


@pytest.mark.parametrize("padding", [(3, 4), (-1, 2), (2, -2), (0, 0)])
def test_gradients_of_replicated_edges_of_vectors(padding: tuple[int, int]) -> None:
    def padded(x: Any) -> Any:
        return torch.nn.functional.pad(x, padding, mode="replicate")

    assert_gradients_as_eager(padded, numbers(2, 3, 4).requires_grad_())
    assert_gradients_as_eager(padded, numbers(3, 5).bfloat16().requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.float32])
@pytest.mark.parametrize("source", [torch.bool, torch.int64, torch.float64])
@pytest.mark.parametrize("by", ["call", "module"])
def test_sources_of_another_dtype_become_the_written(dtype: Any, source: Any, by: str) -> None:
    """As copies do, whichever of the two is wider."""

    def every(x: Any, y: Any) -> tuple[Any, ...]:
        return (
            torch.select_scatter(x, y[:, 0], 1, -2),
            torch.select_scatter(x, y[2], 0, 1),
            torch.slice_scatter(x, y[:, 1:3], 1, 2, 4),
            torch.slice_scatter(x, y[:, ::2], 1, 0, 4, 2),
            torch.diagonal_scatter(x, y.diagonal()),
            torch.as_strided_scatter(x, y[0, :3], (3,), (2,), 1),
        )

    x, y = numbers(3, 4).to(dtype), numbers(3, 4, seed=1).to(source)
    if by == "call":
        assert_as_eager(every, x, y)
        return
    module = torch.nn.Module()
    module.forward = every
    compiled = fuser.compile(module, example_inputs=(x, y), device="cpu")
    torch.testing.assert_close(compiled(x, y), every(x, y), rtol=0, atol=0)
