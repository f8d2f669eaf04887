"""Measurements in turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]
"""Seconds."""
ROUNDS = 5
"""Turns that the runs of each way are divided into."""


def in_turns(ways: Sequence[Callable[[], T]], iterations: int) -> list[list[T]]:
    """What each way gave, called `iterations` times. Each turn begins with a call that does not
    count: it finds in the caches what the way before it left there."""
    found: list[list[T]] = [[] for _ in ways]
    for turn in range(ROUNDS):
        runs = iterations * (turn + 1) // ROUNDS - iterations * turn // ROUNDS
        for place, way in enumerate(ways):
            if runs and len(ways) > 1:
                way()
            found[place] += [way() for _ in range(runs)]
    return found


def timed(run: Callable[[], Any], clock: Clock = time.perf_counter) -> Callable[[], list[float]]:
    """A way that gives the seconds of a run."""

    def way() -> list[float]:
        start = clock()
        run()
        return [clock() - start]

    return way


def typical(runs: Sequence[Sequence[float]]) -> Sequence[float]:
    """The run whose sum is the median of all sums: its parts belong together. A median of each part
    is of another run each time, and where every run is disturbed somewhere they add up to a run
    that there never was."""
    return sorted(runs, key=sum)[(len(runs) - 1) // 2]
