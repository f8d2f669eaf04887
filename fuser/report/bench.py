"""Whole runs of several engines, timed in turns: the loop and the records of `fuser bench`.

docs/command-line.md defines every field. An engine is anything that can be called: fuser's plan, a
session of ONNX Runtime, a module of PyTorch. Each gets its turn in every round, so that a slow
minute of the machine hits all alike.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fuser.report.report import Comparison

SCHEMA = 1
ROUNDS = 5
PAUSE = 0.1
"""Seconds before a turn where there are several engines: the one before may keep its threads
spinning for a while."""
OWN = "fuser"

Call = Callable[[], Any]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Engine:
    """What is timed. device: in words. callers: one for each stream, called by one thread each.
    read: what a call returned, as arrays by the name of the output."""

    name: str
    version: str
    device: str
    callers: Sequence[Call]
    read: Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Effort:
    """How long each engine is timed: until every caller has made `iterations` runs and
    `duration_s` seconds are over, in ROUNDS turns; `warmup` runs of every caller before the first,
    and one before each turn, do not count."""

    warmup: int = 10
    iterations: int = 10
    duration_s: float = 1.0


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds a run; between two runs that a percentile falls between, interpolated."""

    min: float
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Measured:
    """runs: timed ones, of all callers. throughput: of those, a second that the turns lasted."""

    runs: int
    latency_ms: Percentiles
    throughput: float


@dataclass(frozen=True)
class Row:
    """One engine in one case. Of a peer: how many times as fast fuser is by the median latency and
    by throughput, and fuser's outputs beside the peer's."""

    engine: str
    version: str
    device: str
    measured: Measured
    speedup: float | None = None
    throughput_gain: float | None = None
    compare: Comparison | None = None


@dataclass(frozen=True)
class Case:
    """Every engine at one set of sizes; `rows` begin with fuser. absent: why others are not among
    them. batch: None where there is no one open batch dim. device_ms: median of fuser's kernels
    alone by the clock of a GPU, with the data in place."""

    dims: Mapping[str, int]
    batch: int | None
    kernels: int
    compile_s: float
    rows: tuple[Row, ...]
    absent: Mapping[str, str]
    device_ms: float | None = None


@dataclass(frozen=True)
class Thresholds:
    """What `failures` asks; None is not asked. max_latency_ms: of fuser's median. min_speedup: of
    `Row.speedup`, of every peer. max_error: relative error of an output beside a peer's, in place
    of the tolerance of its dtypes."""

    max_latency_ms: float | None = None
    min_speedup: float | None = None
    max_error: float | None = None


@dataclass(frozen=True)
class Bench:
    """What `fuser bench` found."""

    model: str
    device: str
    precision: str
    threads: int
    streams: int
    effort: Effort
    cases: tuple[Case, ...]

    def failures(self, wanted: Thresholds) -> list[str]:
        """A line for each result that differs and each threshold that is missed, or that nothing
        was measured for."""
        found = []
        for case in self.cases:
            at = f" at batch {case.batch}" if case.batch is not None else ""
            own, *peers = case.rows
            median = own.measured.latency_ms.p50
            if wanted.max_latency_ms is not None and median > wanted.max_latency_ms:
                found.append(f"median latency {median:.3f} ms{at}, above {wanted.max_latency_ms:g}")
            if wanted.min_speedup is not None and not peers:
                found.append(f"no speedup{at}: no peer was measured")
            if wanted.max_error is not None and not peers:
                found.append(f"no error{at}: no peer was measured")
            for row in peers:
                if wanted.min_speedup is not None and (row.speedup or 0) < wanted.min_speedup:
                    found.append(
                        f"speedup {row.speedup:.3f} over {row.engine}{at},"
                        f" below {wanted.min_speedup:g}"
                    )
                if row.compare is not None and not row.compare.ok:
                    found += [f"against {row.engine}{at}, {line}" for line in row.compare.differs]
        return found

    def to_dict(self, wanted: Thresholds | None = None) -> dict[str, Any]:
        """Plain data; what does not apply is None."""
        return {
            "schema": SCHEMA, "model": self.model, "device": self.device,
            "precision": self.precision, "threads": self.threads, "streams": self.streams,
            **asdict(self.effort), "rounds": rounds_of(self.effort),
            "cases": [
                {
                    "dims": dict(case.dims), "batch": case.batch, "kernels": case.kernels,
                    "compile_s": case.compile_s, "device_ms": case.device_ms,
                    "engines": [_record(row, case) for row in case.rows],
                    "absent": dict(case.absent),
                }
                for case in self.cases
            ],
            "failures": self.failures(wanted or Thresholds()),
        }  # fmt: skip


def _record(row: Row, case: Case) -> dict[str, Any]:
    compare = row.compare
    return {
        "name": row.engine, "version": row.version, "device": row.device,
        "runs": row.measured.runs, "latency_ms": asdict(row.measured.latency_ms),
        "throughput": row.measured.throughput,
        "items_per_s": None if case.batch is None else row.measured.throughput * case.batch,
        "speedup": row.speedup, "throughput_gain": row.throughput_gain,
        "compare": compare and {
            **{key: getattr(compare, key) for key in ("max_abs", "max_rel", "ok")},
            "differs": list(compare.differs),
        },
    }  # fmt: skip


def rounds_of(effort: Effort) -> int:
    return min(ROUNDS, max(1, effort.iterations))


def measure(
    engines: Sequence[Engine], effort: Effort, clock: Clock = time.perf_counter
) -> list[Measured]:
    """Time the engines in turns. clock: seconds."""
    rounds = rounds_of(effort)
    runs, seconds = math.ceil(effort.iterations / rounds), effort.duration_s / rounds
    for engine in engines:
        for call in engine.callers:
            for _ in range(effort.warmup):
                call()
    spans: list[list[float]] = [[] for _ in engines]
    lasted = [0.0] * len(engines)
    for _ in range(rounds):
        for place, engine in enumerate(engines):
            if len(engines) > 1:
                time.sleep(PAUSE)
            found, length = _turn(engine.callers, runs, seconds, clock)
            spans[place] += found
            lasted[place] += length
    return [
        Measured(len(found), percentiles(found), len(found) / max(length, 1e-9))
        for found, length in zip(spans, lasted, strict=True)
    ]


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """Of at least one run."""
    times = np.array(seconds) * 1e3
    p50, p90, p95, p99 = (float(found) for found in np.percentile(times, [50, 90, 95, 99]))
    least, mean, most = float(times.min()), float(times.mean()), float(times.max())
    return Percentiles(least, mean, p50, p90, p95, p99, most)


def _turn(
    callers: Sequence[Call], runs: int, seconds: float, clock: Clock
) -> tuple[list[float], float]:
    """The seconds of each run of all callers, and of the turn: from the first start to the last
    end. Callers start together."""
    start = threading.Barrier(len(callers))

    def calls(call: Call) -> tuple[float, float, list[float]]:
        call()
        start.wait()
        found: list[float] = []
        begin = end = clock()
        while len(found) < runs or end - begin < seconds:
            before = clock()
            call()
            end = clock()
            found.append(end - before)
        return begin, end, found

    def guarded(call: Call) -> tuple[float, float, list[float]]:
        try:
            return calls(call)
        except BaseException:
            start.abort()  # the others do not wait for ever
            raise

    if len(callers) == 1:
        results = [calls(callers[0])]
    else:
        with ThreadPoolExecutor(len(callers)) as pool:
            futures = [pool.submit(guarded, call) for call in callers]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        results = [future.result() for future in futures]
    begins, ends, spans = zip(*results, strict=True)
    return [span for found in spans for span in found], max(ends) - min(begins)
