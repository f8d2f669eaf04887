"""`fuser compile`: a model to a plan file, or to objects for programs in other languages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuser.cli import options
from fuser.cli.inspect import features_text
from fuser.errors import UsageError, nearest

if TYPE_CHECKING:
    from fuser.base.target import Target
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision
    from fuser.report.report import Report
    from fuser.runtime.model_file import ModelWriter
    from fuser.runtime.program import Program
    from fuser.runtime.source import Source


@click.command("compile")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True,
              help="The plan file, for fuser run and Plan.load, or the folder.")  # fmt: skip
@click.option("--emit", type=click.Choice(["plan", "object"]), default="plan", show_default=True,
              help="A plan file, or object, C header and weights: docs/deployment.md.")  # fmt: skip
@click.option("--name", help="What names in objects begin with; by default the model's file name.")
@click.option("--embed", is_flag=True, help="Put the weights into the object.")
@click.option("--weights", type=click.Choice(["plan", "reference"]), default="plan",
              show_default=True,
              help="Of a plan: in its file, or read from MODEL whenever it is loaded.")  # fmt: skip
@options.device
@options.targets
@options.dim
@click.option("--open", "opened", multiple=True, metavar="NAME=A..B",
              help="Keep a symbolic dim open: the plan has kernels for sizes A to B (A..: from A"
              " on).")  # fmt: skip
@options.fusion
@options.kernels
@options.precision
@options.numerics
@options.limits
@options.verbose
def compile_command(
    model: Path, output: Path, emit: str, name: str | None, embed: bool, weights: str,
    device: Device, target: str | None, dim: tuple[str, ...], opened: tuple[str, ...],
    fusion: Fusing, precision: Precision,
) -> int:  # fmt: skip
    """Compile MODEL into a plan file, for this machine or for other targets, or into objects that
    programs in other languages link."""
    from fuser.frontends.onnx.model import map_model, open_model
    from fuser.graph.units import byte_size, counted
    from fuser.pipeline.compiler import compile_program
    from fuser.pipeline.devices import choose_target
    from fuser.pipeline.options import CompileOptions
    from fuser.report.progress import Progress
    from fuser.runtime.terminal import echo, table

    if emit == "plan" and (name or embed):
        raise UsageError("--name and --embed are for --emit object")
    if emit == "object" and weights != "plan":
        raise UsageError("--weights is for plans", hint="--embed puts weights into an object")
    names = target.split(",") if target is not None else [None]
    if len(set(names)) < len(names):
        raise UsageError(f"--target {target} names one twice")
    meant = [choose_target(options.chosen(device, one)) for one in names]
    if emit == "object" and len(meant) > 1:
        raise UsageError("an object is for one target", hint="compile once for each")
    if opened:
        if emit == "object" or weights != "plan" or len(meant) > 1:
            raise UsageError(
                "--open is for a plan file for one target, with its weights",
                hint="compile once for each target, without --emit object and --weights",
            )
        return _compile_open(
            model, output, meant[0], opened, options.parse_dims(dim), fusion, precision
        )
    made: list[tuple[Program, Report]] = []
    sources: dict[int, Source] | None = {} if weights == "reference" else None

    def keep(program: Program, found: Mapping[int, Source], *_: object) -> None:
        # Only ids of arrays that `made` keeps alive: the id of a freed one is given out again.
        assert sources is not None
        sources.update((id(a), found[id(a)]) for a in program.constants if id(a) in found)

    with Progress() as progress:
        for one in meant:
            source = (open_model if sources is None else map_model)(model)
            how = CompileOptions(
                device=one, fusion=fusion, precision=precision, progress=progress.step
            )
            found = compile_program(
                source, how, dims=options.parse_dims(dim), keep=None if sources is None else keep
            )
            made.append(found)
            if source.mapped is not None:
                source.mapped.check_unchanged()
        writer = None if sources is None else _writer(model, output, sources)
        files = _write(made, output, emit, name or model.stem, embed, writer)
    size = byte_size(sum(file.stat().st_size for file in files))
    rows = [
        (
            emit,
            f"{output}, {size}" + (f", {counted(len(files), 'file')}" if emit == "object" else ""),
        )
    ]
    if writer is not None:
        rows.append(("weights", f"{byte_size(writer.bytes)} in {writer.record['name']}"))
    for one, (_, report) in zip(meant, made, strict=True):
        rows.append(("target", f"{one.arch} {features_text(one.features)}".strip()))
        rows.append(("kernels", f"{report.kernels.before:,} -> {report.kernels.after:,}"))
        if report.forced is not None:
            from fuser.report.partition_text import change_text

            rows.append(("forced", change_text(report.forced)))
    echo(table(rows, labels=True, paint=True))
    return 0


def _compile_open(
    model: Path, output: Path, target: Target, opened: tuple[str, ...], dims: dict[str, int],
    fusion: Fusing, precision: Precision,
) -> int:  # fmt: skip
    """Compile for ranges of sizes; dims that are not named have their usual sizes."""
    from fuser.frontends.onnx.model import open_model
    from fuser.graph.units import byte_size
    from fuser.pipeline.dynamic import DynamicPlan
    from fuser.pipeline.ranges import parse_range, prepare_ranges
    from fuser.pipeline.source import symbols
    from fuser.report.progress import Progress
    from fuser.runtime.terminal import echo, table

    ranges = dict(map(parse_range, opened))
    source = open_model(model)
    names = sorted(symbols(source))
    for name in (*ranges, *dims):
        if name not in names:
            raise UsageError(f"unknown dim {name!r}", hint=nearest(name, names, "the dims are"))
        if name in ranges and name in dims:
            raise UsageError(f"dim {name!r} is fixed by --dim and open by --open")
    usual = {n: size for n, size in source.bind(dims).items() if n in names and n not in ranges}
    with Progress() as progress:
        plan = DynamicPlan(
            source, device=target, dims=usual, fusion=fusion, precision=precision,
            progress=progress.step,
        )  # fmt: skip
        prepare_ranges(plan, ranges)
        plan.save(output)
    rows = [("plan", f"{output}, {byte_size(output.stat().st_size)}")]
    rows.append(("target", f"{target.arch} {features_text(target.features)}".strip()))
    echo(table(rows, labels=True, paint=True))
    echo(plan.explain())
    return 0


def _writer(model: Path, output: Path, sources: Mapping[int, Source]) -> ModelWriter:
    """The weights that stay in the model's file. Raises UsageError where none can."""
    from fuser.runtime.model_file import ModelWriter

    if not sources:
        raise UsageError(
            f"kernels read no weights of {model} as they are in the file",
            hint="weights below 64 KiB, beside the model (external data) or computed from others"
            " are in the plan: compile without --weights reference",
        )
    return ModelWriter(model, output, sources)


def _write(
    made: list[tuple[Program, Report]], output: Path, emit: str, name: str, embed: bool,
    writer: ModelWriter | None,
) -> list[Path]:  # fmt: skip
    """Write what was compiled; the files. Raises UsageError where that fails."""
    if emit == "plan":
        from fuser.runtime.container import write_file
        from fuser.runtime.store import program_file

        write_file(output, program_file(made, writer))
        return [output]
    from fuser.pipeline.objects import write_object

    (program, report), *_ = made
    try:
        return write_object(program, output, name, embed=embed, dims=report.dims)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
