"""`fuser shard`: a model annotated for several devices."""

from __future__ import annotations

from pathlib import Path

import click

from fuser.cli import options
from fuser.errors import UsageError


@click.command("shard")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--devices", type=click.IntRange(min=2), required=True, help="How many devices.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True,
              help="The annotated ONNX model.")  # fmt: skip
@click.option("--name", default="", help="Of the configuration; by default tensor_parallel_N.")
@options.dim
@options.limits
@options.verbose
def shard_command(model: Path, devices: int, output: Path, name: str, dim: tuple[str, ...]) -> int:
    """Write MODEL with ONNX's annotations for several devices: weights of matmuls divided by
    columns, then by rows, wherever one all-reduce is all that this takes.

    `fuser run OUT.onnx --devices N` and fuser.compile(..., devices=N) follow them; other runtimes
    run the model as it was.
    """
    import onnx

    from fuser.frontends.onnx.importer import load_model
    from fuser.frontends.onnx.model import open_model
    from fuser.frontends.onnx.sharding.compile import divided
    from fuser.frontends.onnx.sharding.write import annotate
    from fuser.graph.sharding.shard import collectives
    from fuser.graph.units import counted
    from fuser.report.progress import Progress
    from fuser.runtime.terminal import echo, table

    with Progress() as progress:
        progress.step("reading the model")
        proto = load_model(model)
        before = len(proto.configuration)
        progress.step("looking for matmuls to divide")
        dims = options.parse_dims(dim)
        proto, division = annotate(proto, devices, dims, name, in_place=True)
        called = proto.configuration[before].name
        progress.step("checking")
        _, sharded, _, _ = divided(open_model(proto), called, dims)
        met = [node.op for node in collectives(sharded(0).graph)]
        progress.step("writing")
        large = sum(len(tensor.raw_data) for tensor in proto.graph.initializer) >= LARGE_BYTES
        try:
            onnx.save_model(
                proto, output, save_as_external_data=large, location=f"{output.name}.data"
            )
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror}") from error
    counts = ", ".join(f"{met.count(kind)} {kind}" for kind in dict.fromkeys(met))
    rows = [
        ("model", str(output)),
        ("configuration", f"{called}, {devices} devices"),
        (
            "divided",
            f"{counted(division.matmuls, 'matmul')} in {counted(division.groups, 'group')}",
        ),
        ("on every rank", f"{counted(division.whole, 'matmul')} with weights"),
        ("collectives", counts or "none"),
    ]
    echo(table(rows, labels=True, paint=True))
    return 0


LARGE_BYTES = 1 << 30
"""Weights of more bytes go into a file beside the model."""
