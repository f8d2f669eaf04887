"""The state of partitioning: core nodes in groups, everything else virtual.

A *core* node is computed by exactly one group, which may store its result. A *virtual* node is
computed by nobody on its own: whoever reads its result computes it again on the way (constants,
iota, reshapes, and later the cheap maps that were inlined). Each group has an iteration space of
`size` elements; `positions` says where, in each of its values, the sampled points of that space lie
(positions.py), which is how a value is known to line up with the rest of the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser.base.target import Target
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.sizes import same_shape
from fuser.partition import cost
from fuser.partition import positions as at
from fuser.partition.dag import Order
from fuser.partition.forced import APART, computed, pinned_sets
from fuser.partition.nodes import (
    ANCHORS,
    CREATE,
    DECODE,
    REDUCE,
    VIEW,
    handed_over,
    is_injective,
    reduce_axes,
)
from fuser.partition.options import Options
from fuser.partition.positions import Positions
from fuser.partition.region import KINDS, Kind
from fuser.partition.tangled import tangled_movement


@dataclass(eq=False)
class Group:
    """A region in the making. space: the shape whose elements it iterates over.

    axes: the reduced axes of `space` in a reduce group, else None; base: the samples in `space`.
    """

    id: int
    kind: Kind
    nodes: list[Node]
    space: tuple[int, ...]
    anchors: list[Node] = field(default_factory=list)
    axes: tuple[int, ...] | None = None
    base: Positions | None = None
    positions: dict[Value, Positions] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    work: int = 0
    """What its code comes to: the sum of `cost.code` of its nodes."""
    closed: bool = False
    """Whether it was cut where few values live (deep.py), and takes no more nodes."""

    def is_full(self, more: int) -> bool:
        """Whether so much more code would be too much for one kernel."""
        return self.closed or self.work + more > cost.MOST_CODE

    @property
    def is_elementwise(self) -> bool:
        return self.kind in ("map", "gather")


@dataclass(frozen=True)
class Misfit:
    """Why a node cannot join a group."""

    code: str
    reason: str


RESERVED = Misfit("reserved", "one of the two is pinned to other nodes")


def _is_split(pin: frozenset[Node], nodes: set[Node], others: set[Node]) -> bool:
    """Whether nodes have a part of a pin, not all of it, of which the others have none."""
    return not pin.isdisjoint(nodes) and pin.isdisjoint(others) and not pin <= nodes


class Grouping:
    """Groups of a graph, with the queries that growing them needs."""

    def __init__(self, graph: Graph, target: Target, options: Options) -> None:
        self.graph = graph
        self.target = target
        self.options = options
        self.uses = graph.uses()
        self.graph_outputs = set(graph.outputs)
        self._position = {node: i for i, node in enumerate(graph.nodes)}
        self.kept: set[Value] = set()  # copies that passes made: no reader makes its own
        self.written = set(tangled_movement(graph)) | set(handed_over(graph))
        self.virtual: set[Node] = {
            node
            for node in graph.nodes
            if node.op in VIEW | CREATE | DECODE and node not in self.written
        }
        self.groups: dict[int, Group] = {}
        self.group_of: dict[Node, Group] = {}
        core = (node for node in graph.nodes if node not in self.virtual)
        self.order: Order[Group | Node] = Order(core, self._needs)
        self.log: dict[tuple[Node, Node], Misfit] = {}
        self._next = 0
        self._apart: dict[str, set[str]] = {}
        for one, other in options.forbid:
            self._apart.setdefault(one, set()).add(other)
            self._apart.setdefault(other, set()).add(one)
        self._pinned = pinned_sets(graph, options.pin)

    # reading ------------------------------------------------------------------------------------

    def position(self, node: Node) -> int:
        return self._position[node]

    def sources(self, value: Value) -> list[Value]:
        """The values that are not virtual behind `value`: core values, graph inputs, constants."""
        found: dict[Value, None] = {}
        seen: set[Value] = set()
        stack = [value]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            if (
                current.node is None
                or current.node not in self.virtual
                or current.constant is not None
            ):
                found[current] = None
            else:
                stack.extend(reversed(current.node.inputs))
        return list(found)

    def producers(self, node: Node) -> list[Group]:
        """The groups whose values a node reads, through virtual nodes, without repetition."""
        found: dict[Group, None] = {}
        for value in node.inputs:
            for source in self.sources(value):
                if source.node is not None and source.node in self.group_of:
                    found[self.group_of[source.node]] = None
        return list(found)

    def consumers(self, value: Value) -> list[Node]:
        """The core nodes that read a value, through virtual nodes, in graph order."""
        found: set[Node] = set()
        seen: set[Value] = {value}
        stack = [value]
        while stack:
            for node in self.uses.get(stack.pop(), ()):
                if node not in self.virtual:
                    found.add(node)
                    continue
                fresh = [v for v in node.outputs if v not in seen]
                seen.update(fresh)
                stack.extend(fresh)
        return sorted(found, key=self.position)

    def reaches_output(self, value: Value) -> bool:
        """Whether the value, or a movement of it, is an output of the graph."""
        seen: set[Value] = set()
        stack = [value]
        while stack:
            current = stack.pop()
            if current in self.graph_outputs:
                return True
            if current in seen:
                continue
            seen.add(current)
            for node in self.uses.get(current, ()):
                if node in self.virtual:
                    stack.extend(node.outputs)
        return False

    def outputs(self, members: set[Node]) -> list[Value]:
        """The values of the nodes that somebody else reads."""
        return [
            value
            for node in members
            for value in node.outputs
            if self.reaches_output(value)
            or any(user not in members for user in self.consumers(value))
        ]

    def forbidden(self, nodes: Iterable[Node], others: Iterable[Node]) -> Misfit | None:
        """Why the options keep nodes and others out of one region, if they do."""
        if self.options.no_fusion:
            if any(a.origin != b.origin or not a.origin for a in nodes for b in others):
                return Misfit("no-fusion", "fusion is turned off")
        elif self._apart:
            names = computed(self._with_virtual(others))
            for name in computed(self._with_virtual(nodes)):
                if not names.isdisjoint(self._apart.get(name, ())):
                    other = min(names & self._apart[name])
                    return Misfit("forbidden", f"{name!r} and {other!r}{APART}")
        if self.options.reserve and self._pinned:
            one, two = set(nodes), set(others)
            if any(_is_split(pin, one, two) or _is_split(pin, two, one) for pin in self._pinned):
                return RESERVED
        return None

    def parted(self, nodes: Sequence[Node]) -> Misfit | None:
        """Why the options keep nodes from being one region, if they do."""
        pins = self._pinned if self.options.reserve else ()
        if any(not pin.isdisjoint(nodes) and not pin.issubset(nodes) for pin in pins):
            return RESERVED
        return self.forbidden(nodes, nodes)

    def members(self, node: Node) -> list[Node]:
        """The nodes of the group of a node, or the node that is in none."""
        group = self.group_of.get(node)
        return [node] if group is None else group.nodes

    def _with_virtual(self, nodes: Iterable[Node]) -> set[Node]:
        """Nodes with the virtual ones behind them, which whoever computes the nodes computes."""
        found = set(nodes)
        stack = list(found)
        while stack:
            for value in stack.pop().inputs:
                node = value.node
                if node is not None and node in self.virtual and node not in found:
                    found.add(node)
                    stack.append(node)
        return found

    def is_pinned(self, group: Group) -> bool:
        """Whether a node of a group is pinned to any."""
        return any(not pin.isdisjoint(group.nodes) for pin in self._pinned)

    def pinned(self, nodes: Iterable[Node], others: Iterable[Node]) -> bool:
        """Whether one of the nodes and one of the others are pinned to each other."""
        if not self._pinned:
            return False
        one, two = set(nodes), set(others)
        return any(not pin.isdisjoint(one) and not pin.isdisjoint(two) for pin in self._pinned)

    # changing -----------------------------------------------------------------------------------

    def new_group(self, kind: Kind, nodes: Iterable[Node], space: tuple[int, ...]) -> Group:
        group = Group(self._next, kind, list(nodes), space)
        group.work = sum(map(cost.code, group.nodes))
        self._next += 1
        self.order.merge(set(group.nodes), group)
        self.groups[group.id] = group
        for node in group.nodes:
            self.group_of[node] = group
        return group

    def seed(self, node: Node) -> Group:
        """A group of one node that is not in a group yet."""
        if node.op in REDUCE:
            return self._seed_reduce(node)
        group = self.new_group(KINDS.get(node.op, "map"), [node], node.output.shape)
        if node.op in ANCHORS:
            group.anchors.append(node)
        group.positions[node.output] = at.sample(at.count(node.output))
        return group

    def seed_gate(self, matmuls: tuple[Node, ...]) -> Group | None:
        """A contraction with several anchors, None if one of them is placed already."""
        if any(node in self.group_of for node in matmuls):
            return None
        group = self.new_group("contraction", matmuls, matmuls[0].output.shape)
        for node in matmuls:
            group.anchors.append(node)
            group.positions[node.output] = at.sample(at.count(node.output))
        return group

    def _seed_reduce(self, node: Node) -> Group:
        x = node.inputs[0]
        group = self.new_group("reduce", [node], x.shape)
        group.anchors.append(node)
        group.axes = reduce_axes(node)
        group.base = at.sample(at.count(x))
        group.positions[node.output] = at.row_of(node, group.base)
        return group

    def join(self, node: Node, group: Group, positions: Positions) -> None:
        """Put a node that is in no group into one it fits."""
        self.order.merge((group, node), group)
        group.nodes.append(node)
        group.work += cost.code(node)
        group.positions[node.output] = positions
        if node.op in REDUCE:
            group.anchors.append(node)
        if node.op == "gather" and group.kind == "map":
            group.kind = "gather"
        self.group_of[node] = group

    def close(self, node: Node, group: Group) -> None:
        """Put a node behind a group that nothing can follow: its result lies at no one place."""
        self.join(node, group, np.zeros(0, np.int64))
        del group.positions[node.output]

    def absorb(self, group: Group, other: Group) -> None:
        """`group` takes all of `other`, whose positions are in the space of `group` already."""
        self.order.merge((group, other), group)
        group.nodes.extend(other.nodes)
        group.work += other.work
        group.anchors.extend(other.anchors)
        group.positions.update(other.positions)
        for node in other.nodes:
            self.group_of[node] = group
        if other.kind == "gather" and group.kind == "map":
            group.kind = "gather"
        del self.groups[other.id]

    def dissolve(self, group: Group) -> None:
        """Make a group's nodes virtual: every reader computes them again."""
        for node in group.nodes:
            del self.group_of[node]
            self.virtual.add(node)
        del self.groups[group.id]
        self.order.remove(group)

    def split(self, group: Group, nodes: list[Node]) -> Group:
        """Take nodes of an elementwise group, which the others do not read, into a new one."""
        members = set(nodes)
        group.nodes = [node for node in group.nodes if node not in members]
        group.work = sum(map(cost.code, group.nodes))
        kind: Kind = "gather" if any(node.op == "gather" for node in nodes) else "map"
        rest = Group(self._next, kind, nodes, group.space)
        rest.work = sum(map(cost.code, nodes))
        self._next += 1
        self.order.split(group, rest)
        self.groups[rest.id] = rest
        for node in nodes:
            self.group_of[node] = rest
            rest.positions[node.output] = group.positions.pop(node.output)
        return rest

    def release(self, node: Node) -> None:
        """Make one node of a group virtual: its readers compute it again."""
        group = self.group_of.pop(node)
        group.nodes.remove(node)
        group.work -= cost.code(node)
        group.positions.pop(node.output, None)
        self.virtual.add(node)

    def refuse(self, producer: Node, consumer: Node, misfit: Misfit) -> None:
        """Remember why two nodes stayed apart; the first reason stands."""
        self.log.setdefault((producer, consumer), misfit)

    # cycles -------------------------------------------------------------------------------------

    def closes_cycle(self, node: Node, group: Group, more: Collection[Node] = ()) -> bool:
        """Whether a group, together with more nodes that are to join it, would need itself by way
        of somebody else if a node joined it."""
        inside: set[Group | Node] = {group, *more}
        return self.order.detours(node, inside) or any(
            self.order.detours(item, (node,), inside)
            for item in inside
            if self.order.is_before(node, item)
        )

    def groups_close_cycle(self, a: Group, b: Group) -> bool:
        """Whether merging two groups would make the union depend on itself."""
        return self.order.detours(a, (b,)) or self.order.detours(b, (a,))

    def _needs(self, item: Group | Node) -> Iterator[Group | Node]:
        """The groups, and nodes in none, whose values a group or a node reads, through virtual
        nodes; an append reads what a group has written, virtual or not."""
        for node in item.nodes if isinstance(item, Group) else (item,):
            for value in node.inputs:
                is_stored = node.op == "append" and value.node in self.group_of
                for source in [value] if is_stored else self.sources(value):
                    producer = source.node
                    if producer is not None and producer.op not in CREATE:
                        yield self.group_of.get(producer, producer)

    # fitting ------------------------------------------------------------------------------------

    def fit(self, node: Node, group: Group) -> Positions | Misfit:
        """Positions of a pointwise node's result in the group's space, or why there are none."""
        tried = False
        for candidate in self._candidates(node, group):
            tried = True
            if self.agrees(node, candidate, group):
                return candidate
        if not tried:
            return Misfit("different-space", "it has another iteration space")
        return Misfit("different-space", "it reads the value at other places than it writes to")

    def _candidates(self, node: Node, group: Group) -> Iterator[Positions]:
        for value in node.inputs:
            found = self.lead(value, group)
            if found is not None and same_shape(node.output.shape, value.shape):
                yield found
        distinct: dict[bytes, Positions] = {
            positions.tobytes(): positions
            for own, positions in group.positions.items()
            if same_shape(own.shape, node.output.shape)
        }
        if group.base is not None and same_shape(node.output.shape, group.space):
            distinct.setdefault(group.base.tobytes(), group.base)
        yield from distinct.values()

    def lead(self, value: Value, group: Group) -> Positions | None:
        """Positions of a value that is a group's value moved injectively."""
        chain: list[Node] = []
        current = value
        while current not in group.positions:
            node = current.node
            if node is None or node not in self.virtual or node.op in CREATE:
                return None
            if is_injective(node):
                chain.append(node)
                current = node.inputs[0]
            else:
                return None
        positions = group.positions[current]
        for node in reversed(chain):
            positions = at.forward(node, positions)
        return positions

    def agrees(self, node: Node, positions: Positions, group: Group) -> bool:
        """Whether a node at the positions reads the group's values only where they are."""
        reads = (
            at.backward(node, positions)
            if node.op in ("concat", "pad", "gather") or node.op in VIEW
            else [(value, positions) for value in node.inputs]
        )
        return all(self.lines_up(value, where, group) for value, where in reads)

    def lines_up(self, value: Value, positions: Positions | None, group: Group) -> bool:
        """Whether reading a value at the positions meets the group's values only where they are."""
        stack: list[tuple[Value, Positions | None]] = [(value, positions)]
        while stack:
            current, where = stack.pop()
            if current in group.positions:
                held = group.positions[current]
                if held is not where and (where is None or not np.array_equal(held, where)):
                    return False
                continue
            node = current.node
            if node is not None and node.op == KERNEL_CALL and self.group_of.get(node) is group:
                return False  # a result that nothing can follow
            if node is None or node not in self.virtual or node.op in CREATE:
                continue
            if where is None:
                stack.extend((operand, None) for operand in node.inputs)
            else:
                stack.extend(at.backward(node, where))
        return True
