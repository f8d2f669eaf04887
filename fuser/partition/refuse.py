"""Why neighbours are not one kernel: a Refusal for every value that crosses between regions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fuser.graph.ir import Node, Value
from fuser.graph.sizes import by_example
from fuser.partition.grouping import Grouping, Misfit
from fuser.partition.nodes import VIEW
from fuser.partition.region import Refusal, Region


@by_example
def refusals(grouping: Grouping, regions: list[Region]) -> list[Refusal]:
    """One Refusal for each (producer, consumer, value), in region order."""
    writer = {value: region for region in regions for value in region.outputs}
    readers: dict[Value, int] = {}
    for region in regions:
        for value in region.inputs:
            readers[value] = readers.get(value, 0) + 1
    found = []
    for region in regions:
        uses = uses_in(region)
        for value in region.inputs:
            producer = writer.get(value)
            if producer is None:
                continue
            users = reading(value, uses)
            misfit = _reason(grouping, producer, region, value, users)
            must_write = readers[value] > 1 or value in grouping.graph_outputs
            lost = value.type.bytes * (1 if must_write else 2)
            found.append(
                Refusal(
                    producer.name, region.name, misfit.code, misfit.reason, lost,
                    value.name, sources_of(value), names_of(users),
                )
            )  # fmt: skip
    return found


def uses_in(region: Region) -> dict[Value, list[Node]]:
    """The nodes of a region that read each value."""
    uses: dict[Value, list[Node]] = {}
    for node in region.nodes:
        for value in node.inputs:
            uses.setdefault(value, []).append(node)
    return uses


def sources_of(value: Value) -> tuple[str, ...]:
    """The ONNX nodes that compute a value, movement of it passed over."""
    node = value.node
    while node is not None and node.op in VIEW and node.inputs[0].node is not None:
        node = node.inputs[0].node
    return () if node is None else names_of([node])


def reading(value: Value, uses: Mapping[Value, Sequence[Node]]) -> list[Node]:
    """The nodes of a region that read a value, movement of it passed over."""
    found: dict[Node, None] = {}
    seen = {value}
    stack = [value]
    while stack:
        for node in uses.get(stack.pop(), ()):
            if node.op in VIEW and node.output in uses:
                if node.output not in seen:
                    seen.add(node.output)
                    stack.append(node.output)
            else:
                found[node] = None
    return list(found)


def names_of(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The ONNX nodes that nodes came from, or their primitives."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.origin or (node.op,)))


def _reason(
    grouping: Grouping, producer: Region, consumer: Region, value: Value, users: Iterable[Node]
) -> Misfit:
    """What was noted of the nodes that read the value, or by whose computing it is read."""
    inside = set(consumer.nodes)
    assert value.node is not None
    for user in (*users, *(node for node in grouping.consumers(value) if node in inside)):
        if (misfit := grouping.log.get((value.node, user))) and misfit.code != "placed":
            return misfit
    if grouping.options.no_fusion:
        return Misfit("no-fusion", "fusion is turned off")
    return _by_kind(producer, consumer)


def _by_kind(producer: Region, consumer: Region) -> Misfit:
    """The general reason for two kinds of region, where no particular one was noted."""
    heavy = ("contraction", "conv", "attention", "window")
    alone = ("sort", "scatter", "scan", "collective", "host", "kernel")
    if consumer.kind in alone or producer.kind in alone:
        return Misfit("opaque", f"{producer.kind} and {consumer.kind} regions run alone")
    if consumer.kind in heavy and producer.kind in heavy:
        return Misfit("second-anchor", "it needs an iteration space of its own")
    if consumer.kind in heavy and producer.kind == "reduce":
        return Misfit("row-in-prologue", "a row must be complete before its first matmul")
    if consumer.kind in heavy:
        return Misfit("recompute", "every block of the matmul would compute it again")
    if producer.kind in heavy and consumer.kind == "reduce":
        return Misfit(
            "row-across-blocks", "the row it reduces is spread over blocks of the kernel before"
        )
    if producer.kind in heavy:
        return Misfit("different-space", "it does not follow the elements of the matmul one by one")
    if producer.kind == "reduce" and consumer.kind == "reduce":
        return Misfit("different-rows", "the two regions keep different rows on chip")
    return Misfit("different-space", "the two regions iterate over different spaces")
