"""What `fuser bench` found, as a table for people and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from fuser.graph.units import counted, duration, milliseconds
from fuser.report.bench import Bench, Case, Row, rounds_of
from fuser.runtime.terminal import table

TIMES = ("p50", "p90", "p95", "p99", "min", "mean")
CSV_FIELDS = (
    "model", "device", "precision", "threads", "streams", "batch", "dims", "engine", "version",
    "engine_device", "kernels", "compile_s", "device_ms", "runs", "min_ms", "mean_ms", "p50_ms",
    "p90_ms", "p95_ms", "p99_ms", "max_ms", "throughput", "items_per_s", "speedup",
    "throughput_gain", "max_abs", "max_rel", "ok", "absent",
)  # fmt: skip


def table_of(bench: Bench) -> str:
    """Facts and a row for each engine of each case, as wide as the terminal."""
    effort = bench.effort
    streams = counted(bench.streams, "stream")
    facts = [
        ("model", f"{bench.model} on {bench.device}"),
        ("runs", f"at least {effort.iterations} and {effort.duration_s:g} s of each engine,"
                 f" in {rounds_of(effort)} turns, after {effort.warmup}; {streams}"),
    ]  # fmt: skip
    if bench.precision != "model":
        facts.append(("precision", bench.precision))
    for case in bench.cases:
        at = ", ".join(f"{name} = {size}" for name, size in case.dims.items())
        cost = f"{counted(case.kernels, 'kernel')}, compiled in {duration(case.compile_s)}"
        if case.device_ms is not None:
            cost += f"; {milliseconds(case.device_ms)} on the device, with the data in place"
        facts.append(("case", f"{at}: {cost}" if at else cost))
    absent: dict[str, list[Case]] = {}
    for case in bench.cases:
        for name, why in case.absent.items():
            absent.setdefault(f"{name}: {why}", []).append(case)
    for text, cases in absent.items():
        where = "" if len(cases) == len(bench.cases) else f" (batch {_batches(cases)})"
        facts.append(("absent", text + where))
    head, *rows = _rows(bench)
    found = table(rows, head, numbers=range(2, len(head)), keys=2, paint=True)
    return "\n".join([table(facts, labels=True, paint=True), "", found])


def _batches(cases: Sequence[Case]) -> str:
    return ", ".join(str(case.batch) for case in cases)


def _rows(bench: Bench) -> Iterator[tuple[str, ...]]:
    yield ("batch", "engine", *TIMES, "runs/s", "items/s", "speedup",
           "error")  # fmt: skip
    for case in bench.cases:
        for row in case.rows:
            found = row.measured
            items = "" if case.batch is None else f"{found.throughput * case.batch:,.1f}"
            yield (
                "" if case.batch is None else str(case.batch),
                f"{row.engine} {row.version}",
                *(milliseconds(getattr(found.latency_ms, name)) for name in TIMES),
                f"{found.throughput:,.1f}", items,
                "" if row.speedup is None else f"{row.speedup:.2f}",
                "" if row.compare is None else f"{row.compare.max_rel:.1e}",
            )  # fmt: skip


def csv_of(bench: Bench) -> str:
    """A line for each engine of each case, absent ones among them, under CSV_FIELDS; what does not
    apply is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_FIELDS, restval="", lineterminator="\n")
    writer.writeheader()
    for case in bench.cases:
        common = {
            **{key: getattr(bench, key)
               for key in ("model", "device", "precision", "threads", "streams")},
            "batch": "" if case.batch is None else case.batch,
            "dims": " ".join(f"{name}={size}" for name, size in case.dims.items()),
        }  # fmt: skip
        for row in case.rows:
            own = {} if row.speedup is not None else {
                "kernels": case.kernels, "compile_s": case.compile_s,
                "device_ms": "" if case.device_ms is None else case.device_ms,
            }  # fmt: skip
            writer.writerow(common | own | _measured(row, case))
        for name, why in case.absent.items():
            writer.writerow(common | {"engine": name, "absent": why})
    return text.getvalue()


def _measured(row: Row, case: Case) -> dict[str, object]:
    found, compare = row.measured, row.compare
    times = {f"{name}_ms": getattr(found.latency_ms, name) for name in (*TIMES, "max")}
    items = "" if case.batch is None else found.throughput * case.batch
    of_peer: dict[str, object] = {}
    if row.speedup is not None:
        of_peer = {"speedup": row.speedup, "throughput_gain": row.throughput_gain}
    if compare is not None:
        of_peer |= {"max_abs": compare.max_abs, "max_rel": compare.max_rel, "ok": compare.ok}
    return {
        "engine": row.engine, "version": row.version, "engine_device": row.device,
        "runs": found.runs, **times, "throughput": found.throughput, "items_per_s": items,
        **of_peer,
    }  # fmt: skip
