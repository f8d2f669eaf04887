"""Which outputs of a model are inputs of its next run: by name, or by the node between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fuser.errors import UsageError

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from fuser.frontends.onnx.model import Model

NAMES = (
    ("past_key_values", "present"),
    ("past_key_values", "present_key_values"),
    ("past", "present"),
    ("cache_in", "cache_out"),
)
"""What exporters call the two: in the name of the input, and in its place in that of the output."""

PLACES = {
    ("com.microsoft", "GroupQueryAttention"): ((3, 1), (4, 2)),
    ("com.microsoft", "MultiHeadAttention"): ((6, 1), (7, 2)),
    ("com.microsoft", "Attention"): ((4, 1),),
    ("", "Attention"): ((4, 1), (5, 2)),
    ("", "TensorScatter"): ((0, 0),),
    ("", "Concat"): ((0, 0),),
}
"""(input, output) of operators that hand a cache on."""

CALLED = ("past", "cache", "state")
"""One of these is in the name of an input to which Concat appends from run to run."""


def find_state(model: Model) -> dict[str, str]:
    """Outputs by the inputs that they are in the next run. Raises UsageError if there are none."""
    graph = model.proto.graph
    outputs = {output.name for output in graph.output}
    found: dict[str, str] = {}
    for name, output in itertools.chain(_by_name(model, outputs), _by_node(graph)):
        if name in model.inputs and output in outputs and output not in found.values():
            found.setdefault(name, output)
    if not found:
        raise UsageError(
            "no output is known to be an input of the next run",
            hint='declare them: state={"past": "present"}, outputs by inputs',
        )
    return {name: found[name] for name in model.inputs if name in found}


def _by_name(model: Model, outputs: set[str]) -> Iterator[tuple[str, str]]:
    for name in model.inputs:
        for past, present in NAMES:
            output = name.replace(past, present)
            if output != name and output in outputs:
                yield name, output
                break


def _by_node(graph: GraphProto) -> Iterator[tuple[str, str]]:
    same: dict[str, str] = {}  # what a node only hands on, by its new name
    for node in graph.node:
        if node.op_type in ("Identity", "Concat") and len(node.input) == 1:
            same[node.output[0]] = same.get(node.input[0], node.input[0])
        for source, result in PLACES.get((_domain(node), node.op_type), ()):
            if source < len(node.input) and result < len(node.output):
                name = same.get(node.input[source], node.input[source])
                known = any(word in name.lower() for word in CALLED)
                if known or node.op_type != "Concat":
                    yield name, node.output[result]


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain
