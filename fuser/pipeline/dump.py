"""The text of a model after a stage: `fuser dump`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuser.base.target import Target
from fuser.errors import UsageError
from fuser.graph.ir import Graph
from fuser.graph.text import print_graph
from fuser.partition import Options, partition
from fuser.partition.passes import Work, each_pass
from fuser.pipeline.compiled import with_remembered
from fuser.pipeline.devices import Device
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.kernels import programs_of
from fuser.pipeline.options import CompileOptions
from fuser.pipeline.precision import Precision
from fuser.pipeline.source import GraphSource
from fuser.pipeline.stage_texts import kernel_text
from fuser.report.partition_text import explain
from fuser.tilegen.emit.twins import Twins


def dump(
    source: GraphSource, *, stage: str, region: int | None = None, device: Device = "auto",
    dims: Mapping[str, int] | None = None, fusion: Fusing = True, precision: Precision = "model",
) -> Iterator[str]:  # fmt: skip
    """The text of the model after a stage (see `fuser dump --help`), region by region."""
    if stage == "graph":
        yield print_graph(source.graph(dims or {}))
        return
    asked = CompileOptions(device=device, fusion=fusion, precision=precision)
    target, options = asked.target, asked.partitioning
    if stage == "passes":
        yield from _passes(source.graph(dims or {}), target, options)
        return
    cut = partition(source.graph(dims or {}), target, options)
    if stage == "regions":
        yield explain(cut, verbose=True)
        return
    chosen = [r for r in cut.regions if region is None or r.id == region]
    if not chosen:
        raise UsageError(
            f"there is no region {region}", hint=f"regions are 0 to {len(cut.regions) - 1}"
        )
    twins = Twins()
    for item in chosen:
        programs = programs_of(item, cut, target, twins)
        for program in with_remembered(cut, programs, target)[0]:
            yield kernel_text(program, stage, target)


def _passes(graph: Graph, target: Target, options: Options) -> Iterator[str]:
    """The graph after each pass before the grouping that changed it."""
    before = print_graph(graph)
    yield before
    for item, after in each_pass(graph, Work(target, options)):
        text = print_graph(after)
        yield f"after {item.name}: {'as before' if text == before else ''}".rstrip()
        if text != before:
            yield text
        before = text
