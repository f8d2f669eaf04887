"""What bounds a kernel, how far it is from that bound, and what a person could change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fuser.graph.units import byte_size, microseconds
from fuser.report.groups import groups
from fuser.report.markup import percent
from fuser.report.record import Record
from fuser.runtime.plan_report import Device

Bound = Literal["bandwidth", "arithmetic", "cache", "latency", "parallelism"]
COMPUTING = ("contraction", "conv", "attention")
"""Kinds of kernels that mostly multiply."""
COSTLIEST = 3
"""Kernels that a report has a verdict on."""
FAR = 3.0
"""A kernel of more than FAR times its least time is bound by neither bytes nor operations."""
SHORT_US = {"cuda": 10.0, "cpu": 20.0}
"""A kernel that takes less, and is far from its least time, is bound by latency."""


@dataclass(frozen=True)
class Measured:
    """A kernel that was timed, or several of equal code, whose times and bytes are added up. at:
    the place of the first in a run; dram: bytes that cross to memory, predicted; programs: of a
    grid; moved: bytes that it reads and writes; count: of kernels; nodes: of the model, in words.
    Times in microseconds."""

    at: int
    label: str
    kind: str
    time: float
    least: float
    dram: int
    programs: int
    moved: int = 0
    count: int = 1
    nodes: str = ""

    @property
    def cached(self) -> int:
        """Bytes that stay in the cache."""
        return max(0, self.moved - self.dram)


@dataclass(frozen=True)
class Verdict:
    """bound: what limits the kernel; reached: the least time as a share of its time; change: what
    a person could do, empty where there is nothing."""

    kernel: Measured
    bound: Bound
    reached: float
    change: str

    def sentence(self, run_us: float) -> str:
        """A line. run_us: all kernels together."""
        one = self.kernel
        spent = f"{microseconds(one.time)} ({percent(one.time, run_us)})"
        near = f"{percent(self.reached, 1.0)} of what is possible"
        if self.bound == "cache":  # whose rate is no part of the least time
            near = f"where {byte_size(one.cached)} stay"
        change = f"; {self.change}" if self.change else ""
        nodes = f", {one.nodes}" if one.nodes else ""
        return f"{one.label}{nodes}: {spent}, bound by {self.bound}, {near}{change}"


def of_record(record: Record) -> list[Verdict]:
    """What bounds the costliest kernels of a report, equal ones together; empty where they were not
    timed."""
    if record.target is None or not record.is_measured:
        return []
    kernels = [
        Measured(
            group.launches[0].at, group.title, group.launches[0].kind, group.time, group.roofline,
            group.dram, group.launches[0].programs, group.boundary, len(group.launches),
            group.nodes,
        )
        for group in groups(record)
    ]  # fmt: skip
    return verdicts(kernels, record.target, record.data["precision"].split(" ")[0])


def verdicts(
    kernels: Sequence[Measured], target: Device, precision: str = "model"
) -> list[Verdict]:
    """Verdicts on the costliest kernels, the costliest first. Advice is given
    once, to the first kernel that it helps. precision: of the plan."""
    found = sorted(kernels, key=lambda one: -one.time)[:COSTLIEST]
    made, said = [], set[str]()
    for one in found:
        if one.time:
            each = verdict(one, target, precision)
            made.append(replace(each, change="") if each.change in said else each)
            said.add(each.change)
    return made


def verdict(one: Measured, target: Device, precision: str = "model") -> Verdict:
    """The verdict on one kernel."""
    bound = _bound(one, target)
    change = _change(one, bound, target, precision)
    return Verdict(one, bound, min(1.0, one.least / one.time), change)


def _bound(one: Measured, target: Device) -> Bound:
    if one.time > FAR * one.least:
        if one.programs < target.units:
            return "parallelism"
        if one.time / one.count < SHORT_US.get(target.name, 0.0):
            return "latency"
        if one.kind not in COMPUTING and one.cached > one.dram:
            return "cache"
    moving = one.dram / target.bandwidth * 1e6 if target.bandwidth else 0.0
    return "bandwidth" if moving >= 0.999 * one.least > 0 else "arithmetic"


def _change(one: Measured, bound: Bound, target: Device, precision: str) -> str:
    computes = one.kind in COMPUTING
    if bound == "parallelism":
        return f"{one.programs} blocks for {target.units} units: a larger batch fills them"
    if bound == "latency":
        return "a larger batch takes hardly longer"
    if bound == "bandwidth" and computes and target.name == "cpu" and precision == "model":
        return "--precision int8w reads a quarter of the weights; a larger batch shares them"
    if bound in ("bandwidth", "cache"):
        return "a model of 16-bit floats moves half of the bytes"
    if not computes or target.flops_f16 <= target.flops_f32:
        return ""
    if target.name == "cpu" and precision == "model":
        return "--precision bf16 takes the instructions that this processor has for it"
    return "a model of 16-bit floats computes faster"
