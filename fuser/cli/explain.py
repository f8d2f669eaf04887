"""`fuser explain`: regions, refused fusions, kernels for ranges of sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuser.cli import options
from fuser.errors import LoweringError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from fuser.graph.numerics import Rewritten
    from fuser.partition import Partition
    from fuser.pipeline.devices import Device
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.options import CompileOptions
    from fuser.pipeline.precision import Precision
    from fuser.runtime.plan_report import Tuned

SCHEMA = 1
"""Version of the JSON, whose keys docs/command-line.md lists."""


@click.command("explain")
@click.argument("model", type=click.Path(path_type=Path))
@options.device
@options.target
@options.inputs
@options.dim
@click.option(
    "--dynamic", is_flag=True, help="Compile for ranges of sizes; print which share kernels."
)
@click.option("--kernel", metavar="NAME",
              help="Why this kernel has its schedule: a region, a symbol or a node.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
@options.fusion
@options.kernels
@options.precision
@options.numerics
@options.limits
@options.verbose_lists
def explain_command(
    model: Path, device: Device, target: str | None, inputs: tuple[str, ...],
    dim: tuple[str, ...], dynamic: bool, kernel: str | None, as_json: bool, fusion: Fusing,
    precision: Precision, verbose: int,
) -> int:  # fmt: skip
    """Print the regions of MODEL, each of which is a kernel, and every fusion that was refused: the
    nodes, the bytes and the time it would save, why, and what would lift it."""
    from fuser.cli import feeds
    from fuser.frontends.onnx.model import open_model
    from fuser.partition import Options
    from fuser.partition.explanation import explanation
    from fuser.partition.forced import check_pins
    from fuser.pipeline.compiled import with_remembered
    from fuser.pipeline.devices import choose_target
    from fuser.pipeline.fusion import Fusion
    from fuser.pipeline.kernels import emit_programs
    from fuser.pipeline.options import CompileOptions
    from fuser.pipeline.outline import outline
    from fuser.report.build import Planned, forced_change, region_bytes, rewrites_in
    from fuser.report.partition_text import change_text, text_of
    from fuser.runtime.terminal import echo, paragraphs
    from fuser.tilegen.row_order import order_lines

    device = options.chosen(device, target)
    opened = open_model(model)
    recorded = None if inputs else feeds.find_test_data(model)  # which `fuser run` takes, too
    files = [str(recorded)] if recorded else inputs
    given, dims = feeds.open_feeds(model, files, options.parse_dims(dim), "error")
    if dynamic:
        if as_json or kernel is not None:
            raise UsageError("--dynamic is without --json and --kernel")
        return _explain_dynamic(opened, dims, device=device, fusion=fusion,
                                precision=precision)  # fmt: skip
    dims = opened.bind(dims)
    how = CompileOptions(device=device, fusion=fusion, precision=precision)
    cut = partition_for(opened, given, how, dims)
    chosen = choose_target(device)
    tuned: tuple[Tuned, ...] = ()
    orders: list[str] = []
    forced: dict[str, Any] | None = None
    moved: dict[int, int] | None = None
    rewrites: tuple[Rewritten, ...] = ()

    def planned(cut: Partition) -> tuple[Planned, tuple[Tuned, ...]]:
        programs, tuned = with_remembered(cut, emit_programs(cut, chosen), chosen)
        return Planned(cut, programs, outline(cut, programs, chosen)), tuned

    with suppress(LoweringError):  # of a region without a kernel, which the text shows
        plan, tuned = planned(cut)
        orders = order_lines(plan.programs) if cut.graph.numerics.batch_invariant else []
        rewrites = rewrites_in(cut, plan.programs)
        moved = region_bytes(plan)
        if isinstance(fusion, Fusion) and (fusion.pin or fusion.forbid):
            apart = replace(fusion, pin=(), forbid=())
            free, _ = planned(partition_for(opened, given, how.but(fusion=apart), dims))
            forced = forced_change(free, plan, fusion.pin, fusion.forbid)
    if isinstance(fusion, Fusion):
        check_pins(cut, Options(pin=fusion.pin))  # regions may have been taken apart
    head = {
        "schema": SCHEMA, "model": opened.name, "device": f"{chosen.name} ({chosen.arch})",
        "dims": dims, "precision": precision, "numerics": str(cut.graph.numerics),
    }  # fmt: skip
    if kernel is not None:
        from fuser.pipeline.kernel_choice import kernel_choices

        choices = kernel_choices(cut, kernel, chosen)
        if as_json:
            click.echo(json.dumps({**head, "kernels": [choice.to_dict() for choice in choices]}))
        else:
            echo(paragraphs("\n\n".join(map(str, choices))))
        return 0
    found = explanation(cut, moved)
    if as_json:
        table = {
            **head, **found.to_dict(),
            "tuned": [vars(item) for item in tuned], "forced": forced,
            "orders": orders, "rewrites": [vars(item) for item in rewrites],
        }  # fmt: skip
        click.echo(json.dumps(table))
        return 0
    shown = ", ".join(f"{name} = {size}" for name, size in dims.items()) or "all fixed"
    lines = [f"{opened.name} on {chosen.name} ({chosen.arch}); dims: {shown}"]
    if forced is not None:
        lines.append(change_text(forced))
    echo(paragraphs("\n".join(lines)))
    echo(text_of(found, verbose > 0))
    lines = [f"numerics: {cut.graph.numerics}"] if rewrites or orders else []
    for item in rewrites:
        nodes = ", ".join(item.nodes if verbose else item.nodes[:4])
        more = "" if verbose or len(item.nodes) <= 4 else f" and {len(item.nodes) - 4} more"
        lines.append(f"  {item.rule} ({item.kind}): {nodes}{more}")
    lines += [f"  {line}" for line in orders]
    if tuned:
        lines += ["kernels with measured schedules", *(f"  {one}" for one in tuned)]
    if lines:
        echo(paragraphs("\n".join(lines)))
    return 0


def partition_for(
    opened: Any, given: Mapping[str, np.ndarray], how: CompileOptions, dims: Mapping[str, int]
) -> Partition:
    """The partition; values of feeds that decide shapes are bound."""
    from fuser.errors import ValueNeededError
    from fuser.pipeline.compiler import partition_source

    values: dict[str, np.ndarray] = {}
    while True:
        try:
            return partition_source(opened, how, dims=dims, values=values)
        except ValueNeededError as error:
            fresh = error.inputs - values.keys()
            if not fresh or not fresh <= given.keys():
                raise
            values |= {name: given[name] for name in fresh}


def _explain_dynamic(model: Any, dims: dict[str, int], **options: Any) -> int:
    """Print the kernels for the usual sizes, outermost dims of 1 and of more, or for `dims`."""
    from fuser.pipeline.dynamic import DynamicPlan
    from fuser.pipeline.source import symbols
    from fuser.report.progress import Progress
    from fuser.runtime.terminal import echo

    with Progress() as progress:
        plan = DynamicPlan(model, progress=progress.step, **options)
        for outer in (2, 1):
            usual = {name: outer for name, is_outer in symbols(model).items() if is_outer}
            plan.prepare({**usual, **dims})
    echo(plan.explain())
    return 0
