"""Keys and values that are kept in one tensor grow together.

    %k = concat %past[0], %a {axis = 2}              %new = concat reshape %a, reshape %b {axis = 0}
    %v = concat %past[1], %b {axis = 2}        =>    %y = concat %past, %new {axis = 3}
    %y = concat reshape %k, reshape %v {axis = 0}    %k = reshape %y[0], %v = reshape %y[1]
The output %y is then the input and rows behind it, which is written in place (keep_state.py), and
who reads %k and %v reads them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fuser.errors import VerifyError
from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.dims import Dim
from fuser.graph.ir import Graph, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import same, same_shape
from fuser.partition.dag import ordered
from fuser.partition.nodes import behind_reshapes
from fuser.partition.passes.live import without_dead


@dataclass(frozen=True)
class _Part:
    """One of the tensors that are kept as one. grown: what it becomes, a concat of old rows and
    new ones; shape: that of what it becomes in the whole, which begins at `start` of an axis."""

    grown: Value
    new: Value
    shape: tuple[Dim, ...]
    start: int


@dataclass(frozen=True)
class _Stack:
    """A tensor that is kept, its parts along `axis`, all of them longer along `rows` afterwards."""

    past: Value
    present: Value
    axis: int
    rows: int
    parts: tuple[_Part, ...]


def append_stacked(graph: Graph, pairs: Sequence[tuple[str, str]]) -> Graph:
    """The graph with outputs that are stacks of longer parts of an input as that input and what is
    new. pairs: inputs and the outputs that they are in the next run."""
    inputs = {value.name: value for value in graph.inputs}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    found = [_stack(inputs[name], outputs[output]) for name, output in pairs]
    owner = {part.grown.node: stack for stack in found if stack for part in stack.parts}
    if not owner:
        return graph
    position = {node: i for i, node in enumerate(graph.nodes)}
    before = {node: {value.node for value in node.inputs if value.node} for node in graph.nodes}
    for node, stack in owner.items():  # each part needs the new rows of all
        assert node is not None
        before[node] |= {part.new.node for part in stack.parts if part.new.node}
    try:
        nodes = ordered(graph.nodes, before, position)
    except VerifyError:  # the new rows of one part need what another one has become
        return graph
    wholes = {stack.present.node for stack in owner.values()}
    copy, values = begin_copy(graph)
    for node in nodes:
        if node in owner:
            if owner[node].present not in values:
                _write(copy, owner[node], values)
        elif node not in wholes:
            clone_node(copy, node, values)
    copy.outputs = [values[value] for value in graph.outputs]
    return without_dead(copy)


def _write(graph: Graph, stack: _Stack, values: dict[Value, Value]) -> None:
    """The whole out of the past and what is new, and its parts out of that."""
    node = stack.present.node
    assert node is not None
    rows = stack.present.type.shape[stack.rows] - stack.past.type.shape[stack.rows]
    fresh = []
    for part in stack.parts:
        shape = (*part.shape[: stack.rows], rows, *part.shape[stack.rows + 1 :])
        fresh.append(build(graph, "reshape", values[part.new], shape=shape, origin=node.origin))
    new = build(graph, "concat", *fresh, axis=stack.axis, origin=node.origin)
    whole = build(graph, "concat", values[stack.past], new, axis=stack.rows, origin=node.origin)
    values[stack.present] = whole
    rank = whole.type.rank
    for part in stack.parts:
        starts, limits = [0] * rank, list(whole.type.shape)
        starts[stack.axis] = part.start
        limits[stack.axis] = part.start + part.shape[stack.axis]
        cut = build(
            graph, "slice", whole, starts=tuple(starts), limits=tuple(limits),
            strides=(1,) * rank, origin=node.origin,
        )  # fmt: skip
        shape = part.grown.type.shape
        values[part.grown] = build(graph, "reshape", cut, shape=shape, origin=node.origin)


def _stack(past: Value, present: Value) -> _Stack | None:
    """What an output is made of, where it is a stack of longer parts of the input."""
    one, other = past.type.shape, present.type.shape
    node = present.node
    if node is None or node.op != "concat" or len(one) != len(other):
        return None
    axis = node.attrs["axis"]
    longer = [i for i in range(len(one)) if not same(one[i], other[i])]
    if len(longer) != 1 or longer[0] == axis or past.dtype is not present.dtype:
        return None
    (rows,) = longer
    parts: list[_Part] = []
    start = 0
    for value in node.inputs:
        size = value.type.shape[axis]
        if not isinstance(size, int):
            return None
        part = _part(past, value, axis, rows, start, start + size)
        if part is None:
            return None
        parts.append(part)
        start += size
    distinct = len({part.grown for part in parts}) == len(parts)
    return _Stack(past, present, axis, rows, tuple(parts)) if distinct else None


def _part(past: Value, whole: Value, axis: int, rows: int, start: int, end: int) -> _Part | None:
    """A value as the places from start to end of the input, along an axis, and rows behind them."""
    grown = behind_reshapes(whole)
    if grown.node is None or grown.node.op != "concat" or len(grown.node.inputs) != 2:
        return None
    old, new = grown.node.inputs
    cut = behind_reshapes(old)
    if cut.node is None or cut.node.op != "slice" or cut.node.inputs[0] is not past:
        return None
    shape = past.type.shape
    starts, limits = [0] * len(shape), list(shape)
    starts[axis], limits[axis] = start, end
    attrs = cut.node.attrs
    if not (
        same_shape(attrs["starts"], starts)
        and same_shape(attrs["limits"], limits)
        and same_shape(attrs["strides"], (1,) * len(shape))
    ):
        return None
    along = grown.node.attrs["axis"]
    if not (
        _is_behind(cut.type.shape, rows, old.type.shape, along)
        and _is_behind(whole.type.shape, rows, grown.type.shape, along)
    ):
        return None
    return _Part(grown, new, whole.type.shape, start)


def _is_behind(one: Sequence[Dim], axis: int, other: Sequence[Dim], along: int) -> bool:
    """Whether rows of one shape along an axis are those of another one along an axis of that: as
    many, of as many elements, as often."""
    return (
        same(one[axis], other[along])
        and same(prod(one[:axis]), prod(other[:along]))
        and same(prod(one[axis + 1 :]), prod(other[along + 1 :]))
    )


__all__ = ["append_stacked"]
