"""Memory of an interpreted program: its elements, and which program touched each of them.

A `Ledger` keeps the deeds of the programs by granule, so that buffers which share memory share what
is known of it. An access that meets another program's is a race, unless the two are in order:
programs run one after another, and one that reads the result of an atomic is taken to come behind
those that used the same element atomically before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from fuser.errors import VerifyError
from fuser.tilegen.ir import Buffer, Op

Array: TypeAlias = "np.ndarray[Any, Any]"

NOBODY, MANY = -1, -2  # who touched an element; otherwise the number of the one program that did

READ = (("writer", "stored"), ("adder", "added to"))
"""What a read may not meet, and what it is called."""
WRITE = (("writer", "stored"), ("reader", "read"), ("adder", "added to"), ("watcher", "read"))
ADD = (("writer", "stored"), ("reader", "read"))
LOOK = (("writer", "stored"),)
"""Of atomic loads, which atomics of others may meet."""


class AccessError(VerifyError):
    """An access outside of its memory, or one that meets another program's: a promise that the
    program of the user breaks.

    buffer, element: what was accessed. deed, other: of a race, what was done before, and by which
    program (MANY: several). limits: the elements that there are, first and last. op: of the Tile
    IR; point: the program, by axis of its grid.
    """

    buffer = ""
    element = 0
    deed = ""
    other = NOBODY
    limits = (0, -1)
    op: Op | None = None
    point: tuple[int, ...] = ()

    def noted(self, source: AccessError) -> None:
        """Take over what another one knows."""
        for name in ("buffer", "element", "deed", "other", "limits"):
            setattr(self, name, getattr(source, name))


@dataclass(eq=False)
class Ledger:
    """Who touched each granule of some memory; watcher: with atomic loads. order: by program those
    that it comes behind, the same for all memory."""

    writer: Array
    reader: Array
    adder: Array
    watcher: Array
    stamp: Array
    order: dict[int, set[int]]
    met: dict[int, set[int]] = field(default_factory=dict)
    """By granule: the programs that used it atomically."""

    @classmethod
    def of(cls, granules: int, order: dict[int, set[int]]) -> Ledger:
        writer, reader, adder, watcher = (np.full(granules, NOBODY, np.int32) for _ in range(4))
        return cls(writer, reader, adder, watcher, np.zeros(granules, np.int32), order)

    def touch(
        self, at: Array, program: int, mark: str, conflicts: Sequence[tuple[str, str]]
    ) -> tuple[int, str, int] | None:
        """Note an access of the granules `at`; (position in it, what was done, by whom) of one that
        met another's. conflicts: (earlier access, what it is called)."""
        behind = self.order.get(program, set())
        for name, deed in conflicts:
            owner: Array = getattr(self, name)[at]
            wrong = (owner != NOBODY) & (owner != program)
            if wrong.any() and behind:
                wrong &= ~np.isin(owner, list(behind))
            if wrong.any():
                place = int(np.argmax(wrong))
                return place, deed, int(owner[place])
        marks: Array = getattr(self, mark)
        owner = marks[at]
        mine = (owner == NOBODY) | (owner == program)
        if behind:
            mine |= np.isin(owner, list(behind))
        marks[at] = np.where(mine, program, MANY)
        return None

    def meet(self, at: Array, program: int, learns: bool) -> None:
        """An atomic access. learns: whether the program looks at what was there before."""
        for place in np.unique(at).tolist():
            here = self.met.setdefault(place, set())
            if learns:
                known = self.order.setdefault(program, set())
                for other in here - {program}:
                    known |= {other, *self.order.get(other, ())}
            here.add(program)


@dataclass(eq=False)
class Memory:
    """A buffer's elements. origin: the place in `data` of the buffer's first element; first, each:
    the granule of the ledger that it is, and how many an element has."""

    buffer: Buffer
    data: Array
    origin: int = 0
    ledger: Ledger | None = None
    first: int = 0
    each: int = 1

    @property
    def written(self) -> Array:
        """Which elements were stored or added to."""
        assert self.ledger is not None
        touched = (self.ledger.writer != NOBODY) | (self.ledger.adder != NOBODY)
        start = self.first - self.origin * self.each
        return np.asarray(touched[start : start + self.data.size * self.each : self.each])

    def granules(self, at: Array) -> Array:
        """Of elements, which count from the buffer's first."""
        if self.each == 1:
            return at + self.first if self.first else at
        spread = at[:, None] * self.each + np.arange(self.each) + self.first
        return np.asarray(spread.reshape(-1))

    def touch(
        self, at: Array, program: int, mark: str, conflicts: Sequence[tuple[str, str]]
    ) -> None:
        """Note an access of the elements `at`. Raises AccessError."""
        if self.ledger is None:
            return
        found = self.ledger.touch(self.granules(at), program, mark, conflicts)
        if found is not None:
            place, deed, other = found
            element = int(at[place // self.each])
            who = "several programs" if other == MANY else f"program {other}"
            error = AccessError(f"element {element} of {self.buffer.name} was {deed} by {who}")
            error.buffer, error.element = self.buffer.name, element
            error.deed, error.other = deed, other
            raise error

    def check_inside(self, at: Array, view: object) -> None:
        """Raise AccessError unless the array holds the elements `at`."""
        low, high = -self.origin, self.data.size - self.origin
        if not at.size or (at.min() >= low and at.max() < high):
            return
        element = at.min() if at.min() < low else at.max()
        of = f"memory of the elements {low} to {high - 1}" if low else f"a buffer of {high}"
        error = AccessError(f"{view!r} reaches element {element} of {of}")
        error.buffer, error.limits = self.buffer.name, (low, high - 1)
        error.element = int(at[(at < low) | (at >= high)][0])
        raise error

    def meet(self, at: Array, program: int, learns: bool) -> None:
        if self.ledger is not None:
            self.ledger.meet(self.granules(at), program, learns)

    def check_distinct(self, at: Array) -> None:
        """Raise AccessError where two elements of a tile go to one place."""
        if self.ledger is None:
            return
        stamp = self.ledger.stamp
        granules = self.granules(at)
        order = np.arange(granules.size, dtype=np.int32)
        stamp[granules] = order
        if (lost := stamp[granules] != order).any():
            place = int(at[int(np.argmax(lost)) // self.each])
            error = AccessError(
                f"two elements of the tile go to element {place} of {self.buffer.name}"
            )
            error.buffer, error.element, error.deed = self.buffer.name, place, "twice"
            raise error

    def alike(self, at: Array, new: Array) -> Array:
        """Where storing would change no bit."""
        old = np.ascontiguousarray(self.data[at + self.origin])
        fresh = np.ascontiguousarray(new)
        size = old.dtype.itemsize
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
        return np.asarray(old.view(kind) == fresh.view(kind))


def share(memories: Mapping[Buffer, Memory], tracked: set[Buffer]) -> None:
    """Give the tracked buffers their ledgers: one for all whose arrays overlap."""
    spans = sorted(
        ((*_span(memories[b].data), n, b) for n, b in enumerate(memories) if memories[b].data.size),
    )
    order: dict[int, set[int]] = {}
    groups: list[tuple[int, int, list[Buffer]]] = []
    for start, stop, _, buffer in spans:
        if groups and start < groups[-1][1]:
            first, last, members = groups[-1]
            groups[-1] = (first, max(last, stop), [*members, buffer])
        else:
            groups.append((start, stop, [buffer]))
    for start, stop, members in groups:
        if not tracked.intersection(members):
            continue
        starts = [_span(memories[b].data)[0] - start for b in members]
        granule = math.gcd(*starts, *(memories[b].data.itemsize for b in members))
        ledger = Ledger.of(-(-(stop - start) // granule), order)
        for offset, buffer in zip(starts, members, strict=True):
            memory = memories[buffer]
            memory.ledger, memory.each = ledger, memory.data.itemsize // granule
            memory.first = offset // granule + memory.origin * memory.each
    for buffer in tracked:
        if memories[buffer].ledger is None:
            memories[buffer].ledger = Ledger.of(0, order)


def _span(data: Array) -> tuple[int, int]:
    start = int(data.__array_interface__["data"][0])
    return start, start + data.size * data.itemsize
