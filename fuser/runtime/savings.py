"""What fusion saved: kernels, bytes through memory, time, each before and after.

Before is the plan without fusion. A negative saving is told only where the fused plan is slower,
too: with a time that is no worse nothing was lost. It is slower where its median is beyond both
NOISE and nine tenths of the other's runs; else a ratio below one says that runs vary as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuser.graph.units import byte_size, counted, milliseconds
from fuser.runtime.latency import Latency

MIN_DRAM_SHARE = 0.02
"""Least change of the predicted DRAM traffic, as a share, that is mentioned."""
NOISE = 1.02
"""Times as long as the plan without fusion from which on the fused one may count as slower."""
MIN_RUNS = 5
"""Of each plan, for one of them to count as slower."""

Words = tuple[str, str]
"""What is better, and what is worse."""
Show = Callable[[int], str]


@dataclass(frozen=True)
class Saving:
    """A count before and after fusion."""

    before: int
    after: int


@dataclass(frozen=True)
class Traffic:
    """Bytes moved in one run: the plan without fusion, the plan, and the least there can be.
    packed: what kernels do not read because weights are codes of few bits."""

    before: int
    after: int
    floor: int
    packed: int = 0


NO_TRAFFIC = Traffic(0, 0, 0)


@dataclass(frozen=True)
class Saved:
    """One line. ratio: one of the two over the other, in words; empty where there is none to tell.
    note: what else there is to say."""

    label: str
    before: str
    after: str
    ratio: str
    note: str = ""

    def __str__(self) -> str:
        notes = ", ".join(filter(None, (self.ratio, self.note)))
        return f"{self.before} -> {self.after}" + (f"  ({notes})" if notes else "")


def savings(
    kernels: Saving, memory: Traffic, dram: Traffic, fused: Latency | None, alone: Latency | None
) -> list[Saved]:
    """The lines. fused, alone: times of the two plans, where both were run. DRAM traffic has a line
    where fusion changes it."""
    slower = is_slower(fused, alone)

    def line(label: str, saving: Saving | Traffic, shown: Show, words: Words, note: str) -> Saved:
        told = slower or saving.after <= saving.before
        found = ratio(saving.before, saving.after, words) if told else ""
        return Saved(label, shown(saving.before), shown(saving.after), found, note)

    least = f"at least {byte_size(memory.floor)}"
    found = [
        line("kernels", kernels, "{:,}".format, ("fewer", "more"), ""),
        line("memory", memory, byte_size, ("less", "more"), least),
    ]
    change = dram.before - dram.after
    if abs(change) >= MIN_DRAM_SHARE * dram.before > 0 and (change > 0 or slower):
        note = f"at least {byte_size(dram.floor)}, predicted"
        found.append(line("DRAM", dram, byte_size, ("less", "more"), note))
    if fused and alone:
        ends = alone.median, fused.median
        note = f"medians of {counted(fused.iterations, 'run')} each, in turns"
        if fused.median > alone.median and not slower:
            note = f"runs vary as much, {note}"
        told = ratio(*ends, ("faster", "slower"))
        before, after = map(milliseconds, ends)
        found.append(Saved("time", before, after, told, note))
    return found


def is_slower(fused: Latency | None, alone: Latency | None) -> bool:
    """Whether the fused plan was measured to be slower than the plan without fusion."""
    if not fused or not alone or min(fused.iterations, alone.iterations) < MIN_RUNS:
        return False
    return fused.median > max(NOISE * alone.median, alone.p90)


def ratio(before: float, after: float, words: Words) -> str:
    """1.50x faster, 1.50x slower: what is better and worse in words. Empty without a change."""
    if not before or not after or before == after:
        return ""
    better, worse = words
    return f"{before / after:.2f}x {better}" if before > after else f"{after / before:.2f}x {worse}"


ADVICE = (
    "fusion does not pay here: run it with --no-fusion, or measure schedules with --tune; fuser"
    " explain MODEL --kernel NAME says why a kernel is as it is"
)
"""Where the fused plan is slower."""
