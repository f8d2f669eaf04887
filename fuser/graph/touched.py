"""What an operator that runs alone reads of its operands: a slice its result, a gather the rows
that it can look up, a window with gaps what lies in it. Everything else reads the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fuser.graph.dims import Dim
from fuser.graph.ir import Node, Value

_MOVES = frozenset(("reshape", "transpose", "cast", "reverse"))
"""Each element once, so that what is read of the result is read of the operand."""


_Readers = Mapping[Value, Sequence[tuple[Node, int]]]
"""Who reads a value, and as which operand."""


def touched(values: Iterable[Value], nodes: Sequence[Node]) -> tuple[Dim, ...]:
    """Elements of each value that the primitives of one operator read, at most; it may be more than
    the value has."""
    readers: dict[Value, list[tuple[Node, int]]] = {}
    for node in nodes:
        for position, operand in enumerate(node.inputs):
            readers.setdefault(operand, []).append((node, position))
    return tuple(_touched(value, readers) for value in values)


def _touched(value: Value, readers: _Readers) -> Dim:
    total: Dim = 0  # of what only decides shapes, nothing
    for node, position in readers.get(value, ()):
        total = total + _read(node, position, readers)
    return total


def _read(node: Node, position: int, readers: _Readers) -> Dim:
    operand = node.inputs[position]
    if node.op == "slice" or (node.op == "gather" and position == 0):
        return _size(node.output)
    if node.op in _MOVES and node.output in readers:
        return _touched(node.output, readers)
    if node.op == "conv" and position == 0:
        window = node.inputs[1].type.shape[2:]
        return _windows(operand, node, (1, 1, *window), (1, 1, *node.attrs["strides"]))
    if node.op == "reduce_window":
        return _windows(operand, node, node.attrs["window"], node.attrs["strides"])
    return _size(operand)


def _windows(operand: Value, node: Node, window: Sequence[Dim], strides: Sequence[int]) -> Dim:
    """Elements in windows, of which those with gaps between them leave some out."""
    dilation = node.attrs["dilation"]
    dilation = (*(1 for _ in range(len(window) - len(dilation))), *dilation)
    total: Dim = 1
    made = node.output.type.shape
    for axis, (size, wide, step, gap) in enumerate(
        zip(operand.type.shape, window, strides, dilation, strict=True)
    ):
        apart = isinstance(wide, int) and wide * gap < step
        total = total * (made[axis] * wide if apart else size)
    return total


def _size(value: Value) -> Dim:
    """Elements, symbolic where dims are."""
    total: Dim = 1
    for dim in value.type.shape:
        total = total * dim
    return total
