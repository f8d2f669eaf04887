"""What `fuser bench` found, as a table for people and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from fuser.graph.units import counted, duration, milliseconds
from fuser.report.bench import ALONE, OWN, Bench, Case, Row, rounds_of
from fuser.runtime.terminal import table

SHOWN = ("p50", "p90", "p99", "min")
TIMES = ("p50", "p90", "p95", "p99", "min", "mean", "max")
CSV_FIELDS = (
    "model", "device", "precision", "threads", "streams", "batch", "dims", "engine", "version",
    "engine_device", "kernels", "compile_s", "device_ms", "others", "attempts", "runs",
    "min_ms", "mean_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms", "spread", "drift",
    "throughput", "items_per_s", "fuser_speedup", "fuser_throughput_gain", "max_abs", "max_rel",
    "ok", "absent",
)  # fmt: skip


def table_of(bench: Bench) -> str:
    """Facts and a row for each engine of each case, as wide as the terminal."""
    effort = bench.effort
    streams = counted(bench.streams, "stream")
    facts = [
        ("model", f"{bench.model} on {bench.device}"),
        ("runs", f"at least {effort.iterations} and {effort.duration_s:g} s of each engine,"
                 f" in {counted(rounds_of(effort), 'turn')}, after {effort.warmup}; {streams}"),
    ]  # fmt: skip
    if bench.precision != "model":
        facts.append(("precision", bench.precision))
    rows_of = (row for row in _all_rows(bench) if row.engine != ALONE)
    engines = {(row.engine, row.version, row.device): None for row in rows_of}
    facts += [("engine", f"{name} {version}, {at}") for name, version, at in engines]
    for case in bench.cases:
        at = ", ".join(f"{name} = {size}" for name, size in case.dims.items())
        cost = f"{counted(case.kernels, 'kernel')}, compiled in {duration(case.compile_s)}"
        if case.device_ms is not None:
            cost += f"; {milliseconds(case.device_ms)} on the device, with the data in place"
        facts.append(("case", f"{at}: {cost}" if at else cost))
        if case.note:
            facts.append(("no fusion", case.note))
    errors: dict[str, float] = {}
    for row in _all_rows(bench):
        if row.compare is not None:
            errors[row.engine] = max(errors.get(row.engine, 0.0), row.compare.max_rel)
    for name, error in errors.items():
        facts.append(("outputs", f"relative error {error:.1e} beside {name}"))
    attempts = max(case.attempts for case in bench.cases)
    if attempts > 1:
        facts.append(("attempts", f"{attempts}; the least disturbed one is shown"))
    head, *rows = _rows(bench)
    numbers = [at for at, name in enumerate(head) if at > 1 and not name.startswith("over ")]
    found = table(rows, head, numbers=numbers, keys=2, paint=True)
    return "\n".join([table(facts, labels=True, paint=True), "", found])


def _all_rows(bench: Bench) -> Iterator[Row]:
    return (row for case in bench.cases for row in case.rows)


def _rows(bench: Bench) -> Iterator[tuple[str, ...]]:
    """A row for each engine of each case; the ratios to the peers are in fuser's row."""
    peers = list(dict.fromkeys(one.engine for row in _all_rows(bench) for one in row.against))
    batches = any(case.batch is not None for case in bench.cases)
    yield ("batch", "engine", *SHOWN, "items/s" if batches else "runs/s",
            *(f"over {name.removeprefix(f'{OWN}, ')}" for name in peers))  # fmt: skip
    for case in bench.cases:
        for row in case.rows:
            found, ratios = row.measured, {one.engine: one.words for one in row.against}
            yield (
                "" if case.batch is None else str(case.batch), row.engine,
                *(milliseconds(getattr(found.latency_ms, name)) for name in SHOWN),
                f"{found.throughput * (case.batch or 1):,.1f}",
                *(ratios.get(name, "") for name in peers),
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
        own = {
            "kernels": case.kernels, "compile_s": case.compile_s, "device_ms": case.device_ms,
            "others": case.others, "attempts": case.attempts,
        }  # fmt: skip
        for place, row in enumerate(case.rows):
            writer.writerow(common | (own if place == 0 else {}) | _measured(row, case))
        for name, why in case.absent.items():
            writer.writerow(common | {"engine": name, "absent": why})
    return text.getvalue()


def _measured(row: Row, case: Case) -> dict[str, object]:
    found, compare = row.measured, row.compare
    times = {f"{name}_ms": getattr(found.latency_ms, name) for name in TIMES}
    items = "" if case.batch is None else found.throughput * case.batch
    of_peer: dict[str, object] = {}
    for ratio in case.rows[0].against:
        if ratio.engine == row.engine:
            of_peer = {
                "fuser_speedup": ratio.speedup, "fuser_throughput_gain": ratio.throughput_gain,
            }  # fmt: skip
    if compare is not None:
        of_peer |= {"max_abs": compare.max_abs, "max_rel": compare.max_rel, "ok": compare.ok}
    return {
        "engine": row.engine, "version": row.version, "engine_device": row.device,
        "runs": found.runs, **times, "spread": found.spread, "drift": found.drift,
        "throughput": found.throughput, "items_per_s": items, **of_peer,
    }  # fmt: skip
