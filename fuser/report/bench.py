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
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fuser.graph.units import milliseconds
from fuser.report.bench_load import Load, cores, other_seconds
from fuser.report.report import Comparison

SCHEMA = 2
ROUNDS = 5
PAUSE = 0.1
"""Seconds before a turn where there are several engines: the one before may keep its threads
spinning for a while."""
OWN, ALONE = "fuser", "fuser, no fusion"
"""Engine names: fuser, and its plan without fusion."""
SPREAD_LIMIT = 1.25
"""`Measured.spread` or `Measured.drift` from which on a measurement counts as disturbed."""
OTHERS_LIMIT = 0.25
"""Cores that other processes may keep busy, beside those that no engine needs."""
SPREAD_RUNS = 10
"""Timed runs that a spread takes at least."""
ATTEMPTS = 10
"""Measurements that `measure_until_stable` makes at most."""

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
    """Milliseconds of a run; a percentile between two runs is interpolated."""

    min: float
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Measured:
    """runs: timed ones, of all callers. throughput: of those, a second that the turns lasted.
    turns_ms: the median of each turn."""

    runs: int
    latency_ms: Percentiles
    throughput: float
    turns_ms: tuple[float, ...] = ()

    @property
    def spread(self) -> float | None:
        """p90 over p50; None where there are fewer than SPREAD_RUNS runs."""
        times = self.latency_ms
        return times.p90 / max(times.p50, 1e-9) if self.runs >= SPREAD_RUNS else None

    @property
    def drift(self) -> float | None:
        """The slowest turn over the fastest, by their medians: what a clock or a load that changes
        meanwhile does. None where there are fewer than SPREAD_RUNS runs."""
        if self.runs < SPREAD_RUNS or not self.turns_ms:
            return None
        return max(self.turns_ms) / max(min(self.turns_ms), 1e-9)


@dataclass(frozen=True)
class Measurement:
    """All engines in order. others: cores that other processes kept busy meanwhile, on average,
    or None where that is not known. crowded: whether they were more than the engines leave free.
    attempts: how many measurements were made; this one is the least disturbed."""

    engines: tuple[Measured, ...]
    others: float | None = None
    crowded: bool = False
    attempts: int = 1

    @property
    def disturbance(self) -> float:
        """The largest of spreads and drifts, over SPREAD_LIMIT: above 1, the numbers are more of
        the machine's other work than of the engines."""
        found = [x for one in self.engines for x in (one.spread, one.drift) if x is not None]
        return max([*found, 0.0]) / SPREAD_LIMIT

    @property
    def stable(self) -> bool:
        return self.disturbance <= 1 and not self.crowded


@dataclass(frozen=True)
class Ratio:
    """fuser beside a peer, or its plan without fusion. speedup: by the median latency, the peer's
    over fuser's. throughput_gain: fuser's throughput over the peer's. Above 1, fuser is faster."""

    engine: str
    speedup: float
    throughput_gain: float

    @property
    def words(self) -> str:
        """ "1.32x faster", "0.87x: slower" or "1.00x: as fast"."""
        text = f"{self.speedup:.2f}" if self.speedup >= 0.1 else f"{self.speedup:.1g}"
        if float(text) == 1:
            return f"{text}x: as fast"
        return f"{text}x faster" if self.speedup > 1 else f"{text}x: slower"

    @property
    def sentence(self) -> str:
        """ "1.32x faster than onnxruntime"."""
        return f"{self.words} {'as' if self.words.endswith('as fast') else 'than'} {self.engine}"


@dataclass(frozen=True)
class Row:
    """One engine in one case. against: of fuser, one for each other row. compare: of a peer,
    fuser's outputs beside its own."""

    engine: str
    version: str
    device: str
    measured: Measured
    against: tuple[Ratio, ...] = ()
    compare: Comparison | None = None


@dataclass(frozen=True)
class Case:
    """Every engine at one set of sizes; `rows` begin with fuser. absent: why others are not among
    them. note: why the plan without fusion is not, where it was to be. batch: None where there is
    no one open batch dim. device_ms: median of fuser's kernels alone by the clock of a GPU, with
    the data in place. others, crowded, attempts: as in `Measurement`."""

    dims: Mapping[str, int]
    batch: int | None
    kernels: int
    compile_s: float
    rows: tuple[Row, ...]
    absent: Mapping[str, str]
    device_ms: float | None = None
    others: float | None = None
    crowded: bool = False
    attempts: int = 1
    note: str = ""

    @property
    def peers(self) -> tuple[Row, ...]:
        """The rows of other engines."""
        return tuple(row for row in self.rows[1:] if row.engine != ALONE)


@dataclass(frozen=True)
class Thresholds:
    """What `failures` asks; None is not asked. max_latency_ms: of fuser's median. min_speedup: of
    `Ratio.speedup`, over every peer. max_error: relative error of an output beside a peer's, in
    place of the tolerance of its dtypes."""

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
        """A line for each engine that was asked for and not measured, each result that differs, and
        each threshold that is missed, or that nothing was measured for."""
        found = []
        for case in self.cases:
            at = _at(case)
            own, peers = case.rows[0], case.peers
            found += [f"{name} was not measured{at}: {why}" for name, why in case.absent.items()]
            median = own.measured.latency_ms.p50
            if wanted.max_latency_ms is not None and median > wanted.max_latency_ms:
                found.append(
                    f"median latency {milliseconds(median)}{at},"
                    f" above --max-latency-ms {wanted.max_latency_ms:g}"
                )
            if wanted.min_speedup is not None and not peers:
                found.append(f"no speedup{at}: no peer was measured")
            if wanted.max_error is not None and not peers:
                found.append(f"no error{at}: no peer was measured")
            for ratio in own.against:
                if ratio.engine == ALONE:
                    continue
                if wanted.min_speedup is not None and ratio.speedup < wanted.min_speedup:
                    found.append(
                        f"speedup {ratio.speedup:.3f} over {ratio.engine}{at},"
                        f" below {wanted.min_speedup:g}"
                    )
            for row in peers:
                if row.compare is not None and not row.compare.ok:
                    found += [f"against {row.engine}{at}, {line}" for line in row.compare.differs]
        return found

    def warnings(self) -> list[str]:
        """A line for each sign that other work of the machine disturbed the measurement."""
        found = []
        for case in self.cases:
            for row in case.rows:
                spread, drift = row.measured.spread, row.measured.drift
                if spread is not None and spread > SPREAD_LIMIT:
                    found.append(
                        f"{row.engine}{_at(case)}: runs differ, p90 is {spread:.2f} times p50"
                    )
                elif drift is not None and drift > SPREAD_LIMIT:
                    found.append(
                        f"{row.engine}{_at(case)}: the machine's clock or load changed, the"
                        f" slowest turn took {drift:.2f} times the fastest"
                    )
            if case.crowded and case.others is not None:
                found.append(
                    f"other processes kept {case.others:.1f} cores busy{_at(case)},"
                    " which the engines need"
                )
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
                    "others": case.others, "attempts": case.attempts,
                    "engines": [_record(row, case) for row in case.rows],
                    "absent": dict(case.absent), "note": case.note,
                }
                for case in self.cases
            ],
            "warnings": self.warnings(),
            "failures": self.failures(wanted or Thresholds()),
        }  # fmt: skip


def _at(case: Case) -> str:
    return f" at batch {case.batch}" if case.batch is not None else ""


def _record(row: Row, case: Case) -> dict[str, Any]:
    compare = row.compare
    return {
        "name": row.engine, "version": row.version, "device": row.device,
        "runs": row.measured.runs, "latency_ms": asdict(row.measured.latency_ms),
        "turns_ms": list(row.measured.turns_ms),
        "spread": row.measured.spread, "drift": row.measured.drift,
        "throughput": row.measured.throughput,
        "items_per_s": None if case.batch is None else row.measured.throughput * case.batch,
        "against": {
            one.engine: {
                "speedup": one.speedup, "throughput_gain": one.throughput_gain, "words": one.words,
            }
            for one in row.against
        },
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
    turns: list[list[list[float]]] = [[] for _ in engines]
    lasted = [0.0] * len(engines)
    for _ in range(rounds):
        for place, engine in enumerate(engines):
            if len(engines) > 1:
                time.sleep(PAUSE)
            found, length = _turn(engine.callers, runs, seconds, clock)
            turns[place].append(found)
            lasted[place] += length
    return [_measured(found, length) for found, length in zip(turns, lasted, strict=True)]


def _measured(turns: Sequence[Sequence[float]], length: float) -> Measured:
    spans = [span for turn in turns for span in turn]
    medians = tuple(float(np.median(turn)) * 1e3 for turn in turns)
    return Measured(len(spans), percentiles(spans), len(spans) / max(length, 1e-9), medians)


def measure_until_stable(
    engines: Sequence[Engine], effort: Effort, *, busy: int, attempts: int = 1,
    clock: Clock = time.perf_counter, load: Callable[[], Load | None] = other_seconds,
) -> Measurement:  # fmt: skip
    """`measure`, again until it is undisturbed, `attempts` times at most; the least disturbed one.
    busy: cores that an engine keeps busy. load: what the machine has done so far."""
    best: Measurement | None = None
    for number in range(1, attempts + 1):
        before = load()
        found = tuple(measure(engines, effort, clock))
        after = load()
        others = before.cores_of_others(after) if before and after else None
        spare = max(0, cores() - busy)
        crowded = others is not None and others > spare + OTHERS_LIMIT
        this = Measurement(found, others, crowded)
        if best is None or (this.crowded, this.disturbance) < (best.crowded, best.disturbance):
            best = this
        best = replace(best, attempts=number)
        if best.stable:
            break
    assert best is not None
    return best


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """Percentiles of at least one run."""
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
