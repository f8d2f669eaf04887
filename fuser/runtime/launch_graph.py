"""Which launches of a program wait for which, from the buffers that each reads and writes.

    x -> [0] -> a -> [1] -> b -> [3] -> y        0 -> 1, 0 -> 2, 1 -> 3, 2 -> 3: data
                a -> [2] -> c -> [3]
    c lies where d was, which 1 has read         1 -> 2: reuse

A run launches them in order, which respects all of it; the graph says what another order could do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fuser.runtime.program import BufferRef, Dependence, Launch, Program


@dataclass
class _Held:
    """What lies in memory: the launches that wrote it, those that read it since, and those that
    used what lay here before it."""

    low: int
    high: int
    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    before: tuple[int, ...] = ()

    @property
    def users(self) -> tuple[int, ...]:
        """Who must be over before something else lies here: they wait for all others."""
        return tuple(self.readers or self.writers or self.before)


class _Memory:
    """The buffers of a program, while its launches are gone through."""

    def __init__(self) -> None:
        self._whole: dict[BufferRef, _Held] = {}
        self._arena: dict[int, _Held] = {}
        self._gone: list[_Held] = []  # ranges of the arena whose values are of the past

    def at(self, ref: BufferRef, size: int, is_new: bool) -> _Held:
        """What an argument refers to. is_new: a value in the arena that begins here."""
        if ref.space != "arena":
            return self._whole.setdefault(ref, _Held(0, size))
        if is_new or ref.index not in self._arena:
            self._arena[ref.index] = self._begin(ref.index, ref.index + size)
        return self._arena[ref.index]

    def _begin(self, low: int, high: int) -> _Held:
        """A new value. The older ones that it lies over are gone; who used what is left of their
        memory is remembered."""
        before: dict[int, None] = {}
        over = [old for old in self._arena.values() if old.low < high and low < old.high]
        for old in over:
            del self._arena[old.low]
        gone, self._gone = self._gone + over, []
        for old in gone:
            if old.low < high and low < old.high:
                before.update(dict.fromkeys(old.users))
            for start, stop in ((old.low, min(old.high, low)), (max(old.low, high), old.high)):
                if start < stop:
                    self._gone.append(_Held(start, stop, before=old.users))
        return _Held(low, high, before=tuple(before))


def dependences(program: Program) -> tuple[Dependence, ...] | None:
    """The launches that wait for one another directly, in order; None for a program that does not
    say what its kernels read and write: one of a plan file of an earlier release."""
    if not all(launch.access or not launch.arguments for launch in program.launches):
        return None
    memory = _Memory()
    found: dict[tuple[int, int], Dependence] = {}
    for place, launch in enumerate(program.launches):
        for held, letter, size in _uses(memory, launch):
            for source in held.writers if letter in "ru" else ():
                old = found.get((source, place))
                total = size + (old.bytes if old else 0)
                found[source, place] = Dependence(source, place, "data", total)
            if letter == "r":
                held.readers.append(place)
                continue
            for source in (*held.before, *held.readers):
                found.setdefault((source, place), Dependence(source, place, "reuse"))
            # Kernels that write parts of a value do not wait for each other.
            held.writers = [place] if letter == "u" else [*held.writers, place]
            held.readers = []
    kept = sorted(found.values(), key=lambda item: (item.target, item.source))
    return tuple(item for item in kept if item.source != item.target)


def _uses(memory: _Memory, launch: Launch) -> Iterator[tuple[_Held, str, int]]:
    """What a launch does to memory, reads first: (what, letter, bytes)."""
    uses = []
    for ref, size, letter in zip(launch.arguments, launch.sizes, launch.access, strict=True):
        if letter != "-" and (size or ref.space != "arena"):  # values of no bytes share a place
            uses.append((memory.at(ref, size, letter.isupper()), letter.lower(), size))
    yield from sorted(uses, key=lambda use: "ruw".index(use[1]))
