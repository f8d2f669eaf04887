"""Bytes through memory: what each kernel meets of its buffers, and the least that there can be.
docs/report.md has the definitions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from fuser.graph.sizes import by_example
from fuser.report.dram import Touch
from fuser.runtime.device_layout import Addresses, lay_out
from fuser.runtime.plan_report import Bytes
from fuser.runtime.program import BufferRef, Launch, Program
from fuser.tilegen.coverage.reach import Reach, reach
from fuser.tilegen.program import TileProgram

ALIGNMENT = 256
READ_AGAIN = 1.5
"""A buffer whose bytes blocks read so many times each counts as read until the kernel ends."""


@dataclass(frozen=True)
class Part:
    """A range of a buffer, from byte low to byte high. read, written: how many of
    its bytes are; asked: bytes that blocks fetch, each counted as often as it is."""

    ref: BufferRef
    low: int
    high: int
    read: int
    written: int
    asked: int = 0


@dataclass(frozen=True)
class Moved:
    """What one kernel moves. cleared: what is set to zero before it."""

    parts: tuple[Part, ...]
    cleared: tuple[Part, ...] = ()

    @property
    def boundary(self) -> Bytes:
        return Bytes(
            sum(part.read for part in self.parts), sum(part.written for part in self.parts)
        )

    @property
    def reread(self) -> int:
        return sum(max(0, part.asked - part.read) for part in self.parts)

    def touches(self, addresses: Addresses) -> list[Touch]:
        """The same in the memory of a plan."""
        return [
            Touch(
                addresses.address(part.ref) + part.low, part.high - part.low, part.read,
                part.written, part.asked > READ_AGAIN * part.read > 0,
            )
            for part in (*self.cleared, *self.parts)
        ]  # fmt: skip


def addresses_of(program: Program) -> Addresses:
    """Addresses in a plan whose memory begins at 0."""
    layout = lay_out(program)
    return Addresses(0, layout.constants, layout, layout.inputs, layout.outputs)


@by_example
def launches_moved(programs: Sequence[TileProgram], program: Program) -> list[Moved]:
    """What the launches of a plan move, in order."""
    known: dict[Hashable, list[tuple[int, Reach | None, Reach | None]]] = {}
    found = []
    for item, launch in zip(programs, program.launches, strict=True):
        kernel = launch.kernel  # the same code has the same accesses
        code = (kernel.entry, kernel.code) if kernel.code else id(item.kernel.body)
        key = code, kernel.grid, kernel.sizes
        if key not in known:
            met = reach(item.kernel)
            known[key] = [
                (buffer.dtype.bytes, met.get((buffer, False)), met.get((buffer, True)))
                for buffer in (argument.buffer for argument in item.arguments)
            ]
        found.append(_moved(known[key], launch))
    return found


def _moved(met: Sequence[tuple[int, Reach | None, Reach | None]], launch: Launch) -> Moved:
    parts = []
    for (width, reads, writes), ref in zip(met, launch.arguments, strict=False):
        ways = [way for way in (reads, writes) if way is not None and way.elements]
        if ways:
            low, high = min(way.low for way in ways), max(way.high for way in ways)
            counts = [(way and way.elements * width) or 0 for way in (reads, writes)]
            asked = reads.fetched * width if reads else 0
            parts.append(Part(ref, low * width, high * width, counts[0], counts[1], asked))
    if scratch := launch.kernel.workspace_bytes:  # for partial sums, after the buffers
        parts.append(Part(launch.arguments[len(met)], 0, scratch, scratch, scratch, scratch))
    cleared = (Part(zero.buffer, 0, zero.bytes, 0, zero.bytes) for zero in launch.zeros)
    return Moved(tuple(parts), tuple(cleared))


def least(moved: Sequence[Moved], program: Program) -> Moved:
    """One kernel that reads what the kernels read of inputs and weights, and writes the outputs,
    each once."""
    read: dict[BufferRef, list[Part]] = {}
    for part in (part for item in moved for part in item.parts):
        if part.read and part.ref.space in ("input", "constant"):
            read.setdefault(part.ref, []).append(part)
    written = [
        Part(BufferRef("output", number), 0, spec.bytes, 0, spec.bytes)
        for number, spec in enumerate(program.outputs)
    ]
    return Moved((*map(_union, read.values()), *written))


def _union(parts: Sequence[Part]) -> Part:
    """What several kernels read of a buffer: ranges that are read whole count once, and of what is
    read with gaps outside of them the most that one reads."""
    whole = sorted((p.low, p.high) for p in parts if p.read == p.high - p.low)
    total, top = 0, 0
    for low, high in whole:
        total, top = total + max(0, high - max(low, top)), max(top, high)
    gaps = (p.read for p in parts if not any(a <= p.low and p.high <= b for a, b in whole))
    low, high = min(p.low for p in parts), max(p.high for p in parts)
    return Part(parts[0].ref, low, high, min(high - low, total + max(gaps, default=0)), 0)
