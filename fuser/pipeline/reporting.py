"""The report of a compile, which nobody may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from fuser.graph.sizes import Sizes
from fuser.pipeline.binding import spent
from fuser.pipeline.outline import Alternative, Forced, outline
from fuser.report.build import Planned, forced_change, report_on
from fuser.report.report import Report
from fuser.runtime.deferred import Deferred
from fuser.runtime.program import Program


@dataclass(frozen=True)
class Reporting:
    """What reports of a compile are made of: its graph and tile programs, without the weights.
    unfused: None where the plan is without fusion itself. forced: pins and forbidden pairs. noted:
    what else the fields of a report are. sizes: of the symbols that the graph still has, which the
    program of `fused` is at."""

    fused: Planned
    unfused: Alternative | None
    forced: Forced | None
    seconds: float
    cache_hits: int
    noted: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.fused.cut.graph.nodes:  # a copy, whose nodes nobody else has
            if node.op == "constant":
                node.attrs = node.attrs | spent(node)

    def at(
        self, dims: Mapping[str, int], sizes: Mapping[str, int] | None = None,
        program: Program | None = None,
    ) -> Report:  # fmt: skip
        """The report. sizes, program: others of the symbols, and the plan's program at these."""
        fused = replace(self.fused, program=program) if program else self.fused
        sizes = self.sizes if sizes is None else sizes
        other = self._planned(self.unfused, sizes) if self.unfused else fused
        free = self._planned(self.forced.free, sizes) if self.forced else fused
        with _at(sizes):
            report = report_on(fused, other, dict(dims), self.seconds, self.cache_hits)
            changed = None
            if forced := self.forced:
                changed = forced_change(free, fused, forced.pin, forced.forbid)
        return replace(report, forced=changed, **self.noted)

    def _planned(self, made: Alternative, sizes: Mapping[str, int]) -> Planned:
        """Another plan at these sizes. It is chosen at the example sizes, as this one was."""
        with _at(self.sizes):
            plan = made.planned(self.sizes)
        if sizes == self.sizes:
            return plan
        with _at(sizes):
            program = outline(plan.cut, plan.programs, made.target, sizes)
        return replace(plan, program=program)

    def deferred(self, dims: Mapping[str, int]) -> Deferred[Report]:
        """The report, worked out when it is asked for."""
        return Deferred(lambda: self.at(dims))


def _at(sizes: Mapping[str, int]) -> AbstractContextManager[object]:
    return Sizes(sizes) if sizes else nullcontext()
