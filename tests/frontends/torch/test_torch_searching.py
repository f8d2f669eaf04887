"""Places in sorted tensors and counts by them, through PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.compared import assert_as_eager, compiled  # noqa: E402

pytestmark = pytest.mark.export

INF, NAN = float("inf"), float("nan")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def row(size: int, dtype: Any = torch.float32) -> Any:
    """Sorted, with elements that are equal."""
    return (torch.arange(size) * 7 % 11).sort()[0].to(dtype)


@pytest.mark.parametrize("right", [False, True])
def test_vectors_of_any_length(right: bool) -> None:
    wanted = torch.arange(-1.0, 12.5, 0.5)

    def places(x: Any, *rows: Any) -> list[Any]:
        return [torch.searchsorted(one, x, right=right) for one in rows]

    assert_as_eager(places, wanted, *(row(size) for size in (0, 1, 2, 3, 8, 33, 100)))


@pytest.mark.parametrize("right", [False, True])
def test_dtypes(right: bool) -> None:
    dtypes = [*FLOATS, torch.int64, torch.int8]
    rows = [row(9, dtype) for dtype in dtypes]
    asked = [torch.tensor([[0, 3, 12], [-1, 5, 4]]).to(dtype) for dtype in dtypes]

    def places(*given: Any) -> list[Any]:
        found = []
        for edges, x in zip(given[: len(dtypes)], given[len(dtypes) :], strict=True):
            found += [
                torch.searchsorted(edges, x, right=right, out_int32=True),
                torch.bucketize(x, edges, right=right),
            ]
        return found

    assert_as_eager(places, *rows, *asked)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_their_own_numbers_and_an_order(side: str) -> None:
    rows = torch.stack([row(13), row(13) * 2, -row(13).flip(0)])
    mixed = rows.flip(-1)
    order = mixed.argsort(-1)
    x = torch.linspace(-12, 25, 15).reshape(3, 5)

    def places(rows: Any, mixed: Any, order: Any, x: Any) -> tuple[Any, ...]:
        return (
            torch.searchsorted(rows, x, side=side),
            torch.searchsorted(mixed, x, side=side, sorter=order),
            torch.searchsorted(rows[0], 3.5, side=side),
        )

    assert_as_eager(places, rows, mixed, order, x)


@pytest.mark.parametrize("right", [False, True])
def test_infinities_and_nan(right: bool) -> None:
    rows = [
        torch.tensor([-INF, -1.0, -0.0, 0.0, 2.0, INF, INF]), torch.tensor([1.0, 2.0, NAN, NAN]),
        torch.tensor([NAN]),
    ]  # fmt: skip
    x = torch.tensor([-INF, -0.0, 0.0, 1.5, 2.0, INF, NAN])
    assert_as_eager(
        lambda x, *rows: [torch.searchsorted(one, x, right=right) for one in rows], x, *rows
    )


def test_counts_of_equal_parts() -> None:
    x = torch.tensor([-3.0, 0.0, 0.1, 0.5, 0.99, 1.0, 1.0, 2.0, 7.5, INF, NAN])

    def counts(x: Any) -> list[Any]:
        ranges = [(4, 0.0, 1.0), (1, -5.0, 5.0), (7, 0.1, 7.5), (3, -1.0, 9.0)]
        return [torch.histc(x, *given) for given in ranges]

    assert_as_eager(counts, x)
    assert_as_eager(counts, x.double())


@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0, 8.0], [3.0, 3.0, 3.0], [5.0], []])
def test_counts_over_the_range_of_the_data(values: list[float]) -> None:
    assert_as_eager(lambda x: torch.histc(x, 5), torch.tensor(values))


def test_counts_of_data_that_is_not_finite() -> None:
    """Eager PyTorch raises an error that depends on data."""
    found = compiled(lambda x: torch.histc(x, 3), torch.tensor([1.0, INF]))
    assert found.isnan().all()


def test_tokens_of_experts() -> None:
    """How mixtures of experts count the tokens of each."""
    chosen = torch.tensor([[0, 3], [3, 1], [7, 3], [2, 0]])

    def offsets(chosen: Any) -> Any:
        count = torch.histc(chosen.flatten().float(), bins=8, min=0, max=7)
        return torch.cumsum(count, 0, dtype=torch.int32)

    assert_as_eager(offsets, chosen)


@pytest.mark.parametrize("dtype", FLOATS)
def test_orders_of_infinities_and_nan(dtype: Any) -> None:
    """NaN comes after inf, wherever it stood, and is the median where there is one."""
    values = [INF, NAN, -INF, 1.0]
    rows = torch.tensor(list(itertools.permutations(values)), dtype=dtype)

    def orders(x: Any) -> list[Any]:
        return [
            *torch.sort(x, dim=1, stable=True), *torch.sort(x, dim=0, stable=True),
            *torch.sort(x, dim=1, stable=True, descending=True), *x.topk(2), *x.kthvalue(3),
            *x.topk(3, largest=False), *x.median(1), *x.median(1, keepdim=True), *x.nanmedian(1),
            x.median(), x.nanmedian(), x[:, :1].median(1).values, x[:, 1:].nanmedian(1).values,
        ]  # fmt: skip

    assert_as_eager(orders, rows)


def test_medians_of_any_length() -> None:
    """Of integers, of rows of NaN alone, of numbers without axes."""
    rows = torch.randperm(35, generator=torch.Generator().manual_seed(3)).reshape(5, 7).float()
    rows[1, 2:4] = rows[4] = NAN
    sizes = (1, 2, 3, 6, 7)
    assert_as_eager(lambda x: [y for n in sizes for y in x[:4, :n].median(1)], rows)
    assert_as_eager(lambda x: [x[:, :n].nanmedian(1).values for n in sizes], rows)
    assert_as_eager(lambda x: [*x.median(0), *x.nanmedian(0)], rows.nan_to_num(9).int())
    assert_as_eager(lambda x: [*x.median(0), *x.nanmedian(0), x.median()], torch.tensor(NAN))


SELECTIONS: dict[str, Any] = {
    "kthvalue": lambda x: torch.kthvalue(x, 2, dim=1),
    "median": lambda x: torch.median(x, dim=1),
    "nanmedian": lambda x: torch.nanmedian(x, dim=1),
    "topk": lambda x: torch.topk(x, 2, dim=1),
    "sort": lambda x: torch.sort(x, dim=1),
    "min": lambda x: torch.min(x, dim=1),
    "max": lambda x: torch.max(x, dim=1),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_gradients_of_ties_go_where_the_indices_say(name: str) -> None:
    """Which of equal elements is selected is open in PyTorch, but for min and max: the first."""

    def selected(x: Any) -> tuple[Any, Any]:
        return tuple(SELECTIONS[name](x))

    x = torch.tensor([[0.5, 0.5, 1, 0.5], [2, 1, 1, 2], [0, -0.0, 0, 3]], requires_grad=True)
    wanted = selected(x)[0]
    run = torch.compile(selected, backend="fuser")
    values, places = run(x)
    assert torch.equal(values, wanted)
    column = (values.shape[0], -1)
    values, places = values.reshape(column), places.reshape(column)
    assert torch.equal(x.gather(1, places), values)
    weights = torch.arange(1.0, values.numel() + 1).reshape(values.shape)
    (found,) = torch.autograd.grad(values, x, weights)
    assert torch.equal(found, torch.zeros_like(x).scatter(1, places, weights))
    if name in ("min", "max"):
        assert torch.equal(places.flatten(), selected(x)[1])
