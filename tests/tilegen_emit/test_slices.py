"""Several slices of one tensor that meet again, and a reduction of the same tensor beside them.

Each slice has a place of its own in the tile of the rows; what is made of several of them must be
stored whole, and must not take one for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.graph.evaluate import evaluate
from fuser.partition import Options, partition
from tests.interpreted import TARGETS, one_region, run_partition

Array = Any
Function = Callable[[Array], Array]

PARTS: dict[str, Callable[[Array, int], tuple[Array, Array]]] = {
    "first and last": lambda x, n: (x[..., 0:1], x[..., n - 1 :]),
    "first and second": lambda x, n: (x[..., 0:1], x[..., 1:2]),
    "halves": lambda x, n: (x[..., : n // 2], x[..., n // 2 :]),
    "even and odd": lambda x, n: (x[..., 0::2], x[..., 1::2]),
    "neighbours": lambda x, n: (x[..., 1:], x[..., :-1]),
    "reversed": lambda x, n: (x[..., ::-1], x),
    "one and all": lambda x, n: (x[..., 1:2], x),
    "one flat and all": lambda x, n: (x[..., 1][..., None], x),
    "numbers": lambda x, n: (x[..., 0], x[..., n - 1]),
}
REDUCTIONS: dict[str, Callable[[Array, bool], Array]] = {
    "sum": lambda x, keep: x.sum(-1, keepdims=keep),
    "max": lambda x, keep: x.max(-1, keepdims=keep),
    "softmax": lambda x, keep: np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=keep),
    "var": lambda x, keep: x.var(-1, keepdims=keep),
}


def met(parts: str, reduction: str, turned: bool) -> Function:
    """Two parts of the rows, or of the columns, that meet each other and a reduction."""

    def function(x: Array) -> Array:
        rows = x.T if turned else x
        a, b = PARTS[parts](rows, rows.shape[-1])
        found = REDUCTIONS[reduction](rows, parts != "numbers") - a * b
        return found.T if turned else found

    return function


@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_rows_meet(parts: str, reduction: str, turned: bool) -> None:
    shape = (6, 4) if turned else (4, 6)
    graph = fuser.trace(met(parts, reduction, turned), fuser.spec(shape)).graph
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    feeds = {graph.inputs[0].name: x}
    (want,) = evaluate(graph, feeds, float64=True).values()
    for name, target in TARGETS.items():
        cut = partition(graph, target, Options())
        (found,) = run_partition(cut, feeds, target).values()
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("size", [5, 6, 300, 9000])
def test_ends_of_a_row_beside_its_sum(size: int) -> None:
    """The trapezoid rule, at sizes of one tile and of several chunks."""

    def trapezoid(x: Array) -> Array:
        return x.sum() - (x[0] + x[-1]) * np.float32(0.5)

    x = np.random.default_rng(4).standard_normal(size).astype(np.float32)
    found = fuser.jit(trapezoid, device="cpu")(x)
    want = x.astype(np.float64).sum() - (x[0] + x[-1]) * 0.5
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-4)


def test_parts_beside_reductions_of_two_tensors() -> None:
    """The second reduction of a region has places of its own, and the cuts of the first are none
    of its frame."""

    def function(x: Array, y: Array) -> tuple[Array, Array]:
        return x.sum(0) * x[1], np.maximum(y.max(0), (y[1] - y[1]) * y[0])

    shape = (2, 2, 31)
    graph = fuser.trace(function, fuser.spec(shape), fuser.spec(shape)).graph
    rng = np.random.default_rng(5)
    feeds = {value.name: rng.standard_normal(shape, np.float32) for value in graph.inputs}
    want = evaluate(graph, feeds, float64=True)
    for name, target in TARGETS.items():
        cut = one_region(graph, "reduce")
        for output, found in run_partition(cut, feeds, target).items():
            np.testing.assert_allclose(found, want[output], rtol=1e-5, atol=1e-5, err_msg=name)
