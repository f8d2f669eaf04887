"""The pipeline on one screen: graph, regions, tile programs, machine code, plan."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fuser.base.config import Config, start_logs, within
from fuser.base.limits import check_bytes, current
from fuser.dtypes import DType
from fuser.graph.ir import Graph
from fuser.graph.ops.families import KERNEL_CALL
from fuser.partition import partition
from fuser.partition.region import Partition
from fuser.pipeline.compiled import compile_kernels
from fuser.pipeline.devices import plan_threads
from fuser.pipeline.options import CompileOptions, Origin
from fuser.pipeline.source import GraphSource
from fuser.report.report import Report, nodes_before
from fuser.runtime.deferred import Deferred
from fuser.runtime.inputs import input_hints
from fuser.runtime.nvtx import marked
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program
from fuser.runtime.source import Source

Ranges = Mapping[str, tuple[int, int]]
Keep = Callable[[Program, Mapping[int, Source], Deferred[Report], Ranges], None]
"""Takes a program, where its constants came from (by `id`), the report, and ranges of inputs."""

_log = logging.getLogger("fuser.compile")

LARGE_BYTES = 64 << 20
"""With constants of more bytes it is worth 50 ms to free at once what a compile leaves."""

NODE_BYTES = 8 << 10
"""What a compile takes of memory for a node: constants of less are not worth going through all
objects for, which takes 40 us a node."""


def partition_source(
    source: GraphSource, options: CompileOptions, *, dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Partition:  # fmt: skip
    """The first half of the pipeline: the graph of a source, cut into regions for the device.
    values: of inputs that are constants in it."""
    return partition(source.graph(dims or {}, values), options.target, options.partitioning)


def compile_source(
    source: GraphSource, options: CompileOptions, *, dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Plan:  # fmt: skip
    """Compile what a front end read, at these sizes of its symbolic dims and for these values of
    inputs. Raises what `compile_graph` and the source raise."""
    started = time.perf_counter()
    with within():
        options.progress("importing the graph")
        bound = source.bind(dims or {})
        graph = source.graph(bound, values)
        large = is_large(graph)
        if large:
            gc.collect()
        origin = Origin(source.name, bound, tuple(values or ()), source.types, started)
        plan = compile_graph(graph, options, origin)
        del graph
        if large:
            gc.collect()
        return plan


def compile_graph(
    graph: Graph, options: CompileOptions, origin: Origin | None = None, keep: Keep | None = None
) -> Plan:
    """Compile a graph after the graph passes, its dims ints: what every front end ends in. keep:
    called with what a cache of plans stores.

    Raises FuserError: UnsupportedError, LimitError, DeviceError, CompileError.
    """
    origin = Origin() if origin is None else origin
    with within(), marked(f"fuser compile {origin.name or graph.name}"):
        # Kernels on a CPU are made for as many threads as the plan will have.
        options = options.but(threads=plan_threads(options.threads))
        program, report, hints = _compiled(graph, options, origin, keep)
        return Plan(
            program, threads=plan_threads(options.threads), device=options.gpu, report=report,
            hints=hints,
        )  # fmt: skip


def compile_program(
    source: GraphSource, options: CompileOptions, *, dims: Mapping[str, int] | None = None,
    keep: Keep | None = None,
) -> tuple[Program, Report]:  # fmt: skip
    """What `compile_source` compiles, for a target that need not be on this machine: nothing is
    loaded. keep: as for `compile_graph`. Raises what compiling raises."""
    started = time.perf_counter()
    with within():
        options.progress("importing the graph")
        bound = source.bind(dims or {})
        options = options.but(threads=options.target.units)
        origin = Origin(source.name, bound, (), source.types, started)
        program, report, _ = _compiled(source.graph(bound), options, origin, keep)
        return program, report.get()


def _compiled(
    graph: Graph, options: CompileOptions, origin: Origin, keep: Keep | None
) -> tuple[Program, Deferred[Report], Ranges]:
    """The program, the report and ranges of the inputs."""
    started = time.perf_counter() if origin.started is None else origin.started
    config = Config.from_environment()
    start_logs()
    on_host = not options.target.is_cuda
    if on_host or current().bytes:
        ends = sum(value.type.bytes for value in {*graph.inputs, *graph.outputs})
        check_bytes(ends, "the inputs and outputs together")
    label, silent = origin.name or graph.name, options.progress

    def tell(step: str) -> None:
        _log.info("%s: %s", label, step)
        silent(step)

    hints = input_hints(graph)  # of constants, too: before they go
    compiled = compile_kernels(graph, options.but(progress=tell), origin.name)
    cut, bound = compiled.partition, compiled.bound
    if config.dump:
        from fuser.pipeline.stage_texts import write_stages  # loads both back ends

        write_stages(config.dump, cut, compiled.programs, bound.target)
    tell("building the plan")
    program = _with_types(bound.at(), origin.types)
    if on_host or current().bytes:
        check_bytes(program.peak_memory_bytes, "the plan")
    seconds = time.perf_counter() - started
    noted = {"values": origin.values, "precision": compiled.precision, "tuned": compiled.tuned}
    report = compiled.reporting(program, seconds, noted).deferred(origin.dims)
    _log.info(
        "%s: %d kernels for %d operators in %.2f s, %d kernels from the cache",
        label, len(program.launches), len(nodes_before(cut.graph)), seconds, compiled.cache_hits,
    )  # fmt: skip
    if keep is not None and not any(node.op == KERNEL_CALL for node in cut.graph.nodes):
        # the file does not say what a kernel of the caller is
        sources = {id(bound.constants[key]): source for key, source in bound.sources.items()}
        keep(program, sources, report, hints)
    return program, report, hints


def _with_types(program: Program, types: Mapping[str, DType]) -> Program:
    """The program with the dtypes of the inputs and outputs whose bytes it holds as u8."""
    if not types:
        return program
    inputs, outputs = (
        tuple(replace(spec, dtype=types.get(spec.name, spec.dtype)) for spec in specs)
        for specs in (program.inputs, program.outputs)
    )
    return replace(program, inputs=inputs, outputs=outputs)


def is_large(graph: Graph) -> bool:
    """Whether it is worth the time to free at once what a compile of the graph leaves behind:
    models and graphs are cycles, and hundreds of megabytes would stay until a full collection."""
    arrays = (node.output.constant for node in graph.nodes if node.op == "constant")
    size = sum(array.nbytes for array in arrays if array is not None)
    return size >= max(LARGE_BYTES, NODE_BYTES * len(graph.nodes))
