"""The report of a compile: from the partition, the tile programs and the program of the runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fuser.base.target import Target
from fuser.graph.numerics import Rewritten, RuleClass
from fuser.graph.rewrites import BY_NAME
from fuser.graph.sizes import by_example, size_hint
from fuser.graph.work import roofline_us
from fuser.partition.cost import total_flops
from fuser.partition.explanation import explanation
from fuser.partition.options import Pair
from fuser.partition.region import Partition, Region
from fuser.report import report as reports
from fuser.report.algorithm import algorithms, computed
from fuser.report.bytes import Moved, addresses_of, launches_moved, least
from fuser.report.dram import cache_of, dram_bytes
from fuser.report.roofline import device_of
from fuser.runtime.plan_report import Bytes, KernelReport, Report
from fuser.runtime.program import Launch, Program
from fuser.runtime.savings import Traffic
from fuser.tilegen.program import TileProgram


@dataclass(frozen=True)
class Planned:
    """A partition and the plan that it became. programs: in the order of the launches."""

    cut: Partition
    programs: Sequence[TileProgram]
    program: Program


@by_example
def report_on(
    fused: Planned, unfused: Planned, dims: dict[str, int], seconds: float, cache_hits: int
) -> Report:
    """The report of a plan that never ran, beside the plan without fusion."""
    cut, programs, program = fused.cut, fused.programs, fused.program
    read = [
        argument.value
        for item in programs
        for argument in item.arguments
        if argument.value is not None and argument.value.constant is not None
    ]
    spare = {value: n for region in cut.regions for value, n in region.spare_bytes().items()}
    schedules: dict[int, dict[str, Any]] = {}
    for item in programs:  # of several programs of a region the first does the work
        schedules.setdefault(item.region.id, item.kernel.schedule.to_dict())
    figures = [launch_figures(each) for each in (unfused, fused)]
    floor = min((each.least for each in figures), key=lambda each: each.boundary)
    before, after = figures
    whole = size_hint(reports.bytes_floor(cut.graph, read)) - sum(spare.values())
    traffic = Traffic(
        sum(region.bytes() for region in unfused.cut.regions),
        sum(region.bytes() for region in cut.regions),
        whole,
        sum(region.saved_bytes() for region in cut.regions),
    )
    return Report(
        model=program.name,
        device=f"{program.target.name} ({program.target.arch})",
        kernels=reports.Saving(len(unfused.program.launches), len(program.launches)),
        bytes=traffic,
        compile_s=seconds,
        cache_hits=cache_hits,
        peak_memory_bytes=program.peak_memory_bytes,
        regions=tuple(
            reports.RegionReport(
                region.id, region.kind, region.origin, region.bytes(),
                total_flops(region.nodes), schedules.get(region.id, {}),
            )
            for region in cut.regions
        ),
        fallbacks=_slow(cut),
        dims=dims,
        target=device_of(program.target),
        boundary=Traffic(before.boundary, after.boundary, floor.boundary),
        dram=_dram(before.dram, after.dram, floor.dram),
        dram_cold=_dram(before.dram_cold, after.dram_cold, floor.dram_cold),
        launches=after.launches,
        numerics=str(cut.graph.numerics),
        rewrites=rewrites_in(cut, programs),
    )  # fmt: skip


def rewrites_in(cut: Partition, programs: Sequence[TileProgram]) -> tuple[Rewritten, ...]:
    """The rewrites that are not exact, each once with the nodes of all places."""
    found: dict[tuple[str, RuleClass], dict[str, None]] = {}
    for item in cut.graph.rewritten:
        found.setdefault((item.rule, item.kind), {}).update(dict.fromkeys(item.nodes))
    for program in programs:
        for name in program.rewrites:
            nodes = found.setdefault((name, BY_NAME[name].kind), {})
            anchors = program.region.anchors
            nodes.update((origin, None) for node in anchors for origin in node.origin)
    return tuple(Rewritten(rule, kind, tuple(nodes)) for (rule, kind), nodes in found.items())


@dataclass(frozen=True)
class Least:
    """Bytes that one kernel would move if it did all the work of a plan."""

    boundary: int
    dram: int
    dram_cold: int


@dataclass(frozen=True)
class Figures:
    """Bytes of a plan and of its launches, which every report, page and table shows."""

    launches: tuple[KernelReport, ...]
    dram_cold: int
    least: Least

    @property
    def boundary(self) -> int:
        return sum(launch.boundary.total for launch in self.launches)

    @property
    def dram(self) -> int:
        return sum(launch.dram.total for launch in self.launches)


@by_example
def launch_figures(plan: Planned) -> Figures:
    """Bytes, operations and the least time of every launch of a plan."""
    moved = launches_moved(plan.programs, plan.program)
    floor, addresses = least(moved, plan.program), addresses_of(plan.program)
    cache = cache_of(plan.program.target)
    cold, warm = dram_bytes([item.touches(addresses) for item in moved], cache)
    least_cold, least_warm = dram_bytes([floor.touches(addresses)], cache)
    names, known = algorithms(plan.cut.graph, plan.programs), dict[int, int]()
    launches = tuple(
        _kernel(item, launch, met, dram, flops, computed(item, flops, known),
                names.get(item.region.id, ""), plan.program.target)
        for item, launch, met, dram, flops in zip(
            plan.programs, plan.program.launches, moved, warm, _flops(plan.programs), strict=True
        )
    )  # fmt: skip
    one = Least(floor.boundary.total, least_warm[0].total, least_cold[0].total)
    return Figures(launches, sum(item.total for item in cold), one)


def forced_change(
    free: Planned, forced: Planned, pin: Iterable[Pair], forbid: Iterable[Pair]
) -> dict[str, Any]:
    """What pins and forbidden pairs made of a plan: kernels, bytes through memory and predicted
    seconds, "unforced" and "forced", as plain data."""
    found = {"unforced": free, "forced": forced}
    cuts = {way: explanation(plan.cut, region_bytes(plan)) for way, plan in found.items()}
    return {
        "pin": [list(pair) for pair in pin],
        "forbid": [list(pair) for pair in forbid],
        "kernels": {way: len(plan.program.launches) for way, plan in found.items()},
        "bytes": {way: each.bytes for way, each in cuts.items()},
        "seconds": {way: each.seconds for way, each in cuts.items()},
    }


def region_bytes(plan: Planned) -> dict[int, int]:
    """The boundary bytes of each region, those of its kernels together."""
    found = dict.fromkeys((region.id for region in plan.cut.regions), 0)  # some launch nothing
    for launch in launch_figures(plan).launches:
        found[launch.region] += launch.boundary.total
    return found


def _dram(before: int, after: int, floor: int) -> Traffic:
    """Several kernels may hit the cache more often than one does: the floor takes the least."""
    return Traffic(before, after, min(before, after, floor))


def _flops(programs: Sequence[TileProgram]) -> list[int]:
    """Operations of each launch: its part of the region's, in proportion to its own work."""
    shares = [max(1, size_hint(item.flops)) for item in programs]
    whole: Counter[int] = Counter()
    for item, share in zip(programs, shares, strict=True):
        whole[item.region.id] += share
    regions = {item.region.id: item.region for item in programs}
    totals = {number: total_flops(region.nodes) for number, region in regions.items()}
    return [
        totals[item.region.id] * share // whole[item.region.id]
        for item, share in zip(programs, shares, strict=True)
    ]


def _kernel(
    item: TileProgram, launch: Launch, moved: Moved, dram: Bytes, flops: int, done: int,
    algorithm: str, target: Target,
) -> KernelReport:  # fmt: skip
    """done: operations as the kernel computes."""
    region = item.region
    return KernelReport(
        launch.kernel.entry, region.id, region.kind, computed_nodes(region), moved.boundary,
        moved.reread, dram, flops, roofline_us(target, region.nodes, done, dram.total),
        item.kernel.schedule.to_dict(), launch.kernel.programs, algorithm=algorithm,
    )  # fmt: skip


def computed_nodes(region: Region) -> tuple[str, ...]:
    """The nodes of a region as a report names them, constants only if there is nothing else."""
    names = dict.fromkeys(
        name for node in region.nodes if node.op != "constant" for name in node.origin
    )
    return tuple(names) or region.origin


def _slow(cut: Partition) -> tuple[str, ...]:
    """Regions that were split to keep a compile short."""
    slow = Counter((*r.kinds, r.reason) for r in cut.refusals if r.code == "slow-kernel")
    return tuple(
        f"{producer} and {consumer} are separate kernels: {reason}"
        + (f" ({count} times)" if count > 1 else "")
        for (producer, consumer, reason), count in slow.items()
    )
