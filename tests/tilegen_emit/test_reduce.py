"""Rows on chip: softmax, norms, means over outer axes, argmax, running sums, long rows."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import fuser
from fuser import dtypes
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.evaluate import evaluate
from fuser.graph.passes import run_passes
from fuser.partition import Options, partition
from fuser.tilegen.schedule import Schedule
from tests.interpreted import TARGETS, check, one_region, run_partition
from tests.tilegen_emit.graphs import Model

ALL = pytest.mark.parametrize("target", TARGETS)
CHUNKS = Schedule(blocks=(("rows", 2), ("columns", 1), ("total", 32)))


@ALL
@pytest.mark.parametrize("shape", [(2, 5, 100), (9, 129), (1, 1000), (7, 1), (3, 17)])
@pytest.mark.parametrize("schedule", [None, CHUNKS], ids=["whole", "chunks"])
def test_softmax(target: str, shape: tuple[int, ...], schedule: Schedule | None) -> None:
    m = Model()
    m.output(m.softmax(m.input(*shape)))
    check(one_region(m.graph, "reduce"), m.feeds, TARGETS[target], schedule)


@ALL
@pytest.mark.parametrize("schedule", [None, CHUNKS], ids=["whole", "chunks"])
def test_residual_and_norm(target: str, schedule: Schedule | None) -> None:
    m = Model(dtypes.f16)
    total = m.b.map("add", m.input(3, 7, 100), m.input(3, 7, 100))
    normed = m.b.map("add", m.b.map("mul", m.norm(total), m.weight(100)), m.weight(100))
    m.output(total, m.b.reshape(normed, (21, 100)))
    check(one_region(m.graph, "reduce"), m.feeds, TARGETS[target], schedule)


@ALL
@pytest.mark.parametrize("op", ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_axes(target: str, op: str, axes: tuple[int, ...]) -> None:
    m = Model()
    m.output(m.b.map("mul", m.b.emit(op, m.input(5, 6, 7), axes=axes), 0.5))
    check(one_region(m.graph, "reduce"), m.feeds, TARGETS[target])


@ALL
@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_mean_over_pixels(target: str, layout: tuple[int, ...]) -> None:
    m = Model()
    x = m.input(2, 17, 7, 7)
    m.output(m.b.map("mul", m.b.emit("reduce_sum", x, axes=(2, 3)), 1 / 49))
    check(one_region(m.graph, "reduce", {x: layout}), m.feeds, TARGETS[target])


@ALL
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
def test_arg(target: str, op: str, last: bool) -> None:
    m = Model()
    small = m.b.cast(m.b.map("mul", m.input(5, 100), 2.0), dtypes.i32)
    m.output(m.b.emit(op, small, axis=1, select_last=last), m.b.emit(op, m.input(5, 100), axis=1))
    check(one_region(m.graph, "reduce"), m.feeds, TARGETS[target])


@ALL
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sum(target: str, exclusive: bool, reverse: bool) -> None:
    m = Model()
    x = m.integers(0, 9, 3, 17, 4)
    m.output(m.b.emit("cumsum", x, axis=1, exclusive=exclusive, reverse=reverse))
    check(one_region(m.graph, "reduce"), m.feeds, TARGETS[target])


@ALL
def test_outputs_beside_the_operand(target: str) -> None:
    """x - norm(x) and its transpose: neither is made of the operand of the sum, x * x."""
    m = Model()
    x = m.input(5, 6, 7)
    norm = m.b.map("sqrt", m.b.emit("reduce_sum", m.b.map("mul", x, x), axes=(0,)))
    moved = m.b.map("sub", x, m.b.broadcast(norm, (5, 6, 7), (1, 2)))
    m.output(moved, m.b.transpose(moved, (2, 1, 0)))
    check(one_region(m.graph, "reduce"), m.feeds, TARGETS[target])


@ALL
@pytest.mark.parametrize("shape", [(5, 5), (70, 70), (4, 4, 4)])
@pytest.mark.parametrize("schedule", [None, CHUNKS], ids=["whole", "chunks"])
def test_a_square_folded_both_ways(
    target: str, shape: tuple[int, ...], schedule: Schedule | None
) -> None:
    """A tensor and its transpose have one shape, and are folded along one axis number: rows of one
    are columns of the other."""
    m = Model()
    x = m.input(*shape)
    last = len(shape) - 1
    turned = m.b.emit("transpose", x, perm=(*range(last - 1), last, last - 1))
    m.output(
        m.b.emit("reduce_sum", x, axes=(last,)),
        m.b.emit("reduce_sum", turned, axes=(last,)),
        m.b.emit("reduce_max", turned, axes=(last,)),
    )
    check(one_region(m.graph, "reduce"), m.feeds, TARGETS[target], schedule)


TURNED = {
    "of another dtype": (
        "(double[29, 38] w, float[29, 38] x) => (double[38] r, float[38, 29] y)",
        "r = ReduceMax <axes = [0], keepdims = 0> (w)",
    ),
    "that is read again": (
        "(int32[29, 38] w, float[29, 38] x) => (bool[29, 38] r, float[38, 29] y)",
        "m = ReduceMax <axes = [0], keepdims = 0> (w) r = Equal (m, w)",
    ),
}


@pytest.mark.parametrize("name", TURNED)
def test_a_reduction_beside_a_turned_softmax(name: str, rng: np.random.Generator) -> None:
    """Both fold the same axis of tensors of one shape; of one, the rows are turned then."""
    signature, reduction = TURNED[name]
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g {signature} '
        f"{{ {reduction} s = Softmax <axis = 0> (x) y = Transpose <perm = [1, 0]> (s) }}"
    )
    graph = run_passes(import_onnx(model))
    feeds = {
        value.name: rng.integers(-9, 9, (29, 38)).astype(value.dtype.numpy)
        for value in graph.inputs
    }
    want = evaluate(graph, feeds, float64=True)
    for target in TARGETS.values():
        found = run_partition(partition(graph, target, Options()), feeds, target)
        for output in ("r", "y"):
            np.testing.assert_allclose(found[output], want[output], rtol=1e-5)
    for fusion in (True, False):
        native = fuser.compile(model, device="cpu", fusion=fusion).run(feeds)
        for output in ("r", "y"):
            np.testing.assert_allclose(native[output], want[output], rtol=1e-5)
