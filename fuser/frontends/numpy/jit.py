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
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import update_wrapper
from typing import Any

import numpy as np

from fuser.errors import FeedError, NumberRangeError, UsageError, names_keywords
from fuser.forks import cached_property, new_lock
from fuser.frontends.numpy.loops import Looped
from fuser.frontends.numpy.open_sizes import OpenAxes, OpenTraced, closed
from fuser.frontends.numpy.trace import ArraySpec, TracedArray, cond, record, while_loop
from fuser.frontends.numpy.trace import tree as trees
from fuser.graph.ir import Graph
from fuser.graph.passes import run_passes
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.devices import Device, check_device
from fuser.pipeline.dynamic import explain_variants
from fuser.pipeline.precision import Precision
from fuser.runtime.feeds import host_array
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import PlanReport

MOST_OPEN = 8
"""Combinations of dtypes and fixed sizes that a function of open sizes keeps kernels for."""
MOST_PLANS = 64
"""Plans that a jitted function keeps; the one unused for longest goes first."""


def spec(shape: int | Sequence[int], dtype: Any = "float32") -> ArraySpec:
    """An argument of `fuser.trace`: its shape and dtype."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    return ArraySpec(sizes, np.dtype(dtype))


class _Bound:
    """The arguments of a call, taken apart: arrays by name, and what stays as it is."""

    def __init__(
        self, signature: inspect.Signature, static: frozenset[str],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        try:
            self.bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"the arguments do not fit {signature}: {error}") from None
        self.static = {k: v for k, v in self.bound.arguments.items() if k in static}
        dynamic = {k: v for k, v in self.bound.arguments.items() if k not in static}
        self.leaves, self.tree = trees.flatten(dynamic)
        self.names = [
            label
            for key, child in zip(self.tree.keys, self.tree.children, strict=True)
            for label in trees.names(child, str(key))
        ]

    def specs(self) -> dict[str, ArraySpec]:
        return {
            name: _spec_of(name, leaf) for name, leaf in zip(self.names, self.leaves, strict=True)
        }

    def key(self, specs: Mapping[str, ArraySpec] | None = None) -> Hashable:
        """What plans are kept by. specs: instead of those of the arguments."""
        try:
            fixed = tuple(self.static.items())
            hash(fixed)
        except TypeError as error:
            raise UsageError(f"static arguments must be hashable: {error}") from None
        return self.tree, tuple((specs or self.specs()).values()), fixed

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """args and kwargs of the function, with other leaves in place of the arrays."""
        dynamic = trees.unflatten(self.tree, leaves)
        order = list(self.bound.arguments)
        self.bound.arguments = {
            k: self.static[k] if k in self.static else dynamic[k] for k in order
        }
        return self.bound.args, self.bound.kwargs


def _spec_of(name: str, leaf: Any) -> ArraySpec:
    if isinstance(leaf, ArraySpec):
        return leaf
    if type(leaf) is int and not -(2**63) <= leaf < 2**63:
        raise NumberRangeError(
            f"argument {name!r} is {leaf}, which int64 does not hold", hint="pass a float"
        )
    if type(leaf) in (bool, int, float):
        return ArraySpec((), np.asarray(leaf).dtype, type(leaf))
    if isinstance(leaf, np.ndarray):
        return ArraySpec(leaf.shape, leaf.dtype.newbyteorder("="))
    if hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__"):
        array = host_array(leaf)
        return ArraySpec(array.shape, array.dtype.newbyteorder("="))
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return ArraySpec(tuple(leaf.shape), np.dtype(leaf.dtype))
    raise FeedError(
        f"argument {name!r} is a {type(leaf).__name__}, not an array or a number",
        hint=f"if it is an option, make it static: static_argnames=({name!r},)",
    )


class Traced:
    """A function recorded for arguments of given shapes; called with such arguments, it runs the
    plan, which is compiled on first use."""

    def __init__(
        self, function: Callable[..., Any], bound: _Bound, name: str, device: Device,
        threads: int | None, fusion: bool, precision: Precision = "model",
    ) -> None:  # fmt: skip
        self._started = time.perf_counter()
        check_device(device, threads)
        self._bound_tree, self._static = bound.tree, bound.static
        self._options: dict[str, Any] = {
            "device": device, "threads": threads, "fusion": fusion, "precision": precision,
        }  # fmt: skip
        self._names = bound.names
        self._lock = new_lock()
        recording = record(function, bound.specs(), bound.arguments, name)
        self._signature = inspect.signature(function)
        self._recording = recording
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
        return compile_graph(graph, name=graph.name, started=self._started, **self._options)

    def report(self) -> PlanReport:
        """Raises UsageError for a function with loops."""
        return self.plan.report()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, arrays as NumPy arrays. Raises FeedError."""
        static = frozenset(self._static)
        bound = _Bound(self._signature, static, args, {**kwargs})
        if bound.tree != self._bound_tree:
            raise FeedError("the arguments nest otherwise than those it was traced for")
        return self.run(bound.leaves)

    def run(self, leaves: Sequence[Any]) -> Any:
        """The result for the arrays of the arguments, in order."""
        feeds = dict(zip(self._names, leaves, strict=True))
        recording = self._recording
        if recording.loops:
            return recording.results.assemble(self._looped.run(feeds))
        return recording.results.assemble(list(self.plan.run(feeds).values()))


@names_keywords
def trace(
    function: Callable[..., Any], *specs: Any, device: Device = "auto",
    threads: int | None = None, fusion: bool = True, static: dict[str, Any] | None = None,
    precision: Precision = "model",
) -> Traced:  # fmt: skip
    """Record `function` for arguments of the given specs: `fuser.spec`, arrays to take the shape
    of, Python numbers, and nested tuples, lists and dicts of those.

    static: arguments by name that are no arrays; they are fixed.
    device, threads, fusion, precision: as for `fuser.compile`.
    Raises TraceError where the function cannot be recorded.
    """
    fixed = static or {}
    bound = _Bound(inspect.signature(function), frozenset(fixed), specs, dict(fixed))
    return Traced(function, bound, _name(function), device, threads, fusion, precision)


class Jitted:
    """A function that is traced and compiled for each combination of shapes, dtypes and static
    arguments it is called with. Safe to use from many threads."""

    def __init__(
        self, function: Callable[..., Any], static_argnames: Sequence[str], device: Device,
        threads: int | None, fusion: bool, precision: Precision = "model",
        dynamic: OpenAxes | None = None,
    ) -> None:  # fmt: skip
        check_device(device, threads)
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
        self._options: tuple[Device, int | None, bool, Precision]
        self._options = (device, threads, fusion, precision)
        self._cache: OrderedDict[Hashable, Traced] = OrderedDict()
        self._lock = new_lock()
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = _Bound(self._signature, self._static, args, kwargs)
        if any(isinstance(leaf, TracedArray) for leaf in bound.leaves):
            return self.function(*args, **kwargs)  # within another trace: part of it
        if self._dynamic:
            return self._run_open(bound)
        return self._find(bound).run(bound.leaves)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """What serves such arguments: its graph, plan and report. With dynamic, a UsageError."""
        if self._dynamic:
            raise UsageError(
                "a function of open sizes has no one graph", hint="explain() shows its ranges"
            )
        return self._find(_Bound(self._signature, self._static, args, kwargs))

    @property
    def traces(self) -> tuple[Traced, ...]:
        """Every trace made so far, the latest used last."""
        return tuple(self._cache.values())

    def explain(self) -> str:
        """With dynamic: a table of the ranges of sizes that kernels serve."""
        return explain_variants([v for found in self._open.values() for v in found.variants])

    def _run_open(self, bound: _Bound) -> Any:
        specs, leaves, dynamic = bound.specs(), bound.leaves, self._dynamic
        fixed = {name: closed(name, spec, dynamic) for name, spec in specs.items()}
        key = bound.key(fixed)
        with self._lock:
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = OpenTraced(
                    self.function, specs, bound.arguments, _name(self.function), dynamic,
                    dict(zip(("device", "threads", "fusion", "precision"), self._options,
                             strict=True)),
                )  # fmt: skip
                bound.leaves = []
                if len(self._open) > MOST_OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            plan, results = found.find(specs)
        feeds = dict(zip(bound.names, leaves, strict=True))
        return results.assemble(list(plan.run(feeds).values()))

    def _find(self, bound: _Bound) -> Traced:
        key = bound.key()
        with self._lock:
            found = self._cache.get(key)
            if found is None:
                found = Traced(self.function, bound, _name(self.function), *self._options)
                self._cache[key] = found
                if len(self._cache) > MOST_PLANS:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(key)
            return found


@names_keywords
def jit(
    function: Callable[..., Any] | None = None, *, static_argnames: str | Sequence[str] = (),
    device: Device = "auto", threads: int | None = None, fusion: bool = True,
    precision: Precision = "model", dynamic: OpenAxes | None = None,
) -> Any:  # fmt: skip
    """Compile a function on its first call with arguments of given shapes and dtypes.

    static_argnames: parameters that are no arrays (options, sizes); each value is compiled for.
    dynamic: by parameter, names for the axes whose sizes are open: {"x": ("batch", None)}. Kernels
    then serve ranges of these sizes; a name that comes twice is one size. Without it each
    combination of shapes is compiled for.
    Works as a decorator with and without arguments. Arrays that the function closes over are
    constants: do not change them afterwards. Raises TraceError where it cannot be recorded.
    """
    named = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if function is None:
        return lambda f: Jitted(f, named, device, threads, fusion, precision, dynamic)
    return Jitted(function, named, device, threads, fusion, precision, dynamic)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


__all__ = ["ArraySpec", "Jitted", "Traced", "cond", "jit", "spec", "trace", "while_loop"]
