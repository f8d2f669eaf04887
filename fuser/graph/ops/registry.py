"""The table of primitives, and `build`, which appends one to a graph."""

from __future__ import annotations

from typing import Any

from fuser.errors import LimitError, ShapeError, VerifyError
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops import (
    collective,
    contraction,
    creation,
    elementwise,
    indexing,
    kernel_call,
    movement,
    quantised,
    reduction,
)
from fuser.graph.ops.primitive import Primitive

FAMILIES = (
    creation, elementwise, reduction, contraction, indexing, movement, quantised, collective,
    kernel_call,
)  # fmt: skip
PRIMITIVES: dict[str, Primitive] = {
    primitive.name: primitive for family in FAMILIES for primitive in family.PRIMITIVES
}


def primitive(op: str) -> Primitive:
    """The primitive named `op`. Raises VerifyError."""
    found = PRIMITIVES.get(op)
    if found is None:
        raise VerifyError(f"there is no primitive {op!r}")
    return found


def is_map(node: Node) -> bool:
    """Whether the node is a map primitive (elementwise, compare, select, cast)."""
    return primitive(node.op).kind == "map"


def build_node(
    graph: Graph, op: str, *inputs: Value, origin: tuple[str, ...] = (), **attrs: Any
) -> Node:
    """Append `op` with inferred result types. Raises ShapeError, and LimitError for a type that no
    tensor has, naming `origin`."""
    record = primitive(op)
    if record.arity is not None and len(inputs) != record.arity:
        raise VerifyError(f"{op} takes {record.arity} operands, got {len(inputs)}")
    try:
        types = record.infer([value.type for value in inputs], attrs)
    except ShapeError as error:
        raise ShapeError(error.what, where=error.where or ", ".join(origin)) from None
    except LimitError as error:
        error.where = error.where or ", ".join(origin)
        raise
    return graph.add(op, inputs, types, origin, **attrs)


def build(
    graph: Graph, op: str, *inputs: Value, origin: tuple[str, ...] = (), **attrs: Any
) -> Value:
    """Append `op` with inferred result types; its first result. Raises ShapeError."""
    return build_node(graph, op, *inputs, origin=origin, **attrs).output


def check_types(graph: Graph) -> None:
    """Raise VerifyError unless every node has the result types that its primitive infers."""
    for node in graph.nodes:
        inferred = primitive(node.op).infer([value.type for value in node.inputs], node.attrs)
        actual = tuple(value.type for value in node.outputs)
        if inferred != actual:
            raise VerifyError(f"the results should be {inferred}", where=repr(node))
