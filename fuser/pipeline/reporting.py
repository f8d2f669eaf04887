"""The report of a compile, which nobody may ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from fuser.graph.sizes import Sizes
from fuser.partition.region import Partition
from fuser.pipeline.binding import spent
from fuser.report.build import report_on
from fuser.report.report import Report
from fuser.runtime.deferred import Deferred
from fuser.runtime.program import Program
from fuser.tilegen.program import TileProgram


def deferred_report(
    cut: Partition, programs: Sequence[TileProgram], program: Program, dims: Mapping[str, int],
    seconds: float, cache_hits: int, examples: Mapping[str, int] | None = None, **noted: Any,
) -> Deferred[Report]:  # fmt: skip
    """`report_on`, worked out when it is asked for; until then the graph and the tile programs are
    kept, the weights not. examples: sizes of the symbols that the graph still has. noted: what else
    its fields are."""
    for node in cut.graph.nodes:  # a copy, whose nodes nobody else has
        if node.op == "constant":
            node.attrs = node.attrs | spent(node)

    def make() -> Report:
        with Sizes(examples) if examples else nullcontext():
            report = report_on(cut, programs, program, dict(dims), seconds, cache_hits)
        return replace(report, **noted)

    return Deferred(make)
