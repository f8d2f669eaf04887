"""`fuser explain`: regions, refused fusions, kernels for ranges of sizes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuser.cli import options
from fuser.errors import LoweringError

if TYPE_CHECKING:
    from fuser.pipeline.devices import Device
    from fuser.pipeline.precision import Precision


@click.command("explain")
@click.argument("model", type=click.Path(path_type=Path))
@options.device
@options.target
@options.dim
@click.option(
    "--dynamic", is_flag=True, help="Compile for ranges of sizes; print which share kernels."
)
@options.fusion
@options.precision
@options.limits
@options.verbose
def explain_command(
    model: Path, device: Device, target: str | None,
    dim: tuple[str, ...], dynamic: bool, no_fusion: bool,
    precision: Precision,
) -> int:  # fmt: skip
    """Print the regions of MODEL, and every fusion that was refused with its reason."""
    from fuser.frontends.onnx.model import open_model
    from fuser.partition import explain
    from fuser.pipeline import compiler
    from fuser.pipeline.devices import choose_target

    device = options.chosen(device, target)
    opened, dims = open_model(model), options.parse_dims(dim)
    if dynamic:
        return _explain_dynamic(opened, dims, device=device, fusion=not no_fusion,
                                precision=precision)  # fmt: skip
    partition = compiler.partition_source(
        opened, device=device, dims=dims, fusion=not no_fusion, precision=precision
    )
    chosen = choose_target(device)
    tuned: tuple[Any, ...] = ()
    with suppress(LoweringError):  # of a region without a kernel, which the text shows
        programs = compiler.emit_programs(partition, chosen)
        _, tuned = compiler.with_remembered(partition, programs, chosen)
    click.echo(explain(partition))
    if tuned:
        click.echo("\n".join(["kernels with measured schedules", *(f"  {one}" for one in tuned)]))
    return 0


def _explain_dynamic(model: Any, dims: dict[str, int], **options: Any) -> int:
    """Print the kernels for the usual sizes, outermost dims of 1 and of more, or for `dims`."""
    from fuser.pipeline.dynamic import DynamicPlan
    from fuser.pipeline.source import symbols
    from fuser.report.progress import Progress

    with Progress() as progress:
        plan = DynamicPlan(model, progress=progress.step, **options)
        for outer in (2, 1):
            usual = {name: outer for name, is_outer in symbols(model).items() if is_outer}
            plan.prepare({**usual, **dims})
    click.echo(plan.explain())
    return 0
