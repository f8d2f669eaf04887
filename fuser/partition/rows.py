"""Join maps and reductions: elementwise chains, softmax, the norms, each read once.

    %m = reduce_max %x {axes = 3}              one region: a row of %x stays on chip
    %e = exp(sub(%x, broadcast(%m)))     =>    while its maximum and sum are found
    %s = reduce_sum %e {axes = 3}
    %p = div %e, broadcast(%s)
Nodes are visited in graph order; each joins the regions of the values it reads where they share an
iteration space (or the rows of one), or else starts a region.
"""

from __future__ import annotations

from math import prod

import numpy as np

from fuser.graph.ir import Node, Value
from fuser.graph.sizes import by_example, same, same_shape
from fuser.graph.units import byte_size, counted
from fuser.partition import cost
from fuser.partition import positions as at
from fuser.partition.deep import cut_where_few_live
from fuser.partition.grouping import Group, Grouping, Misfit
from fuser.partition.nodes import OPAQUE, REDUCE, reduce_axes
from fuser.partition.positions import Positions

MOST_ROW_BYTES = {"cpu": 1 << 20, "cuda": 1 << 18}
"""A longer row would leave a core's L2 cache, or an SM's shared memory, between passes."""

MOST_REPEATED = 12
"""Operations an element that are repeated in every pass over a long row rather than written."""

FULL = Misfit("too-much-code", "one kernel with the code of both would take long to compile")
TANGLED = Misfit(
    "tangled-movement", "the index of an element would grow with every further reshape"
)


def place(grouping: Grouping, node: Node) -> Group:
    """Put a map, gather, concat, pad or reduction that is in no group into one, and movement that
    is written (tangled.py) into one of its own."""
    group: Group | None = None
    if node in grouping.written:
        for other in grouping.producers(node):
            _note(grouping, node, other, TANGLED)
    elif node.op not in OPAQUE:
        for other in grouping.producers(node):
            if other.is_full(cost.code(node)) and not grouping.pinned(other.nodes, [node]):
                cut_where_few_live(grouping, other)
        for other in _tried_in_order(grouping, node):
            if other.id not in grouping.groups or other is group:
                continue
            misfit = _join(grouping, node, other, group)
            if isinstance(misfit, Misfit):
                _note(grouping, node, other, misfit)
            else:
                group = misfit
    if group is None:
        group = grouping.seed(node)
    return group


def _tried_in_order(grouping: Grouping, node: Node) -> list[Group]:
    """The groups that a node reads: those that it is pinned to, then the latest first."""
    groups = grouping.producers(node)
    return sorted(groups, key=lambda g: (not grouping.pinned(g.nodes, [node]), -g.id))


def _note(grouping: Grouping, node: Node, group: Group, misfit: Misfit) -> None:
    for value in node.inputs:
        for source in grouping.sources(value):
            if source.node is not None and grouping.group_of.get(source.node) is group:
                grouping.refuse(source.node, node, misfit)


def _join(grouping: Grouping, node: Node, other: Group, group: Group | None) -> Group | Misfit:
    """Join `node` (in `group` already, or in none) with a group that it reads."""
    if other.kind not in ("map", "gather", "reduce"):
        if node.op in REDUCE:
            return Misfit(
                "row-across-blocks",
                "the row it reduces is spread over blocks of the kernel before",
            )
        return Misfit("different-space", "the kernel before has another iteration space")
    more = [node] if group is None else group.nodes
    if misfit := grouping.forbidden(other.nodes, more):
        return misfit
    pinned = grouping.pinned(other.nodes, more)
    if other.is_full(cost.code(node) if group is None else group.work) and not pinned:
        return FULL
    if group is None:
        fits = (
            _fit_reduce(grouping, node, other) if node.op in REDUCE else grouping.fit(node, other)
        )
        if isinstance(fits, Misfit):
            return fits
        if grouping.closes_cycle(node, other):
            return Misfit("cycle", "it also needs a value that is computed from this one elsewhere")
        if node.op in REDUCE and other.axes is None:
            _become_rows(grouping, other, node)
        grouping.join(node, other, fits)
        return other
    for rows, maps in ((group, other), (other, group)):
        if rows.axes is not None and maps.axes is None:
            misfit = row_misfit(grouping, maps, rows.space, rows.axes)
            if misfit is not None and not pinned:
                return misfit
            if not _sizes_fit(rows, maps):
                return Misfit("different-space", "it is not as large as the rows")
    if not _align(grouping, group, other, node):
        return Misfit("different-space", "the two regions it reads iterate differently")
    if grouping.groups_close_cycle(group, other):
        return Misfit("cycle", "one of the regions it reads needs the other by way of a third")
    return _unite(grouping, group, other)


def _sizes_fit(rows: Group, maps: Group) -> bool:
    """Whether every value of `maps` has an element for each of the space of `rows`, or for each
    row. Samples do not tell where all of a space is one row."""
    assert rows.axes is not None
    kept = prod(dim for axis, dim in enumerate(rows.space) if axis not in rows.axes)
    sizes = (prod(rows.space), kept)
    return all(any(same(at.count(v), size) for size in sizes) for v in maps.positions)


def _become_rows(grouping: Grouping, group: Group, node: Node) -> None:
    """An elementwise group takes its first reduction: its space is now that of the operand."""
    group.base = grouping.lead(node.inputs[0], group)
    group.kind = "reduce"
    group.space = node.inputs[0].shape
    group.axes = reduce_axes(node)


def _fit_reduce(grouping: Grouping, node: Node, group: Group) -> Positions | Misfit:
    x = node.inputs[0]
    axes = reduce_axes(node)
    if group.axes is not None and (group.axes != axes or not same_shape(group.space, x.shape)):
        return Misfit("different-rows", "it reduces along other axes or another shape")
    if group.axes is None and (misfit := row_misfit(grouping, group, x.shape, axes)):
        if not grouping.pinned(group.nodes, [node]):
            return misfit
    where = grouping.lead(x, group)
    if where is None:
        if group.axes is None:
            return Misfit("different-space", "the operand is not at one place of the region before")
        where = group.base
        assert where is not None
    if group.base is not None and not np.array_equal(where, group.base):
        return Misfit("different-rows", "its rows are not the rows of the reduction before")
    if group.axes is None and not same(at.count(x), prod(group.space)):
        return Misfit("different-space", "the operand has another size than the region before")
    if not grouping.lines_up(x, where, group):
        return Misfit("different-space", "it reads the value at other places than it is written")
    return at.row_of(node, where)


@by_example
def row_misfit(
    grouping: Grouping, maps: Group, shape: tuple[int, ...], axes: tuple[int, ...]
) -> Misfit | None:
    """Whether rows are too long to stay on chip, so that every pass would compute `maps` again."""
    row = _row_bytes(shape, axes)
    work = sum(cost.weight(node) for node in maps.nodes)
    if row > MOST_ROW_BYTES[grouping.target.name] and work > MOST_REPEATED:
        return Misfit(
            "row-too-long",
            f"a row of {byte_size(row)} does not stay on chip: each pass would repeat"
            f" {counted(work, 'operation')}",
        )
    return None


def _row_bytes(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """Bytes of a row in float32, which it is computed in."""
    return 4 * prod(shape[axis] for axis in axes)


@by_example
def long_rows(grouping: Grouping, group: Group) -> bool:
    """Whether a reduce group passes over its rows several times."""
    assert group.axes is not None
    return _row_bytes(group.space, group.axes) > MOST_ROW_BYTES[grouping.target.name]


def _align(grouping: Grouping, group: Group, other: Group, node: Node) -> bool:
    """Rewrite the positions of `other` to the samples of `group`; its member `node` reads both."""
    if group.axes is not None and other.axes is not None:
        if group.axes != other.axes or not same_shape(group.space, other.space):
            return False
    where = group.positions[node.output]
    reads = [(v, where) for v in node.inputs] if node.op in REDUCE else at.backward(node, where)
    for value, target in reads:
        for source in grouping.sources(value):
            if source not in other.positions:
                continue
            if node.op in REDUCE or target is None:
                return False
            if not _relocate(grouping, other, source, value, target, group):
                return False
    return _lines_up(grouping, group, other) and _lines_up(grouping, other, group)


def _lines_up(grouping: Grouping, group: Group, other: Group) -> bool:
    """Whether the nodes of a group read the values of another where they are: reductions at every
    place of their rows, others where their results are."""
    for node in group.nodes:
        if node.op in REDUCE:
            if group.base is not None and not grouping.lines_up(node.inputs[0], group.base, other):
                return False
        elif node.output in group.positions:
            if not grouping.agrees(node, group.positions[node.output], other):
                return False
    return True


def _relocate(
    grouping: Grouping, other: Group, source: Value, value: Value, target: Positions, group: Group
) -> bool:
    """Move the samples of `other` so that `source`, read as operand `value`, is at `target`."""
    where = _trace(grouping, value, source, target)
    if where is None:
        return False
    if np.array_equal(other.positions[source], where):
        return True
    # Another sampling of the same space: possible only while no movement lies inside the group,
    # where all full values have one position.
    if other.axes is not None or not same(at.count(source), prod(group.space)):
        return False
    if any(not np.array_equal(p, other.positions[source]) for p in other.positions.values()):
        return False
    for v in other.positions:
        other.positions[v] = where
    return True


def _trace(
    grouping: Grouping, value: Value, source: Value, positions: Positions
) -> Positions | None:
    """Where `source` is read when `value`, a movement of it, is read at the positions."""
    stack: list[tuple[Value, Positions | None]] = [(value, positions)]
    while stack:
        current, where = stack.pop()
        if current is source:
            return where
        if current.node is not None and current.node in grouping.virtual and where is not None:
            stack.extend(at.backward(current.node, where))
    return None


def _unite(grouping: Grouping, group: Group, other: Group) -> Group:
    """Merge two aligned groups; a reduction decides the kind and the space."""
    if group.axes is None and other.axes is not None:
        group.kind, group.space, group.axes = "reduce", other.space, other.axes
        group.base = other.base
    grouping.absorb(group, other)
    return group
