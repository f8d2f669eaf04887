"""From groups to Regions: outputs placed, virtual nodes copied to their readers, order fixed."""

from __future__ import annotations

from fuser.graph.ir import Node, Value
from fuser.graph.ops.families import KERNEL_CALL
from fuser.partition import positions as at
from fuser.partition.dag import ordered
from fuser.partition.grouping import Group, Grouping
from fuser.partition.nodes import OPAQUE, is_injective
from fuser.partition.region import Region


def own_outputs(grouping: Grouping) -> list[Group]:
    """Give every graph output that is only a movement of something to a group that writes it, and
    return the groups that only cut a slice, and may move it.

    The node stays virtual: other readers go on through it, so no dependency is added.
    """
    slices = []
    for value in dict.fromkeys(grouping.graph.outputs):
        node = value.node
        assert node is not None, "graph inputs are copied before"
        if node not in grouping.virtual:
            continue
        matmul = _cut_owner(grouping, node)
        if matmul is not None:
            grouping.close(node, matmul)
            continue
        owner = _injective_owner(grouping, node)
        positions = grouping.lead(value, owner) if owner is not None else None
        if owner is None or positions is None:
            group = grouping.new_group("map", [node], value.shape)
            if _cuts(grouping, node):
                group.positions[value] = at.sample(at.count(value))
                slices.append(group)
        else:
            grouping.join(node, owner, positions)
    return slices


def _cut_owner(grouping: Grouping, node: Node) -> Group | None:
    """The matmuls on a GPU of whose result a node is a part, which they write by itself: a store
    where what a block has lies within the part."""
    if not grouping.target.is_cuda or not _cuts(grouping, node):
        return None
    current: Node | None = node
    while current is not None and current in grouping.virtual:
        if not (is_injective(current) or (current.op == "slice" and _is_run(current))):
            return None
        current = current.inputs[0].node
    owner = None if current is None else grouping.group_of.get(current)
    if current is None or owner is None or owner.kind != "contraction":
        return None
    parts = current.inputs if current.op == "concat" else current.outputs
    if not all(value in owner.positions for value in parts):
        return None
    return None if grouping.forbidden(owner.nodes, [node]) else owner


def _is_run(node: Node) -> bool:
    """Whether a slice leaves no element out between two others."""
    return all(stride == 1 for stride in node.attrs["strides"])


def _cuts(grouping: Grouping, node: Node) -> bool:
    """Whether a node is a slice, or a movement of one."""
    current: Node | None = node
    while current is not None and current in grouping.virtual and is_injective(current):
        current = current.inputs[0].node
    return current is not None and current.op == "slice"


def _injective_owner(grouping: Grouping, node: Node) -> Group | None:
    """The group whose value the node moves without dropping or repeating an element."""
    value = node.output
    while value.node is not None and (value.node is node or value.node in grouping.virtual):
        if not is_injective(value.node):
            return None
        value = value.node.inputs[0]
    made = value.node
    if made is None or made.op in OPAQUE - {KERNEL_CALL} or made not in grouping.group_of:
        return None
    owner = grouping.group_of[made]
    return owner if value in owner.positions else None


def sink_movement(grouping: Grouping) -> None:
    """Let batched matmuls write the merged-heads form that their reader wants.

    attention [b, h, s, d] -> transpose [b, s, h, d] -> reshape [b, s, h*d]: rows of d stay whole,
    and the next matmul reads a plain matrix.
    """
    for group in list(grouping.groups.values()):
        batched = group.kind == "contraction" and group.anchors[0].attrs["lhs_batch"]
        if group.kind != "attention" and not batched:
            continue
        for value in grouping.outputs(set(group.nodes)):
            last = _merged(grouping, value)
            if last is not None and value in group.positions:
                found = grouping.lead(last.output, group)
                assert found is not None
                grouping.virtual.discard(last)
                grouping.join(last, group, found)


def _merged(grouping: Grouping, value: Value) -> Node | None:
    """The reshape that ends a chain of private movement with a transpose that keeps rows whole."""
    transposed = False
    last: Node | None = None
    current = value
    while current not in grouping.graph_outputs:
        users = grouping.uses.get(current, [])
        if len(users) != 1 or users[0] not in grouping.virtual or not is_injective(users[0]):
            break
        node = users[0]
        if node.op == "transpose":
            if node.attrs["perm"][-1] != len(node.attrs["perm"]) - 1:
                break
            transposed = True
        elif transposed:
            last = node
        current = node.output
    return None if last in grouping.group_of else last


def build_regions(grouping: Grouping) -> list[Region]:
    """One Region a group, in an order that respects data flow."""
    groups = list(grouping.groups.values())
    nodes: dict[Group, list[Node]] = {}
    inputs: dict[Group, list[Value]] = {}
    for group in groups:
        nodes[group], inputs[group] = _closure(grouping, group)
    read = {value for values in inputs.values() for value in values}
    read.update(grouping.graph.outputs)
    before = {
        group: {
            grouping.group_of[value.node]
            for value in inputs[group]
            if value.node is not None and value.node in grouping.group_of
        }
        for group in groups
    }
    key = {group: max(map(grouping.position, group.nodes)) for group in groups}
    regions = []
    for id, group in enumerate(ordered(groups, before, key)):
        core = sorted(group.nodes, key=grouping.position)
        outputs = tuple(value for node in core for value in node.outputs if value in read)
        anchors = tuple(sorted(group.anchors, key=grouping.position))
        regions.append(
            Region(
                id, group.kind, tuple(nodes[group]), tuple(inputs[group]), outputs, anchors,
                group.facts,
            )
        )  # fmt: skip
    return regions


def _closure(grouping: Grouping, group: Group) -> tuple[list[Node], list[Value]]:
    """The group's nodes with the virtual nodes behind them, and the values read from memory."""
    nodes: set[Node] = set(group.nodes)
    inputs: set[Value] = set()
    stack = list(group.nodes)
    while stack:
        core = stack.pop()
        for value in core.inputs:
            node = value.node
            if node in nodes:
                continue
            if (
                node is None
                or core.op == "append"
                or (value.constant is not None and value.type.size != 1)
            ):
                inputs.add(value)
            elif node in grouping.virtual:
                nodes.add(node)
                stack.append(node)
            else:
                inputs.add(value)
    in_order = sorted(nodes, key=grouping.position)
    first_use = dict.fromkeys(v for node in in_order for v in node.inputs if v in inputs)
    return in_order, list(first_use)
