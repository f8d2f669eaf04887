"""What other processes do on the cores that this one may use, while `fuser bench` measures."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
LEAST_SECONDS = 0.2
"""Linux counts in steps of 10 ms: a shorter span tells nothing."""


@dataclass(frozen=True)
class Load:
    """Seconds. at: of a clock. others: that the cores have worked for other processes so far."""

    at: float
    others: float

    def cores_of_others(self, later: Load) -> float | None:
        """Cores that others kept busy between two readings, on average; None for a short span."""
        span = later.at - self.at
        return max(0.0, later.others - self.others) / span if span >= LEAST_SECONDS else None


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def other_seconds(stat: Path = STAT) -> Load | None:
    """The counts so far; None where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    try:
        busy = busy_seconds(stat.read_text(), os.sched_getaffinity(0))
    except OSError:
        return None
    own = time.process_time()
    return None if busy is None else Load(time.monotonic(), busy - own)


def busy_seconds(text: str, allowed: set[int]) -> float | None:
    """Seconds that the allowed cores have worked, of the text of /proc/stat: all that is neither
    idle nor waiting for a disk. None where it does not list them."""
    found: dict[int, float] = {}
    for line in text.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(fields) >= 8:
            user, nice, system, _idle, _wait, irq, soft, steal = map(int, fields[:8])
            found[int(name[3:])] = float(user + nice + system + irq + soft + steal)
    if not allowed <= set(found):
        return None
    total = sum(found[core] for core in allowed)
    return total / os.sysconf("SC_CLK_TCK") if total else None  # some sandboxes count nothing
