"""What a primitive means for fusion: which nodes cost a kernel, which are only index maps."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.collective import COLLECTIVES
from fuser.graph.ops.families import ANCHORS, CREATE, DECODE, KERNEL_CALL, REDUCE, SELECTING, VIEW
from fuser.graph.ops.kernel_call import Memory
from fuser.graph.ops.registry import PRIMITIVES
from fuser.graph.sizes import same

__all__ = [
    "ANCHORS", "CREATE", "DECODE", "IN_MEMORY", "OPAQUE", "REDUCE", "SELECTING", "VIEW",
    "behind_reshapes", "handed_over", "is_empty", "is_injective", "is_map", "reduce_axes",
]  # fmt: skip

IN_MEMORY = COLLECTIVES | {KERNEL_CALL}
"""Primitives that read memory in row-major order, whatever is in it."""

OPAQUE = frozenset(("sort", "scatter", "cumsum", "host", "append")) | IN_MEMORY
"""Primitives that run alone: nothing is fused before or behind them."""

_MAPS = frozenset(name for name, record in PRIMITIVES.items() if record.kind == "map")


MOST_LOADS = 2
"""Loads of an element, lanes that a mask cuts off among them, up to which movement is computed
where a kernel loads its operand."""


def _is_read_once(memory: Memory) -> bool:
    return memory.reads is not None and memory.reads <= MOST_LOADS * memory.type.size


_MOVED = VIEW | CREATE - {"constant"}


def handed_over(graph: Graph) -> Iterator[Node]:
    """Movement that is written because ranks exchange its result, or a kernel of a user is given
    it: they read memory in order. A reshape changes nothing there."""
    for node in graph.nodes:
        if node.op in IN_MEMORY:
            for place, value in enumerate(node.inputs):
                made, direct = behind_reshapes(value).node, value.node
                if node.op == KERNEL_CALL and _is_read_once(node.attrs["call"].operand(place)):
                    continue  # it is computed where it is loaded
                if made is not None and direct is not None and made.op in _MOVED:
                    yield direct


def behind_reshapes(value: Value) -> Value:
    """The value whose elements, in memory, are those of a reshape of it."""
    while value.node is not None and value.node.op == "reshape":
        value = value.node.inputs[0]
    return value


def is_map(node: Node) -> bool:
    return node.op in _MAPS


def is_empty(value: Value) -> bool:
    """Whether the tensor has no elements."""
    return 0 in value.shape


def is_injective(node: Node) -> bool:
    """Whether every element of the operand goes to exactly one place of the result."""
    if node.op in ("reshape", "transpose"):
        return True
    return node.op == "broadcast" and same(prod(node.output.shape), prod(node.inputs[0].shape))


def reduce_axes(node: Node) -> tuple[int, ...]:
    """The reduced axes of a reduction, in order."""
    if node.op in ("argmax", "argmin"):
        return (int(node.attrs["axis"]),)
    return tuple(sorted(int(axis) for axis in node.attrs["axes"]))
