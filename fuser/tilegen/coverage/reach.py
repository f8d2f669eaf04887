"""What a kernel reaches of its buffers: how many distinct elements, and how often in all.

An access meets a box of its view: in every dim the numbers that an index takes over grid, loops and
tile axes, cut off at the bounds. Variables that two dims share (a diagonal), or masks, make the box
larger than what is met, so such an access is counted point by point where it is small, and else as
the box. An index that is data (a gather) takes at most as many values as there are elements to look
up, and as the dim has: rows that it can touch.

    load &a[4096, 768], [%m*64 + #0, %k + #1]   4096 * 768 elements, however many blocks read them
    load &x[224, 224], [%h*2 + #0, %w*2]        one column of two
    load &table[30522, 768], [%ids[#0], #1]     as many rows as there are ids
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuser.graph.sizes import by_example, size_hint
from fuser.tilegen import ops
from fuser.tilegen.coverage.access import Access, Accessing, Place, Walk
from fuser.tilegen.coverage.box import Linear, Variable, lines_of
from fuser.tilegen.coverage.count import addresses, points_of
from fuser.tilegen.index import Atom, Axis, Index, Lookup, Scalar
from fuser.tilegen.ir import Buffer, Kernel
from fuser.tilegen.value import UNBOUNDED, Value

MOST_POINTS = 1 << 16
"""Of an access that is counted point by point: some milliseconds."""
MOST_ELEMENTS = 1 << 20
"""Of a buffer in which accesses that overlap are told apart one by one."""
_DATA = -2_000_000
"""Numbers of variables that stand for data begin below this."""


@dataclass(frozen=True)
class Span:
    """The numbers that an index takes: `count` of low, low + step, ... below high."""

    low: int
    high: int
    step: int
    count: int

    def holds(self, other: Span) -> bool:
        return (
            self.step == 1
            and self.count == self.high - self.low
            and self.low <= other.low
            and other.high <= self.high
        )

    def apart(self, other: Span) -> bool:
        """Whether they share no number for sure."""
        if self.high <= other.low or other.high <= self.low:
            return True
        return self.step == other.step > 1 and (self.low - other.low) % self.step != 0


@dataclass(frozen=True)
class Reach:
    """What accesses of one kind meet of a buffer: distinct elements, all between two places; and
    how many the programs ask for together, each as often as it does."""

    elements: int
    low: int
    high: int
    fetched: int


@dataclass(frozen=True)
class _Met:
    """An access: the dims of its view that are more than bounds, and what it meets of them."""

    access: Access
    layout: tuple[tuple[int, ...], tuple[int, ...], int]
    spans: tuple[Span, ...]
    elements: int
    fetched: int

    def ends(self) -> tuple[int, int]:
        """The first element, and the one behind the last."""
        _, strides, low = self.layout
        high = low
        for span, stride in zip(self.spans, strides, strict=True):
            ends = (span.low * stride, (span.high - 1) * stride)
            low, high = low + min(ends), high + max(ends)
        return low, high + 1


@by_example
def reach(kernel: Kernel) -> dict[tuple[Buffer, bool], Reach]:
    """By buffer and whether it is written (an atomic does both): what a launch meets."""
    walk = _Walk(kernel)
    walk.block(kernel.body)
    table: dict[tuple[Buffer, bool], list[_Met]] = {}
    for met, writes in walk.met:
        for way in writes:
            table.setdefault((met.access.buffer, way), []).append(met)
    return {key: _together(met, size_hint(key[0].size)) for key, met in table.items()}


def _together(met: Sequence[_Met], size: int) -> Reach:
    """Several accesses of one buffer: what one meets within another counts once."""
    fetched = sum(item.fetched for item in met)
    kept: list[_Met] = []
    for item in sorted(met, key=lambda item: -item.elements):
        if item.elements and not any(_within(item, other) for other in kept):
            kept.append(item)
    if not kept:
        return Reach(0, 0, 0, fetched)
    ends = [item.ends() for item in kept]
    low, high = max(0, min(a for a, _ in ends)), min(size, max(b for _, b in ends))
    total = sum(item.elements for item in kept)
    if not all(_apart(a, b) for i, a in enumerate(kept) for b in kept[:i]):
        total = _overlapping(kept, size, total)
    return Reach(min(total, size), low, high, fetched)


def _within(item: _Met, other: _Met) -> bool:
    if item.layout == other.layout:
        return all(b.holds(a) for a, b in zip(item.spans, other.spans, strict=True))
    a, b = item.ends(), other.ends()
    return b[0] <= a[0] and a[1] <= b[1] and other.elements == b[1] - b[0]


def _apart(a: _Met, b: _Met) -> bool:
    if a.layout == b.layout:
        return any(x.apart(y) for x, y in zip(a.spans, b.spans, strict=True))
    first, second = a.ends(), b.ends()
    return first[1] <= second[0] or second[1] <= first[0]


def _overlapping(met: Sequence[_Met], size: int, total: int) -> int:
    """Distinct elements of accesses that may overlap; their sum at most."""
    if size > MOST_ELEMENTS:
        return total
    seen = np.zeros(size, np.bool_)
    for item in met:
        _, strides, offset = item.layout
        at = np.asarray(offset)
        for span, stride in zip(item.spans, strides, strict=True):
            at = at[..., None] + np.arange(span.low, span.high, span.step) * stride
        seen[np.clip(at, 0, size - 1)] = True
    return min(total, int(seen.sum()))


class _Walk(Walk):
    """The accesses of a kernel, with how often loops repeat them."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, lambda op: True)
        self.met: list[tuple[_Met, tuple[bool, ...]]] = []
        self.made = {value: op for op in kernel.walk() for value in op.results}
        self.distinct: dict[Value, int] = {}
        self.times = [math.prod(size_hint(extent) for extent in kernel.grid)]

    def loop(self, op: ops.For) -> None:
        trips = _trips(self.resolve(op.stop) - self.resolve(op.start), op.step)
        self.times.append(self.times[-1] * trips)
        super().loop(op)
        self.times.pop()

    def access(self, op: Accessing, shape: tuple[int, ...]) -> None:
        found = self._reached(op, shape)
        writes = (True,) if isinstance(op, ops.Store) else (False, True)
        self.met.append((found, (False,) if isinstance(op, ops.Load) else writes))
        if isinstance(op, ops.Load):
            self.distinct[op.result] = max(found.elements, 1)

    def _reached(self, op: Accessing, shape: tuple[int, ...]) -> _Met:
        view, extents = op.view, dict[int, int]()
        places = []
        for at, size, stride in zip(op.indices, view.shape, view.strides, strict=True):
            found = self._known(self.resolve(at), extents)
            places.append(Place(found, min(size_hint(size), UNBOUNDED), size_hint(stride)))
        used = {axis for at in op.indices for axis in at.axes()}
        points = self.times[-1] * math.prod(shape[axis] for axis in used)
        static = not any(number <= _DATA for number in extents)
        access = Access(op, view, tuple(places), extents, 1, static)
        real = [i for i, place in enumerate(places) if place.stride and place.size != 1]
        spans, exact, share = _spans(places, real, extents)
        elements = min(math.prod(span.count for span in spans), max(1, points))
        if not exact and static and points_of(access) <= MOST_POINTS:
            elements = np.unique(addresses(access)).size
        layout = (
            tuple(places[i].size for i in real),
            tuple(places[i].stride for i in real),
            size_hint(view.offset),
        )
        return _Met(access, layout, tuple(spans), elements, int(points * share))

    def _known(self, expression: Index, extents: dict[int, int]) -> Index:
        """The expression with data as variables; `extents` learns of all."""

        def leaf(atom: Atom) -> Index | None:
            if isinstance(atom, Axis):
                extents[atom.axis] = size_hint(atom.extent)
                return None
            if isinstance(atom, Lookup | Scalar):
                number = _DATA - atom.value.serial
                extents[number] = self._values(atom.value)
                if extents[number] == 1:
                    del extents[number]
                    return Index(0)
                return Index(0, ((Axis(number, extents[number]), 1),))
            return None

        return expression.replace(leaf)

    def _values(self, value: Value) -> int:
        """How many values a value that is data can have: no more than what it is made from."""
        if value not in self.distinct:
            low, high = (size_hint(end) for end in value.range)
            op = self.made.get(value)
            made = UNBOUNDED
            if isinstance(op, ops.IndexTile):
                expression = self.resolve(op.expression)
                made = math.prod(size_hint(e) for e in _axes(expression).values())
            elif isinstance(op, ops.Full):
                made = 1
            elif op is not None and not op.blocks() and op.operands():
                roots = {root for operand in op.operands() for root in self._roots(operand)}
                made = math.prod(self.distinct.get(root, UNBOUNDED) for root in roots)
            self.distinct[value] = max(1, min(made, high - low + 1, UNBOUNDED))
        return self.distinct[value]

    def _roots(self, value: Value) -> set[Value]:
        """The loads and index tiles that a value is computed from."""
        found, seen, stack = set[Value](), set[Value](), [value]
        while stack:
            item = stack.pop()
            if item in seen:
                continue
            seen.add(item)
            op = self.made.get(item)
            if isinstance(op, ops.Full):
                continue
            if op is None or op.blocks() or isinstance(op, ops.Load | ops.IndexTile | ops.Atomic):
                found.add(item)
                if item not in self.distinct and isinstance(op, ops.IndexTile):
                    self._values(item)
            else:
                stack += op.operands()
        return found


def _axes(expression: Index) -> dict[int, int]:
    found: dict[int, int] = {}

    def leaf(atom: Atom) -> None:
        if isinstance(atom, Axis):
            found[atom.axis] = atom.extent

    expression.replace(leaf)
    return found


def _trips(span: Index, step: int) -> int:
    """Iterations of a loop, on average where its end depends on the program."""
    low, high = (size_hint(end) for end in span.range)
    if high >= UNBOUNDED:
        return 1
    return max(1, -(-(max(low, 0) + max(high, 0)) // (2 * step)))


def _spans(
    places: Sequence[Place], real: Sequence[int], extents: Mapping[int, int]
) -> tuple[list[Span], bool, float]:
    """What each real dim takes, whether their product is what is met, and the share in bounds."""
    every = dict[Variable, int](extents.items())
    lines = lines_of([place.at for place in places], every)
    exact = lines is not None
    owners: dict[Variable, int] = {}
    spans, share = [], 1.0
    for i in real:
        own = every
        line = None if lines is None else lines[i]
        if line is None:
            own = dict[Variable, int](extents.items())
            alone = lines_of([places[i].at], own)
            line = None if alone is None else alone[0]
        if line is None:
            low, high = (size_hint(end) for end in places[i].at.range)
            low, high = max(0, low), min(places[i].size, high + 1)
            spans.append(Span(low, high, 1, max(0, high - low)))
            exact = False
            continue
        exact = exact and not any(owners.setdefault(v, i) != i for v in line.terms)
        limits = [(0, places[i].size)]
        if lines is not None:  # another bound on the same number
            for j, place in enumerate(places):
                if j not in real and lines[j].moves_with(line):
                    shift = size_hint(lines[j].constant) - size_hint(line.constant)
                    limits.append((-shift, place.size - shift))
        whole = _span(line, own)
        span = _cut(whole, max(a for a, _ in limits), min(b for _, b in limits))
        share *= span.count / max(1, whole.count)
        spans.append(span)
    for i, place in enumerate(places):  # rows of a tile beyond the one that there is
        if lines is not None and i not in real and not lines[i].terms.keys() & owners.keys():
            whole = _span(lines[i], every)
            share *= _cut(whole, 0, place.size).count / max(1, whole.count)
    return spans, exact, share


def _span(line: Linear, extents: Mapping[Variable, int]) -> Span:
    """All numbers of a line."""
    low = size_hint(line.constant)
    step, length, count, top = 1, 1, 1, 0
    terms = []
    for variable, factor in line.terms.items():
        coefficient, extent = size_hint(factor), size_hint(extents[variable])
        if coefficient < 0:
            low += coefficient * (extent - 1)
        if coefficient and extent > 1:
            terms.append((abs(coefficient), extent))
    regular = True
    for coefficient, extent in sorted(terms):
        if length == 1:
            step = coefficient
        fits = regular and coefficient % step == 0 and coefficient <= length * step
        top += coefficient * (extent - 1)
        if fits:
            length += coefficient // step * (extent - 1)
            count = length
        else:
            regular = False
            count *= extent
    high = low + top + 1
    if regular:
        return Span(low, high, step, count)
    return Span(low, high, 1, min(count, top + 1))


def _cut(span: Span, low: int, high: int) -> Span:
    """The numbers of a span in [low, high)."""
    if span.low >= low and span.high <= high:
        return span
    if span.count == -(-(span.high - span.low) // span.step):
        first = max(span.low, span.low + -(-(low - span.low) // span.step) * span.step)
        last = min(span.high, high)
        return Span(first, max(first, last), span.step, max(0, -(-(last - first) // span.step)))
    low, high = max(low, span.low), min(high, span.high)
    part = span.count * max(0, high - low) // (span.high - span.low)
    return Span(low, max(low, high), 1, part)
