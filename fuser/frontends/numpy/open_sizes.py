"""Traced functions with open sizes: what `fuser.jit(dynamic=...)` keeps for one nest of arguments.

The function is recorded with symbolic dims in place of the sizes that are named, once for each
range of sizes (pipeline/variants.py): Python code sees dims that answer comparisons, whose answers
bound the range. Names stand for sizes: a name that comes twice is one size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fuser.dtypes import from_numpy
from fuser.errors import FeedError, TraceError, UsageError
from fuser.frontends.numpy.trace import ArraySpec, Results, record
from fuser.graph.dims import symbol
from fuser.graph.ir import Graph, TensorType
from fuser.graph.numerics import current, using
from fuser.graph.passes import run_passes
from fuser.pipeline.options import CompileOptions
from fuser.pipeline.variants import Source, Variant, Variants
from fuser.runtime.plan import Plan

OpenAxes = Mapping[str, Sequence[str | None]]
"""By argument (or by name of an array in its nest): a name for each axis whose size is open."""

Call = Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def axes_of(name: str, spec: ArraySpec, dynamic: OpenAxes) -> tuple[str | None, ...]:
    """The names of an array's axes. Raises UsageError for another number of them."""
    found = dynamic.get(name, dynamic.get(name.partition(".")[0]))
    rank = len(spec.shape)
    if found is None or (not rank and name not in dynamic):
        return (None,) * rank
    if len(found) != rank:
        raise UsageError(
            f"dynamic names {len(found)} axes of {name!r}, which is {spec}",
            hint="one name an axis, None for a size that is fixed",
        )
    return tuple(found)


def closed(name: str, spec: ArraySpec, dynamic: OpenAxes) -> ArraySpec:
    """A spec without the sizes that are open: what plans are kept by."""
    names = axes_of(name, spec, dynamic)
    shape = tuple(-1 if n else size for n, size in zip(names, spec.shape, strict=True))
    return replace(spec, shape=shape)


class OpenTraced:
    """A function for arguments whose named sizes are open. Not safe from many threads by itself."""

    def __init__(
        self, function: Callable[..., Any], specs: Mapping[str, ArraySpec], call: Call, name: str,
        dynamic: OpenAxes, options: CompileOptions,
    ) -> None:  # fmt: skip
        numerics = current()
        self._names = {n: axes_of(n, spec, dynamic) for n, spec in specs.items()}
        symbols: dict[str, bool] = {}
        for axes in self._names.values():
            for axis, label in enumerate(axes):
                if label is not None:
                    symbols.setdefault(label, axis == 0)

        def read(fixed: Mapping[str, int]) -> tuple[Graph, Results]:
            def size(given: int, label: str | None) -> Any:
                return given if label is None else fixed.get(label, symbol(label))

            opened = {
                n: replace(spec, shape=tuple(map(size, spec.shape, self._names[n])))
                for n, spec in specs.items()
            }
            with using(numerics):
                recording = record(function, opened, call, name)
            if recording.loops:
                raise TraceError(
                    f"{name} has loops, whose sizes cannot be open",
                    hint="leave dynamic out: each combination of shapes is compiled for",
                )
            return run_passes(recording.graph), recording.results

        self._variants = Variants(Source(name, symbols, read), options)

    @property
    def variants(self) -> Sequence[Variant]:
        return self._variants.variants

    def find(self, specs: Mapping[str, ArraySpec]) -> tuple[Plan, Results]:
        """The plan for arguments of these shapes, and what is made of its outputs. Raises FeedError
        where a name would have two sizes, and what compiling raises."""
        sizes: dict[str, int] = {}
        for name, spec in specs.items():
            for label, size in zip(self._names[name], spec.shape, strict=True):
                if label is not None and sizes.setdefault(label, size) != size:
                    kind = TensorType(from_numpy(spec.dtype), spec.shape)
                    raise FeedError(f"{label} is {sizes[label]}, but argument {name!r} is {kind}")
        variant = self._variants.variant(sizes)
        return variant.plan(sizes), variant.extra
