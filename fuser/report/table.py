"""The report as a table for people."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuser.report.report import Report


def megabytes(count: int) -> str:
    """1_500_000 -> "1.50 MB"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def percent_saved(before: int, after: int) -> str:
    return f"{100 * (1 - after / before):.0f} % saved" if before else ""


def print_report(report: Report, outputs: Mapping[str, np.ndarray], random_inputs: bool) -> None:
    """Print the summary of one run to stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    kernels, traffic = report.kernels, report.bytes
    table.add_row("model", f"{report.model} on {report.device}")
    if report.precision != "model":
        table.add_row("precision", report.precision)
    if report.dims:
        table.add_row("dims", ", ".join(f"{name} = {size}" for name, size in report.dims.items()))
    table.add_row(
        "kernels",
        f"{kernels.before} -> {kernels.after}  ({percent_saved(kernels.before, kernels.after)})",
    )
    table.add_row(
        "memory traffic",
        f"{megabytes(traffic.before)} -> {megabytes(traffic.after)}"
        f"  ({percent_saved(traffic.before, traffic.after)}; floor {megabytes(traffic.floor)})",
    )
    if traffic.packed:
        table.add_row("packed weights", f"{megabytes(traffic.packed)} less to read than unpacked")
    cached = f"{report.cache_hits} kernels from the cache" if report.cache_hits else "cold"
    table.add_row("compile", f"{report.compile_s:.2f} s  ({cached})")
    for item in report.tuned:
        table.add_row("tuned", str(item))
    if report.latency_ms:
        latency = report.latency_ms
        table.add_row(
            "latency",
            f"{latency.median:.3f} ms median, {latency.p90:.3f} ms p90"
            f"  ({latency.iterations} runs)",
        )
    table.add_row("peak memory", megabytes(report.peak_memory_bytes))
    for note in report.fallbacks:
        table.add_row("fallback", note)
    for name, array in outputs.items():
        table.add_row("output", f"{name} {array.dtype}{list(array.shape)}")
    if report.compare:
        verdict = "[green]ok[/green]" if report.compare.ok else "[red]MISMATCH[/red]"
        table.add_row(
            "compare",
            f"{verdict}  relative error {report.compare.max_rel:.2e}, largest difference"
            f" {report.compare.max_abs:.2e}, against {report.compare.reference}",
        )
    console.print(table)
    if random_inputs:
        console.print("inputs were random (seeded); give your own with -i", style="dim")
