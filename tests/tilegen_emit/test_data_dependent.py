"""Sort and scatter, and long rows of scans and extremes."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.tilegen.emit import scatter
from fuser.tilegen.schedule import Schedule
from tests.interpreted import TARGETS, check, one_region
from tests.tilegen_emit.graphs import Model

ALL = pytest.mark.parametrize("target", TARGETS)
CHUNKS = Schedule(blocks=(("rows", 2), ("columns", 1), ("total", 16)))


@ALL
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape,axis", [((7,), 0), ((3, 100), 1), ((17, 4), 0), ((2, 1), 1)])
def test_sort(target: str, descending: bool, shape: tuple[int, ...], axis: int) -> None:
    for integers in (False, True):
        m = Model()
        x = m.input(*shape)
        if integers:  # with ties
            x = m.b.cast(m.b.map("mul", x, 3.0), dtypes.i32)
        m.output(*m.b.emit_node("sort", x, axis=axis, descending=descending).outputs)
        partition = one_region(m.graph, "sort")
        check(partition, m.feeds, TARGETS[target])
        check(partition, m.feeds, TARGETS[target], Schedule(blocks=(("m", 8), ("n", 16))))


@ALL
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter(target: str, reduction: str, axis: int) -> None:
    m = Model()
    data, indices = m.input(6, 9, 4), m.integers(-6, 6, 3, 2)
    shape = (*data.shape[:axis], 3, 2, *data.shape[axis + 1 :])
    m.output(m.b.emit("scatter", data, indices, m.input(*shape), axis=axis, reduction=reduction))
    check(one_region(m.graph, "scatter"), m.feeds, TARGETS[target])


@ALL
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter_of_many(target: str, reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "MOST_COMPARISONS", 10)
    m = Model()
    data, indices = m.input(5, 40), m.integers(-40, 40, 12)
    repeat = reduction == "add"
    m.feeds["x1"] = m.random.choice(np.arange(-20, 20), 12, replace=repeat).astype(np.int64)
    m.output(m.b.emit("scatter", data, indices, m.input(5, 12), axis=1, reduction=reduction))
    check(one_region(m.graph, "scatter"), m.feeds, TARGETS[target])


@ALL
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
def test_extremes_of_long_rows(target: str, op: str, last: bool) -> None:
    m = Model()
    small = m.b.cast(m.b.map("mul", m.input(5, 100), 2.0), dtypes.i32)
    m.output(m.b.emit(op, small, axis=1, select_last=last), m.b.emit(op, m.input(5, 100), axis=1))
    check(one_region(m.graph, "reduce"), m.feeds, TARGETS[target], CHUNKS)


@ALL
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sum_of_long_rows(target: str, exclusive: bool, reverse: bool) -> None:
    m = Model()
    x = m.integers(0, 9, 5, 100)
    m.output(m.b.emit("cumsum", x, axis=1, exclusive=exclusive, reverse=reverse))
    check(one_region(m.graph, "scan"), m.feeds, TARGETS[target], CHUNKS)
