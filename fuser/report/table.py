"""The report as a table for people: one line a row, never wrapped, colour only on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fuser.graph.units import byte_size, counted, duration, milliseconds
from fuser.runtime.plan_report import Report
from fuser.runtime.savings import ADVICE, is_slower


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of one length as lines, each column as wide as its widest cell, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(padded)


def print_report(report: Report, outputs: Mapping[str, np.ndarray], random_inputs: bool) -> None:
    """Print the summary of one run to stdout."""
    import click

    colour = False if os.environ.get("NO_COLOR") else None
    rows = [(label, printable(text)) for label, text in _rows(report, outputs)]
    colours = {"ok": "green", "MISMATCH": "red"}
    for line, (label, text) in zip(columns(rows).splitlines(), rows, strict=True):
        verdict = text.split(" ")[0] if label == "compare" else ""
        rest = line[len(label) :]
        if verdict in colours:
            rest = rest.replace(verdict, click.style(verdict, fg=colours[verdict]), 1)
        click.echo(click.style(label, bold=True) + rest, color=colour)
    if random_inputs:
        hint = "inputs were random (seeded); give your own with -i"
        click.echo(click.style(hint, dim=True), color=colour)


def printable(text: str) -> str:
    """Names of a model may be part of it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _rows(report: Report, outputs: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
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
        from fuser.partition.text import change_text

        yield "forced", change_text(report.forced)
    cached = (
        f"{counted(report.cache_hits, 'kernel')} from the cache" if report.cache_hits else "cold"
    )
    yield "compile", f"{duration(report.compile_s)}  ({cached})"
    for item in report.tuned:
        yield "tuned", str(item)
    if latency := report.latency_ms:
        yield (
            "latency",
            f"{milliseconds(latency.median)} median, {milliseconds(latency.p90)} p90"
            f"  ({latency.iterations} runs)",
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
        yield (
            "compare",
            f"{'ok' if compare.ok else 'MISMATCH'}  relative error {compare.max_rel:.2e}, largest"
            f" difference {compare.max_abs:.2e}, against {compare.reference}",
        )
        yield from (("differs", line) for line in compare.differs)
