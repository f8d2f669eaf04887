"""Concats of very many tensors."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.graph.evaluate import evaluate
from fuser.partition import partition
from fuser.partition.passes.split_concats import MOST_OPERANDS, split_concats
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.options import CompileOptions
from tests.partition.support import CPU, Net, check


def joined(count: int, function: str = "") -> Net:
    """Rows of different lengths, joined."""
    net = Net()
    parts = [net.input(f"x{i}", 3, 1 + i % 4) for i in range(count)]
    b = net.named("join")
    if function:
        parts = [b.map(function, part) for part in parts]
    net.finish(b.map("sin", b.emit("concat", *parts, axis=1)))
    return net


@pytest.mark.parametrize("count", [MOST_OPERANDS, MOST_OPERANDS + 1, 73, 250, 5000])
def test_operands_of_a_concat_are_few(count: int) -> None:
    graph = split_concats(joined(count).graph)
    concats = [node for node in graph.nodes if node.op == "concat"]
    assert max(len(node.inputs) for node in concats) <= MOST_OPERANDS
    assert min(len(node.inputs) for node in concats) > 1
    assert (len(concats) == 1) == (count <= MOST_OPERANDS)


@pytest.mark.parametrize("function", ["", "cos"])
def test_no_kernel_looks_through_all(function: str) -> None:
    net = joined(150, function)
    cut = partition(net.graph, CPU)
    check(net.graph, cut)
    for region in cut.regions:
        pieces = sum(len(node.inputs) for node in region.nodes if node.op == "concat")
        assert pieces <= MOST_OPERANDS


def test_a_concat_of_250_tensors(rng: np.random.Generator) -> None:
    graph = joined(250).graph
    feeds = {
        value.name: rng.standard_normal(value.type.static_shape).astype(np.float32)
        for value in graph.inputs
    }
    (expected,) = evaluate(graph, feeds, float64=True).values()
    (found,) = compile_graph(graph, CompileOptions(device="cpu")).run(feeds).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
