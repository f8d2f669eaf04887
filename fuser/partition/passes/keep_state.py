"""What grows from run to run is written where it lies.

    input %past; %y = concat %past, %new; output %y
      =>    %y = append %past, %new; output %new
Of a pair (%past, output) that is kept between runs, the rows of the output that are the input's
are in memory already. `append` means what `concat` does. Its result lies in the memory of %past, an
axis of which has room for more; %new is written behind the rows that are there, and no kernel
copies those. That is right for any other reader of %past: its rows stay as they were.

    input %past; %y = scatter %past, %at, %new; output %y
      =>    %y = scatter %past, %at, %new {in_place = true}; output %y
What overwrites rows at places that data decides is in memory already as far as it stays: the kernel
stores %new alone. That is right where nobody else reads %past.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.dims import Dim, symbol
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import same
from fuser.partition.region import Room

CAPACITY = "state_capacity"
"""The symbol for the places that a growing axis has."""


@dataclass(frozen=True)
class Kept:
    """An output that lies in the memory of an input, behind `start` places of an axis of it, which
    has `capacity` of them."""

    state: Value
    output: int
    axis: int
    start: Dim
    capacity: Dim


def keep_state(graph: Graph, pairs: Sequence[tuple[str, str]]) -> tuple[Graph, list[Kept]]:
    """The graph with the pairs (input, output) that can be written in place so; and those."""
    inputs = {value.name: value for value in graph.inputs}
    found: list[Kept] = []
    appends: dict[Node, int] = {}
    puts: dict[Node, int] = {}
    taken: set[Value] = set()
    uses, results = graph.uses(), set(graph.outputs)
    for name, output in pairs:
        number = graph.output_names.index(output)
        past, present = inputs[name], graph.outputs[number]
        if present in taken or graph.outputs.count(present) > 1:
            continue
        axis = growing_axis(past, present)
        put = _overwriting(past, present, uses, results) if axis is None else None
        if put is not None:
            taken.add(present)
            puts[put] = number
            found.append(Kept(past, number, 0, 0, past.type.shape[0]))
        if axis is None:
            continue
        start = past.type.shape[axis]
        if not same(start, 0):
            assert present.node is not None
            appends[present.node] = axis
        taken.add(present)
        found.append(Kept(past, number, axis, start, symbol(CAPACITY)))
    if not found:
        return graph, []
    copy, values = begin_copy(graph)
    rows: dict[Node | None, Value] = {}
    for node in graph.nodes:
        if node in puts:
            operands = [values[value] for value in node.inputs]
            attrs = {**node.attrs, "in_place": True}
            values[node.output] = build(copy, "scatter", *operands, **attrs, origin=node.origin)
            continue
        if node not in appends:
            clone_node(copy, node, values)
            continue
        past, *rest = (values[value] for value in node.inputs)
        axis = appends[node]
        new = rest[0]
        if len(rest) > 1:
            new = build(copy, "concat", *rest, axis=axis, origin=node.origin)
        shared = new in rows.values() or rest[0] in map(values.get, graph.outputs)
        if new.node is None or new.constant is not None or shared:
            new = build(copy, "reshape", new, shape=new.type.shape, origin=node.origin)
        rows[node] = new
        values[node.output] = build(copy, "append", past, new, axis=axis, origin=node.origin)
    copy.outputs = [values[value] for value in graph.outputs]
    for item in found:
        last = graph.outputs[item.output].node
        if last in rows:
            copy.outputs[item.output] = rows[last]
    for node, number in puts.items():  # in its own shape, which the memory has as well
        copy.outputs[number] = values[node.output]
    return copy, found


def _overwriting(
    past: Value, present: Value, uses: Mapping[Value, Sequence[Node]], results: Set[Value]
) -> Node | None:
    """The scatter that makes an output of the input, where nobody else reads the input. A state of
    rank 0 has no rows that would stay. uses: the nodes that read each value of the graph; results:
    its outputs."""
    node = present.node if past.type.rank else None
    while node is not None and node.op == "reshape":
        node = node.inputs[0].node
    if node is None or node.op != "scatter" or node.attrs.get("reduction", "none") != "none":
        return None
    read = [node.inputs[0]]
    while (maker := read[-1].node) is not None and maker.op == "reshape":
        read.append(maker.inputs[0])
    if read[-1] is not past or not results.isdisjoint(read):
        return None
    own = {node, *(value.node for value in read)}
    return node if all(user in own for value in read for user in uses[value]) else None


def growing_axis(past: Value, present: Value) -> int | None:
    """The axis along which an output is the input and more; None where it is something else."""
    one, other = past.type, present.type
    if one.dtype is not other.dtype or one.rank != other.rank:
        return None
    axes = [i for i in range(one.rank) if not same(one.shape[i], other.shape[i])]
    if len(axes) != 1:
        return None
    (axis,) = axes
    if same(one.shape[axis], 0):
        return axis
    node = present.node
    if node is None or node.op != "concat" or node.inputs[0] is not past:
        return None
    return axis if node.attrs["axis"] == axis and len(node.inputs) > 1 else None


def rooms_of(graph: Graph, kept: Sequence[Kept]) -> dict[Value, Room]:
    """Where the values of kept pairs lie: the input, the rows, and what both are together."""
    rooms: dict[Value, Room] = {}
    for item in kept:
        output = graph.outputs[item.output]
        # rows are written behind `start`: in front of it is what the run before has left
        rooms[item.state] = Room(item.state, item.axis, item.capacity, settled=item.start)
        capacity = item.capacity
        if output.node is not None and output.node.attrs.get("in_place"):
            capacity = output.type.shape[item.axis]
        rooms[output] = Room(item.state, item.axis, capacity, item.start)
    for node in graph.nodes:
        if node.op == "append":
            state = node.inputs[0]
            rooms[node.output] = rooms[state]
    return rooms


__all__ = ["CAPACITY", "Kept", "growing_axis", "keep_state", "rooms_of"]
