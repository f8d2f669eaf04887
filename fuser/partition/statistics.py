"""Let matmuls compute the statistics of their rows themselves, where that is cheaper than a kernel.

    region A: %r = rsqrt(mean(%x * %x))
    region B: dot_general(%x, %w) * %r     =>     region B: dot_general(%x, %w) * rsqrt(mean(...))
passes/fold_norms.py leaves a reduction that gives a number or two a row. Every block of the matmul
behind it sums its rows up beside its dots, of the operand that these read
(tilegen/emit/contraction.py). That takes sums that do not need each other
(passes/single_pass_variance.py).
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, prod

from fuser.base.target import Target
from fuser.graph.ir import Node, Value
from fuser.graph.sizes import by_example
from fuser.graph.units import duration
from fuser.partition import cost
from fuser.partition.grouping import Group, Grouping, Misfit
from fuser.partition.nodes import REDUCE

BESIDE, SUMS = 0.3e-6, 100e9
"""Seconds that sums take behind the loop; elements a second that a multiprocessor adds up in it."""
HIDDEN = 1e-6
"""What a norm between two matmuls takes where it starts under the end of the one in front, and the
one behind it has asked for its weights meanwhile (docs/lab/gpu-decode.md)."""
THIN = 16
"""Rows up to which a matmul waits for its weights, which hides sums in the loop."""
TILE = (64, 192)
"""Rows and columns of a block of others."""


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
def are_taken_beside(target: Target, rows: int, columns: Collection[int], k: int) -> bool:
    """Whether matmuls of so many columns each are to take sums of their operand's rows of k 16-bit
    floats rather than wait for a kernel that does."""
    spent = sum(_sums_seconds(target, rows, count, k) for count in columns)
    return spent <= _kernel_seconds(target, 2 * rows * k)


def _sums_seconds(target: Target, rows: int, columns: int, k: int) -> float:
    """What sums of rows of k add to the time of a matmul."""
    if rows <= THIN:
        return BESIDE
    height, width = TILE
    blocks = ceil(rows / height) * ceil(columns / width)
    return BESIDE + ceil(blocks / target.units) * height * k / SUMS


def _kernel_seconds(target: Target, traffic: int) -> float:
    """What a kernel for them adds to the time of the matmuls on both sides."""
    if target.clusters:  # and launches that overlap
        return max(HIDDEN, traffic / target.bandwidth)
    return cost.kernel_seconds(target, 0.0, traffic)


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
    if _is_nested(grouping, group):
        return Misfit("row-in-prologue", "a sum of a row needs another one first")
    if any(node.op in REDUCE and node.op != "reduce_sum" for node in group.nodes):
        return Misfit("row-in-prologue", "a loop over a matmul takes sums of rows alone")
    spent, pinned = 0.0, False
    for owner in {grouping.group_of.get(user): None for _, user in readers}:
        if owner is None or owner.kind != "contraction":
            return Misfit("row-in-prologue", "it is read by a kernel that has no rows of a matmul")
        if misfit := grouping.forbidden(group.nodes, owner.nodes):
            return misfit
        if not _reads_rows(grouping, owner, group):
            return Misfit("row-in-prologue", "the matmul behind it reads other rows")
        columns = owner.anchors[0].output.type.size // rows
        spent += _sums_seconds(grouping.target, rows, columns, group.space[-1])
        pinned |= grouping.pinned(group.nodes, owner.nodes)
    kept = _kernel_seconds(grouping.target, 2 * prod(group.space))
    if spent > kept and not pinned:
        return Misfit(
            "recompute",
            f"sums beside matmuls would take {duration(spent)}, a kernel {duration(kept)}",
        )
    return None


def _reads_rows(grouping: Grouping, owner: Group, group: Group) -> bool:
    """Whether the matmuls of a group multiply, on their left, what another one sums up."""
    members = set(group.nodes)
    read = {
        source
        for node in group.nodes
        for value in node.inputs
        for source in grouping.sources(value)
        if source.node not in members
    }
    return all(
        not anchor.attrs["lhs_batch"] and not read.isdisjoint(grouping.sources(anchor.inputs[0]))
        for anchor in owner.anchors
    )


def _is_nested(grouping: Grouping, group: Group) -> bool:
    """Whether a reduction of a group needs the result of another."""
    folded: set[Value] = set()
    for node in sorted(group.nodes, key=grouping.position):
        behind = any(not folded.isdisjoint(grouping.sources(v)) for v in node.inputs)
        if behind and node.op in REDUCE:
            return True
        if behind or node.op in REDUCE:
            folded.update(node.outputs)
    return False
