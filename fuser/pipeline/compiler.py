"""The pipeline on one screen: graph, regions, tile programs, machine code, plan."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuser.backend.module import CompiledKernel
from fuser.backend.workers import CompileStats
from fuser.config import Config, start_logs, within
from fuser.dtypes import DType
from fuser.graph.ir import Graph
from fuser.graph.units import counted
from fuser.limits import check_bytes, current
from fuser.partition import Options, partition
from fuser.partition.forced import check_pins
from fuser.partition.region import Partition
from fuser.pipeline.binding import Bound, bind_kernels, spent
from fuser.pipeline.devices import Device, choose_target, parse_device, plan_threads
from fuser.pipeline.fusion import Fusing, Fusion
from fuser.pipeline.kernels import compile_programs, emit_programs, without_refused
from fuser.pipeline.outline import Alternative, Forced
from fuser.pipeline.precision import Precision, Rounding, rounding
from fuser.pipeline.reporting import Reporting
from fuser.pipeline.source import GraphSource
from fuser.report.build import Planned
from fuser.report.report import Report, Tuned, nodes_before
from fuser.runtime.cache import KernelCache
from fuser.runtime.deferred import Deferred
from fuser.runtime.inputs import input_hints
from fuser.runtime.nvtx import marked
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program
from fuser.runtime.source import Source
from fuser.target import Target
from fuser.tilegen.coverage import prove_order
from fuser.tilegen.program import TileProgram

Progress = Callable[[str], None]
Keep = Callable[
    [Program, Mapping[int, Source], Deferred[Report], Mapping[str, tuple[int, int]]], None
]
"""Takes a program, where its constants came from (by `id`), the report, and ranges of inputs."""

_log = logging.getLogger("fuser.compile")

LARGE_BYTES = 64 << 20
"""With constants of more bytes it is worth 50 ms to free at once what a compile leaves."""

NODE_BYTES = 8 << 10
"""What a compile takes of memory for a node: constants of less are not worth going through all
objects for, which takes 40 us a node."""


def quiet(step: str) -> None:
    """No progress."""


def partition_source(
    source: GraphSource,
    *,
    device: Device = "auto",
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    fusion: Fusing = True,
    precision: Precision = "model",
) -> Partition:
    """The first half of the pipeline: the graph of a source, cut into regions for the device.
    values: of inputs that are constants in it."""
    graph, target = source.graph(dims or {}, values), choose_target(device)
    return partition(graph, target, partition_options(fusion, rounding(precision, target)))


def partition_options(
    fusion: Fusing, rounded: Rounding, state: tuple[tuple[str, str], ...] = ()
) -> Options:
    """What the caller's choices mean to the partitioner."""
    forced = fusion if isinstance(fusion, Fusion) else Fusion()
    return Options(
        no_fusion=not fusion, forbid=forced.forbid, pin=forced.pin, operands=rounded.operands,
        narrow_weights=rounded.narrow_weights, state=state, fold_norms=forced.fold_norms,
    )  # fmt: skip


def compile_source(
    source: GraphSource,
    *,
    device: Device = "auto",
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    fusion: Fusing = True,
    precision: Precision = "model",
    progress: Progress = quiet,
    tune: bool = False,
) -> Plan:
    """Compile what a front end read, at these sizes of its symbolic dims and for these values of
    inputs. Raises what `compile_graph` and the source raise."""
    started = time.perf_counter()
    with within():
        progress("importing the graph")
        bound = source.bind(dims or {})
        graph = source.graph(bound, values)
        large = is_large(graph)
        if large:
            gc.collect()
        plan = compile_graph(
            graph, name=source.name, device=device, threads=threads, fusion=fusion,
            precision=precision, progress=progress, dims=bound, values=tuple(values or ()),
            started=started, types=source.types, tune=tune,
        )  # fmt: skip
        del graph
        if large:
            gc.collect()
        return plan


def is_large(graph: Graph) -> bool:
    """Whether it is worth the time to free at once what a compile of the graph leaves behind:
    models and graphs are cycles, and hundreds of byte_size would stay until a full collection."""
    arrays = (node.output.constant for node in graph.nodes if node.op == "constant")
    size = sum(array.nbytes for array in arrays if array is not None)
    return size >= max(LARGE_BYTES, NODE_BYTES * len(graph.nodes))


def compile_graph(
    graph: Graph,
    *,
    name: str = "",
    device: Device = "auto",
    threads: int | None = None,
    fusion: Fusing = True,
    precision: Precision = "model",
    progress: Progress = quiet,
    dims: Mapping[str, int] | None = None,
    values: tuple[str, ...] = (),
    started: float | None = None,
    types: Mapping[str, DType] | None = None,
    ordinal: int = 0,
    consume: bool = False,
    keep: Keep | None = None,
    tune: bool = False,
    state: tuple[tuple[str, str], ...] = (),
) -> Plan:
    """Compile a graph after the graph passes, its dims ints: what every front end ends in.

    name, dims and values are for the report; started: when the work on it began.
    types: dtypes of the inputs and outputs whose bytes the graph holds as u8. ordinal: which GPU.
    consume: the graph is not used again, so its constants may go as they are packed. keep: called
    with what a cache of plans stores. tune: see `compile`. state: pairs of an input and an output
    of its shape, of which the output is written into the input's memory where kernels can; the plan
    has no such output then, and runs change that input.
    Raises FuserError: UnsupportedError, LimitError, DeviceError, CompileError.
    """
    started = time.perf_counter() if started is None else started
    ordinal = ordinal or parse_device(device)[1]
    with within(), marked(f"fuser compile {name or graph.name}"):
        program, report, hints = _compile_graph(
            graph, name, device, plan_threads(threads), fusion, precision, progress, dims, values,
            started, types, ordinal, consume, keep, tune, state,
        )  # fmt: skip
        return Plan(
            program,
            threads=plan_threads(threads),
            device=ordinal,
            report=report,
            hints=hints,
        )


def compile_program(
    source: GraphSource, target: Target, *, dims: Mapping[str, int] | None = None,
    fusion: Fusing = True, precision: Precision = "model", progress: Progress = quiet,
    keep: Keep | None = None,
) -> tuple[Program, Report]:  # fmt: skip
    """What `compile_source` compiles, for a target that need not be on this machine: nothing is
    loaded. keep: as for `compile_graph`. Raises what compiling raises."""
    started = time.perf_counter()
    with within():
        progress("importing the graph")
        bound = source.bind(dims or {})
        program, report, _ = _compile_graph(
            source.graph(bound), source.name, target, target.units, fusion, precision, progress,
            bound, (), started, source.types, 0, False, keep, False,
        )  # fmt: skip
        return program, report.get()


def _compile_graph(
    graph: Graph, name: str, device: Device, threads: int, fusion: Fusing,
    precision: Precision, progress: Progress, dims: Mapping[str, int] | None,
    values: tuple[str, ...], started: float, types: Mapping[str, DType] | None, ordinal: int,
    consume: bool, keep: Keep | None, tune: bool, state: tuple[tuple[str, str], ...] = (),
) -> tuple[Program, Deferred[Report], Mapping[str, tuple[int, int]]]:  # fmt: skip
    """The program, the report and ranges of the inputs."""
    config = Config.from_environment()
    start_logs()
    on_host = not choose_target(device).is_cuda
    if on_host or current().bytes:
        ends = sum(value.type.bytes for value in {*graph.inputs, *graph.outputs})
        check_bytes(ends, "the inputs and outputs together")
    label, silent = name or graph.name, progress

    def tell(step: str) -> None:
        _log.info("%s: %s", label, step)
        silent(step)

    progress = tell
    hints = input_hints(graph)  # of constants, too: before they go
    compiled = compile_kernels(
        graph, name=name, device=device, fusion=fusion, precision=precision, progress=progress,
        config=config, consume=consume and not config.dump, tune=tune,
        threads=threads, ordinal=ordinal, state=state,
    )  # fmt: skip
    cut, programs = compiled.partition, compiled.programs
    if config.dump:
        from fuser.pipeline.stage_texts import write_stages  # loads both back ends

        write_stages(config.dump, cut, programs, compiled.bound.target)
    progress("building the plan")
    program = compiled.bound.at()
    if on_host or current().bytes:
        check_bytes(program.peak_memory_bytes, "the plan")
    if types:
        inputs, outputs = (
            tuple(replace(spec, dtype=types.get(spec.name, spec.dtype)) for spec in specs)
            for specs in (program.inputs, program.outputs)
        )
        program = replace(program, inputs=inputs, outputs=outputs)
    seconds = time.perf_counter() - started
    noted = {"values": values, "precision": compiled.precision, "tuned": compiled.tuned}
    report = compiled.reporting(program, seconds, noted).deferred(dims or {})
    _log.info(
        "%s: %d kernels for %d operators in %.2f s, %d kernels from the cache",
        label, len(program.launches), len(nodes_before(cut.graph)), seconds, compiled.cache_hits,
    )  # fmt: skip
    if keep is not None:
        sources = {
            id(compiled.bound.constants[key]): source
            for key, source in compiled.bound.sources.items()
        }
        keep(program, sources, report, hints)
    return program, report, hints


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


def compile_kernels(
    graph: Graph,
    *,
    name: str = "",
    device: Device = "auto",
    fusion: Fusing = True,
    precision: Precision = "model",
    progress: Progress = quiet,
    config: Config | None = None,
    consume: bool = False,
    tune: bool | None = None,
    threads: int | None = None,
    ordinal: int = 0,
    state: tuple[tuple[str, str], ...] = (),
) -> Compiled:
    """Everything up to the plan. The graph's dims are ints, or symbols of the Sizes in force.
    consume: see bind_kernels. tune: whether to measure schedules, or only (False) to use what is
    remembered; None: neither. threads: of the plan on a CPU. ordinal: where to measure. state: see
    `Options`.

    Raises FuserError: UnsupportedError, DeviceError, CompileError.
    """
    config = config or Config.from_environment()
    target = choose_target(device, threads)
    rounded = rounding(precision, target)
    progress("partitioning")
    options = partition_options(fusion, rounded, state)
    cut = partition(graph, target, options)
    forced = Forced.of(graph, target, options)
    unfused = None if options.no_fusion else Alternative.unfused(graph, target, options)
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
    if tune:  # what is measured is what is used: regions that need parts have them
        programs, _ = compile_programs(
            cut, programs, target, cache, workers=workers, verify=config.verify
        )
    if tune is not None and (tune or cache is not None):
        from fuser.pipeline.tuning import apply_tuning  # where it is used

        programs, tuned = apply_tuning(
            cut, programs, target, cache, measure=tune, workers=workers,
            threads=threads, device=ordinal, progress=progress, verify=config.verify,
        )  # fmt: skip
    progress(f"compiling {counted(len(programs), 'kernel')}")
    stats = CompileStats()
    programs, kernels = compile_programs(
        cut, programs, target, cache, workers=workers, verify=config.verify, stats=stats
    )
    prove_order(programs, cut.graph.inputs, cut.graph.outputs)
    check_pins(cut, options)
    names = {program.region.name for program in programs}
    tuned = tuple(item for item in tuned if item.kernel in names)
    bound = bind_kernels(name or graph.name, cut, programs, kernels, target, consume)
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
