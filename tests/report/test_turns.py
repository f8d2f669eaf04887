"""Runs, and the kernels of runs, of a machine that other processes disturb."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fuser.report.beside import measure
from fuser.report.breakdown import breakdown
from fuser.report.turns import ROUNDS, in_turns, timed, typical
from fuser.runtime.plan_report import Bytes, KernelReport, Report
from fuser.runtime.savings import NO_TRAFFIC, Saving


class Machine:
    """A clock, and what it makes of each run: microseconds of every kernel."""

    def __init__(self, disturbed: Any) -> None:
        self.now, self.runs, self.disturbed = 0.0, 0, disturbed
        self.log: list[str] = []

    def run(self, who: str, kernels: Sequence[float]) -> list[float]:
        self.log.append(who)
        found = self.disturbed(self.runs, list(kernels))
        self.runs += 1
        return list(found)


class Fake:
    """A plan with an executor, as far as measuring it takes. Between its kernels 5 µs pass."""

    BETWEEN = 5.0

    def __init__(self, name: str, machine: Machine, kernels: Sequence[float]) -> None:
        self.name, self.machine, self.kernels = name, machine, kernels
        self.inputs: tuple[Any, ...] = ()
        self.target = SimpleNamespace(is_cuda=False)
        self.executor = SimpleNamespace(time_kernels=self._times)

    def run(self, feeds: Mapping[str, np.ndarray]) -> None:
        spent = self.machine.run(f"{self.name} run", self.kernels)
        self.machine.now += (sum(spent) + self.BETWEEN) * 1e-6

    def _times(self, arrays: Sequence[np.ndarray]) -> list[float]:
        return [us * 1e-6 for us in self.machine.run(f"{self.name} kernels", self.kernels)]

    def report(self) -> Report:
        launches = tuple(
            KernelReport(f"k{n}", n, "map", (f"n{n}",), Bytes(8, 8), 0, Bytes(), 1, 1.0)
            for n in range(len(self.kernels))
        )
        counts = Saving(len(launches), len(launches))
        return Report("m", "cpu", counts, NO_TRAFFIC, 0.0, 0, 0, (), launches=launches)


def one_is_hit(run: int, kernels: list[float]) -> list[float]:
    """Another process takes 40 µs of every run, of another kernel each time."""
    kernels[run % len(kernels)] += 40.0
    return kernels


def slower_and_slower(run: int, kernels: list[float]) -> list[float]:
    """The clock falls: what is timed last would seem the slowest."""
    return [us * (1 + run / 20) for us in kernels]


def measured(disturbed: Any, iterations: int = 15) -> tuple[Machine, Report]:
    machine = Machine(disturbed)
    fused, alone = Fake("fused", machine, [10.0] * 6), Fake("alone", machine, [10.0] * 12)
    report = fused.report()
    measure(
        report, fused, {}, iterations, 1, unfused=lambda: alone, kernels="both",
        clock=lambda: machine.now,
    )  # fmt: skip
    return machine, report


def between(report: Report) -> float:
    """Microseconds of a run that are no kernel's."""
    assert report.latency_ms is not None
    kernels = [(one.kind, one.time_us or 0.0) for one in report.launches]
    return breakdown(kernels, report.latency_ms.median * 1e3)[-1].us


def test_times_of_kernels_are_of_one_run() -> None:
    """A median of each kernel would be 10 µs, and two fifths of the run no kernel's."""
    _, report = measured(one_is_hit)
    assert report.latency_ms is not None and report.profile is not None
    assert report.latency_ms.median == pytest.approx(0.105)
    times = sorted(one.time_us or 0.0 for one in report.launches)
    assert times == pytest.approx([10.0] * 5 + [50.0])
    assert report.profile.kernels_us == pytest.approx(100.0)
    assert between(report) == pytest.approx(Fake.BETWEEN)
    assert report.unfused is not None and report.unfused.latency_ms is not None
    assert report.unfused.latency_ms.median == pytest.approx(0.165)
    assert sum(one.time_us for one in report.unfused.launches) == pytest.approx(160.0)


def test_runs_and_kernels_are_timed_in_turns() -> None:
    machine, report = measured(slower_and_slower)
    assert 0 <= between(report) < 0.2 * sum(one.time_us or 0.0 for one in report.launches)
    timed_runs = machine.log[4:]  # each way is warmed up once, and wakes in each turn
    assert len(timed_runs) == 4 * (15 + ROUNDS)
    turns = [who for who, _ in itertools.groupby(timed_runs)]
    assert turns == ["fused run", "alone run", "fused kernels", "alone kernels"] * ROUNDS


def test_equal_plans_take_equally_long() -> None:
    """The first run after another plan's is slow: it finds the caches full of what that read."""
    last = [""]

    def way(name: str) -> Callable[[], float]:
        def call() -> float:
            spent = 1.0 if last[0] == name else 5.0
            last[0] = name
            return spent

        return call

    assert in_turns([way("a"), way("b"), way("c")], 12) == [[1.0] * 12] * 3
    last = [""]
    assert in_turns([way("a")], 2) == [[5.0, 1.0]]  # nobody else


def test_few_runs_and_no_others() -> None:
    machine = Machine(lambda run, kernels: kernels)
    plan = Fake("fused", machine, [1.0, 2.0])
    report = plan.report()
    measure(report, plan, {}, 1, 0, clock=lambda: machine.now)
    assert report.unfused is None and report.profile is None
    assert report.latency_ms is not None and report.latency_ms.iterations == 1
    assert machine.log == ["fused run"]


def test_the_typical_run() -> None:
    assert typical([[9.0, 9.0], [1.0, 1.0], [2.0, 5.0]]) == [2.0, 5.0]
    assert typical([[4.0], [1.0], [3.0], [2.0]]) == [2.0]  # of two the faster
    assert typical([[]]) == []
    ticks = itertools.count()
    way = timed(lambda: None, lambda: float(next(ticks)))
    assert in_turns([way], 3) == [[[1.0], [1.0], [1.0]]]
