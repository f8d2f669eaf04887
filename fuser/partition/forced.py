"""What a user forces: pairs of ONNX nodes that no region may compute both of, or that one must.

A region computes an ONNX node if one of its primitives came from it, constants and movement that
never costs a kernel (reshape, transpose, broadcast, slice, iota) left out. What a reader computes
again, such as a cheap map, its region computes, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fuser.errors import UsageError
from fuser.graph.ir import Graph, Node
from fuser.partition.nodes import CREATE, DECODE, VIEW
from fuser.partition.options import Options, Pair
from fuser.partition.region import Partition, Refusal

APART = " are to stay apart"
"""What follows their names in the reason of a refusal."""

IDLE = CREATE | VIEW | DECODE
"""Primitives that no region is said to compute."""


def computed(nodes: Iterable[Node]) -> set[str]:
    """The ONNX nodes that primitives compute."""
    return {name for node in nodes if node.op not in IDLE for name in node.origin}


def check_names(graph: Graph, options: Options) -> None:
    """Raise UsageError for a node that there is not, and for pairs that contradict each other."""
    known = {name for node in graph.nodes for name in node.origin}
    known.update(node.name for node in graph.source)
    for wish, pairs in (("forbid", options.forbid), ("pin", options.pin)):
        for name in (name for pair in pairs for name in pair):
            if name not in known:
                raise UsageError(
                    f"there is no node {name!r} to {wish}", hint=nearest_node(name, sorted(known))
                )
    both = {frozenset(pair) for pair in options.pin} & {frozenset(pair) for pair in options.forbid}
    if both:
        names = " and ".join(map(repr, min(map(sorted, both))))
        raise UsageError(f"{names} are pinned and forbidden")


def nearest_node(name: str, known: Sequence[str]) -> str:
    """A hint for a name that there is not: those that it is a part of, or like."""
    close = [other for other in known if name in other][:3]
    close = close or difflib.get_close_matches(name, known, 3, 0.5)
    if not close:
        return "fuser explain -v lists the nodes"
    return f"did you mean {' or '.join(map(repr, close))}?"


def pinned_sets(graph: Graph, pairs: Iterable[Pair]) -> list[frozenset[Node]]:
    """For each pair the primitives on the ways from one to the other, both ends included; all of
    both where there is no way."""
    found = []
    for pair in pairs:
        one, other = (
            {n for n in graph.nodes if n.op not in IDLE and name in n.origin} for name in pair
        )
        ways = _ways(graph, one, other) | _ways(graph, other, one)
        if one and other:
            found.append(frozenset(ways or one | other))
    return found


def _ways(graph: Graph, ones: set[Node], others: set[Node]) -> set[Node]:
    """The primitives on the ways from some nodes to others, both ends included."""
    behind = set(ones)
    for node in graph.nodes:
        if any(value.node in behind for value in node.inputs):
            behind.add(node)
    found = (behind - ones) & others
    stack = list(found)
    while stack:
        for value in stack.pop().inputs:
            if value.node in behind and value.node not in found:
                found.add(value.node)
                stack.append(value.node)
    return {node for node in found if node.op not in IDLE}


def fused_before(graph: Graph, pairs: Sequence[Pair]) -> Pair | None:
    """The first pair that one primitive of a graph computes both of."""
    if not pairs:
        return None
    several = [set(n.origin) for n in graph.nodes if len(n.origin) > 1 and n.op not in IDLE]
    return next((pair for pair in pairs if any(names.issuperset(pair) for names in several)), None)


def check_separable(graph: Graph, options: Options) -> None:
    """Raise UsageError for a forbidden pair that is one operation of the graph already."""
    pair = fused_before(graph, options.forbid)
    if pair is not None:
        raise UsageError(
            f"{pair[0]!r} and {pair[1]!r} cannot be kept apart: they became one operation"
        )


def ways(options: Options) -> Iterator[Options]:
    """Options under which pins may be honoured, the nearest to the unforced plan first: none, for
    what is so already; pins as wishes; pinned nodes kept from other regions; and without rewrites
    that put matmuls together."""
    if options.pin:
        yield replace(options, pin=())
    yield options
    if options.pin:
        yield replace(options, reserve=True)
        yield replace(options, reserve=True, merge=False)
        yield replace(options, reserve=True, merge=False, copy_pinned=True)


def unmet(cut: Partition, options: Options) -> Pair | None:
    """The first pinned pair that no region computes both of."""
    regions = [computed(region.nodes) for region in cut.regions] if options.pin else []
    return next(
        (pair for pair in options.pin if not any(names.issuperset(pair) for names in regions)), None
    )


def check_pins(cut: Partition, options: Options, more: Iterable[Refusal] = ()) -> None:
    """Raise UsageError, with the reason, where no region computes both nodes of a pin. more:
    refusals of another way to honour it."""
    pair = unmet(cut, options)
    if pair is not None:
        reason = _reason(cut, pair, more)
        raise UsageError(f"{pair[0]!r} and {pair[1]!r} cannot be one kernel: {reason}")


def _reason(cut: Partition, pair: Pair, more: Iterable[Refusal]) -> str:
    regions = [
        {region.name for region in cut.regions if name in computed(region.nodes)} for name in pair
    ]
    for name, found in zip(pair, regions, strict=True):
        if not found:
            return f"{name!r} is only constants or movement, which is part of no kernel"
    one, other = regions
    between = [
        item
        for item in cut.refusals
        for sources, readers in ((one, other), (other, one))
        if item.producer in sources and item.consumer in readers
    ]
    between += [r for r in more if set(pair) <= {*r.sources, *r.readers}]
    for item in sorted(between, key=lambda item: item.code == "reserved"):
        return f"{item.reason} ({item.code})"
    return "they do not read each other, and do not iterate over one space"
