"""`fuser dump`: the text of a model after a stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuser.cli import options

if TYPE_CHECKING:
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision


STAGES = ("graph", "passes", "regions", "tile", "cpu", "gpu-passes", "gpu", "llvm", "ptx", "asm")


@click.command("dump")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--stage", type=click.Choice(STAGES), default="tile", show_default=True)
@click.option("--region", type=int, help="Only this region.")
@options.device
@options.target
@options.dim
@options.fusion
@options.kernels
@options.precision
@options.numerics
@options.limits
@options.verbose
def dump_command(
    model: Path, stage: str, region: int | None, device: Device, target: str | None,
    dim: tuple[str, ...],
    fusion: Fusing, precision: Precision,
) -> int:  # fmt: skip
    """Print MODEL as it stands after a stage: graph, passes (those before nodes are grouped),
    regions, tile, cpu (where values live, how dots are blocked and loops vectorised), gpu-passes
    (the GPU IR after each of its passes), gpu (kernels with layouts, barriers and copies), llvm,
    ptx or asm."""
    from fuser.frontends.onnx.model import open_model
    from fuser.pipeline import dump as stages

    device, opened = options.chosen(device, target), open_model(model)
    for text in stages.dump(
        opened, stage=stage, region=region, device=device, dims=options.parse_dims(dim),
        fusion=fusion, precision=precision,
    ):  # fmt: skip
        click.echo(text)
    return 0
