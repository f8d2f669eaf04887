"""From regions to kernels, where a region that cannot be one kernel becomes several.

    regions -> tile programs (emission, tile passes, proof) -> machine code (workers)

Either step may find that no back end has this kernel, or that it takes longer to compile than a
kernel may (`kernel_seconds` of fuser/base/limits.py). Then the parts of the region take its place
in the partition (partition/ungroup.py), with a refusal that says why; everything else stays as it
is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from fuser.backend.module import CompiledKernel
from fuser.backend.workers import (
    CompileJob,
    CompileStats,
    KernelStore,
    Refused,
    compile_each,
    refusal_of,
)
from fuser.base.limits import check_time, current
from fuser.base.target import Target
from fuser.partition.region import Partition, Region
from fuser.partition.ungroup import is_divisible, ungroup
from fuser.pipeline.collectives import exchange
from fuser.tilegen.coverage import prove_order, prove_region
from fuser.tilegen.emit import emit_or_ungroup
from fuser.tilegen.emit.twins import Twins
from fuser.tilegen.passes import run_passes
from fuser.tilegen.program import TileProgram


def emit_programs(cut: Partition, target: Target, verify: bool = False) -> list[TileProgram]:
    """The tile programs of every region, in launch order. A region that cannot be one kernel, or
    takes too long to become one, is replaced in `cut` by its parts.

    Raises VerifyError where it is not proved that programs write all they are there to write."""
    programs: list[TileProgram] = []
    twins = Twins()
    for region in tuple(cut.regions):
        programs += programs_of(region, cut, target, twins, verify)
    prove_order(programs, cut.graph.inputs, cut.graph.outputs)
    return programs


def programs_of(
    region: Region, cut: Partition, target: Target, twins: Twins, verify: bool = False
) -> list[TileProgram]:
    """The tile programs of a region after the tile passes, or those of its parts. twins: regions of
    this compile that have theirs.

    Raises VerifyError where it is not proved that they write all they are there to write,
    LoweringError for a node that cannot be a kernel."""

    def finish(programs: Sequence[TileProgram]) -> None:
        for program in programs:
            run_passes(program.kernel, verify=verify)
        prove_region(programs)

    check_time()
    return list(emit_or_ungroup(region, cut, target, finish, twins))


def compile_programs(
    cut: Partition,
    programs: Sequence[TileProgram],
    target: Target,
    cache: KernelStore | None = None,
    *,
    workers: int | None = None,
    verify: bool = False,
    stats: CompileStats | None = None,
) -> tuple[list[TileProgram], list[CompiledKernel]]:
    """The programs and their kernels; programs of regions that had to be taken apart are replaced
    by those of the parts. Raises CompileError for a kernel without parts that fails."""
    programs = list(programs)
    done = {p: exchange(p, target) for p in programs if p.region.kind == "collective"}
    while True:
        rest = [program for program in programs if program not in done]
        one = CompileStats()
        jobs = [job_of(program, target) for program in rest]
        found = compile_each(jobs, cache, workers, stats=one)
        if stats is not None:
            stats.jobs += one.jobs
            stats.distinct += one.distinct
            stats.cache_hits += one.cache_hits
            stats.seconds += one.seconds
        refused: dict[Region, Refused] = {}
        for program, kernel in zip(rest, found, strict=True):
            if isinstance(kernel, Refused):
                refused.setdefault(program.region, kernel)
            else:
                done[program] = kernel
        if not refused:
            return programs, [done[program] for program in programs]
        programs = _replaced(cut, programs, refused, target, verify)


def without_refused(
    cut: Partition, programs: Sequence[TileProgram], target: Target, cache: KernelStore
) -> list[TileProgram]:
    """The programs, those of regions of which the cache remembers that they have no kernel replaced
    by those of the parts: as compiling would have them."""
    programs = list(programs)
    while True:
        refused: dict[Region, Refused] = {}
        for program in programs:
            found = refusal_of(job_of(program, target), cache)
            if found is not None:
                refused.setdefault(program.region, found)
        if not refused:
            return programs
        programs = _replaced(cut, programs, refused, target, False)


def job_of(program: TileProgram, target: Target) -> CompileJob:
    """The job of compiling a program: with a limit where its region has parts."""
    names = program.region.origin
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    divisible = is_divisible(program.region)
    return CompileJob(
        program.kernel,
        target,
        where=f"region {program.region.id} ({shown})",
        seconds=current().kernel_seconds if divisible else 0.0,
        replaceable=divisible,
    )


def _replaced(
    cut: Partition,
    programs: Sequence[TileProgram],
    refused: dict[Region, Refused],
    target: Target,
    verify: bool,
) -> list[TileProgram]:
    """The programs in launch order, those of refused regions replaced by those of their parts."""
    result: list[TileProgram] = []
    twins = Twins()
    for region, group in itertools.groupby(programs, key=lambda program: program.region):
        why = refused.get(region)
        if why is None:
            result += group
            continue
        parts = ungroup(cut, region, why.reason, "slow-kernel" if why.seconds else "not-emitted")
        for part in parts:
            result += programs_of(part, cut, target, twins, verify)
    return result
