"""Join map and reduce regions that do not read each other: one launch, shared inputs read once.

    region A: %c = cos %a                 one region with two outputs
    region B: %s = sin %a          =>
Both must iterate over the same space. Small regions join for the launch alone, large ones only
where they share an input.
"""

from __future__ import annotations

from fuser.graph.ir import Node, Value
from fuser.graph.sizes import by_example
from fuser.partition import cost
from fuser.partition.grouping import Group, Grouping
from fuser.partition.nodes import CREATE

SMALL = 4.0
"""A region is small if it is busy for less than this many launches."""

MOST_VALUES = 12
"""Most values read and written by a joined region: more would not stay in registers."""


def join_siblings(grouping: Grouping) -> None:
    """Join what may be joined, earlier regions first."""
    table: dict[tuple[object, ...], list[Group]] = {}
    for group in list(grouping.groups.values()):
        if not group.is_elementwise and group.axes is None:
            continue
        base = b"" if group.base is None else group.base.tobytes()
        table.setdefault((group.space, group.axes, base), []).append(group)
    for groups in table.values():
        kept: list[Group] = []
        for group in groups:
            partner = next((other for other in kept if _may_join(grouping, other, group)), None)
            if partner is None:
                kept.append(group)
            else:
                grouping.absorb(partner, group)


@by_example
def _may_join(grouping: Grouping, a: Group, b: Group) -> bool:
    dag = grouping.dag
    if dag.depends(a.id, dag.members[b.id]) or dag.depends(b.id, dag.members[a.id]):
        return False
    if any(grouping.forbidden(m, n) or grouping.forbidden(n, m) for m in a.nodes for n in b.nodes):
        return False
    reads_a, reads_b = _reads(grouping, a.nodes), _reads(grouping, b.nodes)
    writes = grouping.outputs(set(a.nodes) | set(b.nodes))
    if len(reads_a | reads_b) + len(writes) > MOST_VALUES:
        return False
    shared = sum(value.type.bytes for value in reads_a & reads_b)
    largest = max(value.type.bytes for value in (*a.positions, *b.positions))
    if shared * 4 >= largest:
        return True
    return _is_small(grouping, a) and _is_small(grouping, b)


def _reads(grouping: Grouping, nodes: list[Node]) -> set[Value]:
    """Values read from memory, scalars left out."""
    inside = set(nodes)
    return {
        source
        for node in nodes
        for value in node.inputs
        for source in grouping.sources(value)
        if source.node not in inside
        and source.type.size > 1
        and not (source.node is not None and source.node.op in CREATE and source.constant is None)
    }


def _is_small(grouping: Grouping, group: Group) -> bool:
    values = (*_reads(grouping, group.nodes), *grouping.outputs(set(group.nodes)))
    target = grouping.target
    return cost.traffic_seconds(target, values) < SMALL * target.launch_cost
