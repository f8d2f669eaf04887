"""`fuser compile`: a model to a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuser.cli import options

if TYPE_CHECKING:
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision


@click.command("compile")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True,
              help="The plan file, for fuser.Plan.load.")  # fmt: skip
@options.device
@options.target
@options.dim
@options.fusion
@options.precision
@options.limits
@options.verbose
def compile_command(
    model: Path, output: Path, device: Device, target: str | None, dim: tuple[str, ...],
    fusion: Fusing, precision: Precision,
) -> int:  # fmt: skip
    """Compile MODEL into a plan file, for this machine or for another target."""
    from fuser.frontends.onnx.model import open_model
    from fuser.pipeline.compiler import compile_program
    from fuser.pipeline.devices import choose_target
    from fuser.report.progress import Progress
    from fuser.report.table import columns, megabytes
    from fuser.runtime.store import save_program

    meant = choose_target(options.chosen(device, target))
    with Progress() as progress:
        program, report = compile_program(
            open_model(model), meant, dims=options.parse_dims(dim), fusion=fusion,
            precision=precision, progress=progress.step,
        )  # fmt: skip
        save_program(program, output, report)
    rows = [
        ("plan", f"{output}, {megabytes(output.stat().st_size)}"),
        ("target", f"{meant.arch} {meant.features}".strip()),
        ("kernels", f"{report.kernels.before} -> {report.kernels.after}"),
    ]
    if report.forced is not None:
        from fuser.partition.text import change_text

        rows.append(("forced", change_text(report.forced)))
    click.echo(columns(rows))
    return 0
