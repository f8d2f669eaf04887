"""The report of a run as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fuser.graph.units import byte_size, counted, duration, milliseconds
from fuser.runtime.plan_report import Report
from fuser.runtime.savings import ADVICE, is_slower
from fuser.runtime.terminal import echo, styled, table


def print_report(
    report: Report, outputs: Mapping[str, np.ndarray], random_inputs: bool, plan: str = ""
) -> None:
    """Print the summary of one run to stdout. plan: the file that was run as it is, if one was."""
    colours = {"ok": "green", "MISMATCH": "red"}
    echo(table(_rows(report, outputs, plan), labels=True, paint=True, colours=colours))
    if random_inputs:
        echo(styled("inputs were random (seeded); give your own with -i", dim=True))


def _rows(
    report: Report, outputs: Mapping[str, np.ndarray], plan: str
) -> Iterator[tuple[str, str]]:
    yield "model", f"{report.model} on {report.device}"
    if report.precision != "model":
        yield "precision", report.precision
    if report.numerics != "model" or report.rewrites:
        inexact = (f"{item.rule} ({counted(len(item.nodes), 'node')})" for item in report.rewrites)
        yield "numerics", ": ".join(filter(None, (report.numerics, ", ".join(inexact))))
    if report.dims:
        yield "dims", ", ".join(f"{name} = {size}" for name, size in report.dims.items())
    for saved in report.savings():
        yield saved.label, str(saved)
    if is_slower(report.latency_ms, report.unfused_ms):
        yield "advice", ADVICE
    if report.unfused and report.unfused.note:
        yield "unfused", report.unfused.note
    if peer := report.peer:
        yield "peer", f"{peer['name']} {peer['version']} runs {counted(peer['kernels'], 'kernel')}"
    if met := [launch for launch in report.launches if launch.kind == "collective"]:
        kinds = [launch.name for launch in met]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        given = sum(launch.boundary.read for launch in met)
        yield "collectives", f"{counts}, each rank gives {byte_size(given)}"
    if packed := report.bytes.packed:
        yield "packed weights", f"{byte_size(packed)} less to read than unpacked"
    if report.forced is not None:
        from fuser.report.partition_text import change_text

        yield "forced", change_text(report.forced)
    cached = (
        f"{counted(report.cache_hits, 'kernel')} from the cache" if report.cache_hits else "cold"
    )
    if plan:
        yield "plan", f"{plan}, nothing was compiled"
    else:
        yield "compile", f"{duration(report.compile_s)}  ({cached})"
    for item in report.tuned:
        yield "tuned", str(item)
    if latency := report.latency_ms:
        yield (
            "latency",
            f"{milliseconds(latency.median)} median, {milliseconds(latency.p90)} p90"
            f"  ({counted(latency.iterations, 'run')})",
        )
    yield "peak memory", byte_size(report.peak_memory_bytes)
    for note in report.fallbacks:
        yield "fallback", note
    for name, array in outputs.items():
        kind = (
            f"{array.dtype}{list(array.shape)}" if hasattr(array, "dtype") else type(array).__name__
        )
        yield "output", f"{name} {kind}"
    if compare := report.compare:
        found = f"no output was compared with {compare.reference}"
        if compare.compared:
            found = (
                f"relative error {compare.max_rel:.2e}, largest difference {compare.max_abs:.2e},"
                f" against {compare.reference}"
            )
            if compare.compared < len(outputs):
                found = f"{compare.compared} of {counted(len(outputs), 'output')}: {found}"
        yield "compare", f"{'ok' if compare.ok else 'MISMATCH'}  {found}"
        yield from (("differs", line) for line in compare.differs)
