"""Take a region apart that no emitter can express as one kernel.

    region: %m = reduce_max %w, %s = softmax %x      =>   region: %m     region: %s
Parts that do not read each other come apart first. What hangs together becomes one region a node;
where that is one node already, the movement that it reads is written half-way. A region that only
takes too long to compile becomes two, if there is a place where one value crosses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from fuser.graph.ir import Node, Value
from fuser.graph.sizes import size_hint
from fuser.partition.nodes import ANCHORS, CREATE, DECODE, REDUCE, VIEW
from fuser.partition.refuse import names_of, reading, sources_of, uses_in
from fuser.partition.region import KINDS, Kind, Partition, Refusal, Region

Code = Literal["not-emitted", "slow-kernel"]
"""Why a region is taken apart: it cannot be one kernel, or that takes too long to compile."""

SIBLINGS = ("map", "gather", "reduce")
"""Kinds of regions in which nodes may stand side by side."""


def is_divisible(region: Region) -> bool:
    """Whether `ungroup` can take the region apart."""
    core = _core(region)
    return len(core) > 1 or any(n.op in VIEW and n not in core for n in region.nodes)


def ungroup(cut: Partition, region: Region, why: str, code: Code = "not-emitted") -> list[Region]:
    """Replace a region by its parts, in `cut.regions` and in order; `why` becomes a refusal that
    `explain` shows. Empty, with nothing changed, if it has only one part."""
    core = _core(region)
    groups = _unconnected(region, core) if region.kind in SIBLINGS else []
    if code == "slow-kernel":
        elsewhere = {v for other in cut.regions if other is not region for v in other.outputs}
        groups = _two(groups) if len(groups) > 1 else _halves(region, core, elsewhere)
    if len(groups) < 2:
        groups = [[node] for node in region.nodes if node in core]
    if len(groups) < 2:
        inner = [n for n in region.nodes if n.op in VIEW and n not in core]
        if not inner:
            return []
        groups.insert(0, [inner[len(inner) // 2]])
    first = 1 + max(other.id for other in cut.regions)
    core = {node for group in groups for node in group}
    closures = [_closure(region, group, core) for group in groups]
    read = {value for _, inputs in closures for value in inputs} | set(region.outputs)
    parts = [
        Region(
            first + number,
            region.kind if region.anchors and set(region.anchors) <= set(group) else _kind(group),
            nodes,
            inputs,
            tuple(value for node in group for value in node.outputs if value in read),
            tuple(node for node in group if node.op in ANCHORS | REDUCE),
        )
        for number, (group, (nodes, inputs)) in enumerate(zip(groups, closures, strict=True))
    ]
    at = cut.regions.index(region)
    cut.regions[at : at + 1] = parts
    cut.refusals[:] = _renamed(cut.refusals, region.name, parts)
    cut.refusals.extend(_refusals(parts, why, code))
    return parts


def _core(region: Region) -> set[Node]:
    """The nodes that take a kernel, or whose result is written."""
    virtual = VIEW | CREATE | DECODE
    return {
        node
        for node in region.nodes
        if node.op not in virtual or not set(region.outputs).isdisjoint(node.outputs)
    }


def _unconnected(region: Region, core: set[Node]) -> list[list[Node]]:
    """The core nodes in sets that do not read each other, each in order."""
    leader: dict[Node, Node] = {}  # towards one node of each set

    def find(node: Node) -> Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    computed = set[Node]()  # core nodes, and virtual ones behind them: others connect nobody
    for node in region.nodes:
        leader[node] = node
        before = [value.node for value in node.inputs if value.node in computed]
        if node in core or before:
            computed.add(node)
        for source in before:
            if source is not None:
                leader[find(source)] = find(node)
    groups: dict[Node, list[Node]] = {}
    for node in region.nodes:
        if node in core:
            groups.setdefault(find(node), []).append(node)
    return list(groups.values())


def _two(groups: Sequence[list[Node]]) -> list[list[Node]]:
    """Groups that do not read each other, in two of about equal size."""
    total = sum(map(len, groups))
    halves: list[list[Node]] = [[], []]
    for group in groups:
        halves[2 * len(halves[0]) >= total].extend(group)
    return halves if halves[1] else [list(chain.from_iterable(groups[:-1])), groups[-1]]


def _halves(region: Region, core: set[Node], elsewhere: set[Value]) -> list[list[Node]]:
    """The core nodes cut in two, as near to the middle as only one value crosses and the first half
    writes nothing else; empty if they cannot be. Both halves are regions as the partitioner makes
    them: one output lines up with itself, and the outputs of the second did before. elsewhere: what
    other regions write."""
    ordered = [node for node in region.nodes if node in core]
    if region.kind == "attention" or len(ordered) < 2:
        return []  # attention is one meaning
    place = {node: number for number, node in enumerate(ordered)}
    last: dict[Node, int] = {}  # the last core node that reads it, by way of virtual nodes or not
    for node in reversed(region.nodes):
        reader = place[node] if node in core else last.get(node, -1)
        for value in node.inputs:
            if value.node is not None:
                last[value.node] = max(last.get(value.node, -1), reader)
    written = set(region.outputs)
    anchors = {place[node] for node in region.anchors if node in place and node.op in ANCHORS}
    live, writers = set[Node](), set[Node]()  # what crosses the place behind a node, is an output
    found: list[int] = []
    for number, node in enumerate(ordered[:-1]):
        live = {other for other in (*live, node) if last.get(other, -1) > number}
        if not written.isdisjoint(node.outputs):
            writers.add(node)
        if not writers <= live:
            break
        between = anchors and min(anchors) <= number < max(anchors)
        if len(live) == 1 and not between:
            (crossing,) = live
            if len(crossing.outputs) == 1 and crossing.output not in elsewhere:
                found.append(number + 1)
    if not found:
        return []
    at = min(found, key=lambda number: abs(2 * number - len(ordered)))
    return [ordered[:at], ordered[at:]]


def _closure(
    region: Region, group: Sequence[Node], core: set[Node]
) -> tuple[tuple[Node, ...], tuple[Value, ...]]:
    """Some core nodes with the virtual nodes of the region that they read, and what comes from
    memory."""
    inside = set(region.nodes)
    nodes, inputs = set(group), set[Value]()
    stack = list(group)
    while stack:
        for value in stack.pop().inputs:
            node = value.node
            if node in nodes:
                continue
            if node is None or node not in inside or node in core:
                inputs.add(value)
            else:
                nodes.add(node)
                stack.append(node)
    ordered = tuple(node for node in region.nodes if node in nodes)
    return ordered, tuple(dict.fromkeys(v for n in ordered for v in n.inputs if v in inputs))


def _kind(group: Iterable[Node]) -> Kind:
    ops = [node.op for node in group]
    if any(op in REDUCE for op in ops):
        return "reduce"
    return next((KINDS[op] for op in ops if op in KINDS), "map")


def _refusals(parts: Sequence[Region], why: str, code: Code) -> list[Refusal]:
    """One for each part but the first: between it and the part that it reads, if it reads one."""
    writer = {value: part for part in parts for value in part.outputs}
    found = []
    for part in parts[1:]:
        crossing = [value for value in part.inputs if value in writer]
        producer = writer[crossing[0]] if crossing else parts[0]
        lost = sum(size_hint(value.type.bytes) for value in crossing)
        reason = why if code == "slow-kernel" else f"no kernel can be written for both: {why}"
        ends: tuple[str, tuple[str, ...], tuple[str, ...]] = ("", producer.origin, part.origin)
        if crossing:
            first = crossing[0]
            ends = (first.name, sources_of(first), names_of(reading(first, uses_in(part))))
        found.append(Refusal(producer.name, part.name, code, reason, lost, *ends))
    return found


def _renamed(refusals: Iterable[Refusal], name: str, parts: Sequence[Region]) -> list[Refusal]:
    """Refusals in which the parts of a region stand for it: what writes or reads the value."""
    writer = {value.name: part.name for part in parts for value in part.outputs}
    reader = {value.name: part.name for part in reversed(parts) for value in part.inputs}
    found = []
    for item in refusals:
        if item.producer == name:
            item = replace(item, producer=writer.get(item.value, parts[0].name))
        if item.consumer == name:
            item = replace(item, consumer=reader.get(item.value, parts[0].name))
        found.append(item)
    return found
