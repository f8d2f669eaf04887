"""A Python function, recorded as a Graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.dtypes import from_numpy
from fuser.errors import TraceError
from fuser.frontends.numpy.trace import (  # noqa: F401  while a function is recorded
    conversions,
    kernels,
)
from fuser.frontends.numpy.trace.array import TracedArray
from fuser.frontends.numpy.trace.context import Check, Trace, Traced, current, lift, tracing
from fuser.frontends.numpy.trace.lines import user_errors
from fuser.frontends.numpy.trace.randomness import no_randomness
from fuser.frontends.numpy.trace.replaced import replaced
from fuser.frontends.numpy.trace.stages import Loop
from fuser.frontends.numpy.trace.tree import Tree, flatten, unflatten
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Graph, TensorType, Value


@dataclass(frozen=True)
class ArraySpec:
    """The dtype and shape of an argument. weak: a Python number, and its type."""

    shape: tuple[int, ...]
    dtype: np.dtype
    weak: type | None = None

    def __str__(self) -> str:
        return str(TensorType(from_numpy(self.dtype), self.shape))


@dataclass(frozen=True)
class Results:
    """What a run makes of a graph's outputs. outputs: the nest that they are put into, but for the
    last ones, which say whether the checks hold."""

    outputs: Tree
    checks: tuple[Check, ...] = ()

    def assemble(self, arrays: Sequence[Any]) -> Any:
        """The result of the function. Raises FeedError where a check fails."""
        count = len(arrays) - len(self.checks)
        for check, holds in zip(self.checks, arrays[count:], strict=True):
            if not holds:
                raise check.error(check.message, where=check.where)
        return unflatten(self.outputs, arrays[:count])


@dataclass(frozen=True)
class Recording:
    """A traced function: its graph as recorded, before the passes. loops: in order; their results
    are inputs of the graph."""

    graph: Graph
    results: Results
    loops: tuple[Loop, ...] = ()


def record(
    function: Callable[..., Any],
    leaves: Mapping[str, ArraySpec],
    call: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]],
    name: str,
) -> Recording:
    """Call `function` on traced arrays, one for each named leaf; `call` makes its arguments of
    them. Raises TraceError where the function does what cannot be recorded, and what it raises."""
    trace = Trace(name, TracedArray)
    with tracing(trace):
        arrays = []
        for label, spec in leaves.items():
            type = TensorType(from_numpy(spec.dtype, f"argument {label!r}"), spec.shape)
            array = TracedArray(trace, trace.graph.add_input(label, type), spec.weak)
            array.argument = label
            arrays.append(array)
        args, kwargs = call(arrays)
        with user_errors(function), replaced(), no_randomness(function, name):
            results, outputs = flatten(function(*args, **kwargs))
            if not results:
                raise TraceError(f"{name} returns no array")
            values = [_result(result) for result in results]
        checks = tuple(trace.checks)
        trace.graph.outputs = values + [check.holds for check in checks]
    count = len(results)
    trace.graph.output_names = [f"output{i}" if count > 1 else "output" for i in range(count)]
    trace.graph.output_names += [f"check{i}" for i in range(len(checks))]
    return Recording(trace.graph, Results(outputs, checks), tuple(trace.loops))


def _result(x: Any) -> Value:
    """A leaf of what the function returns. Raises TraceError for what is no array or number."""
    numbers = bool | int | float | np.generic | DimExpr
    if not isinstance(x, Traced | np.ndarray | numbers) and not hasattr(x, "__array__"):
        raise TraceError(
            f"the function returns a {type(x).__name__}: {x!r}",
            hint="results are arrays, numbers and nests of those",
        )
    return lift(x)


def cond(
    predicate: Any, true_function: Callable[..., Any], false_function: Callable[..., Any],
    *operands: Any,
) -> Any:  # fmt: skip
    """true_function(*operands) if predicate else false_function(*operands), for a traced predicate
    with one element. Both are computed, and one result is chosen. Raises TraceError if the results
    differ in structure, dtype or shape."""
    if not isinstance(predicate, TracedArray):
        return true_function(*operands) if predicate else false_function(*operands)
    if predicate.size != 1:
        raise TraceError(f"the predicate is {predicate!r}, not one element")
    taken = lift(predicate.reshape(()), np.dtype(np.bool_))
    first, tree = _branch(taken, true_function, operands)
    not_taken = current().builder.map("logical_not", taken)
    second, other = _branch(not_taken, false_function, operands)
    if tree != other:
        raise TraceError("the branches return different nests of arrays")
    chosen = []
    for a, b in zip(first, second, strict=True):
        x, y = lift(a), lift(b)
        if x.type != y.type:
            raise TraceError(f"the branches return {x.type} and {y.type}")
        chosen.append(np.where(predicate.reshape(()), a, b))
    return unflatten(tree, chosen)


def _branch(
    taken: Value, function: Callable[..., Any], operands: Sequence[Any]
) -> tuple[list[Any], Tree]:
    """The leaves and the nest of what a branch returns; `taken` says whether it is."""
    assumed = current().assumed
    assumed.append(taken)
    try:
        return flatten(function(*operands))
    finally:
        assumed.pop()
