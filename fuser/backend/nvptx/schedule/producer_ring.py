"""Streams: loops of which one warp fetches the operands, and the barriers of their stages.

A loop whose staged loads the copy engine can fetch becomes a stream: `stages` buffers, and for
every channel (the loads that one dot waits for) a pair of barriers a stage, "full" and "empty".
schedule/warp_specialization_plan.py finds them, schedule/producer_warp.py writes the producer's
code and schedule/consumer_warps.py the code of those who compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, SharedTile, Slot, Tile
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.memory.tma_boxes import Box, Source
from fuser.tilegen import ops

Ring = tuple[Operand, Operand]
"""A stage of a ring, and the phase of its barriers."""


@dataclass(eq=False)
class Channel:
    """Loads that are waited for together. barriers: `stages` full ones, then as many empty. Without
    dots, a load that goes on to registers; read: beside its dots, one does, too. release_later: its
    stage is not given back at the read. edges: the maps of last tiles that have fewer rows; "":
    others."""

    loads: list[ops.Load]
    sources: list[Source]
    dots: list[ops.Dot]
    tiles: list[SharedTile] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)
    barriers: Slot | None = None
    waited: bool = False
    release_later: bool = False
    done: int = 0
    read: bool = False

    def use_barriers(self, barriers: Slot) -> None:
        """Let its stages come and go at barriers."""
        self.barriers = barriers

    def begin(self, waited: bool = False, release_later: bool = False) -> None:
        """Begin an iteration: nothing is done with its stage yet."""
        self.waited, self.release_later, self.done = waited, release_later, 0

    def release_now(self) -> None:
        """Let the next read give the stage back."""
        self.release_later = False

    def use(self) -> None:
        """Count one of its uses."""
        self.done += 1

    @property
    def bytes(self) -> int:
        return sum(tile.bytes for tile in self.tiles)

    @property
    def arriving(self) -> int:
        """Bytes that come in a stage."""
        missing = 0
        for source, tile in zip(self.sources, self.tiles, strict=True):
            if isinstance(source, Box) and source.rows:
                missing += (tile.rows - source.rows) * tile.span * tile.blocks
        return self.bytes - missing

    @property
    def is_tile(self) -> bool:
        """Whether it fetches a tile of two axes for registers."""
        return not self.dots and any(len(load.shape) == 2 for load in self.loads)

    def readers(self, low: Recording) -> int:
        """How many arrivals empty a stage: of warp groups that multiply, or of warps that read."""
        return low.warps * 32 // self.threads

    @property
    def uses(self) -> int:
        """Dots and reads of an iteration, after which its stage is given back."""
        return len(self.dots) + (self.read or not self.dots)

    @property
    def threads(self) -> int:
        """Of which one arrives for all."""
        return 128 if self.dots and not self.read else 32


@dataclass(eq=False)
class Stream:
    """A loop fed by the producer. stage, phase: names of the current consumer iteration's.

    quiet: the body touches no shared memory but the stages. group: where it only accumulates
    several dots, all of them; they are issued as one. flying: their results of this iteration.
    fresh: dots that ignore their sums in the first iteration. split: its dot of float32 operands
    (schedule/tf32x3.py). ring: (stage, phase) where the loop begins, and after it where it ended.
    leader: an earlier loop, whose buffers and barriers this one goes on with. goes_on: whether the
    producer goes on with the ring after the loop.
    """

    loop: ops.For
    channels: list[Channel]
    deferred: ops.Dot | None
    split: ops.Dot | None = None
    group: list[ops.Dot] = field(default_factory=list)
    flying: dict[ops.Dot, Tile] = field(default_factory=dict)
    fresh: set[ops.Dot] = field(default_factory=set)
    quiet: bool = False
    stages: int = 0
    stage: Operand = 0
    phase: Operand = 0
    first: Operand = 0
    variable: Operand = 0
    leader: Stream | None = None
    goes_on: bool = False
    _ring: Ring = (0, 0)

    @property
    def ring(self) -> Ring:
        return self._ring if self.leader is None else self.leader.ring

    def turn(self, ring: Ring) -> None:
        """Let the ring be at a stage."""
        if self.leader is None:
            self._ring = ring
        else:
            self.leader.turn(ring)

    def enter(self, stage: Operand, phase: Operand) -> None:
        """Begin an iteration, at a stage."""
        self.stage, self.phase = stage, phase

    def count(self, first: Operand, variable: Operand) -> None:
        """Let a variable count the iterations."""
        self.first, self.variable = first, variable

    def have_stages(self, stages: int, goes_on: bool) -> None:
        """Let it have a ring of so many stages."""
        self.stages = stages
        self.goes_on |= goes_on

    def follow(self, leader: Stream) -> None:
        """Go on with the buffers and barriers of an earlier loop of the same form."""
        self.leader, self.goes_on, leader.goes_on = leader, True, True
        for channel, other in zip(self.channels, leader.channels, strict=True):
            channel.tiles = other.tiles

    @property
    def forms(self) -> list[object]:
        """What the ring of a stream is like; loops of one form may share it."""
        return [
            ([(t.dtype, t.shape, t.inner) for t in channel.tiles], len(channel.dots), channel.read)
            for channel in self.channels
        ]

    @property
    def in_flight(self) -> int:
        """Groups of matmuls that may run on when an iteration ends."""
        return 1 if self.deferred or self.group else 0

    def await_stage(self, low: Recording, channel: Channel) -> None:
        """Wait until the stage of a channel has come, once an iteration."""
        if not channel.waited:
            wait_barrier(low, self.full(low, channel, self.stage), self.phase)
            channel.waited = True

    def full(self, low: Recording, channel: Channel, stage: Operand) -> str:
        """The barrier of a stage that has come."""
        assert channel.barriers is not None
        return barrier_at(low, channel.barriers, low.scalars.times(stage, 8))

    def empty(self, low: Recording, channel: Channel, stage: Operand) -> str:
        """The barrier of a stage that has been read."""
        assert channel.barriers is not None
        offset = low.scalars.plus(low.scalars.times(stage, 8), 8 * self.stages)
        return barrier_at(low, channel.barriers, offset)


def barrier_at(low: Recording, slot: Slot, offset: Operand = 0) -> str:
    """The address of a barrier."""
    return low.scalar_of(gpu.Address(slot=slot, offset=offset))


def resident_barriers(low: Recording, channel: Channel) -> tuple[str, str]:
    """The full and the empty barrier of what a persistent kernel fetches once a program."""
    assert channel.barriers is not None
    return barrier_at(low, channel.barriers), barrier_at(low, channel.barriers, 8)


def advance(low: Recording, stream: Stream, stage: Operand, phase: Operand) -> Ring:
    """The next stage of the ring, and its phase."""
    if isinstance(stage, int) and isinstance(phase, int):
        wraps = stage + 1 == stream.stages
        return (0, 1 - phase) if wraps else (stage + 1, phase)
    e = low.scalars
    more = e.compute("add", stage, 1)
    wrap = e.compare("eq", more, stream.stages)
    after = e.pick(wrap, 0, more)
    turned = e.compute("xor", phase, 1)
    return after, e.pick(wrap, turned, phase)


def ring_after(low: Recording, stream: Stream, iterations: Operand) -> Ring:
    """Where the ring of a stream is when others have had so many iterations of it."""
    e = low.scalars
    stage, phase = stream.ring
    flip: Operand
    if isinstance(iterations, int):
        rounds, rest = divmod(iterations, stream.stages)
        moved = e.plus(stage, rest)
        if isinstance(moved, int):
            more, moved = divmod(moved, stream.stages)
            return moved, e.bitwise("xor", phase, (rounds + more) % 2)
        wraps = e.compare("uge", moved, stream.stages)
        stage = e.pick(wraps, e.minus(moved, stream.stages), moved)
        flip = e.pick(wraps, 1 - rounds % 2, rounds % 2)
    else:
        moved = e.plus(stage, iterations)
        turned = e.compute("udiv", moved, stream.stages)
        stage = e.minus(moved, e.times(turned, stream.stages))
        flip = e.compute("and", turned, 1)
    return stage, e.bitwise("xor", phase, flip)


class CarriedRings:
    """The rings of streams inside of a loop, which go on from one of its iterations to the next.
    names: where they are when an iteration begins; firsts: when the first one does."""

    def __init__(
        self, low: Recording, streams: Iterable[Stream], loop: ops.For | None = None
    ) -> None:
        """loop: around the streams; None: that of a persistent block over its tiles."""
        inside = set(loop.body.walk()) if loop is not None else {stream.loop for stream in streams}
        found = (stream.leader or stream for stream in streams if stream.loop in inside)
        self._streams = list(dict.fromkeys(found))
        self.firsts = self.ends()
        for stream in self._streams:
            stream.turn((low.scalars.name_of(), low.scalars.name_of()))
        self._rings = [stream.ring for stream in self._streams]
        self.names = [str(name) for ring in self._rings for name in ring]

    def ends(self) -> list[Operand]:
        """Where the rings are by now."""
        return [end for stream in self._streams for end in stream.ring]

    def leave(self) -> None:
        """After the loop, which may have had no iteration."""
        for stream, ring in zip(self._streams, self._rings, strict=True):
            stream.turn(ring)


def wait_barrier(low: Recording, barrier: str, parity: Operand) -> None:
    """Wait until a barrier's phase of the given parity is complete."""
    low.do(gpu.MbarrierWait(barrier=barrier, parity=parity))


def arrive_where(low: Recording, barrier: str, condition: Operand) -> None:
    """Arrive on a barrier where the condition holds."""
    low.do(gpu.MbarrierArrive(barrier=barrier, condition=condition))


def elected(low: Recording) -> str:
    """One thread of each warp group."""
    part = low.scalars.head.compute("and", low.scalars.tid, 127)
    return low.scalars.head.compare("eq", part, 0)
