"""Whatever the graph, the cut covers it, its regions are convex, and they compute the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import networkx as nx
import pytest

from fuser.graph.evaluate import evaluate
from fuser.graph.work import flops
from fuser.partition import Options, partition
from fuser.partition.cost import total_flops
from fuser.partition.dag import Needs, Order, is_convex, ordered
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
    assert [total_flops(region.nodes) for region in cut.regions] == [2 * 3 * 5 * 7]
    assert cut.regions[0].bytes() == 4 * (3 * 5 + 5 * 7 + 3 * 7)


def _needs_of(edges: dict[int, set[int]], merged: dict[int, int]) -> Callable[[int], set[int]]:
    """Edges between items that have merged: each node belongs to the item `merged` says."""

    def sources(item: int) -> set[int]:
        own = {node for node, into in merged.items() if into == item}
        return {merged[source] for node in own for source in edges[node]} - {item}

    return sources


def test_needs_follow_merged_items() -> None:
    """0 <- 1, 2 <- 3: after 1 and 2 merge, 3 needs 0."""
    merged = {node: node for node in range(4)}
    order = Order(range(4), _needs_of({0: set(), 1: {0}, 2: set(), 3: {2}}, merged))
    assert not Needs(order, 3, 100).may_include(0)
    order.merge((1, 2), 1)
    merged[2] = 1
    assert Needs(order, 3, 100).may_include(0)
    assert not Needs(order, 1, 100).may_include(3)


@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_items_that_merge_is_that_of_a_search(seed: int) -> None:
    """Merges at random, wherever no item between closes a cycle, against networkx."""
    draw = random.Random(seed)
    count = 60
    edges = {
        node: {draw.randrange(max(0, node - 12), node) for _ in range(draw.randrange(3)) if node}
        for node in range(count)
    }
    merged = {node: node for node in range(count)}
    sources = _needs_of(edges, merged)
    order = Order(range(count), sources)
    merges = 0
    for _ in range(70):
        a, b = draw.sample(sorted(set(merged.values())), 2)
        items = set(merged.values())
        graph = nx.DiGraph([(source, item) for item in items for source in sources(item)])
        graph.add_nodes_from(items)
        assert all(order.is_before(x, y) for x, y in graph.edges)
        first, last = (a, b) if order.is_before(a, b) else (b, a)
        assert Needs(order, last, 1000).may_include(first) == nx.has_path(graph, first, last)
        direct = graph.has_edge(first, last)
        if direct:
            graph.remove_edge(first, last)
        assert order.detours(last, (first,)) == nx.has_path(graph, first, last)
        assert not order.detours(first, (last,))
        if not order.detours(last, (first,)):
            order.merge((a, b), a)
            merged.update({node: a for node, into in merged.items() if into == b})
            merges += 1
    assert merges > 10


def test_what_is_far_away_may_be_needed() -> None:
    order = Order(range(100), lambda item: [item - 1] if item else [])
    assert Needs(order, 99, 1000).may_include(0)
    loose = Order(range(100), lambda item: [item - 1] if item not in (0, 50) else [])
    assert not Needs(loose, 99, 1000).may_include(49)
    assert Needs(loose, 99, 10).may_include(49)


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
