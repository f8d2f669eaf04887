"""The report of a compile: from the partition, the tile programs and the program of the runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fuser.graph.numerics import Rewritten, RuleClass
from fuser.graph.rewrites import BY_NAME
from fuser.graph.sizes import by_example, size_hint
from fuser.graph.work import roofline_us
from fuser.partition.cost import total_flops
from fuser.partition.region import Partition
from fuser.report import report as reports
from fuser.report.bytes import Moved, addresses_of, launches_moved, least, operators_moved
from fuser.report.dram import cache_of, dram_bytes
from fuser.report.roofline import device_of
from fuser.runtime.plan_report import Bytes, KernelReport, Report, Traffic
from fuser.runtime.program import Launch, Program
from fuser.tilegen.program import TileProgram


@by_example
def report_on(
    cut: Partition, programs: Sequence[TileProgram], program: Program,
    dims: dict[str, int], seconds: float, cache_hits: int,
) -> Report:  # fmt: skip
    """The report of a plan that never ran. programs: in the order of the launches."""
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
    traffic = Traffic(
        size_hint(reports.bytes_before(cut.graph)),
        sum(region.bytes() for region in cut.regions),
        size_hint(reports.bytes_floor(cut.graph, read)) - sum(spare.values()),
        sum(region.saved_bytes() for region in cut.regions),
    )
    moved = launches_moved(programs, program)
    before, floor = operators_moved(cut.graph), least(moved, program)
    addresses = addresses_of(program)
    alone = [touches for _, touches in before]
    after, once = [item.touches(addresses) for item in moved], [floor.touches(addresses)]
    cache = cache_of(program.target)
    dram = [dram_bytes(run, cache) for run in (alone, after, once)]
    launches = tuple(
        _kernel(*row, program)
        for row in zip(programs, program.launches, moved, dram[1][1], _flops(programs), strict=True)
    )
    return Report(
        model=program.name,
        device=f"{program.target.name} ({program.target.arch})",
        kernels=reports.Saving(len(reports.nodes_before(cut.graph)), len(program.launches)),
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
        boundary=Traffic(
            sum(item.total for item, _ in before),
            sum(item.boundary.total for item in moved),
            floor.boundary.total,
        ),
        dram=Traffic(*(_total(warm) for _, warm in dram)),
        dram_cold=Traffic(*(_total(cold) for cold, _ in dram)),
        launches=launches,
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


def _total(found: Sequence[Bytes]) -> int:
    return sum(item.total for item in found)


def _flops(programs: Sequence[TileProgram]) -> list[int]:
    """Of each launch those of its region; kernels of one region share them by their own work."""
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
    item: TileProgram, launch: Launch, moved: Moved, dram: Bytes, flops: int, program: Program
) -> KernelReport:
    region = item.region
    return KernelReport(
        launch.kernel.entry, region.id, region.kind, region.origin, moved.boundary, moved.reread,
        dram, flops, roofline_us(program.target, region.nodes, flops, dram.total),
        item.kernel.schedule.to_dict(),
    )  # fmt: skip


def _slow(cut: Partition) -> tuple[str, ...]:
    """Regions that were split to keep a compile short."""
    slow = Counter((*r.kinds, r.reason) for r in cut.refusals if r.code == "slow-kernel")
    return tuple(
        f"{producer} and {consumer} are separate kernels: {reason}"
        + (f" ({count} times)" if count > 1 else "")
        for (producer, consumer, reason), count in slow.items()
    )
