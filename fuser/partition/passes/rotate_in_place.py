"""Rotate heads where they are projected.

    %q = reshape(dot_general %x, %w) [b, s, h, d]        %l = reshape(dot_general %x, %w.low)
    %t = concat(neg %q[d/2:], %q[:d/2])             =>   %r = reshape(dot_general %x, %w.high)
    %y = add(mul %q, %cos, mul %t, %sin)                 %y = concat(%l*%c - %r*%s, %r*%c + %l*%s)
Code that mixes the two halves of a head needs elements from two columns of a matmul. With the low
and the high columns as two matmuls (gated.py), both are in registers at one place, and the
rotation is an epilogue. Any such code will do: it is followed with each value as a pair of halves.
Matmuls on the same operand whose heads are not rotated (the values of attention) join as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fuser.dtypes import i32
from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import same
from fuser.partition.dag import ordered
from fuser.partition.gated import find_gates, parallel_products
from fuser.partition.nodes import is_injective, is_map
from fuser.partition.passes.live import without_dead
from fuser.partition.passes.merge_matmuls import (
    Branch,
    is_linear,
    leads_to_output,
    matmul_with_bias,
)

DEPTH = 24
"""Most nodes of a rotation."""


@dataclass(frozen=True)
class _Heads:
    """A matmul split into heads: pre = [..., heads, size]; perm takes it to where it is rotated.

    rotation: the nodes behind it in graph order, none if the heads are used as they are. result:
    the value that is replaced.
    """

    branch: Branch
    pre: tuple[int, ...]
    perm: tuple[int, ...]
    start: Value
    rotation: tuple[Node, ...]
    result: Value

    @property
    def heads(self) -> int:
        return self.pre[-2]


@dataclass(eq=False)
class _Unit:
    """Heads that become one pair of matmuls: the rotated ones first."""

    parts: list[_Heads]
    externals: list[Value]
    made: dict[Value, Value] = field(default_factory=dict)


def rotate_in_place(graph: Graph, written: bool = False) -> Graph:
    """A graph in which rotations of projected heads follow a pair of matmuls. written: parts of
    what a matmul gives may be outputs, which its kernel writes by themselves."""
    uses = graph.uses()
    outputs = set(graph.outputs)
    barred = set[Value]() if written else outputs
    gated = {node for pair in find_gates(graph) for node in pair}
    units: list[_Unit] = []
    for siblings in parallel_products(graph):
        free = [p for p in siblings if p not in gated and is_linear(p)]
        unit = _unit([matmul_with_bias(p, uses, outputs) for p in free], uses, outputs, barred)
        if unit is not None:
            units.append(unit)
    return _rewrite(graph, units) if units else graph


def _unit(
    branches: list[Branch],
    uses: dict[Value, list[Node]],
    outputs: set[Value],
    barred: set[Value],
) -> _Unit | None:
    """Heads of matmuls on one operand. barred: outputs that are no part of what is written."""
    found = [_heads(branch, uses, outputs, barred) for branch in branches]
    rotated = [part for part in found if part is not None and part.rotation]
    if not rotated:
        return None
    first = rotated[0]
    texts = [_text(part) for part in rotated]
    if any(text is None or text != texts[0] for text in texts):
        return None
    size = first.pre[-1]
    plain = []
    for branch, part in zip(branches, found, strict=True):
        if part is None or part.rotation:
            continue
        columns = branch.result.shape[-1]
        if columns % size or leads_to_output(branch.result, uses, barred):
            continue
        pre = (*first.pre[:-2], columns // size, size)
        plain.append(_Heads(branch, pre, first.perm, branch.result, (), branch.result))
    parts = rotated + plain
    contract = first.branch.matmul.attrs["rhs_contract"]
    if any(p.branch.matmul.attrs["rhs_contract"] != contract for p in parts):
        return None
    if any(p.pre[:-2] != first.pre[:-2] or p.pre[-1] != size for p in rotated):
        return None
    inside = {node for part in rotated for node in part.rotation}
    externals = dict.fromkeys(
        _table(value)[0]
        for part in rotated
        for node in part.rotation
        for value in node.inputs
        if value is not part.start and value.node not in inside
    )
    return _Unit(parts, [first.branch.matmul.inputs[0], *externals])


def _heads(
    branch: Branch, uses: dict[Value, list[Node]], outputs: set[Value], barred: set[Value]
) -> _Heads | None:
    """The heads of a matmul and the rotation behind them; no rotation where none is found."""
    value = branch.result
    pre: tuple[int, ...] = ()
    perm: tuple[int, ...] = ()
    while value not in outputs:
        users = uses.get(value, [])
        if len(users) != 1 or not is_injective(users[0]):
            break
        node = users[0]
        if node.op == "reshape" and not perm and not pre:
            cut = _cut_into_heads(node)
            if cut is None:
                return _Heads(branch, (), (), value, (), value)
            pre, perm = cut
        elif node.op == "transpose" and pre and node.attrs["perm"][-1] == len(pre) - 1:
            perm = tuple(perm[axis] for axis in node.attrs["perm"])
        else:
            break
        value = node.output
    if not pre or pre[-1] % 2:
        return _Heads(branch, (), (), value, (), value)
    rotation = _rotation(value, uses, outputs)
    if rotation is None:
        return _Heads(branch, pre, perm, value, (), value)
    nodes, result = rotation
    if leads_to_output(result, uses, barred):
        return None
    return _Heads(branch, pre, perm, value, nodes, result)


def _cut_into_heads(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """([..., heads, size], the permutation of it) that a reshape of [..., n] is: heads may stand in
    front of dims of 1, as those of a lone query do."""
    shape, last = node.output.shape, node.output.type.rank - 1
    width = node.inputs[0].shape[-1]
    axis = next((a for a in range(last - 1, 0, -1) if same(shape[a] * shape[last], width)), None)
    if axis is None or any(not same(dim, 1) for dim in shape[axis + 1 : last]):
        return None
    order = [*(a for a in range(last) if a != axis), axis, last]
    return tuple(shape[a] for a in order), tuple(order.index(a) for a in range(last + 1))


def _rotation(
    start: Value, uses: dict[Value, list[Node]], outputs: set[Value]
) -> tuple[tuple[Node, ...], Value] | None:
    """The nodes behind `start` that mix its halves, and the one value of them that is used."""
    inside: dict[Node, None] = {}
    stack = [start]
    exits: list[Value] = []
    while stack:
        value = stack.pop()
        users = uses.get(value, [])
        if value in outputs or any(not _may_rotate(user, start) for user in users):
            exits.append(value)
            continue
        for user in users:
            if user not in inside:
                inside[user] = None
                stack.append(user.output)
    mixed = any(node.op == "concat" for node in inside)
    if len(exits) != 1 or not mixed or len(inside) > DEPTH or exits[0].shape != start.shape:
        return None
    pairs = {start: True}
    in_order = _in_order(inside, start)
    for node in in_order:
        for value in node.inputs:
            own = value is start or value.node in inside
            if not own and (not is_map(node) or not _is_table(value, start)):
                return None
        kind = _is_pair(node, pairs)
        if kind is None:
            return None
        pairs[node.output] = kind
    return (tuple(in_order), exits[0]) if pairs[exits[0]] else None


def _in_order(inside: dict[Node, None], start: Value) -> list[Node]:
    """The nodes, operands first."""
    done: dict[Node, None] = {}
    rest = list(inside)
    while rest:
        ready = [n for n in rest if all(v.node in done or v.node not in inside for v in n.inputs)]
        done.update(dict.fromkeys(ready))
        rest = [n for n in rest if n not in done]
    return list(done)


def _may_rotate(node: Node, start: Value) -> bool:
    half = start.shape[-1] // 2
    if is_map(node):
        return True
    last = node.output.type.rank - 1
    if node.op == "concat":
        return bool(node.attrs["axis"] == last) and len(node.inputs) == 2
    if node.op == "slice":
        return node.inputs[0].shape == start.shape and _half_of(node, half) is not None
    return False


def _half_of(node: Node, half: int) -> int | None:
    """0 or 1 for a slice that is the low or the high half of the last axis, and all else."""
    starts, limits = node.attrs["starts"], node.attrs["limits"]
    shape = node.inputs[0].shape
    if any(s != 1 for s in node.attrs["strides"]) or node.output.shape[:-1] != shape[:-1]:
        return None
    bounds = (starts[-1], limits[-1])
    return {(0, half): 0, (half, 2 * half): 1}.get(bounds)


def _is_pair(node: Node, pairs: dict[Value, bool]) -> bool | None:
    """Whether a result is a pair of halves (True) or one half; None if it is neither."""
    kinds = {pairs[value] for value in node.inputs if value in pairs}
    if node.op == "slice":
        return False if kinds == {True} else None
    if node.op == "concat":
        return True if kinds == {False} and all(v in pairs for v in node.inputs) else None
    return kinds.pop() if len(kinds) == 1 else None


def _table(value: Value) -> tuple[Value, tuple[int, ...]]:
    """The operand of a broadcast and its axes; a value that is no broadcast is all axes."""
    node = value.node
    if node is not None and node.op == "broadcast":
        return node.inputs[0], tuple(node.attrs["axes"])
    return value, tuple(range(value.type.rank))


def _is_table(value: Value, start: Value) -> bool:
    """Whether the value is broadcast, and the same for every head."""
    table, axes = _table(value)
    rank = start.type.rank
    if value.node is None or value.node.op != "broadcast" or rank - 1 in axes[:-1]:
        return False
    sizes = dict(zip(axes, table.shape, strict=True))
    # heads may stand on any axis but the last; the caller compares with the permutation
    return all(size in (1, value.shape[axis]) for axis, size in sizes.items())


def _text(part: _Heads) -> tuple[object, ...] | None:
    """The rotation as a term, equal for equal rotations; None if a table differs by head."""
    names: dict[Value, object] = {part.start: "x"}
    lines: list[object] = []
    head_axis = part.perm.index(len(part.pre) - 2)
    for index, node in enumerate(part.rotation):
        operands = []
        for value in node.inputs:
            if value not in names:
                table, axes = _table(value)
                sizes = dict(zip(axes, table.shape, strict=True))
                if sizes.get(head_axis, 1) != 1:
                    return None
                names[value] = (table, axes)
            operands.append(names[value])
        attrs = {k: v for k, v in node.attrs.items() if k == "dtype"}
        half = _half_of(node, part.pre[-1] // 2) if node.op == "slice" else None
        lines.append((node.op, tuple(operands), tuple(attrs.items()), half))
        names[node.output] = index
    return (part.perm, *lines)


# emission -----------------------------------------------------------------------------------------


def _rewrite(graph: Graph, units: list[_Unit]) -> Graph:
    owner = {part.result: unit for unit in units for part in unit.parts}
    gone = {node for unit in units for part in unit.parts for node in part.rotation}
    gone |= {part.branch.matmul for unit in units for part in unit.parts}
    position = {node: i for i, node in enumerate(graph.nodes)}
    before = {
        node: {
            source.node
            for value in node.inputs
            for source in (owner[value].externals if value in owner else [value])
            if source.node is not None and source.node is not node
        }
        for node in graph.nodes
    }
    result, values = begin_copy(graph)
    for node in ordered(graph.nodes, before, position):
        for value in node.inputs:
            if value in owner and value not in values:
                _emit(result, owner[value], values)
        dead = any(value not in values for value in node.inputs)
        if node not in gone and node.output not in values and not dead:
            clone_node(result, node, values)
    result.outputs = [values[value] for value in graph.outputs]
    return without_dead(result)


def _emit(graph: Graph, unit: _Unit, values: dict[Value, Value]) -> None:
    """The two matmuls, their rotation, and the results as slices of what they write."""
    first = unit.parts[0]
    total = sum(part.heads for part in unit.parts)
    half = first.pre[-1] // 2
    space = (*first.pre[:-2], total, half)
    lhs = values[first.branch.matmul.inputs[0]]
    halves = [_product(graph, unit, lhs, space, side) for side in (0, 1)]
    turned = _turn(graph, first, space, (halves[0], halves[1]), values)
    origin = tuple(dict.fromkeys(n for p in unit.parts for x in p.rotation for n in x.origin))
    rotated = sum(part.heads for part in unit.parts if part.rotation)
    if rotated != total:
        numbers = build(graph, "iota", shape=(total,), axis=0, dtype=i32, origin=origin)
        limit = graph.constant(np.asarray(rotated, np.int32))
        wide = build(graph, "broadcast", limit, shape=(total,), axes=(), origin=origin)
        inside = build(graph, "lt", numbers, wide, origin=origin)
        mask = build(graph, "broadcast", inside, shape=space, axes=(len(space) - 2,), origin=origin)
        turned = [
            build(graph, "select", mask, new, old, origin=origin)
            for new, old in zip(turned, halves, strict=True)
        ]
    whole = build(graph, "concat", *turned, axis=len(space) - 1, origin=origin)
    start = 0
    for part in unit.parts:
        values[part.result] = _take(graph, part, whole, start)
        start += part.heads


def _product(graph: Graph, unit: _Unit, lhs: Value, space: tuple[int, ...], side: int) -> Value:
    """The low (side 0) or high columns of every head: [..., heads, half]."""
    matmul = unit.parts[0].branch.matmul
    contract = matmul.attrs["rhs_contract"][0]
    origin = tuple(dict.fromkeys(n for p in unit.parts for n in p.branch.matmul.origin))
    columns = []
    biases = []
    for part in unit.parts:
        weights = part.branch.matmul.inputs[1].constant
        assert weights is not None
        split = np.moveaxis(weights, contract, 0).reshape(-1, part.heads, 2, space[-1])
        columns.append(split[:, :, side].reshape(len(split), -1))
        bias = part.branch.bias
        if bias is None:
            bias = np.zeros(part.heads * part.pre[-1], part.branch.result.dtype.numpy)
        biases.append(bias.reshape(part.heads, 2, space[-1])[:, side].reshape(-1))
    joined = np.ascontiguousarray(np.moveaxis(np.concatenate(columns, 1), 0, contract))
    out = build(graph, "dot_general", lhs, graph.constant(joined), origin=origin, **matmul.attrs)
    if any(part.branch.bias is not None for part in unit.parts):
        added = graph.constant(np.concatenate(biases))
        last = (out.type.rank - 1,)
        wide = build(graph, "broadcast", added, shape=out.shape, axes=last, origin=origin)
        out = build(graph, "add", out, wide, origin=origin)
    return build(graph, "reshape", out, shape=space, origin=origin)


def _turn(
    graph: Graph,
    part: _Heads,
    space: tuple[int, ...],
    halves: tuple[Value, Value],
    values: dict[Value, Value],
) -> list[Value]:
    """The rotation, with every value a pair of halves (or one half) in [..., heads, half]."""
    made: dict[Value, tuple[Value, ...]] = {part.start: halves}
    size = part.pre[-1]
    for node in part.rotation:
        if node.op == "slice":
            side = _half_of(node, size // 2)
            assert side is not None
            made[node.output] = (made[node.inputs[0]][side],)
        elif node.op == "concat":
            made[node.output] = (made[node.inputs[0]][0], made[node.inputs[1]][0])
        else:
            count = max(len(made[v]) for v in node.inputs if v in made)
            results = []
            for side in range(count):
                operands = [
                    made[v][side] if v in made else _half_table(graph, part, space, v, side, values)
                    for v in node.inputs
                ]
                results.append(build(graph, node.op, *operands, origin=node.origin, **node.attrs))
            made[node.output] = tuple(results)
    return list(made[part.result])


def _half_table(
    graph: Graph,
    part: _Heads,
    space: tuple[int, ...],
    value: Value,
    side: int,
    values: dict[Value, Value],
) -> Value:
    """A half of a broadcast table, spread over [..., heads, half]."""
    table, axes = _table(value)
    moved = values[table]
    half = space[-1]
    origin = value.node.origin if value.node else ()
    last = len(space) - 1
    if axes and axes[-1] == last and table.shape[-1] == 2 * half:
        starts = [0] * moved.type.rank
        limits = list(moved.shape)
        starts[-1], limits[-1] = side * half, (side + 1) * half
        moved = build(
            graph, "slice", moved, origin=origin, starts=tuple(starts), limits=tuple(limits),
            strides=(1,) * moved.type.rank,
        )  # fmt: skip
    head_axis = last - 1
    places = [part.perm[axis] for axis in axes]
    kept = [i for i, place in enumerate(places) if place != head_axis]
    if len(kept) != len(places):
        shape = tuple(moved.shape[i] for i in kept)
        moved = build(graph, "reshape", moved, shape=shape, origin=origin)
        places = [places[i] for i in kept]
    order = sorted(range(len(places)), key=lambda i: places[i])
    if order != list(range(len(places))):
        moved = build(graph, "transpose", moved, perm=tuple(order), origin=origin)
    where = tuple(sorted(places))
    return build(graph, "broadcast", moved, shape=space, axes=where, origin=origin)


def _take(graph: Graph, part: _Heads, whole: Value, start: int) -> Value:
    """The heads of one matmul, moved to where they were."""
    rank = whole.type.rank
    starts, limits = [0] * rank, list(whole.shape)
    starts[-2], limits[-2] = start, start + part.heads
    origin = part.branch.matmul.origin
    value = build(
        graph, "slice", whole, origin=origin, starts=tuple(starts), limits=tuple(limits),
        strides=(1,) * rank,
    )  # fmt: skip
    if not part.rotation:
        return build(graph, "reshape", value, shape=part.result.shape, origin=origin)
    if part.perm != tuple(range(rank)):
        value = build(graph, "transpose", value, perm=part.perm, origin=origin)
    return value
