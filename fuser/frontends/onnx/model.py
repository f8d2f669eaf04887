"""ONNX models: read, checked, compiled.

model = open_model("model.onnx")
plan = compile(model, dims={"batch": 8})
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fuser.base.config import within
from fuser.base.limits import Limits
from fuser.dtypes import DType
from fuser.errors import (
    FeedError,
    InvalidModelError,
    UnsupportedError,
    UnsupportedOpError,
    UsageError,
)
from fuser.frontends.onnx.importer import (
    MappedModel,
    check_types,
    import_onnx,
    load_mapped,
    load_model,
    narrow_types,
    signature,
)
from fuser.graph.dims import substitute, symbols_of
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.numerics import Numerics, using
from fuser.graph.numerics import current as current_numerics
from fuser.graph.passes import run_passes
from fuser.graph.passes.known_codes import Store, remembered
from fuser.pipeline.compiler import Keep, compile_graph, is_large
from fuser.pipeline.devices import Device, check_device
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.options import CompileOptions, Origin, Progress, quiet
from fuser.pipeline.plan_cache import compile_file
from fuser.pipeline.precision import Precision
from fuser.runtime.feeds import check_feeds, turned
from fuser.runtime.inputs import input_hints
from fuser.runtime.inputs import random_feeds as draw_feeds
from fuser.runtime.plan import Plan
from fuser.runtime.program import TensorSpec

if TYPE_CHECKING:
    from onnx import ModelProto

# A sequence of one token or an image of one pixel says nothing of a model. The first is a usual
# length; the others are for models whose tables are shorter.
DEFAULT_SIZES = (128, 32, 8, 1)


@dataclass(eq=False)
class Model:
    """An ONNX model that was read and checked. `inputs` maps names to types with symbolic dims."""

    name: str
    proto: ModelProto
    inputs: dict[str, TensorType]
    _graphs: dict[tuple[tuple[str, int], ...], Graph] = field(default_factory=dict)
    _checked: bool = False
    _codes: Store = field(default_factory=dict)
    """Weights of few bits that were found: graphs of other sizes have them, too."""
    mapped: MappedModel | None = None
    """Where the data of its large weights are, if the proto is without them."""
    numerics: Numerics = field(default_factory=current_numerics)
    """The numerics of the graphs that it gives."""

    @property
    def types(self) -> Mapping[str, DType]:
        """Dtypes of the inputs and outputs whose bytes the graph holds as u8."""
        return narrow_types(self.proto)

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
            self._check_order(name, type, feeds.get(name))
            shape = TensorType(type.dtype, tuple(substitute(dim, bound) for dim in type.shape))
            specs.append(TensorSpec(name, type.dtype, shape.static_shape))
        check_feeds(specs, feeds)

    def _check_order(self, name: str, type: TensorType, feed: np.ndarray | None) -> None:
        """Raise FeedError for a feed whose axes stand in another order: sizes of symbolic dims that
        were read off it would be wrong ones."""
        fixed = tuple(dim if isinstance(dim, int) else None for dim in type.shape)
        if feed is None or len(fixed) != feed.ndim:
            return
        fits = all(size in (None, n) for size, n in zip(fixed, feed.shape, strict=True))
        if not fits and (hint := turned(feed.shape, fixed)):
            raise FeedError(
                f"input {name!r} is {type}, the feed has shape {list(feed.shape)}", hint=hint
            )

    def graph(
        self, dims: Mapping[str, int], values: Mapping[str, np.ndarray] | None = None
    ) -> Graph:
        """The imported graph with every dim an int, after the graph passes. values: inputs that
        are constants in it; such a graph is not kept."""
        if values:
            with using(self.numerics):
                graph = import_onnx(self.proto, self.bind(dims), values, self._weights())
            self._check_types()
            return run_passes(graph)
        return self._graph(self.bind(dims))

    def open_graph(
        self, fixed: Mapping[str, int], values: Mapping[str, np.ndarray] | None = None
    ) -> Graph:
        """The imported graph with some dims fixed, the others symbols of the Sizes in force, after
        the graph passes."""
        with remembered(self._codes), using(self.numerics):
            return run_passes(import_onnx(self.proto, fixed, values or {}, self._weights()))

    def _graph(self, bound: Mapping[str, int]) -> Graph:
        key = tuple(sorted(bound.items()))
        if key not in self._graphs:
            with using(self.numerics):
                graph = import_onnx(self.proto, bound, weights=self._weights())
            self._check_types()
            self._graphs[key] = run_passes(graph)
        return self._graphs[key]

    def _weights(self) -> Mapping[str, np.ndarray]:
        return self.mapped.weights if self.mapped else {}

    def _check_types(self) -> None:
        """Once, what import does not look at. Raises InvalidModelError."""
        if not self._checked:
            check_types(self.proto)
            self._checked = True


def open_model(source: str | Path | bytes | ModelProto | Model) -> Model:
    """Read and check a model, to be compiled under the numerics in force. Raises UsageError (no
    such file), InvalidModelError."""
    if isinstance(source, Model):
        same = source.numerics == current_numerics()
        return source if same else replace(source, numerics=current_numerics(), _graphs={})
    proto = load_model(source)
    name = Path(source).name if isinstance(source, str | Path) else proto.graph.name or "model"
    return Model(name, proto, signature(proto))


def input_names(path: str | Path) -> list[str]:
    """The inputs of a model file that need a feed, whatever their types. Raises as open_model."""
    graph = load_model(path).graph
    held = {tensor.name for tensor in graph.initializer}
    return [info.name for info in graph.input if info.name not in held]


def map_model(path: str | Path) -> Model:
    """`open_model` of a file for one compile: large weights stay in the file, so that they are not
    in memory as they are read, as they are parsed and as they are packed at once."""
    proto, mapped = load_mapped(path)
    return Model(Path(path).name, proto, signature(proto), mapped=mapped)


def compile(
    model: str | Path | bytes | ModelProto | Model,
    *,
    device: Device = "auto",
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None,
    fusion: Fusing = True,
    precision: Precision = "model",
    progress: Progress = quiet,
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
    (pipeline/precision.py); report().precision says what was. progress is called with the name of
    each step. limits: what the model may ask for, FUSER_MAX_* by default. tune: measure schedules
    of kernels of which none is remembered (pipeline/tuning.py); report().tuned says what came of
    it.
    Raises FuserError: UsageError, InvalidModelError, UnsupportedOpError, LimitError, DeviceError,
    CompileError.
    """
    if isinstance(model, str | Path):
        return compile_file(
            Path(model), compile_new, device=device, dims=dims, values=values, threads=threads,
            fusion=fusion, precision=precision, progress=progress, limits=limits, tune=tune,
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
    fusion: Fusing = True,
    precision: Precision = "model",
    progress: Progress = quiet,
    started: float | None = None,
    keep: Keep | None = None,
    tune: bool = False,
) -> Plan:
    """`compile` without the cache of plans. keep: called with the plan's program, if the file alone
    decides it; limits are those in force."""
    started = time.perf_counter() if started is None else started
    check_device(device, threads)
    with within(), host_named():
        progress("importing the graph")
        opened = map_model(model) if isinstance(model, str | Path) else open_model(model)
        mapped = opened.mapped
        bound = opened.bind(dims or {})
        graph, name, types = opened.graph(bound, values), opened.name, opened.types
        large = mapped is None and is_large(graph)
        del opened
        if large:
            gc.collect()
        options = CompileOptions(
            device=device, threads=threads, fusion=fusion, precision=precision, progress=progress,
            consume=mapped is not None, tune=tune,
        )  # fmt: skip
        origin = Origin(name, bound, tuple(values or ()), types, started)
        plan = compile_graph(graph, options, origin, keep if mapped is not None else None)
        del graph
        if mapped is not None:
            mapped.check_unchanged()
        if large:
            gc.collect()
        return plan


@contextmanager
def host_named() -> Iterator[None]:
    """Errors of what has no kernel name what runs it: the host, where it has code for the
    operators, else a function of the caller's."""
    try:
        yield
    except UnsupportedError as error:
        way = 'host="allow" (fuser run --host allow) runs it on the host'
        if unknown := _unknown_to_host(error):
            calls = " and ".join(
                f"fuser.register_host_op({domain!r}, {name!r}, function)"
                for domain, name in unknown[:3]
            )
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            way = f'in Python, {calls}{more}, then host="allow", run it on the host'
        error.hint = f"{error.hint}, or: {way}" if error.hint else way
        raise


def _unknown_to_host(error: UnsupportedError) -> list[tuple[str, str]]:
    """Domain and name of operators that the host has no code for either."""
    if not isinstance(error, UnsupportedOpError) or not error.operators:
        return []
    from fuser.frontends.onnx.host_operators import runs_on_host

    return [(domain, name) for domain, name, opset in error.operators
            if not runs_on_host(domain, name, opset)]  # fmt: skip


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
