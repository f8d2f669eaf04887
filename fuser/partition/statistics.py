"""Let matmuls compute the statistics of their rows themselves, where that is cheaper than a kernel.

    region A: %r = rsqrt(mean(%x * %x))
    region B: dot_general(%x, %w) * %r     =>     region B: dot_general(%x, %w) * rsqrt(mean(...))
passes/fold_norms.py leaves a reduction that gives a number or two a row. Every block of the matmul
behind it reads its rows again, whole: that is little where it has few of them, and a kernel in
front, which all blocks wait for, is more.
"""

from __future__ import annotations

from math import ceil, prod

from fuser.graph.ir import Node, Value
from fuser.graph.sizes import by_example
from fuser.partition import cost
from fuser.partition.grouping import Group, Grouping, Misfit

START = 0.6e-6
"""Seconds until the first rows have come and their sums have been exchanged, as far as nothing
hides them."""
RATE = 55e9
"""Bytes a second that the threads of a multiprocessor load (docs/lab/gpu-one-wave.md)."""
CACHE_RATE = 5.5e12
"""Bytes a second that all of them get from the L2, which every block's rows come through."""
THIN, TILE = 16, 64
"""Rows of a block: of matmuls of few rows, whose blocks are narrow, and of others."""
NARROW = 32
"""Columns of a narrow block; half of it where that makes fewer than two blocks a multiprocessor."""


def inline_statistics(grouping: Grouping) -> None:
    """Dissolve the reductions that only give numbers of rows to matmuls, where that pays."""
    for group in list(grouping.groups.values()):
        if group.kind != "reduce" or group.axes is None:
            continue
        members = set(group.nodes)
        readers = [
            (value, user)
            for value in grouping.outputs(members)
            for user in grouping.consumers(value)
            if user not in members
        ]
        misfit = _misfit(grouping, group, readers)
        if misfit is None:
            grouping.dissolve(group)
            continue
        for value, user in readers:
            assert value.node is not None
            grouping.refuse(value.node, user, misfit)


@by_example
def _misfit(
    grouping: Grouping, group: Group, readers: list[tuple[Value, Node]]
) -> Misfit | None:  # fmt: skip
    """Why a reduction stays a kernel."""
    assert group.axes is not None
    outputs = grouping.outputs(set(group.nodes))
    rows = prod(dim for axis, dim in enumerate(group.space) if axis not in group.axes)
    if any(grouping.reaches_output(value) for value in outputs):
        return Misfit("graph-output", "the value is an output of the model")
    if group.axes != (len(group.space) - 1,) or any(v.type.size != rows for v in outputs):
        return Misfit("row-in-prologue", "it writes more than a number for each of its rows")
    owners = {grouping.group_of.get(user): None for _, user in readers}
    kept = cost.seconds(
        grouping.target, group.nodes, sum(v.type.bytes for v in (*_read(grouping, group), *outputs))
    )
    spent, pinned = 0.0, False
    for owner in owners:
        if owner is None or owner.kind != "contraction":
            return Misfit("row-in-prologue", "it is read by a kernel that has no rows of a matmul")
        if misfit := grouping.forbidden(group.nodes, owner.nodes):
            return misfit
        if any(anchor.attrs["lhs_batch"] for anchor in owner.anchors):
            return Misfit("row-in-prologue", "the matmul behind it has batches")
        spent += _seconds(grouping, group, owner, rows)
        pinned |= grouping.pinned(group.nodes, owner.nodes)
    if spent > kept and not pinned:
        return Misfit(
            "recompute",
            f"every block would read its rows again, {spent * 1e6:.2f} us; "
            f"a kernel takes {kept * 1e6:.2f} us",
        )
    return None


def _read(grouping: Grouping, group: Group) -> set[Value]:
    """What a group reads from memory."""
    members = set(group.nodes)
    return {
        source
        for node in group.nodes
        for value in node.inputs
        for source in grouping.sources(value)
        if source.node not in members and source.type.size > 1
    }


def _seconds(grouping: Grouping, group: Group, owner: Group, rows: int) -> float:
    """What they add to the time of a matmul: a block's rows, or the rows of all."""
    height, width = (rows, NARROW) if rows <= THIN else (TILE, TILE)
    columns = owner.anchors[0].output.type.size // rows
    if rows <= THIN and ceil(columns / width) < 2 * grouping.target.units:
        width //= 2
    blocks = ceil(rows / height) * ceil(columns / width)
    whole = [v for v in _read(grouping, group) if v.type.size >= prod(group.space)]
    length = group.space[-1] * sum(value.dtype.bytes for value in whole)
    return START + max(height * length / RATE, blocks * height * length / CACHE_RATE)
