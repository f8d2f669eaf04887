"""The pipeline on one screen: model, graph, regions, tile programs, machine code, plan."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fuser.backend.module import CompiledKernel
from fuser.backend.workers import CompileStats
from fuser.binding import Bound, bind_kernels, report_on, spent
from fuser.config import Config, within
from fuser.devices import Device, check_device, choose_target, plan_threads
from fuser.dtypes import DType
from fuser.errors import InvalidModelError, UsageError
from fuser.graph.dims import substitute, symbols_of
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.onnx_import import (
    MappedModel,
    check_types,
    import_onnx,
    load_mapped,
    load_model,
    narrow_types,
    signature,
)
from fuser.graph.passes import run_passes as run_graph_passes
from fuser.kernels import compile_programs, programs_of, without_refused
from fuser.limits import Limits, check_bytes, current
from fuser.packing import Source
from fuser.partition import Options, partition
from fuser.partition.region import Partition
from fuser.plan_cache import compile_file
from fuser.precision import Precision, Rounding, rounding
from fuser.report import Report, Tuned
from fuser.runtime.cache import KernelCache
from fuser.runtime.feeds import check_feeds
from fuser.runtime.inputs import input_hints
from fuser.runtime.inputs import random_feeds as draw_feeds
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program, TensorSpec
from fuser.target import Target
from fuser.tilegen.coverage import prove_order
from fuser.tilegen.program import TileProgram

if TYPE_CHECKING:
    from onnx import ModelProto

Progress = Callable[[str], None]
Keep = Callable[[Program, Mapping[int, Source], Report, Mapping[str, tuple[int, int]]], None]
"""Takes a program, where its constants came from (by `id`), the report, and ranges of inputs."""


# A sequence of one token or an image of one pixel says nothing of a model. The first is a usual
# length; the others are for models whose tables are shorter.
DEFAULT_SIZES = (128, 32, 8, 1)
LARGE_BYTES = 64 << 20
"""Of constants: from here on it is worth 50 ms to free what a compile leaves behind at once."""


def _quiet(step: str) -> None:
    """No progress."""


@dataclass(eq=False)
class Model:
    """An ONNX model that was read and checked. `inputs` maps names to types with symbolic dims."""

    name: str
    proto: ModelProto
    inputs: dict[str, TensorType]
    _graphs: dict[tuple[tuple[str, int], ...], Graph] = field(default_factory=dict)
    _checked: bool = False
    mapped: MappedModel | None = None
    """Where the data of its large weights are, if the proto is without them."""

    def bind(self, dims: Mapping[str, int]) -> dict[str, int]:
        """The size of every symbolic dim: as given, else 1 for an outermost axis (the batch) and
        the first of DEFAULT_SIZES that the model accepts for others. Raises UsageError for unknown
        names."""
        symbols: dict[str, bool] = {}  # name -> whether it is an outermost axis
        for type in self.inputs.values():
            for axis, dim in enumerate(type.shape):
                for name in sorted(symbols_of(dim)):
                    symbols.setdefault(name, not axis)
        unknown = [name for name in dims if name not in symbols]
        if unknown:
            known = ", ".join(symbols) or "none: every dim of this model is fixed"
            raise UsageError(f"unknown dim {unknown[0]!r}", hint=f"the symbolic dims are {known}")
        bound = {name: 1 for name, outermost in symbols.items() if outermost} | dict(dims)
        if len(bound) == len(symbols):
            return {name: bound[name] for name in symbols}
        trial: dict[str, int] = {}
        for size in DEFAULT_SIZES:
            trial = {name: bound.get(name, size) for name in symbols}
            try:
                self._graph(trial)
                break
            except InvalidModelError:
                if size == DEFAULT_SIZES[-1]:
                    raise
        return trial

    def check(self, feeds: Mapping[str, np.ndarray], dims: Mapping[str, int]) -> None:
        """Raise FeedError unless the feeds are the model's inputs at these dims."""
        bound = self.bind(dims)
        specs = []
        for name, type in self.inputs.items():
            shape = TensorType(type.dtype, tuple(substitute(dim, bound) for dim in type.shape))
            specs.append(TensorSpec(name, type.dtype, shape.static_shape))
        check_feeds(specs, feeds)

    def graph(
        self, dims: Mapping[str, int], values: Mapping[str, np.ndarray] | None = None
    ) -> Graph:
        """The imported graph with every dim an int, after the graph passes. values: inputs that
        are constants in it; such a graph is not kept."""
        if values:
            graph = import_onnx(self.proto, self.bind(dims), values, self._weights())
            self._check_types()
            return run_graph_passes(graph)
        return self._graph(self.bind(dims))

    def _graph(self, bound: Mapping[str, int]) -> Graph:
        key = tuple(sorted(bound.items()))
        if key not in self._graphs:
            graph = import_onnx(self.proto, bound, weights=self._weights())
            self._check_types()
            self._graphs[key] = run_graph_passes(graph)
        return self._graphs[key]

    def _weights(self) -> Mapping[str, np.ndarray]:
        return self.mapped.weights if self.mapped else {}

    def _check_types(self) -> None:
        """Once, what import does not look at. Raises InvalidModelError."""
        if not self._checked:
            check_types(self.proto)
            self._checked = True


def open_model(source: str | Path | bytes | ModelProto | Model) -> Model:
    """Read and check a model. Raises UsageError (no such file), InvalidModelError."""
    if isinstance(source, Model):
        return source
    proto = load_model(source)
    name = Path(source).name if isinstance(source, str | Path) else proto.graph.name or "model"
    return Model(name, proto, signature(proto))


def _map_model(path: str | Path) -> Model:
    """`open_model` of a file for one compile: large weights stay in the file, so that they are not
    in memory as they are read, as they are parsed and as they are packed at once."""
    proto, mapped = load_mapped(path)
    return Model(Path(path).name, proto, signature(proto), mapped=mapped)


def partition_model(
    model: Model,
    *,
    device: Device = "auto",
    dims: Mapping[str, int] | None = None,
    fusion: bool = True,
    precision: Precision = "model",
) -> Partition:
    """The first half of the pipeline: the model's graph, cut into regions for the device."""
    graph, target = model.graph(dims or {}), choose_target(device)
    return partition(graph, target, partition_options(fusion, rounding(precision, target)))


def partition_options(fusion: bool, rounded: Rounding) -> Options:
    """What the caller's choices mean to the partitioner."""
    return Options(
        no_fusion=not fusion, operands=rounded.operands, narrow_weights=rounded.narrow_weights
    )


def emit_programs(cut: Partition, target: Target, verify: bool = False) -> list[TileProgram]:
    """The tile programs of every region, in launch order. A region that cannot be one kernel, or
    takes too long to become one, is replaced in `cut` by its parts.

    Raises VerifyError where it is not proved that programs write all they are there to write."""
    programs: list[TileProgram] = []
    for region in tuple(cut.regions):
        programs += programs_of(region, cut, target, verify)
    prove_order(programs, cut.graph.inputs, cut.graph.outputs)
    return programs


def compile(
    model: str | Path | bytes | ModelProto | Model,
    *,
    device: Device = "auto",
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    fusion: bool = True,
    precision: Precision = "model",
    progress: Progress = _quiet,
    limits: Limits | None = None,
    tune: bool = False,
) -> Plan:
    """Compile an ONNX model into an executable plan.

    model: a path, the bytes of a model, a ModelProto, or what `open_model` gave. dims: sizes of
    symbolic dims by name; those left out are 1 (an outermost axis) or 128
    (less where the model has shorter tables). values: inputs whose values the plan is for (a shape,
    axes, a count): they are no inputs of the plan. threads: CPU threads that kernels are written
    for and run on, FUSER_THREADS or one a core by default: bits are the same for all.
    fusion=False gives every operator its own kernel. precision: what may be rounded
    (fuser/precision.py); report().precision says what was. progress is called with the name of each
    step. limits: what the model may ask for, FUSER_MAX_* by default. tune: measure schedules of
    kernels of which none is remembered (fuser/tuning.py); report().tuned says what came of it.
    Raises FuserError: UsageError, InvalidModelError, UnsupportedOpError, LimitError, DeviceError,
    CompileError.
    """
    if isinstance(model, str | Path):
        return compile_file(
            Path(model), device=device, dims=dims, values=values, threads=threads, fusion=fusion,
            precision=precision, progress=progress, limits=limits, tune=tune,
        )  # fmt: skip
    with within(limits):
        return compile_new(
            model, device=device, dims=dims, values=values, threads=threads, fusion=fusion,
            precision=precision, progress=progress, tune=tune,
        )  # fmt: skip


def compile_new(
    model: str | Path | bytes | ModelProto | Model,
    *,
    device: Device = "auto",
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    fusion: bool = True,
    precision: Precision = "model",
    progress: Progress = _quiet,
    started: float | None = None,
    keep: Keep | None = None,
    tune: bool = False,
) -> Plan:
    """`compile` without the cache of plans. keep: called with the plan's program, if the file alone
    decides it; limits are those in force."""
    started = time.perf_counter() if started is None else started
    check_device(device)
    with within():
        progress("importing the graph")
        opened = _map_model(model) if isinstance(model, str | Path) else open_model(model)
        mapped = opened.mapped
        bound = opened.bind(dims or {})
        graph, name, types = opened.graph(bound, values), opened.name, narrow_types(opened.proto)
        # Models and graphs are cycles: hundreds of megabytes would stay until a full collection.
        large = mapped is None and _constant_bytes(graph) >= LARGE_BYTES
        del opened
        if large:
            gc.collect()
        plan = compile_graph(
            graph, name=name, device=device, threads=threads, fusion=fusion, precision=precision,
            progress=progress, dims=bound, values=tuple(values or ()), started=started, types=types,
            consume=mapped is not None, keep=keep if mapped is not None else None, tune=tune,
        )  # fmt: skip
        del graph
        if mapped is not None:
            mapped.check_unchanged()
        if large:
            gc.collect()
        return plan


def _constant_bytes(graph: Graph) -> int:
    arrays = (node.output.constant for node in graph.nodes if node.op == "constant")
    return sum(array.nbytes for array in arrays if array is not None)


def compile_graph(
    graph: Graph,
    *,
    name: str = "",
    device: Device = "auto",
    threads: int | None = None,
    fusion: bool = True,
    precision: Precision = "model",
    progress: Progress = _quiet,
    dims: Mapping[str, int] | None = None,
    values: tuple[str, ...] = (),
    started: float | None = None,
    types: Mapping[str, DType] | None = None,
    ordinal: int = 0,
    consume: bool = False,
    keep: Keep | None = None,
    tune: bool = False,
) -> Plan:
    """Compile a graph after the graph passes, its dims ints: what every front end ends in.

    name, dims and values are for the report; started: when the work on it began.
    types: dtypes of the inputs and outputs whose bytes the graph holds as u8. ordinal: which GPU.
    consume: the graph is not used again, so its constants may go as they are packed. keep: called
    with what a cache of plans stores. tune: see `compile`.
    Raises FuserError: UnsupportedError, LimitError, DeviceError, CompileError.
    """
    started = time.perf_counter() if started is None else started
    with within():
        return _compile_graph(
            graph, name, device, threads, fusion, precision, progress, dims, values, started, types,
            ordinal, consume, keep, tune,
        )  # fmt: skip


def _compile_graph(
    graph: Graph, name: str, device: Device, threads: int | None, fusion: bool,
    precision: Precision, progress: Progress, dims: Mapping[str, int] | None,
    values: tuple[str, ...], started: float, types: Mapping[str, DType] | None, ordinal: int,
    consume: bool, keep: Keep | None, tune: bool,
) -> Plan:  # fmt: skip
    config = Config.from_environment()
    on_host = not choose_target(device).is_cuda
    if on_host or current().bytes:
        ends = sum(value.type.bytes for value in {*graph.inputs, *graph.outputs})
        check_bytes(ends, "the inputs and outputs together")
    hints = input_hints(graph)  # of constants, too: before they go
    compiled = compile_kernels(
        graph, name=name, device=device, fusion=fusion, precision=precision, progress=progress,
        config=config, consume=consume and not config.dump, tune=tune,
        threads=plan_threads(threads), ordinal=ordinal,
    )  # fmt: skip
    cut, programs = compiled.partition, compiled.programs
    if config.dump:
        from fuser.stages import write_stages

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
    report = report_on(cut, programs, program, dict(dims or {}), seconds, compiled.cache_hits)
    report.values = values
    report.precision = compiled.precision
    report.tuned = compiled.tuned
    if keep is not None:
        sources = {
            id(compiled.bound.constants[key]): source
            for key, source in compiled.bound.sources.items()
        }
        keep(program, sources, report, hints)
    return Plan(
        program,
        threads=plan_threads(threads),
        device=ordinal,
        report=lambda plan: replace(report, peak_memory_bytes=plan.peak_memory_bytes),
        hints=hints,
    )


@dataclass(frozen=True)
class Compiled:
    """Kernels bound to the values of a graph, and what the report needs beside them."""

    partition: Partition
    programs: list[TileProgram]
    kernels: list[CompiledKernel]
    bound: Bound
    cache_hits: int
    precision: str
    """What was rounded, for the report."""
    tuned: tuple[Tuned, ...] = ()


def compile_kernels(
    graph: Graph,
    *,
    name: str = "",
    device: Device = "auto",
    fusion: bool = True,
    precision: Precision = "model",
    progress: Progress = _quiet,
    config: Config | None = None,
    consume: bool = False,
    tune: bool | None = None,
    threads: int | None = None,
    ordinal: int = 0,
) -> Compiled:
    """Everything up to the plan. The graph's dims are ints, or symbols of the Sizes in force.
    consume: see bind_kernels. tune: whether to measure schedules, or only (False) to use what is
    remembered; None: neither. threads: of the plan on a CPU. ordinal: where to measure.

    Raises FuserError: UnsupportedError, DeviceError, CompileError.
    """
    config = config or Config.from_environment()
    target = choose_target(device, threads)
    rounded = rounding(precision, target)
    progress("partitioning")
    cut = partition(graph, target, partition_options(fusion, rounded))
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
        from fuser.tuning import apply_tuning

        programs, tuned = apply_tuning(
            cut, programs, target, cache, measure=tune, workers=workers,
            threads=threads, device=ordinal, progress=progress, verify=config.verify,
        )  # fmt: skip
    progress(f"compiling {len(programs)} kernels")
    stats = CompileStats()
    programs, kernels = compile_programs(
        cut, programs, target, cache, workers=workers, verify=config.verify, stats=stats
    )
    prove_order(programs, cut.graph.inputs, cut.graph.outputs)
    names = {program.region.name for program in programs}
    tuned = tuple(item for item in tuned if item.kernel in names)
    bound = bind_kernels(name or graph.name, cut, programs, kernels, target, consume)
    return Compiled(cut, programs, kernels, bound, stats.cache_hits, rounded.text, tuned)


def with_remembered(
    cut: Partition, programs: list[TileProgram], target: Target
) -> tuple[list[TileProgram], tuple[Tuned, ...]]:
    """The programs as compiling has them after earlier compiles: with the schedules that those
    measured, and with parts of the regions whose kernels failed or took too long."""
    config = Config.from_environment()
    if not config.cache:
        return programs, ()
    from fuser.tuning import apply_tuning

    cache = KernelCache(config.cache_dir)
    programs = without_refused(cut, programs, target, cache)
    return apply_tuning(cut, programs, target, cache, measure=False)


def reference(
    model: Model, feeds: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """The outputs by NumPy in float64: the oracle. It reads the graph as imported, so that it does
    not depend on the graph passes either."""
    graph = import_onnx(model.proto, model.bind(dims or {}))
    return evaluate(graph, dict(feeds), float64=True)


def random_feeds(
    model: Model, dims: Mapping[str, int] | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Seeded inputs with ranges that make sense: indices within their table, masks 0 or 1."""
    graph = model.graph(dims or {})
    return draw_feeds({value.name: value.type for value in graph.inputs}, input_hints(graph), seed)
