"""`fuser profile`: time and counters of each kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuser.cli import options

if TYPE_CHECKING:
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision


@click.command("profile")
@click.argument("model", type=click.Path(path_type=Path))
@options.device
@click.option("-i", "--input", "inputs", multiple=True, metavar="FEED",
              help="NAME=F.npy, F.npz or a folder of input_*.pb; else random.")  # fmt: skip
@options.dim
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the random inputs.")  # fmt: skip
@click.option("--iterations", type=click.IntRange(min=1), default=10, show_default=True,
              help="Timed runs; the median one is shown.")  # fmt: skip
@click.option("--counters/--no-counters", default=True, show_default=True,
              help="Read the hardware: by ncu on a GPU, perf events on a CPU.")  # fmt: skip
@click.option(
    "--report", "report_file", type=click.Path(path_type=Path), help="Write the report as JSON."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; one a core by default.")
@options.fusion
@options.kernels
@options.precision
@options.numerics
@options.limits
@options.verbose_lists
def profile_command(
    model: Path, device: Device, inputs: tuple[str, ...], dim: tuple[str, ...], seed: int,
    iterations: int, counters: bool, report_file: Path | None, as_json: bool,
    threads: int | None, fusion: Fusing, precision: Precision, verbose: int,
) -> int:  # fmt: skip
    """Run MODEL and print the time of each kernel beside the least it could take, and what counters
    of the hardware say: bytes of DRAM and L2, or instructions and cache misses."""
    from fuser.cli.feeds import open_feeds
    from fuser.cli.run import say_written, write_text
    from fuser.frontends.compile import compile
    from fuser.graph.units import milliseconds
    from fuser.pipeline.devices import parse_device
    from fuser.report.beside import measure
    from fuser.report.counters import MissingCountersError
    from fuser.report.profile import add_counters, count, profile_text
    from fuser.report.progress import Progress
    from fuser.runtime.feeds import check_feeds
    from fuser.runtime.terminal import echo, paragraphs, printable

    with Progress(enabled=not as_json) as progress:
        progress.step("reading the model")
        given, dims = open_feeds(model, inputs, options.parse_dims(dim), "error")
        plan = compile(
            model, device=device, dims=dims, threads=threads, fusion=fusion,
            precision=precision, progress=progress.step,
        )  # fmt: skip
        feeds = given or plan.random_feeds(seed)
        progress.step("timing the kernels")
        report = plan.report()
        measure(report, plan, feeds, iterations, kernels="own")
        if counters:
            progress.step("reading counters")
            arrays = check_feeds(plan.inputs, feeds)
            try:
                add_counters(report, count(plan, arrays, parse_device(device)[1]))
            except MissingCountersError as error:
                add_counters(report, None, str(error))
    text = json.dumps(report.to_dict())
    if report_file:
        write_text(report_file, text + "\n")
    if as_json:
        click.echo(text)
        return 0
    latency = report.latency_ms
    assert latency is not None
    title = printable(f"{report.model} on {report.device}")
    echo(paragraphs(f"{title}, {milliseconds(latency.median)} a run (median)\n"))
    echo(profile_text(report, verbose > 0))
    say_written([report_file] if report_file else [])
    return 0
