"""Seeded random inputs that make sense: indices within their table, masks of zeros and ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fuser.dtypes import DType
from fuser.runtime.program import TensorSpec

if TYPE_CHECKING:  # a saved plan has no graph
    from fuser.graph.ir import Graph, Node, TensorType, Value

Hints = Mapping[str, tuple[int, int]]
"""Input name -> (low, high), both inclusive."""

MASK = (0, 1)

_UNCHANGED = frozenset(
    ("reshape", "transpose", "broadcast", "slice", "concat", "pad", "cast", "min", "max")
)
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def random_feeds(
    specs: Sequence[TensorSpec] | Mapping[str, TensorType],
    hints: Hints | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """One array an input: floats from a standard normal, integers and bools within their hint
    (without one: 0 or 1).

    The first element along the last axis of a mask is 1, so that no row is wholly masked out.
    """
    rng = np.random.default_rng(seed)
    known = hints or {}
    return {name: _draw(dtype, shape, known.get(name), rng) for name, dtype, shape in _ends(specs)}


def _ends(
    specs: Sequence[TensorSpec] | Mapping[str, TensorType],
) -> Iterator[tuple[str, DType, tuple[int, ...]]]:
    if isinstance(specs, Mapping):
        for name, type in specs.items():
            yield name, type.dtype, type.static_shape
    else:
        for spec in specs:
            yield spec.name, spec.dtype, spec.shape


def _draw(
    dtype: DType,
    shape: tuple[int, ...],
    hint: tuple[int, int] | None,
    rng: np.random.Generator,
) -> np.ndarray:
    if dtype.is_float and hint is None:
        wide = np.float64 if dtype.bits == 64 else np.float32
        return rng.standard_normal(shape, wide).astype(dtype.numpy)
    low, high = hint or MASK
    if dtype.is_integer:
        low, high = max(low, int(dtype.lowest)), min(high, int(dtype.highest))
    array = rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype.numpy)
    if (low, high) == MASK and array.ndim:
        array[..., :1] = 1
    return array


def input_hints(graph: Graph) -> dict[str, tuple[int, int]]:
    """What range each input's values must stay in, found by following its uses.

    An index of a gather or scatter stays within the table, what is compared with an iota within
    its extent, a mask (the condition of a select, a float made 0 or 1) is 0 or 1. Integer
    arithmetic with constants on the way is inverted.
    """
    uses = graph.uses()
    hints = {}
    for value in graph.inputs:
        highs = [high for high in _highs(value, uses) if high >= 0]
        if value.dtype.kind == "bool" or (highs and min(highs) <= 1 and not value.dtype.is_float):
            hints[value.name] = (0, 0) if highs and min(highs) == 0 else MASK
        elif highs and not value.dtype.is_float:
            hints[value.name] = (0, min(highs))
    return hints


def _highs(source: Value, uses: Mapping[Value, list[Node]]) -> Iterator[int]:
    """The greatest value each use of an input allows; `scale * source + offset` is followed."""
    pending = [(source, 1, 0)]
    seen: set[tuple[Value, int, int]] = set()
    while pending:
        value, scale, offset = state = pending.pop()
        if state in seen or len(seen) > 10_000:
            continue
        seen.add(state)
        for node in uses.get(value, ()):
            extent = _extent(node, value)
            if extent is not None:
                yield (extent - 1 - offset) // scale
            if node.op == "select" and value is node.inputs[0] and value.dtype.kind == "bool":
                yield 1
            following = _follow(node, value, scale, offset)
            if following is not None and node.output.dtype.kind != "float":
                pending.append((node.output, *following))


def _extent(node: Node, value: Value) -> int | None:
    """The exclusive bound that a node sets on `value`, if it does."""
    if node.op in ("gather", "scatter") and value is node.inputs[1]:
        return _size(node.inputs[0], node.attrs["axis"])
    if node.op in _COMPARISONS:
        other = node.inputs[1] if value is node.inputs[0] else node.inputs[0]
        high = _greatest(other)
        return high + 1 if high is not None and _has_iota(other) else None
    if node.op == "select" and value in node.inputs[2:]:
        # x < 0 ? x + size : x, an index that may count from the end
        wrapped = _strip(node.inputs[1])
        if wrapped.node and wrapped.node.op == "add":
            a, b = map(_strip, wrapped.node.inputs)
            size = _greatest(b) if a is _strip(value) else _greatest(a)
            return size if _strip(value) in (a, b) else None
    if node.op == "cast" and node.output.dtype.kind in ("bool", "float"):
        return 2
    return None


def _size(value: Value, axis: int) -> int | None:
    dim = value.type.shape[axis]
    return dim if isinstance(dim, int) else None


def _follow(node: Node, value: Value, scale: int, offset: int) -> tuple[int, int] | None:
    """(scale, offset) of the node's result in terms of the input, None where the trail ends."""
    if node.op in _UNCHANGED or (node.op == "gather" and value is node.inputs[0]):
        return scale, offset
    if node.op == "select":
        return (scale, offset) if value is not node.inputs[0] else None
    if node.op in ("add", "mul", "sub") and value.dtype.is_integer and len(set(node.inputs)) == 2:
        position = node.inputs.index(value)
        other = _greatest(node.inputs[1 - position])
        if node.op == "add":
            return scale, offset + (other or 0)
        if node.op == "mul" and other is not None and other > 0:
            return scale * other, offset * other
        if node.op == "sub" and position == 0 and other is not None:
            return scale, offset - other
    return None


def _greatest(value: Value) -> int | None:
    """The greatest element of an integer that no input decides, if that is plain to see."""
    array = value.constant
    if array is not None:
        return int(array.max()) if array.size and array.dtype.kind in "iub" else None
    node = value.node
    if node is None or not value.dtype.is_integer:
        return None
    if node.op == "iota":
        return _size(value, node.attrs["axis"]) and value.type.static_shape[node.attrs["axis"]] - 1
    parts = [_greatest(operand) for operand in node.inputs]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    if node.op in ("reshape", "transpose", "broadcast", "slice", "cast"):
        return known[0]
    if node.op in ("add", "mul"):
        return sum(known) if node.op == "add" else math.prod(known)
    return None


def _has_iota(value: Value) -> bool:
    node = value.node
    if node is None:
        return False
    if value.constant is not None:
        return bool(value.constant.size > 2 and np.unique(value.constant).size > 2)
    return node.op == "iota" or any(_has_iota(operand) for operand in node.inputs)


def _strip(value: Value) -> Value:
    """The value before movement and casts."""
    while value.node is not None and value.node.op in ("reshape", "broadcast", "cast", "transpose"):
        value = value.node.inputs[0]
    return value
