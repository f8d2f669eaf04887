"""Whatever the graph, the cut covers it, its regions are convex, and they compute the same."""

from __future__ import annotations

import pytest

from fuser.graph.evaluate import evaluate
from fuser.partition import Options, partition
from fuser.partition.cost import flops
from fuser.partition.dag import Ancestors, is_convex, ordered
from fuser.partition.text import region_flops
from tests.interpreted import check as check_emitted
from tests.partition.random_graphs import random_graph
from tests.partition.support import SM_90A, TARGETS, Net, check, random_feeds


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_keep_their_meaning(seed: int, target: str) -> None:
    graph = random_graph(seed, steps=8 + seed % 40)
    check(graph, partition(graph, TARGETS[target]))
    check(graph, partition(graph, TARGETS[target], Options(no_fusion=True)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_every_region_has_a_tile_program(seed: int, target: str) -> None:
    """The emitters can follow whatever the partitioner puts together."""
    graph = random_graph(seed, steps=8 + seed % 12)
    cut = partition(graph, TARGETS[target])
    check_emitted(cut, random_feeds(graph), TARGETS[target], tolerance=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_fusion_needs_fewer_regions_and_fewer_bytes(seed: int) -> None:
    graph = random_graph(seed, steps=30)
    fused = partition(graph, SM_90A)
    alone = partition(graph, SM_90A, Options(no_fusion=True))
    assert len(fused.regions) <= len(alone.regions)
    assert sum(r.bytes() for r in fused.regions) <= sum(r.bytes() for r in alone.regions)


def test_the_given_graph_is_not_changed() -> None:
    graph = random_graph(7, steps=30)
    before = [(node.op, node.inputs, node.outputs) for node in graph.nodes]
    feeds = random_feeds(graph)
    expected = evaluate(graph, feeds)
    partition(graph, SM_90A)
    assert before == [(node.op, node.inputs, node.outputs) for node in graph.nodes]
    assert all((evaluate(graph, feeds)[k] == v).all() for k, v in expected.items())


def test_the_cut_is_the_same_every_time() -> None:
    graph = random_graph(11, steps=40)
    one, two = partition(graph, SM_90A), partition(graph, SM_90A)
    assert [[n.op for n in r.nodes] for r in one.regions] == [
        [n.op for n in r.nodes] for r in two.regions
    ]
    assert one.refusals == two.refusals


def test_flops_of_a_product_are_two_per_term() -> None:
    net = Net()
    x = net.input("x", 3, 5)
    y = net.linear(x, 7)
    cut = partition(net.finish(y), SM_90A)
    assert y.node is not None
    assert flops(y.node) == 2 * 3 * 5 * 7
    assert [region_flops(region) for region in cut.regions] == [2 * 3 * 5 * 7]
    assert cut.regions[0].bytes() == 4 * (3 * 5 + 5 * 7 + 3 * 7)


def test_ancestors_follow_merged_groups() -> None:
    """a -> b, c -> d: after b and c merge, d depends on a."""
    net = Net()
    x, y = net.input("x", 4), net.input("y", 4)
    a = net.b.map("exp", x)
    b = net.b.map("exp", a)
    c = net.b.map("neg", y)
    d = net.b.map("neg", c)
    dag = Ancestors(net.finish(b, d))
    for group, value in enumerate((a, b, c, d)):
        assert value.node is not None
        dag.add(group, [value.node])
    assert not dag.depends(3, dag.members[0])
    dag.merge(1, 2)
    assert dag.depends(3, dag.members[0])
    assert not dag.depends(0, dag.members[1])


def test_a_set_with_a_detour_is_not_convex() -> None:
    net = Net()
    x = net.input("x", 4)
    a = net.b.map("exp", x)
    b = net.b.map("neg", a)
    c = net.b.map("add", a, b)
    graph = net.finish(c)
    nodes = [value.node for value in (a, b, c) if value.node is not None]
    assert is_convex(graph, nodes)
    assert not is_convex(graph, [nodes[0], nodes[2]])


def test_order_breaks_ties_by_key() -> None:
    assert ordered("abc", {"a": "b"}, {"a": 0, "b": 2, "c": 1}) == ["c", "b", "a"]
