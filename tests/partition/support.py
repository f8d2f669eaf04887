"""Run a Partition region by region in NumPy, and small graphs to cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.base.target import SM_90A, Target, cpu_target
from fuser.dtypes import DType
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, Node, TensorType, Value
from fuser.graph.ops.registry import primitive
from fuser.partition import Partition, Region
from fuser.partition.dag import is_convex
from tests.networks import check_regions

Array = np.ndarray[Any, Any]
CPU = cpu_target("x86-64-v4", "", units=2, vector_bits=512)
TARGETS: dict[str, Target] = {"cpu": CPU, "cuda": SM_90A}


class Net:
    """A graph under construction: `b` is its builder, `weights` draws seeded constants."""

    def __init__(self, name: str = "net") -> None:
        self.graph = Graph(name)
        self.b = Builder(self.graph)
        self._rng = np.random.default_rng(0)

    def input(self, name: str, *shape: int, dtype: DType = dtypes.f32) -> Value:
        return self.graph.add_input(name, TensorType(dtype, shape))

    def weights(self, *shape: int) -> Value:
        array = self._rng.standard_normal(shape) / np.sqrt(shape[0])
        return self.b.constant(array.astype(np.float32))

    def linear(self, x: Value, width: int, bias: bool = False) -> Value:
        self.b.origin = (f"linear{len(self.graph.nodes)}",)
        y = self.b.matmul(x, self.weights(x.shape[-1], width))
        return self.b.map("add", y, self.weights(width)) if bias else y

    def named(self, name: str) -> Builder:
        """The builder, with what it emits next coming from the ONNX node `name`."""
        self.b.origin = (name,)
        return self.b

    def finish(self, *outputs: Value) -> Graph:
        self.graph.outputs = list(outputs)
        self.graph.output_names = [f"out{i}" for i in range(len(outputs))]
        self.graph.verify()
        return self.graph


def kinds(cut: Partition) -> list[str]:
    return [region.kind for region in cut.regions]


def codes(cut: Partition) -> set[str]:
    return {refusal.code for refusal in cut.refusals}


def ops(region: Region) -> list[str]:
    return [node.op for node in region.nodes]


def run_regions(cut: Partition, feeds: dict[str, Array]) -> dict[str, Array]:
    """The outputs, computed region by region from each region's inputs alone."""
    memory: dict[Value, Array] = {value: feeds[value.name] for value in cut.graph.inputs}
    for node in cut.graph.nodes:
        if node.op == "constant":
            memory[node.output] = node.attrs["value"]
    for region in cut.regions:
        local = {value: memory[value] for value in region.inputs}
        for node in region.nodes:
            results = primitive(node.op).evaluate([local[v] for v in node.inputs], node.attrs)
            local.update(zip(node.outputs, results, strict=True))
        for value in region.outputs:
            assert value not in memory, f"{value} is written twice"
            memory[value] = local[value]
    return {
        name: memory[value]
        for name, value in zip(cut.graph.output_names, cut.graph.outputs, strict=True)
    }


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in graph.inputs:
        if value.dtype.is_float:
            feeds[value.name] = rng.standard_normal(value.shape).astype(value.dtype.numpy)
        else:
            feeds[value.name] = rng.integers(0, 2, value.shape).astype(value.dtype.numpy)
    return feeds


def check(graph: Graph, cut: Partition, tolerance: float = 1e-4) -> None:
    """The cut covers the graph, its regions are convex, and they compute the same numbers."""
    covered: set[Node] = {node for region in cut.regions for node in region.nodes}
    for node in cut.graph.nodes:
        assert node.op == "constant" or node in covered, f"{node} is in no region"
    for region in cut.regions:
        assert region.outputs, f"{region.name} writes nothing"
        assert is_convex(cut.graph, region.nodes) or _recomputes(cut, region.nodes), region.name
        positions = [cut.graph.nodes.index(node) for node in region.nodes]
        assert positions == sorted(positions)
    check_regions(cut)
    feeds = random_feeds(graph)
    expected = evaluate(graph, feeds)
    found = run_regions(cut, feeds)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(
            found[name].astype(np.float64), array.astype(np.float64), tolerance, tolerance
        )


def _recomputes(cut: Partition, nodes: tuple[Node, ...]) -> bool:
    """Whether nodes of the region are also in others: then a path may leave through a copy."""
    return any(
        node in region.nodes for region in cut.regions for node in nodes if region.nodes != nodes
    )
