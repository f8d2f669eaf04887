"""`fuser.trace` and `fuser.jit`: functions over NumPy-style Python, compiled.

@fuser.jit
def layer(x, w):
    return np.maximum(x @ w, 0)

y = layer(x, w)                                     # compiled for these shapes and dtypes
f = fuser.trace(layer.function, fuser.spec((8, 64)), fuser.spec((64, 64)))
f.graph, f.plan, f(x, w)
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import update_wrapper
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from fuser.base.forks import cached_property, new_lock
from fuser.errors import ArgumentTypeError, FeedError, UsageError, names_keywords
from fuser.frontends.numpy.arguments import Arguments
from fuser.frontends.numpy.loops import Looped
from fuser.frontends.numpy.objects import Reads, is_object
from fuser.frontends.numpy.open_sizes import OpenAxes, OpenTraced, closed
from fuser.frontends.numpy.specs import spec
from fuser.frontends.numpy.trace import ArraySpec, cond, record, while_loop
from fuser.graph.ir import Graph
from fuser.graph.numerics import Mode, using
from fuser.graph.passes import run_passes
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.devices import Device, check_device
from fuser.pipeline.dynamic import explain_variants
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.options import CompileOptions, Origin
from fuser.pipeline.precision import Precision
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import Report
from fuser.runtime.shown import Shown, Summary

MOST_OPEN = 8
"""Combinations of dtypes and fixed sizes that a function of open sizes keeps kernels for."""
MOST_PLANS = 64
"""Plans that a jitted function keeps; the one unused for longest goes first."""


class Traced(Shown):
    """A function recorded for arguments of given shapes; called with such arguments, it runs the
    plan, which is compiled on first use."""

    def __init__(
        self, function: Callable[..., Any], bound: Arguments, name: str, options: CompileOptions,
        given: tuple[Any, ...] = (), method: bool = False,
    ) -> None:  # fmt: skip
        """given: what comes before the arguments of each call: the object of a method."""
        self._started = time.perf_counter()
        self.used = 0
        """The number of the latest call of a jitted function that it served."""
        check_device(options.device, options.threads)
        self._bound_tree, self._static = bound.tree, bound.static
        self._options = options
        self._names = bound.names
        self._given, self._is_method = given, method
        self._lock = new_lock()
        recording = record(function, bound.specs(), bound.arguments, name)
        self._signature = inspect.signature(function)
        self._recording = recording
        self._reads = bound.reads or Reads({})
        self._reads.finish()
        self.graph: Graph = recording.graph if recording.loops else run_passes(recording.graph)
        """The function as primitives, after the graph passes. With loops: as it was recorded, the
        results of each loop being inputs."""

    @cached_property
    def plan(self) -> Plan:
        """Raises UsageError for a function with loops."""
        if self._recording.loops:
            raise UsageError(
                "this function has loops, and a plan for what is between them and for each body",
                hint="use plans",
            )
        with self._lock:
            return self.__dict__.get("plan") or self._compile(self.graph)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All plans: one, or those between loops and then those of their bodies."""
        return self._looped.plans if self._recording.loops else (self.plan,)

    @cached_property
    def _looped(self) -> Looped:
        with self._lock:
            made: Looped | None = self.__dict__.get("_looped")
            return made or Looped(self._recording, lambda g: self._compile(run_passes(g)))

    def _compile(self, graph: Graph) -> Plan:
        return compile_graph(graph, self._options, Origin(name=graph.name, started=self._started))

    def _summary(self) -> Summary:
        graph, plan = self.graph, self.__dict__.get("plan")
        shown = plan._summary() if plan is not None else None
        loops = "with loops" if self._recording.loops else "not compiled yet"
        return Summary(
            graph.name, [(value.name, str(value.type)) for value in graph.inputs],
            [(name, str(v.type))
             for name, v in zip(graph.output_names, graph.outputs, strict=True)],
            shown.facts if shown else [("device", str(self._options.device)), ("state", loops)],
            shown.short if shown else [loops],
        )  # fmt: skip

    def report(self) -> Report:
        """Raises UsageError for a function with loops."""
        return self.plan.report()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, arrays as NumPy arrays. Raises FeedError."""
        static = frozenset(self._static)
        bound = Arguments(self._signature, static, (*self._given, *args), kwargs, self._is_method)
        if bound.tree != self._bound_tree:
            raise FeedError("the arguments nest otherwise than those it was traced for")
        for name, value in bound.static.items():
            if value != self._static[name]:
                raise FeedError(f"{name} is {value!r}, but was traced as {self._static[name]!r}")
        changed = self._reads.changed(bound.objects)
        if changed:
            raise FeedError(f"{changed}, which is compiled in", hint="trace again, or fuser.jit")
        return self.run(bound)

    def serves(self, bound: Arguments) -> bool:
        """Whether objects among the arguments are as they were in what is compiled in."""
        return not self._reads.changed(bound.objects)

    def run(self, bound: Arguments) -> Any:
        """The result for arguments that it serves."""
        return self.run_leaves(bound.leaves, self._reads.feeds(bound.objects))

    def run_leaves(self, leaves: Sequence[Any], read: Mapping[str, Any] | None = None) -> Any:
        """The result for arrays in the order of the arguments. read: those of objects, by name."""
        feeds = {**dict(zip(self._names, leaves, strict=True)), **(read or {})}
        recording = self._recording
        if recording.loops:
            return recording.results.assemble(self._looped.run(feeds))
        return recording.results.assemble(list(self.plan.run(feeds).values()))


@names_keywords
def trace(
    function: Callable[..., Any], *specs: Any, device: Device = "auto",
    threads: int | None = None, fusion: Fusing = True, static: dict[str, Any] | None = None,
    precision: Precision = "model", numerics: Mode | None = None,
    batch_invariant: bool | None = None,
) -> Traced:  # fmt: skip
    """Record `function` for arguments of the given specs: `fuser.spec`, arrays to take the shape
    of, Python numbers, and nested tuples, lists and dicts of those.

    static: arguments by name that are no arrays; they are fixed.
    device, threads, fusion, precision, numerics, batch_invariant: as for `fuser.compile`.
    Raises TraceError where the function cannot be recorded.
    """
    fixed = static or {}
    function, owner = _taken_apart(function)
    signature, method = inspect.signature(function), bool(owner)
    bound = Arguments(signature, frozenset(fixed), (*owner, *specs), dict(fixed), method)
    name = _name(function)
    with using(numerics, batch_invariant):
        options = CompileOptions(device=device, threads=threads, fusion=fusion, precision=precision)
        return Traced(function, bound, name, options, owner, method)


class Jitted:
    """A function that is traced and compiled for each combination of shapes, dtypes and static
    arguments it is called with. Safe to use from many threads."""

    def __init__(
        self, function: Callable[..., Any], static_argnames: Sequence[str], device: Device,
        threads: int | None, fusion: Fusing, precision: Precision = "model",
        dynamic: OpenAxes | None = None, numerics: Mode | None = None,
        batch_invariant: bool | None = None,
    ) -> None:  # fmt: skip
        check_device(device, threads)
        with using(numerics, batch_invariant) as chosen:
            self._numerics = chosen
        self.function = function
        self._dynamic = dict(dynamic or {})
        self._open: OrderedDict[Hashable, OpenTraced] = OrderedDict()
        self._signature = inspect.signature(function)
        self._static = frozenset(static_argnames)
        unknown = self._static - set(self._signature.parameters)
        for name in self._dynamic:
            if name.partition(".")[0] not in self._signature.parameters:
                raise UsageError(
                    f"dynamic names {name!r}, which {_name(function)} does not have",
                    hint=f"its parameters are {list(self._signature.parameters)}",
                )
        if unknown:
            raise UsageError(
                f"static_argnames names {sorted(unknown)}, which {_name(function)} does not have",
                hint=f"its parameters are {list(self._signature.parameters)}",
            )
        self._options = CompileOptions(
            device=device, threads=threads, fusion=fusion, precision=precision
        )
        self._cache: dict[Hashable, list[Traced]] = {}
        self._of_arrays: dict[Hashable, Traced] = {}
        """By shapes and dtypes, what serves plain arrays by position: most calls give nothing else.
        """
        self._calls = itertools.count(1)
        self._lock = new_lock()
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs, False)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: what it reads of the object is looked up in each call."""
        return self if instance is None else JittedMethod(self, instance)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], method: bool) -> Any:
        shapes = None
        if not kwargs and all([type(value) is np.ndarray for value in args]):
            shapes = tuple([(array.shape, array.dtype) for array in args])
            known = self._of_arrays.get(shapes)
            if known is not None:
                known.used = next(self._calls)
                return known.run_leaves(args)
        bound = Arguments(self._signature, self._static, args, kwargs, method)
        if bound.is_traced():
            return self.function(*args, **kwargs)  # within another trace: part of it
        if self._dynamic:
            return self._run_open(bound)
        found = self._find(bound)
        result = found.run(bound)
        if shapes is not None and not bound.static and not bound.objects:
            with self._lock:
                if found in self.traces:  # other threads may have made it the one to go
                    self._of_arrays[shapes] = found
        return result

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """What serves such arguments: its graph, plan and report. With dynamic, a UsageError."""
        return self._trace(args, kwargs, False)

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any], method: bool) -> Traced:
        if self._dynamic:
            raise UsageError(
                "a function of open sizes has no one graph", hint="explain() shows its ranges"
            )
        return self._find(Arguments(self._signature, self._static, args, kwargs, method))

    def __repr__(self) -> str:
        return f"<jitted {_name(self.function)}{self._signature}, {len(self.traces)} traces>"

    @property
    def traces(self) -> tuple[Traced, ...]:
        """Every trace that is kept, the latest used last."""
        every = [traced for kept in self._cache.values() for traced in kept]
        return tuple(sorted(every, key=lambda traced: traced.used))

    def explain(self) -> str:
        """With dynamic: a table of the ranges of sizes that kernels serve."""
        return explain_variants([v for found in self._open.values() for v in found.variants])

    def _run_open(self, bound: Arguments) -> Any:
        if bound.objects:
            raise UsageError(
                f"{next(iter(bound.objects))!r} is an object, whose attributes a function of open "
                "sizes cannot read",
                hint="pass its arrays as arguments, or leave dynamic out",
            )
        specs, leaves, dynamic = bound.specs(), bound.leaves, self._dynamic
        fixed = {name: closed(name, spec, dynamic) for name, spec in specs.items()}
        key = bound.key(fixed)
        with self._lock, using(self._numerics):
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = OpenTraced(
                    self.function, specs, bound.arguments, _name(self.function), dynamic,
                    self._options,
                )  # fmt: skip
                bound.leaves = []
                if len(self._open) > MOST_OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            plan, results = found.find(specs)
        feeds = dict(zip(bound.names, leaves, strict=True))
        return results.assemble(list(plan.run(feeds).values()))

    def _find(self, bound: Arguments) -> Traced:
        key = bound.key()
        with self._lock:
            kept = self._cache.get(key, [])
            found = next((traced for traced in kept if traced.serves(bound)), None)
            if found is None:
                with using(self._numerics):
                    found = Traced(self.function, bound, _name(self.function), self._options)
                found.used = next(self._calls)
                self._cache[key] = [*kept, found]
                if len(self.traces) > MOST_PLANS:
                    self._forget(self.traces[0])
            found.used = next(self._calls)
            return found

    def _forget(self, oldest: Traced) -> None:
        left = {key: [t for t in kept if t is not oldest] for key, kept in self._cache.items()}
        self._cache = {key: kept for key, kept in left.items() if kept}
        self._of_arrays = {k: t for k, t in self._of_arrays.items() if t is not oldest}


class JittedMethod:
    """A jitted function, bound to an object as a method is."""

    def __init__(self, jitted: Jitted, instance: Any) -> None:
        self.__func__, self.__self__ = jitted, instance
        update_wrapper(self, jitted.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__._call((self.__self__, *args), kwargs, True)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """As `Jitted.trace`."""
        return self.__func__._trace((self.__self__, *args), kwargs, True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)


@names_keywords
def jit(
    function: Callable[..., Any] | None = None, *, static_argnames: str | Sequence[str] = (),
    device: Device = "auto", threads: int | None = None, fusion: Fusing = True,
    precision: Precision = "model", dynamic: OpenAxes | None = None, numerics: Mode | None = None,
    batch_invariant: bool | None = None,
) -> Any:  # fmt: skip
    """Compile a function on its first call with arguments of given shapes and dtypes.

    static_argnames: parameters that are no arrays (options, sizes); each value is compiled for.
    dynamic: by parameter, names for the axes whose sizes are open: {"x": ("batch", None)}. Kernels
    then serve ranges of these sizes; a name that comes twice is one size. Without it each
    combination of shapes is compiled for.
    numerics, batch_invariant: as for `fuser.compile`.
    Works as a decorator with and without arguments, of functions and methods. Of an object (`self`)
    arrays and floats are read in each call; whatever else the function reads is compiled for, and
    compiled anew where it has changed. Arrays that the function closes over are
    constants: do not change them afterwards. Raises TraceError where it cannot be recorded.
    """
    named = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    options = (
        named, device, threads, fusion, precision, dynamic, numerics, batch_invariant
    )  # fmt: skip
    return (lambda f: _jitted(f, options)) if function is None else _jitted(function, options)


def _jitted(function: Any, options: tuple[Any, ...]) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_jitted(function.__func__, options))
    function, owner = _taken_apart(function)
    jitted = Jitted(function, *options)
    return JittedMethod(jitted, *owner) if owner else jitted


def _taken_apart(function: Any) -> tuple[Any, tuple[Any, ...]]:
    """A bound method, or an object that can be called, as a function and that object. Raises
    ArgumentTypeError for what cannot be called."""
    if not callable(function):
        raise ArgumentTypeError(f"a function of arrays is traced, not a {type(function).__name__}")
    if isinstance(function, MethodType):
        return function.__func__, (function.__self__,)
    called = inspect.getattr_static(type(function), "__call__", None)
    is_callable = is_object(function) and isinstance(called, FunctionType)
    return (called, (function,)) if is_callable else (function, ())


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


__all__ = ["ArraySpec", "Jitted", "Traced", "cond", "jit", "spec", "trace", "while_loop"]
