"""Pinned and forbidden pairs of nodes: the cut is as asked, or says why not; results stay right."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

import fuser
from fuser.errors import UsageError
from fuser.graph import compose
from fuser.graph.ir import Graph
from fuser.partition import Options, Partition, partition
from fuser.partition.forced import computed
from fuser.pipeline.fusion import choice
from tests.interpreted import check as check_emitted
from tests.partition.random_graphs import random_graph
from tests.partition.support import SM_90A, TARGETS, Net, check, kinds, random_feeds

Pair = tuple[str, str]


def named_graph(seed: int) -> Graph:
    """A random graph whose primitives came, in ones and twos, from named operators."""
    graph = random_graph(seed, steps=8 + seed % 20)
    draw = random.Random(seed)
    name = ""
    for number, node in enumerate(graph.nodes):
        name = name if name and draw.random() < 0.3 else f"op{number}"
        node.origin = (name,)
    return graph


def together(cut: Partition) -> list[Pair]:
    """The pairs that a region computes both of."""
    sets = (sorted(computed(region.nodes)) for region in cut.regions)
    return sorted({(a, b) for names in sets for a in names for b in names if a < b})


def apart(cut: Partition) -> list[Pair]:
    """The nodes at the ends of refused fusions."""
    ends = {(r.sources[0], r.readers[0]) for r in cut.refusals if r.sources and r.readers}
    return sorted((a, b) for a, b in ends if a != b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(8))
def test_forbidden_pairs_are_in_no_region(seed: int, target: str) -> None:
    graph, draw = named_graph(seed), random.Random(seed)
    pairs = together(partition(graph, TARGETS[target]))
    chosen = tuple(draw.sample(pairs, min(len(pairs), 1 + seed % 3)))
    cut = partition(graph, TARGETS[target], Options(forbid=chosen))
    assert not set(chosen) & set(together(cut))
    check(graph, cut)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(8))
def test_pinned_pairs_are_in_one_region_or_an_error_says_why_not(seed: int, target: str) -> None:
    graph, draw = named_graph(seed), random.Random(seed)
    free = partition(graph, TARGETS[target])
    kept = draw.sample(together(free), min(2, len(together(free))))
    for pair in kept:  # what is so already can be so
        assert pair in together(partition(graph, TARGETS[target], Options(pin=(pair,))))
    for pair in draw.sample(apart(free), min(2, len(apart(free)))):
        try:
            cut = partition(graph, TARGETS[target], Options(pin=(pair,)))
        except UsageError as error:
            assert "cannot be one kernel: " in str(error)
            continue
        assert tuple(sorted(pair)) in together(cut)
        check(graph, cut)


@pytest.mark.parametrize("seed", range(4))
def test_pinned_and_forbidden_regions_are_kernels(seed: int) -> None:
    graph, draw = named_graph(seed), random.Random(seed)
    target = TARGETS["cpu"]
    free = partition(graph, target)
    forbid = tuple(draw.sample(together(free), min(1, len(together(free)))))
    check_emitted(partition(graph, target, Options(forbid=forbid)), random_feeds(graph), target)
    for pair in apart(free):
        try:
            cut = partition(graph, target, Options(pin=(pair,)))
        except UsageError:
            continue
        check_emitted(cut, random_feeds(graph), target, tolerance=1e-3)
        break


def partly_read() -> tuple[Net, Graph]:
    """relu is an output of the model and the left operand of a matmul; its tanh is another."""
    net = Net()
    x = net.input("x", 8, 16)
    y = net.named("relu").map("max", x, 0.0)
    net.b.origin = ("product",)
    z = net.b.matmul(y, net.weights(16, 4))
    return net, net.finish(y, z, net.named("tanh").map("tanh", y))


def test_a_map_that_is_written_anyway_is_computed_again_for_its_pin() -> None:
    _, graph = partly_read()
    assert kinds(partition(graph, SM_90A)) == ["map", "contraction"]
    cut = partition(graph, SM_90A, Options(pin=(("relu", "product"),)))
    check(graph, cut)
    assert together(cut) == [("product", "relu"), ("relu", "tanh")]
    assert len({value.name for value in cut.graph.values()}) == len(list(cut.graph.values()))


def test_a_node_that_another_region_took_is_kept_for_its_pin() -> None:
    """The sum of two matmuls follows the first of them, unless the second is pinned to it."""
    net = Net()
    x, y = net.input("x", 8, 16), net.input("y", 8, 16)
    net.b.origin = ("one",)
    one = net.b.matmul(x, net.weights(16, 4))
    net.b.origin = ("two",)
    two = net.b.matmul(y, net.weights(16, 4))
    graph = net.finish(net.named("sum").map("add", one, two))
    took = {name for name in ("one", "two") if ("sum", name) in mirrored(partition(graph, SM_90A))}
    assert len(took) == 1
    for name in ("one", "two"):
        cut = partition(graph, SM_90A, Options(pin=(("sum", name),)))
        check(graph, cut)
        assert ("sum", name) in mirrored(cut)


def mirrored(cut: Partition) -> set[Pair]:
    found = together(cut)
    return {*found, *((b, a) for a, b in found)}


def test_what_attention_is_made_of_may_be_kept_apart() -> None:
    net = Net()
    q, k, v = (net.input(name, 2, 8, 16) for name in "qkv")
    net.b.origin = ("scores",)
    scores = net.b.matmul(q, net.b.transpose(k, (0, 2, 1)))
    net.b.origin = ("softmax",)
    weights = compose.softmax(net.b, scores, [2])
    net.b.origin = ("values",)
    graph = net.finish(net.b.matmul(weights, v))
    assert kinds(partition(graph, SM_90A)) == ["attention"]
    cut = partition(graph, SM_90A, Options(forbid=(("scores", "softmax"),)))
    check(graph, cut)
    assert "attention" not in kinds(cut) and ("scores", "softmax") not in together(cut)
    assert "forbidden" in {refusal.code for refusal in cut.refusals}


def test_matmuls_that_would_be_merged_may_be_kept_apart() -> None:
    net = Net()
    x = net.input("x", 8, 16)
    parts = []
    for name in ("q", "k", "v"):
        net.b.origin = (name,)
        y = net.b.matmul(x, net.weights(16, 16))
        net.b.origin = (f"{name}_next",)
        parts.append(net.b.matmul(y, net.weights(16, 4)))
    graph = net.finish(*parts)
    assert {("k", "q"), ("k", "v"), ("q", "v")} <= set(together(partition(graph, SM_90A)))
    cut = partition(graph, SM_90A, Options(forbid=(("q", "v"),)))
    check(graph, cut)
    assert ("k", "q") in together(cut) and ("q", "v") not in together(cut)


def test_wishes_that_cannot_be() -> None:
    net, graph = partly_read()
    for wish, said in (
        (Options(pin=(("product", "tanh"),)), "cannot be one kernel: "),
        (Options(pin=(("rel", "product"),)), "no node 'rel' to pin; did you mean 'relu'?"),
        (Options(forbid=(("nowhere", "product"),)), "no node 'nowhere' to forbid"),
        (Options(pin=(("relu", "tanh"),), forbid=(("tanh", "relu"),)), "pinned and forbidden"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            partition(graph, SM_90A, wish)
    merged = net.named("relu").map("neg", graph.outputs[0])
    assert merged.node is not None
    merged.node.origin = ("relu", "tanh")
    graph.outputs[2] = merged
    with pytest.raises(UsageError, match="became one operation"):
        partition(graph, SM_90A, Options(forbid=(("relu", "tanh"),)))


def test_what_is_pinned_to_movement_says_so() -> None:
    net = Net()
    y = net.named("exp").map("exp", net.input("x", 8, 16))
    graph = net.finish(net.named("turn").transpose(y, (1, 0)))
    with pytest.raises(UsageError, match="'turn' is only constants or movement"):
        partition(graph, SM_90A, Options(pin=(("exp", "turn"),)))


@pytest.mark.parametrize("pairs", ["ab", [("a",)], [("a", "a")], [(1, 2)], [("a", "b", "c")]])
def test_what_is_no_pair(pairs: Any) -> None:
    with pytest.raises(UsageError, match="is no pair to pin"):
        fuser.Fusion(pin=pairs)


def test_keys_of_caches_hold_the_pairs() -> None:
    forced = fuser.Fusion(forbid=[["a", "b"]])  # type: ignore[list-item]
    assert forced == fuser.Fusion(forbid=(("a", "b"),)) and choice(forced) != choice(True)
    assert (
        len({json.dumps(choice(f)) for f in (True, False, forced, fuser.Fusion((("a", "b"),)))})
        == 4
    )
