"""Which of the bytes that kernels move cross to memory: a model of the last cache of a device.

The memory of a plan is cut into pieces, at the addresses that the plan gives them, and the kernels
meet them one after the other, each kernel its operands side by side. A piece that is read and not
there is fetched. When the cache is full, the piece goes that was not used for longest. A cache that
holds more than `dirty` of what was written and is not in memory writes the oldest of it there and
keeps it. What a kernel writes and the next one reads does therefore not cross, and what is written
again in time never does. What is read counts as used earlier than it was, what is dirty as used
later, and what was written takes more room than it has bytes, as counters of a GPU have it.

A hash spreads addresses over the sets of a real cache, so that it has no sharp edge: the model is
the mean of caches of a few sizes around the given one (`spread`). The numbers of a device are
fitted once to its counters; docs/report.md has the error.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from fuser.base.target import Target
from fuser.runtime.plan_report import Bytes

PIECES = 64
"""Parts of a cache: a piece of memory is no larger than one of them."""
MOST_STEPS = 3072
"""Pieces that one run meets, about: larger runs have larger pieces."""
QUANTILES = (-1.4, -0.53, 0.0, 0.53, 1.4)
"""Quantiles of a normal distribution, in standard deviations, all of the same weight."""


@dataclass(frozen=True)
class Cache:
    """bytes: what it holds. dirty: of that, what need not be in memory. spread, dirty_spread: their
    standard deviations, as a share. between: bytes that something else brings in between two
    kernels. first, again, pinned: bytes of traffic that a piece counts as used earlier when it is
    fetched, earlier when it is read and there, and later when it is dirty. written: room that what
    was written takes, in its bytes."""

    bytes: float
    dirty: float
    spread: float = 0.0
    dirty_spread: float = 0.0
    between: float = 0.0
    first: float = 0.0
    again: float = 0.0
    pinned: float = 0.0
    written: float = 1.0


@dataclass(frozen=True)
class Touch:
    """What a kernel meets of one buffer: `read` and `written` bytes, evenly spread over `span`
    bytes from `start` on. again: its blocks read it more than once, until the end."""

    start: int
    span: int
    read: int
    written: int
    again: bool = False


Step = tuple[int, float, float, bool]
"""A piece, by number, the bytes read and written of it, and whether it is met until the end."""


def cache_of(target: Target) -> Cache | None:
    """The last cache of a target; None where its size is not known."""
    size = target.l2_cache_bytes
    if not size:
        return None
    if target.is_cuda:  # fitted to an H200, whose driver says 50 MiB
        return Cache(
            0.828 * size, 0.591 * size, 0.263, 0.278, 0.03 * size, 0.118 * size, 0.583 * size,
            0.356 * size, 1.319,
        )  # fmt: skip
    return Cache(size, size)


def dram_bytes(
    kernels: Sequence[Sequence[Touch]], cache: Cache | None
) -> tuple[list[Bytes], list[Bytes]]:
    """Bytes that cross to memory, for each kernel: of a run that finds the cache empty, whose
    results go to memory in the end; and of a run after others.

    What a kernel before it wrote may go to memory while a kernel runs: it counts there.
    """
    if cache is None:
        whole = [Bytes(sum(t.read for t in k), sum(t.written for t in k)) for k in kernels]
        return whole, whole
    steps = _steps(kernels, cache)
    cold, warm = _Mean(len(kernels)), _Mean(len(kernels))
    quantiles = QUANTILES if cache.spread or cache.dirty_spread else (0.0,)
    if _footprint(kernels) * cache.written < cache.dirty * (1 - 2 * cache.dirty_spread):
        quantiles = (0.0,)  # all fits
    for quantile in quantiles:
        run = _Run(cache, 1 + cache.spread * quantile, 1 + cache.dirty_spread * quantile)
        first = run.once(steps)
        left = run.dirty_bytes
        warm.add(run.once(steps), len(quantiles))
        if first:
            first[-1][1] += left
        cold.add(first, len(quantiles))
    return cold.bytes(), warm.bytes()


class _Mean:
    def __init__(self, count: int) -> None:
        self.sums = [[0.0, 0.0] for _ in range(count)]

    def add(self, found: Sequence[Sequence[float]], parts: int) -> None:
        for total, part in zip(self.sums, found, strict=True):
            total[0] += part[0] / parts
            total[1] += part[1] / parts

    def bytes(self) -> list[Bytes]:
        return [Bytes(round(read), round(written)) for read, written in self.sums]


def _footprint(kernels: Sequence[Sequence[Touch]]) -> int:
    ends: list[tuple[int, int]] = sorted(
        (touch.start, touch.start + touch.span) for kernel in kernels for touch in kernel
    )
    total, top = 0, -1
    for low, high in ends:
        total += max(0, high - max(low, top))
        top = max(top, high)
    return total


def _steps(kernels: Sequence[Sequence[Touch]], cache: Cache) -> list[list[Step]]:
    """The pieces that each kernel meets, its operands side by side."""
    moved = sum(touch.span for kernel in kernels for touch in kernel)
    size = max(4096, min(int(cache.bytes) // PIECES, 1 << 62), moved // MOST_STEPS)
    numbers: dict[tuple[int, int], int] = {}
    found = []
    for kernel in kernels:
        met: list[tuple[float, Step]] = []
        for touch in kernel:
            if not touch.span:
                continue
            end = touch.start + touch.span
            first, last = touch.start // size, (end - 1) // size
            for piece in range(first, last + 1):
                low, high = max(touch.start, piece * size), min(end, (piece + 1) * size)
                # A part of a piece is a piece of its own: small buffers do not share.
                key = (piece, 0 if high - low == size else low)
                share = (high - low) / touch.span
                number = numbers.setdefault(key, len(numbers))
                step = number, touch.read * share, touch.written * share, touch.again
                met.append(((piece - first + 0.5) / (last - first + 1), step))
        met.sort(key=lambda item: item[0])
        found.append([step for _, step in met])
    return found


@dataclass
class _Run:
    """One cache of a sharp size, from empty on."""

    cache: Cache
    scale: float
    dirty_scale: float
    sizes: dict[int, float] = field(default_factory=dict)
    dirty: dict[int, float] = field(default_factory=dict)
    dirty_bytes: float = 0.0

    def __post_init__(self) -> None:
        self.room = self.cache.bytes * self.scale
        self.limit = self.cache.dirty * self.dirty_scale
        self.queue: list[tuple[float, int, int]] = []  # when used, piece, version
        self.versions: dict[int, int] = {}
        self.writes: deque[tuple[int, int]] = deque()
        self.written: dict[int, tuple[int, float]] = {}  # number of the write, when
        self.count, self.held, self.now = 0, 0.0, 0.0

    def once(self, kernels: Sequence[Sequence[Step]]) -> list[list[float]]:
        """(bytes fetched, bytes written to memory) of each kernel of one run."""
        found = []
        for position, kernel in enumerate(kernels):
            self.out = [0.0, 0.0]
            for piece, read, written, _ in kernel:
                self._meet(piece, read, written)
            for piece, _, written, again in kernel:
                if again and not written and piece in self.sizes:
                    self._use(piece, self.cache.again)
            if self.cache.between:
                self._meet(-1 - position, 0.0, 0.0, self.cache.between)
            found.append(self.out)
        return found

    def _meet(self, piece: int, read: float, written: float, other: float = 0.0) -> None:
        held = self.sizes.get(piece, 0.0)
        size = max(read, written, other)
        self.now += size
        if not held:
            self.out[0] += read
        room = size * self.cache.written if written else max(size, held)
        self.held += room - held
        self.sizes[piece] = room
        if written:
            self.dirty_bytes += written - self.dirty.get(piece, 0.0)
            self.dirty[piece] = written
            self.count += 1
            self.written[piece] = self.count, self.now
            self.writes.append((piece, self.count))
        cache = self.cache
        self._use(piece, 0.0 if other or written else cache.again if held else cache.first)
        while self.dirty_bytes > self.limit:
            oldest, number = self.writes.popleft()
            if oldest in self.dirty and self.written[oldest][0] == number:
                self._clean(oldest)
                if oldest in self.sizes:
                    self._push(oldest, self.written[oldest][1])
        while self.held > self.room and self.queue:
            _, last, version = heapq.heappop(self.queue)
            if last in self.sizes and self.versions[last] == version:
                self.held -= self.sizes.pop(last)
                if last in self.dirty:
                    self._clean(last)

    def _use(self, piece: int, earlier: float) -> None:
        dirty = piece in self.dirty
        self._push(piece, self.now + (self.cache.pinned if dirty else -earlier) * self.scale)

    def _push(self, piece: int, when: float) -> None:
        version = self.versions[piece] = self.versions.get(piece, 0) + 1
        heapq.heappush(self.queue, (when, piece, version))

    def _clean(self, piece: int) -> None:
        size = self.dirty.pop(piece)
        self.dirty_bytes -= size
        self.out[1] += size
