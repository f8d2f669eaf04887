"""The report of a compile, which nobody may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from fuser.graph.sizes import Sizes
from fuser.pipeline.binding import spent
from fuser.pipeline.outline import Alternative, Forced
from fuser.report.build import Planned, forced_change, report_on
from fuser.report.report import Report
from fuser.runtime.deferred import Deferred


def deferred_report(
    fused: Planned, unfused: Alternative | None, dims: Mapping[str, int], seconds: float,
    cache_hits: int, examples: Mapping[str, int] | None = None, forced: Forced | None = None,
    **noted: Any,
) -> Deferred[Report]:  # fmt: skip
    """`report_on`, worked out when it is asked for; until then the graph and the tile programs are
    kept, the weights not. unfused: None where the plan is without fusion itself. examples: sizes of
    the symbols that the graph still has. forced: pins and forbidden pairs. noted: what else its
    fields are."""
    cut = fused.cut
    for node in cut.graph.nodes:  # a copy, whose nodes nobody else has
        if node.op == "constant":
            node.attrs = node.attrs | spent(node)

    def make() -> Report:
        with Sizes(examples) if examples else nullcontext():
            other = unfused.planned(examples) if unfused else fused
            report = report_on(fused, other, dict(dims), seconds, cache_hits)
            changed = None
            if forced:
                free = forced.free.planned(examples)
                changed = forced_change(free, fused, forced.pin, forced.forbid)
        return replace(report, forced=changed, **noted)

    return Deferred(make)
