"""Run a Graph in NumPy: the definition of what it means, and in float64 the oracle for the rest."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import FeedError
from fuser.graph.dims import DimExpr, as_int, substitute, symbols_of
from fuser.graph.ir import Graph, Node, TensorType, Value
from fuser.graph.ops.primitive import Array
from fuser.graph.ops.registry import primitive


def evaluate(graph: Graph, feeds: Mapping[str, Array], float64: bool = False) -> dict[str, Array]:
    """The outputs of graph by name.

    feeds: one array per graph input, of its dtype and shape. Symbolic dims take their values from
    the feeds. float64: every float tensor, constants included, is computed in float64 (and float
    outputs are float64), but what floats decide (see `_decides`) is decided in the dtypes of the
    graph: more digits would decide otherwise, and that is no error of who computes with fewer.
    Values are dropped after their last use.
    Raises FeedError for a missing, unknown or wrong feed.
    """
    symbols = bind_feeds(graph, feeds)
    twice = _behind_decisions(graph) if float64 else frozenset()
    remaining: dict[Value, int] = {}
    for value in (*graph.outputs, *(v for node in graph.nodes for v in node.inputs)):
        remaining[value] = remaining.get(value, 0) + 1
    arrays: dict[Value, Array] = {
        value: _widen(np.asarray(feeds[value.name]), float64) for value in graph.inputs
    }
    narrow = {value: np.asarray(feeds[value.name]) for value in graph.inputs if value in twice}
    for node in graph.nodes:
        results = _apply(node, arrays, symbols, float64)
        if node.outputs[0] in twice or (float64 and _decides(node)):
            own = _apply(node, ChainMap(narrow, arrays), symbols, float64=False)
            results = tuple(
                _widen(mine, True) if _decided(node, value) else wide
                for value, mine, wide in zip(node.outputs, own, results, strict=True)
            )
            narrow.update(zip(node.outputs, own, strict=True))
        for value, array in zip(node.outputs, results, strict=True):
            if value in remaining:
                arrays[value] = array
        for value in node.inputs:
            remaining[value] -= 1
            if not remaining[value]:
                arrays.pop(value, None)
                narrow.pop(value, None)
    return {
        name: arrays[value] for name, value in zip(graph.output_names, graph.outputs, strict=True)
    }


def _apply(
    node: Node, arrays: Mapping[Value, Array], symbols: Mapping[str, int], float64: bool
) -> tuple[Array, ...]:
    attrs = {key: _bound(item, symbols, float64) for key, item in node.attrs.items()}
    return primitive(node.op).evaluate([arrays[value] for value in node.inputs], attrs)


_STEPS = frozenset(("floor", "ceil", "round", "sign", "mod", "fmod"))
"""Primitives of floats whose results jump."""


def _decides(node: Node) -> bool:
    """Whether floats decide a result: integers or booleans made of floats, or a step."""
    return any(_decided(node, value) for value in node.outputs)


def _decided(node: Node, result: Value) -> bool:
    narrow = any(value.dtype.is_float and value.dtype is not dtypes.f64 for value in node.inputs)
    return narrow and (node.op in _STEPS or not result.dtype.is_float)


def _behind_decisions(graph: Graph) -> frozenset[Value]:
    """The floats that decisions are made of, over all steps in between."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        if _decides(node) or not found.isdisjoint(node.outputs):
            found.update(value for value in node.inputs if value.dtype.is_float)
    return frozenset(found)


def bind_feeds(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, int]:
    """Check feeds against the graph inputs; the values of the symbolic dims. Raises FeedError."""
    known = {value.name for value in graph.inputs}
    if unknown := sorted(set(feeds) - known):
        raise FeedError(
            f"there is no input {', '.join(unknown)}", hint=f"inputs: {', '.join(sorted(known))}"
        )
    symbols: dict[str, int] = {}
    for value in graph.inputs:
        if value.name not in feeds:
            raise FeedError(f"the input {value.name} is missing", hint=f"it is {value.type}")
        bind_shape(value.type, np.shape(feeds[value.name]), symbols)
    for value in graph.inputs:
        array = np.asarray(feeds[value.name])
        wanted = tuple(substitute(dim, symbols) for dim in value.type.shape)
        if array.dtype != value.dtype.numpy or array.shape != wanted:
            raise FeedError(
                f"the input {value.name} is {array.dtype}{list(array.shape)}, not {value.type}"
            )
    return symbols


def bind_shape(type: TensorType, shape: tuple[int, ...], symbols: dict[str, int]) -> None:
    """Read symbols off the dims that are linear in one symbol: `n`, `4*n + 1`."""
    for dim, size in zip(type.shape, shape, strict=False):
        names = symbols_of(dim)
        if len(names) != 1 or not isinstance(dim, DimExpr):
            continue
        (name,) = names
        offset = as_int(substitute(dim, {name: 0}))
        slope = as_int(substitute(dim, {name: 1})) - offset
        candidate = (size - offset) // slope if slope else 0
        if candidate >= 0 and substitute(dim, {name: candidate}) == size:
            symbols.setdefault(name, candidate)


def _widen(array: Array, float64: bool) -> Array:
    if float64 and dtypes.from_numpy(array.dtype).is_float:
        return array.astype(np.float64)
    return array


def _bound(item: Any, symbols: Mapping[str, int], float64: bool) -> Any:
    """An attribute with symbols replaced and, on request, floats widened."""
    if isinstance(item, DimExpr):
        return substitute(item, symbols)
    if isinstance(item, tuple | list):
        return tuple(_bound(part, symbols, float64) for part in item)
    if isinstance(item, np.ndarray):
        return _widen(item, float64)
    if float64 and isinstance(item, DType) and item.is_float:
        return dtypes.f64
    return item
