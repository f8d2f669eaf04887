"""Which items of a graph need which, while items merge; and the order of regions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from fuser.errors import VerifyError
from fuser.graph.ir import Graph, Node

K = TypeVar("K")
Label = tuple[int, ...]

LONGEST_LABEL = 128
"""Longer labels are numbered anew: comparing them takes time."""


class Order(Generic[K]):
    """An order of items in which each stands behind those that it needs, kept up as items merge.

    Whether one item needs another is found by a walk back that ends at items in front of the
    other: it costs what lies between the two, not what the graph has. Two that merge stand where
    the first was; what the second needs from between them moves in front (the idea of Pearce and
    Kelly, A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs, 2006). Places are
    labels in the order of tuples, so there is always room behind one: the longer label.
    """

    def __init__(self, items: Iterable[K], sources: Callable[[K], Iterable[K]]) -> None:
        """items: in order. sources: what an item needs directly, by then."""
        self.sources = sources
        self._label: dict[K, Label] = {item: (i,) for i, item in enumerate(items)}
        self._inserted = 0

    def label(self, item: K) -> Label:
        return self._label[item]

    def is_before(self, one: K, other: K) -> bool:
        return self._label[one] < self._label[other]

    def detours(self, item: K, others: Collection[K], inside: Collection[K] = ()) -> bool:
        """Whether a way from an item to one of the others that it needs leads over an item that is
        neither one of them nor `inside`: if they merge, the union needs itself."""
        least = min(self._label[other] for other in others)
        stack, seen = [item], {item}
        while stack:
            current = stack.pop()
            if self._label[current] <= least:
                continue
            for source in self.sources(current):
                if source in others:
                    if current is not item:
                        return True
                elif source not in seen and source not in inside:
                    seen.add(source)
                    stack.append(source)
        return False

    def merge(self, items: Collection[K], into: K) -> None:
        """Items, which no detour connects, become one, `into`: one of them or a new one. Items
        without a place must not be needed by those that have one."""
        places = [self._label[item] for item in items if item in self._label]
        if not places:
            needed = (self._label[source] for item in items for source in self.sources(item))
            places = [(*max(needed, default=()), self._next())]
        place = min(places)
        moved = sorted(self._needed_behind(items, place), key=self._label.__getitem__)
        for item in items:
            self._label.pop(item, None)
        if moved:
            place = (*place, self._next())
            for i, item in enumerate(moved):
                self._label[item] = (*place, i)
            place = (*place, len(moved))
        self._put(into, place)

    def split(self, item: K, rest: K) -> None:
        """`rest`, a part of an item that the item does not need, gets a place of its own."""
        self._put(rest, (*self._label[item], self._next()))

    def remove(self, item: K) -> None:
        """The item is gone: who needed it needs what it needed."""
        del self._label[item]

    def _needed_behind(self, items: Collection[K], place: Label) -> set[K]:
        """The items behind a place that some of these need."""
        found: set[K] = set()
        stack = [item for item in items if self._label.get(item) != place]
        while stack:
            for source in self.sources(stack.pop()):
                if source not in found and source not in items and self._label[source] > place:
                    found.add(source)
                    stack.append(source)
        return found

    def _next(self) -> int:
        """Of two labels that begin alike, the later one stands in front."""
        self._inserted -= 1
        return self._inserted

    def _put(self, item: K, place: Label) -> None:
        self._label[item] = place
        if len(place) > LONGEST_LABEL:
            in_order = sorted(self._label, key=self._label.__getitem__)
            self._label = {item: (i,) for i, item in enumerate(in_order)}


class Needs(Generic[K]):
    """What an item needs, found as far to the front as somebody asks; for a time without merges."""

    def __init__(
        self, order: Order[K], item: K, most: int, known: Mapping[K, Collection[K]] | None = None
    ) -> None:
        """most: so many items are looked at; behind them it is said to need everything. known: what
        some items need, of all that will be asked for."""
        self._order, self._left, self._known = order, most, known or {}
        self.found: set[K] = {item}
        self._queue = [(_Backwards(order.label(item)), item)]

    def may_include(self, other: K) -> bool:
        """Whether the item needs another, directly or not."""
        label = self._order.label
        least = label(other)
        while not self.is_complete(least):
            _, current = heapq.heappop(self._queue)
            if current in self._known:
                self.found.update(self._known[current])
                continue
            for source in self._order.sources(current):
                if source not in self.found:
                    self.found.add(source)
                    heapq.heappush(self._queue, (_Backwards(label(source)), source))
            self._left -= 1
            if self._left <= 0:
                return True
        return other in self.found

    def is_complete(self, label: Label) -> bool:
        """Whether all that it needs from that place on is found."""
        return not self._queue or self._queue[0][0].label <= label


class _Backwards:
    """A label for a heap whose first is the last."""

    def __init__(self, label: Label) -> None:
        self.label = label

    def __lt__(self, other: _Backwards) -> bool:
        return self.label > other.label


def ordered(items: Sequence[K], before: Mapping[K, Iterable[K]], key: Mapping[K, int]) -> list[K]:
    """Items in an order where `before[x]` come ahead of x; ties go to the lesser key.

    Raises VerifyError if there is a cycle.
    """
    number = {item: place for place, item in enumerate(items)}
    after: list[list[int]] = [[] for _ in items]
    waits = [0] * len(items)
    for item, sources in before.items():
        for source in set(sources):
            after[number[source]].append(number[item])
            waits[number[item]] += 1
    ready = [(key[item], place) for item, place in number.items() if not waits[place]]
    heapq.heapify(ready)
    found: list[K] = []
    while ready:
        _, place = heapq.heappop(ready)
        found.append(items[place])
        for reader in after[place]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (key[items[reader]], reader))
    if len(found) < len(items):
        raise VerifyError("regions need each other in a circle")
    return found


def is_convex(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Whether no path between two of the nodes leaves the set."""
    inside = set(nodes)
    tainted: set[Node] = set()  # outside nodes that depend on an inside node
    for node in graph.nodes:
        sources = {value.node for value in node.inputs if value.node is not None}
        if node in inside:
            if sources & tainted:
                return False
        elif sources & inside or sources & tainted:
            tainted.add(node)
    return True
