"""Layouts, and the graphs of ranks: what they compute together is what the whole graph computes."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuser import dtypes
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.passes import run_passes
from fuser.graph.sharding.layout import Layout, Split, groups_of, join, normal, part, regroup, whole
from fuser.graph.sharding.shard import Sharded, collectives
from fuser.graph.sharding.wishes import Marks
from tests.random_graphs.draw import draw
from tests.sharding.ranks import all_ranks, evaluate_ranks, random_layout

HALVES = Split(2, (0, 1))


def test_parts_make_up_the_whole() -> None:
    rng = random.Random(0)
    for ranks in (2, 3, 4, 6):
        for _ in range(100):
            shape = tuple(rng.choice((1, 2, 6, 12)) for _ in range(rng.randint(0, 3)))
            array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
            layout = random_layout(rng, shape, ranks)
            parts = [part(array, layout, rank) for rank in range(ranks)]
            assert {p.shape for p in parts} == {layout.local}
            np.testing.assert_array_equal(join(parts, layout), array)


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        ([[(12, HALVES)]], (4, 3), [[(4, HALVES)], [(3, None)]]),  # heads of their own
        ([[(4, HALVES)], [(3, None)]], (12,), [[(12, HALVES)]]),
        ([[(3, None)], [(4, HALVES)]], (12,), [[(3, None), (4, HALVES)]]),  # Q, K, V
        ([[(3, None), (4, HALVES)]], (3, 4), [[(3, None)], [(4, HALVES)]]),
        ([[(12, HALVES)]], (3, 4), None),  # a part ends within a row
        ([[(4, HALVES)], [(3, None)]], (1, 2, 6), [[], [(2, HALVES)], [(6, None)]]),
    ],
)
def test_reshapes_keep_parts_or_say_that_they_cannot(
    axes: list[list[tuple[int, Split | None]]], shape: tuple[int, ...],
    expected: list[list[tuple[int, Split | None]]] | None,
) -> None:  # fmt: skip
    found = regroup([normal(axis) for axis in axes], shape)
    assert found == (None if expected is None else tuple(map(tuple, expected)))


def test_groups_have_one_rank_of_each_part() -> None:
    columns, rows = Split(2, (0, 1, 0, 1)), Split(2, (0, 0, 1, 1))
    assert groups_of(columns, [rows]) == ((0, 1), (2, 3))
    assert groups_of(rows, [columns]) == ((0, 2), (1, 3))
    assert sorted(groups_of(Split(2, (0, 0, 1, 1)))) == [(0, 2), (1, 3)]  # copies go in order


def _graph(*shapes: tuple[int, ...]) -> tuple[Graph, Builder, list[Value]]:
    graph = Graph("g")
    values = [
        graph.add_input(f"x{i}", TensorType(dtypes.f32, shape)) for i, shape in enumerate(shapes)
    ]
    return graph, Builder(graph, ("node",)), values


def _checked(graph: Graph, marks: Marks) -> list[Sharded]:
    """The ranks, which agree with the graph before and after the graph passes."""
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    expected = evaluate(graph, feeds, float64=True)
    ranks = all_ranks(graph, marks)
    for found in (evaluate_ranks(ranks, feeds), _after_passes(ranks, feeds)):
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-12)
    return ranks


def _after_passes(ranks: list[Sharded], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for rank in ranks:
        rank.graph.verify()
        run_passes(rank.graph, verify=True)
    return evaluate_ranks(ranks, feeds)


def _met(ranks: list[Sharded]) -> Counter[str]:
    found = [[node.op for node in collectives(rank.graph)] for rank in ranks]
    assert all(ops == found[0] for ops in found)
    return Counter(found[0])


def _feed_forward(scatter: bool) -> tuple[Graph, Marks, Value]:
    graph, b, (x,) = _graph((4, 8))
    rng = np.random.default_rng(1)
    up, down = (b.constant(rng.standard_normal(s).astype(np.float32)) for s in ((8, 6), (6, 8)))
    hidden = b.matmul(x, up)
    y = b.map("add", b.matmul(b.map("max", hidden, 0.0), down), 1.0)
    graph.outputs, graph.output_names = [y], ["y"]
    marks = Marks(2)
    assert hidden.node is not None
    marks.uses[hidden.node, up] = Layout((normal([(8, None)]), normal([(6, HALVES)])))
    if scatter:
        marks.results[y] = Layout((normal([(4, HALVES)]), normal([(8, None)])))
    return graph, marks, y


def test_columns_then_rows_take_one_all_reduce() -> None:
    graph, marks, _ = _feed_forward(scatter=False)
    ranks = _checked(graph, marks)
    assert _met(ranks) == {"all_reduce": 1}
    weights = [n.output.shape for n in ranks[0].graph.nodes if n.op == "constant"]
    assert (8, 3) in weights and (3, 8) in weights


def test_a_sum_whose_parts_are_wished_is_scattered() -> None:
    graph, marks, _ = _feed_forward(scatter=True)
    ranks = _checked(graph, marks)
    assert _met(ranks) == {"reduce_scatter": 1}
    assert ranks[0].outputs["y"].local == (2, 8)


def test_an_input_that_only_parts_are_read_of_is_fed_in_parts() -> None:
    graph, b, (x,) = _graph((4, 8))
    y = b.map("exp", x)
    graph.outputs, graph.output_names = [y], ["y"]
    layout = Layout((normal([(4, HALVES)]), normal([(8, None)])))
    ranks = _checked(graph, Marks(2, results={y: layout}))
    assert not _met(ranks)
    assert ranks[0].inputs["x0"] == layout


def test_rows_of_a_table_are_looked_up_where_they_are() -> None:
    graph = Graph("g")
    ids = graph.add_input("ids", TensorType(dtypes.i64, (3, 5)))
    b = Builder(graph, ("node",))
    table = b.constant(np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32))
    y = b.emit("gather", table, ids, axis=0)
    graph.outputs, graph.output_names = [y], ["y"]
    assert y.node is not None
    split = Split(3, (2, 0, 1))
    marks = Marks(3, uses={(y.node, table): Layout((normal([(12, split)]), normal([(4, None)])))})
    ranks = all_ranks(graph, marks)
    feeds = {"ids": np.random.default_rng(1).integers(-12, 12, (3, 5))}
    found = evaluate_ranks(ranks, feeds)["y"]
    np.testing.assert_array_equal(found, evaluate(graph, feeds, float64=True)["y"])
    assert _met(ranks) == {"all_reduce": 1}


def test_a_layout_that_a_node_cannot_have_is_gathered() -> None:
    graph, b, (x,) = _graph((4, 6))
    y = b.emit("cumsum", b.map("exp", x), axis=1)
    graph.outputs, graph.output_names = [y], ["y"]
    assert y.node is not None
    wanted = Layout((normal([(4, None)]), normal([(6, HALVES)])))
    ranks = _checked(graph, Marks(2, results={y.node.inputs[0]: wanted}))
    assert _met(ranks) == {"all_gather": 1}


@settings(
    max_examples=40, derandomize=True, deadline=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.integers(0, 1 << 30))
def test_random_marks_on_random_graphs(seed: int) -> None:
    check_seed(seed)


def check_seed(seed: int) -> Counter[str]:
    """Random marks on a random graph; the collectives of its ranks."""
    drawing = draw(seed)
    rng = random.Random(seed)
    marks = Marks(rng.choice((2, 3, 4)))
    values = [v for node in drawing.graph.nodes for v in node.outputs if 0 not in v.shape]
    for value in rng.sample(values, min(len(values), rng.randint(1, 6))):
        marks.results[value] = random_layout(rng, value.shape, marks.ranks)
    for node in drawing.graph.nodes:
        if node.inputs and rng.random() < 0.1:
            value = rng.choice(node.inputs)
            if 0 not in value.shape:
                marks.uses[node, value] = random_layout(rng, value.shape, marks.ranks)
    ranks = all_ranks(drawing.graph, marks)
    for rank in ranks:
        rank.graph.verify()
    with np.errstate(all="ignore"):
        expected = evaluate(drawing.graph, drawing.feeds, float64=True)
        found = evaluate_ranks(ranks, drawing.feeds)
    for name, array in expected.items():
        assert found[name].shape == array.shape, f"seed {seed}, {name}"
        same = np.isclose(
            found[name].astype(np.float64), array.astype(np.float64), rtol=1e-6, atol=1e-6,
            equal_nan=True,
        )  # fmt: skip
        assert same.all(), f"seed {seed}, {name}: {(~same).sum()} elements differ"
    return _met(ranks)


def test_without_marks_a_rank_has_the_whole_graph() -> None:
    graph, _, y = _feed_forward(scatter=False)
    ranks = _checked(graph, Marks(2))
    assert not _met(ranks) and ranks[1].outputs["y"] == whole(y.shape)
