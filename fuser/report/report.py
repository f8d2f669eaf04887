"""Counts before fusion, and the least there can be. The records are the runtime's, which loads them
with a plan."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.graph.ir import Graph, SourceNode, Value
from fuser.runtime.plan_report import (
    SCHEMA,
    Comparison,
    KernelReport,
    RegionReport,
    Report,
    Tuned,
)
from fuser.runtime.savings import Saving, Traffic

__all__ = [
    "SCHEMA", "Comparison", "KernelReport", "RegionReport", "Report", "Saving", "Traffic", "Tuned",
]  # fmt: skip


def nodes_before(graph: Graph) -> list[SourceNode]:
    """The imported nodes that would each be a kernel."""
    return [node for node in graph.source if node.kind == "compute"]


def bytes_before(graph: Graph) -> int:
    """Traffic if every compute node ran alone."""
    return sum(
        tensor.bytes for node in nodes_before(graph) for tensor in (*node.inputs, *node.outputs)
    )


def bytes_floor(graph: Graph, constants: Sequence[Value]) -> int:
    """Inputs, `constants` (the weights that kernels read) and outputs, each once."""
    once = dict.fromkeys((*graph.inputs, *constants, *graph.outputs))
    return sum(value.type.bytes for value in once)
