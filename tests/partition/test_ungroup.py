"""A region that no emitter can express is taken apart, and the partition says so."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.base.target import Target
from fuser.errors import LoweringError
from fuser.graph import compose
from fuser.graph.evaluate import evaluate
from fuser.partition import Partition, Region, partition
from fuser.partition.ungroup import is_divisible, ungroup
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.options import CompileOptions
from fuser.report.partition_text import explain
from fuser.tilegen import emit as emitters
from fuser.tilegen.program import TileProgram
from tests.partition.support import CPU, Net, check, kinds


def _siblings() -> Net:
    """Two softmaxes of different tensors, which become one region."""
    net = Net()
    for name in ("a", "b"):
        net.finish(*net.graph.outputs, compose.softmax(net.named(name), net.input(name, 6, 8), [1]))
    return net


def test_siblings_come_apart_whole() -> None:
    net = _siblings()
    cut = partition(net.graph, CPU)
    (region,) = cut.regions
    parts = ungroup(cut, region, "too wide")
    assert cut.regions == parts
    assert kinds(cut) == ["reduce", "reduce"]
    assert [part.outputs for part in parts] == [(value,) for value in cut.graph.outputs]
    assert [(r.code, r.bytes_lost) for r in cut.refusals] == [("not-emitted", 0)]
    assert "too wide" in explain(cut)
    check(net.graph, cut)


def test_what_hangs_together_becomes_nodes() -> None:
    net = Net()
    x = net.input("x", 6, 8)
    graph = net.finish(compose.softmax(net.named("softmax"), x, [1]))
    cut = partition(graph, CPU)
    (region,) = cut.regions
    parts = ungroup(cut, region, "why")
    assert [len(part.outputs) for part in parts] == [1] * len(parts)
    assert {part.kind for part in parts} == {"map", "reduce"}
    assert len({part.id for part in parts}) == len(parts)
    assert all(refusal.bytes_lost > 0 for refusal in cut.refusals)
    check(graph, cut)


def test_slow_kernels_become_halves() -> None:
    """Where only one value crosses, as near to the middle as that is."""
    net = Net()
    x = net.input("x", 6, 8)
    b = net.named("chain")
    for _ in range(10):
        x = b.map("add", b.map("mul", x, b.map("sin", x)), x)
    graph = net.finish(x)
    cut = partition(graph, CPU)
    (region,) = cut.regions
    first, second = ungroup(cut, region, "too slow", "slow-kernel")
    assert [len(part.nodes) for part in (first, second)] == [15, 15]
    assert second.inputs == first.outputs and len(first.outputs) == 1
    assert [(r.code, r.reason) for r in cut.refusals] == [("slow-kernel", "too slow")]
    check(graph, cut)
    while any(ungroup(cut, region, "too slow", "slow-kernel") for region in tuple(cut.regions)):
        check(graph, cut)
    assert {len(region.nodes) for region in cut.regions} == {1}


def test_slow_kernels_with_further_outputs() -> None:
    """An output of the first half that nothing behind it reads would be a second one of it."""
    net = Net()
    x = net.input("x", 6, 8)
    b = net.named("chain")
    early = b.map("cos", x)
    for _ in range(6):
        x = b.map("sin", x)
    graph = net.finish(early, x)
    cut = partition(graph, CPU)
    (region,) = cut.regions
    assert is_divisible(region)
    ungroup(cut, region, "too slow", "slow-kernel")
    check(graph, cut)
    assert all(len(region.outputs) == 1 for region in cut.regions)


def test_slow_siblings_become_two_groups() -> None:
    net = Net()
    for name in "abcde":
        x = net.input(name, 6, 8)
        net.finish(*net.graph.outputs, compose.softmax(net.named(name), x, [1]))
    cut = partition(net.graph, CPU)
    (region,) = cut.regions
    parts = ungroup(cut, region, "too slow", "slow-kernel")
    assert sorted(len(part.outputs) for part in parts) == [2, 3]
    check(net.graph, cut)


def test_a_slow_product_keeps_its_prologue_or_epilogue() -> None:
    net = Net()
    x, w = net.input("x", 6, 8), net.input("w", 8, 8)
    b = net.named("product")
    y = b.matmul(x, w)
    for _ in range(5):
        y = b.map("sin", y)
    graph = net.finish(y)
    cut = partition(graph, CPU)
    (region,) = cut.regions
    parts = ungroup(cut, region, "too slow", "slow-kernel")
    assert kinds(cut) == ["contraction", "map"]
    assert [len(part.nodes) for part in parts] == [3, 3]
    assert len(parts[0].anchors) == 1
    check(graph, cut)


def test_a_single_node_comes_apart_from_half_of_its_movement() -> None:
    net = Net()
    x = net.input("x", 6, 8)
    b = net.named("moves")
    y = b.reshape(b.transpose(x, (1, 0)), (6, 8))
    graph = net.finish(b.map("sin", b.transpose(y, (1, 0))))
    cut = partition(graph, CPU)
    (region,) = cut.regions
    parts = ungroup(cut, region, "why")
    assert kinds(cut) == ["map", "map"]
    assert parts[0].outputs == parts[1].inputs
    check(graph, cut)


def test_a_single_node_stays() -> None:
    net = Net()
    graph = net.finish(net.b.map("sin", net.input("x", 4)))
    cut = partition(graph, CPU)
    assert ungroup(cut, cut.regions[0], "why") == []
    assert len(cut.regions) == 1
    assert not cut.refusals
    assert not is_divisible(cut.regions[0])


def test_emission_falls_back_to_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the emitter refuses a region of several reductions, its parts are emitted instead."""
    whole = emitters.emit

    def emit(region: Region, cut: Partition, target: Target) -> tuple[TileProgram, ...]:
        if len(region.outputs) > 1:
            raise LoweringError("two outputs")
        return whole(region, cut, target)

    monkeypatch.setattr(emitters, "emit", emit)
    net = _siblings()
    cut = partition(net.graph, CPU)
    (region,) = cut.regions
    programs = emitters.emit_or_ungroup(region, cut, CPU)
    assert [program.region for program in programs] == cut.regions
    assert len(programs) == 2
    assert "two outputs" in explain(cut)


def test_a_node_that_cannot_be_emitted_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(region: Region, cut: Partition, target: Target) -> tuple[TileProgram, ...]:
        raise LoweringError("no way")

    monkeypatch.setattr(emitters, "emit", emit)
    cut = partition(_siblings().graph, CPU)
    with pytest.raises(LoweringError, match="no way"):
        emitters.emit_or_ungroup(cut.regions[0], cut, CPU)


def test_rows_beside_a_turned_softmax(rng: np.random.Generator) -> None:
    """The maximum of one tensor beside the transposed softmax of another."""
    net = Net()
    w = net.input("w", 29, 38, dtype=dtypes.f64)
    x = net.input("x", 29, 38)
    low = net.named("max").reduce("reduce_max", w, [0])
    turned = net.named("turn").transpose(compose.softmax(net.named("softmax"), x, [0]), (1, 0))
    graph = net.finish(low, turned)
    feeds = {
        "w": rng.standard_normal((29, 38)),
        "x": rng.standard_normal((29, 38)).astype(np.float32),
    }
    expected = evaluate(graph, feeds, float64=True)
    plan = compile_graph(graph, CompileOptions(device="cpu"))
    found = plan.run(feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=1e-7)
    assert plan.launches == 1
