"""What a program of a kernel costs, as far as launches tell, and how many threads that is worth.

A launch that takes less time than waking a thread runs on the caller's thread; any other is spread
over the worker pool. The estimate is of a program, in 2^-10 nanoseconds. It follows the launches,
for the same code may do more or less work a program at other sizes:

- A launch on one thread was measured: the estimate becomes that, but grows at most twofold, because
  another process may have had the processor.
- A launch on the pool that was over before a thread would have woken was not worth it, perhaps: the
  estimate falls by an eighth, until a launch on one thread measures again.

The native launch (`fuser.runtime.native_starts`) follows the same rules.
"""

from __future__ import annotations

from fuser.runtime.cpu import ALONE_SECONDS, CHUNKS_PER_THREAD, WAKE_SECONDS
from fuser.runtime.memory import align

SHIFT = 10
GROWTH = 2
DECAY = 3
WAKE = int(WAKE_SECONDS * 1e9)
ALONE = int(ALONE_SECONDS * 1e9)
MOST = 1 << 30
"""About a millisecond: more makes no difference."""
MOST_PROGRAMS = 1 << 32


def first_estimate(seconds: float) -> int:
    """After one program, which took that long."""
    return max(1, min(MOST, int(seconds * 1e9 * (1 << SHIFT))))


def learned(estimate: int, programs: int, seconds: float, alone: bool) -> int:
    """The estimate after a launch."""
    if alone:
        new = min(int(seconds * 1e9 * (1 << SHIFT) / programs), GROWTH * estimate)
    else:
        new = estimate - (estimate >> DECAY) if seconds < WAKE_SECONDS else estimate
    return max(1, min(MOST, new))


def chunks(estimate: int, programs: int, threads: int) -> int:
    """How many chunks a launch is cut into; 0: the calling thread runs it alone."""
    cost = programs * estimate
    if threads < 2 or programs < 2 or cost < WAKE << SHIFT:
        return 0
    worth = cost // (ALONE << SHIFT)  # a chunk should be worth claiming
    return min(programs, align(min(threads * CHUNKS_PER_THREAD, max(threads, worth)), threads))
