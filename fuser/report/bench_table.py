"""What `fuser bench` found, as a table for people and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from fuser.report.bench import Bench, Case, Row, rounds_of
from fuser.report.table import columns, printable

TIMES = ("p50", "p90", "p95", "p99", "min", "mean")
CSV_FIELDS = (
    "model", "device", "precision", "threads", "streams", "batch", "dims", "engine", "version",
    "engine_device", "kernels", "compile_s", "device_ms", "runs", "min_ms", "mean_ms", "p50_ms",
    "p90_ms", "p95_ms", "p99_ms", "max_ms", "throughput", "items_per_s", "speedup",
    "throughput_gain", "max_abs", "max_rel", "ok", "absent",
)  # fmt: skip


def table_of(bench: Bench) -> str:
    """Lines that are never wrapped."""
    effort = bench.effort
    streams = f"{bench.streams} stream{'s' * (bench.streams > 1)}"
    facts = [
        ("model", printable(f"{bench.model} on {bench.device}")),
        ("runs", f"at least {effort.iterations} and {effort.duration_s:g} s of each engine,"
                 f" in {rounds_of(effort)} turns, after {effort.warmup}; {streams}"),
    ]  # fmt: skip
    if bench.precision != "model":
        facts.append(("precision", bench.precision))
    for case in bench.cases:
        at = ", ".join(f"{name} = {size}" for name, size in case.dims.items())
        cost = f"{case.kernels} kernels, compiled in {case.compile_s:.2f} s"
        if case.device_ms is not None:
            cost += f"; {case.device_ms:.3f} ms on the device, with the data in place"
        facts.append(("case", printable(f"{at}: {cost}" if at else cost)))
    absent: dict[str, list[Case]] = {}
    for case in bench.cases:
        for name, why in case.absent.items():
            absent.setdefault(f"{name}: {why}", []).append(case)
    for text, cases in absent.items():
        where = "" if len(cases) == len(bench.cases) else f" (batch {_batches(cases)})"
        facts.append(("absent", printable(text + where)))
    return "\n".join([columns(facts), "", columns(list(_rows(bench)))])


def _batches(cases: Sequence[Case]) -> str:
    return ", ".join(str(case.batch) for case in cases)


def _rows(bench: Bench) -> Iterator[tuple[str, ...]]:
    yield ("batch", "engine", *(f"{name} ms" for name in TIMES), "runs/s", "items/s", "speedup",
           "error")  # fmt: skip
    for case in bench.cases:
        for row in case.rows:
            found = row.measured
            items = "" if case.batch is None else f"{found.throughput * case.batch:.1f}"
            yield (
                "" if case.batch is None else str(case.batch),
                printable(f"{row.engine} {row.version}"),
                *(f"{getattr(found.latency_ms, name):.3f}" for name in TIMES),
                f"{found.throughput:.1f}", items,
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
