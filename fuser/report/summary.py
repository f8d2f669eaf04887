"""What fusion saved, in three lines: kernels, bytes through memory, time, each before and after.

Before is the plan without fusion. A saving that is negative is told only where the fused plan is
slower as well; with a time that is better nothing was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuser.report.table import megabytes
from fuser.runtime.plan_report import Report, Traffic
from fuser.runtime.shown import milliseconds

MIN_DRAM_SHARE = 0.02
"""Of the bytes before: what fusion saves or costs of DRAM traffic for it to be mentioned."""
SLOWER = 1.02
"""Times as long as the plan without fusion: slower, and no noise."""


@dataclass(frozen=True)
class Saved:
    """A line. ratio: one of the two over the other, in words; empty where there is none."""

    label: str
    before: str
    after: str
    ratio: str
    note: str = ""

    def __str__(self) -> str:
        notes = ", ".join(filter(None, (self.ratio, self.note)))
        return f"{self.before} -> {self.after}" + (f"  ({notes})" if notes else "")


def savings(report: Report) -> list[Saved]:
    """The lines of a report, the most important first."""
    kernels, memory = report.kernels, report.boundary
    slower = is_slower(report)
    found = [
        _line("kernels", kernels.before, kernels.after, str, ("fewer", "more"), slower),
        _line("memory", memory.before, memory.after, megabytes, ("less", "more"), slower,
              f"at least {megabytes(memory.floor)}" if memory.floor else ""),
    ]  # fmt: skip
    if _matters(report.dram, slower):
        dram = report.dram
        found.append(
            _line("DRAM", dram.before, dram.after, megabytes, ("less", "more"), slower,
                  f"at least {megabytes(dram.floor)}, predicted")
        )  # fmt: skip
    alone = report.unfused and report.unfused.latency_ms
    if report.latency_ms and alone:
        ends = alone.median, report.latency_ms.median
        note = f"medians of {report.latency_ms.iterations} runs in turns"
        found.append(_line("time", *ends, milliseconds, ("faster", "slower"), True, note))
    return found


def is_slower(report: Report) -> bool:
    """Whether the plan was measured to be slower than without fusion."""
    alone = report.unfused and report.unfused.latency_ms
    both = report.latency_ms and alone
    return bool(both) and report.latency_ms.median > SLOWER * alone.median  # type: ignore[union-attr]


def ratio(before: float, after: float, words: tuple[str, str]) -> str:
    """1.50x faster, 1.50x slower: `words` for what is better and worse. Empty without a change."""
    if not before or not after or before == after:
        return ""
    better, worse = words
    return f"{before / after:.2f}x {better}" if before > after else f"{after / before:.2f}x {worse}"


def advice(report: Report) -> str:
    """What to do where fusion made the plan slower; else empty."""
    if not is_slower(report):
        return ""
    return (
        "fusion does not pay here: run it with --no-fusion, or measure schedules with --tune; "
        "fuser explain MODEL --kernel NAME says why a kernel is as it is"
    )


def _line[N: (int, float)](
    label: str, before: N, after: N, shown: Callable[[N], str], words: tuple[str, str],
    losses: bool, note: str = "",
) -> Saved:  # fmt: skip
    told = ratio(before, after, words) if losses or after <= before else ""
    return Saved(label, shown(before), shown(after), told, note)


def _matters(dram: Traffic, slower: bool) -> bool:
    change = dram.before - dram.after
    return abs(change) >= MIN_DRAM_SHARE * dram.before > 0 and (change > 0 or slower)
