"""`fuser report`: what a plan does, as a table, JSON, a page, a trace, an annotated model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuser.cli import options
from fuser.cli.run import say_written, write_text, write_trace
from fuser.errors import UsageError

if TYPE_CHECKING:
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision
    from fuser.report.record import Record
    from fuser.report.trace import Stages


@click.command("report")
@click.argument("files", metavar="MODEL|REPORT [REPORT]", nargs=-1, required=True,
                type=click.Path(path_type=Path))  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE",
              help="Write one HTML page, which needs no network.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Print the report with its details as JSON, and nothing else.")  # fmt: skip
@click.option("--against", type=click.Path(path_type=Path), metavar="REPORT",
              help="An older report, as --json wrote it, to compare with.")  # fmt: skip
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE",
              help="Write compile stages and kernels as a trace, for Perfetto.")  # fmt: skip
@click.option("--annotate", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the model with its regions as namespaces, for viewers.")  # fmt: skip
@options.device
@options.target
@options.inputs
@options.dim
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the random inputs.")  # fmt: skip
@click.option("--iterations", type=click.IntRange(min=0), default=10, show_default=True,
              help="Timed runs; 0: nothing is run.")  # fmt: skip
@options.measure
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; one a core by default.")
@options.fusion
@options.kernels
@options.precision
@options.numerics
@options.limits
@options.verbose_lists
def report_command(
    files: tuple[Path, ...], html: Path | None, as_json: bool, against: Path | None,
    trace: Path | None, annotate: Path | None, device: Device, target: str | None,
    inputs: tuple[str, ...], dim: tuple[str, ...], seed: int, iterations: int, measure: bool,
    threads: int | None, fusion: Fusing, precision: Precision, verbose: int,
) -> int:  # fmt: skip
    """Compile MODEL, time its kernels, and report on them; or show a REPORT that --json wrote, or
    compare two, the older one first.

    Without --html, --json, --trace and --annotate a table is printed.
    """
    from fuser.report.progress import Progress
    from fuser.report.record import Record
    from fuser.report.trace import Stages

    if len(files) + (against is not None) > 2:
        raise UsageError("there are more than two reports", hint="give one, or two to compare")
    with Progress(enabled=not as_json) as progress:
        stages = Stages(progress.step)
        if files[-1].suffix == ".json":
            if annotate:
                raise UsageError("--annotate needs the model", hint="fuser report MODEL --annotate")
            record = Record.read(files[-1])
        elif len(files) > 1:
            raise UsageError(
                f"{files[1]} is no report", hint="fuser report MODEL --json writes one"
            )
        else:
            record = _measured(
                files[0], stages, device=device, target=target, inputs=inputs, dim=dim, seed=seed,
                iterations=iterations, measure=measure, threads=threads, fusion=fusion,
                precision=precision, texts=html is not None or as_json,
            )  # fmt: skip
        older = against or (files[0] if len(files) > 1 else None)
        before = Record.read(older) if older else None
    wrote: list[Path] = []
    if html:
        from fuser.report.page import page

        write_text(html, page(record, before))
        wrote.append(html)
    if trace:
        write_trace(trace, record, stages)
        wrote.append(trace)
    if annotate:
        _annotate(files[0], annotate, record)
        wrote.append(annotate)
    if as_json:
        click.echo(json.dumps(record.data))
    elif wrote:
        say_written(wrote)
    else:
        _print(record, before, verbose > 0)
    return 0


def _measured(
    model: Path, stages: Stages, *, device: Device, target: str | None, inputs: tuple[str, ...],
    dim: tuple[str, ...], seed: int, iterations: int, measure: bool, threads: int | None,
    fusion: Fusing, precision: Precision, texts: bool,
) -> Record:  # fmt: skip
    """The report of a model, compiled and timed here; for a target that is not here, compiled."""
    from fuser.cli import feeds
    from fuser.cli.explain import partition_for
    from fuser.frontends.onnx.hosted import compile_on_host
    from fuser.frontends.onnx.model import open_model
    from fuser.pipeline import compiler
    from fuser.pipeline.compiled import with_remembered
    from fuser.pipeline.details import details
    from fuser.pipeline.devices import choose_target
    from fuser.pipeline.kernels import emit_programs
    from fuser.pipeline.options import CompileOptions
    from fuser.report.beside import measure as time_runs
    from fuser.report.record import Record
    from fuser.runtime.launch_graph import dependences
    from fuser.runtime.plan import Plan

    stages.step("reading the model")
    opened = open_model(model)
    given, dims = feeds.open_feeds(model, inputs, options.parse_dims(dim), "error")
    chosen = choose_target(options.chosen(device, target), threads)
    how = CompileOptions(device=chosen, fusion=fusion, precision=precision)
    if target is None:
        plan = compile_on_host(
            model, host="error", device=device, dims=dims, threads=threads, fusion=fusion,
            precision=precision, progress=stages.step,
        )  # fmt: skip
        assert isinstance(plan, Plan)  # nothing is on the host
        report = plan.report()
        if iterations:
            stages.end()
            stages.onward("running")
            arrays = given or plan.random_feeds(seed)

            def unfused() -> Plan:
                stages.onward("compiling without fusion")
                apart = CompileOptions(
                    device=device, threads=threads, fusion=False, precision=precision
                )
                return compiler.compile_source(opened, apart, dims=dims)

            time_runs(
                report, plan, arrays, iterations, unfused=unfused if measure and fusion else None,
                kernels="both",
            )  # fmt: skip
    else:
        program, report = compiler.compile_program(opened, how.but(progress=stages.step), dims=dims)
        report.dependences = dependences(program)
    stages.end()
    stages.onward("collecting the details")
    cut = partition_for(opened, given, how, dims)
    programs, _ = with_remembered(cut, emit_programs(cut, chosen), chosen)
    found = details(cut, programs, chosen, stages.onward, texts=texts)
    return Record(report.to_dict() | {"details": found})


def _annotate(model: Path, target: Path, record: Record) -> None:
    from fuser.frontends.onnx.annotate import annotate_file
    from fuser.runtime.terminal import notice

    left = annotate_file(model, target, record.namespaces, record.regions_of)
    known = {node["name"] for node in record.nodes}
    inside = [name for name in left if name in known]
    if inside:
        notice(
            f"note: {len(inside)} nodes stand in functions of the model, without a namespace of"
            f" their own: {', '.join(inside[:5])}"
        )


def _print(record: Record, before: Record | None, verbose: bool) -> None:
    from fuser.report.difference import comparison
    from fuser.report.summary import overview
    from fuser.runtime.terminal import echo

    if before is None:
        echo(overview(record, verbose))
    else:
        echo(comparison(before, record, verbose))
