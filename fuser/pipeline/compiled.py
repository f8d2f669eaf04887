"""From a graph to kernels that are bound to its values: the middle of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuser.backend.module import CompiledKernel
from fuser.backend.workers import CompileStats
from fuser.base.config import Config
from fuser.base.target import Target
from fuser.graph.ir import Graph
from fuser.graph.units import counted
from fuser.partition import partition
from fuser.partition.forced import check_pins
from fuser.partition.region import Partition
from fuser.pipeline.binding import Bound, bind_kernels, spent
from fuser.pipeline.kernels import compile_programs, emit_programs, without_refused
from fuser.pipeline.options import CompileOptions
from fuser.pipeline.outline import Alternative, Forced
from fuser.pipeline.precision import rounding
from fuser.pipeline.reporting import Reporting
from fuser.report.build import Planned
from fuser.report.report import Tuned
from fuser.runtime.cache import KernelCache
from fuser.runtime.program import Program
from fuser.tilegen.coverage import prove_order
from fuser.tilegen.program import TileProgram


@dataclass(frozen=True)
class Compiled:
    """Kernels bound to the values of a graph, and what the report needs beside them."""

    partition: Partition
    programs: list[TileProgram]
    kernels: list[CompiledKernel]
    bound: Bound
    cache_hits: int
    unfused: Alternative | None
    """The plan without fusion; None where this one is."""
    precision: str
    """What was rounded, for the report."""
    tuned: tuple[Tuned, ...] = ()
    forced: Forced | None = None
    """Pins and forbidden pairs, where there are some."""

    def reporting(
        self, program: Program, seconds: float, noted: Mapping[str, Any],
        sizes: Mapping[str, int] | None = None,
    ) -> Reporting:  # fmt: skip
        """What reports are made of. seconds: of the compile; noted, sizes: as there."""
        fused = Planned(self.partition, self.programs, program)
        return Reporting(
            fused, self.unfused, self.forced, seconds, self.cache_hits, noted, sizes or {}
        )


def compile_kernels(graph: Graph, options: CompileOptions, name: str = "") -> Compiled:
    """Everything up to the plan. The graph's dims are ints, or symbols of the Sizes in force. name:
    of the plan; the graph's without.

    Raises FuserError: UnsupportedError, DeviceError, CompileError.
    """
    config = Config.from_environment()
    target, choices, progress = options.target, options.partitioning, options.progress
    progress("partitioning")
    cut = partition(graph, target, choices)
    forced = Forced.of(graph, target, choices)
    unfused = None if choices.no_fusion else Alternative.unfused(graph, target, choices)
    consume = options.consume and not config.dump
    if consume:
        kept = set(cut.graph.nodes)
        for node in graph.nodes:
            if node.op == "constant" and node not in kept:
                node.attrs = node.attrs | spent(node)
    progress("writing tile programs")
    programs = emit_programs(cut, target, verify=config.verify)
    cache = KernelCache(config.cache_dir) if config.cache else None
    workers = config.workers or None
    tuned: tuple[Tuned, ...] = ()
    if options.tune:  # what is measured is what is used: regions that need parts have them
        programs, _ = compile_programs(
            cut, programs, target, cache, workers=workers, verify=config.verify
        )
    if options.tune is not None and (options.tune or cache is not None):
        from fuser.pipeline.tuning import apply_tuning  # where it is used

        programs, tuned = apply_tuning(
            cut, programs, target, cache, measure=options.tune, workers=workers,
            threads=options.threads, device=options.gpu, progress=progress, verify=config.verify,
        )  # fmt: skip
    progress(f"compiling {counted(len(programs), 'kernel')}")
    stats = CompileStats()
    programs, kernels = compile_programs(
        cut, programs, target, cache, workers=workers, verify=config.verify, stats=stats
    )
    prove_order(programs, cut.graph.inputs, cut.graph.outputs)
    check_pins(cut, choices)
    names = {program.region.name for program in programs}
    tuned = tuple(item for item in tuned if item.kernel in names)
    bound = bind_kernels(name or graph.name, cut, programs, kernels, target, consume)
    rounded = rounding(options.precision, target)
    return Compiled(
        cut, programs, kernels, bound, stats.cache_hits, unfused, rounded.text, tuned, forced
    )


def with_remembered(
    cut: Partition, programs: list[TileProgram], target: Target
) -> tuple[list[TileProgram], tuple[Tuned, ...]]:
    """The programs as compiling has them after earlier compiles: with the schedules that those
    measured, and with parts of the regions whose kernels failed or took too long."""
    config = Config.from_environment()
    if not config.cache:
        return programs, ()
    from fuser.pipeline.tuning import apply_tuning

    cache = KernelCache(config.cache_dir)
    programs = without_refused(cut, programs, target, cache)
    return apply_tuning(cut, programs, target, cache, measure=False)
