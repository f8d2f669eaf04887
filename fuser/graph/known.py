"""The elements of small tensors as dims: how shape arithmetic is followed.

A tensor made of `dims`, constants and iotas through movement and integer arithmetic has elements
that are ints or `DimExpr`s, whatever the feeds. They are computed on demand from the graph, so that
shape arithmetic needs no second implementation per ONNX operator: nodes that only served it are
dead afterwards. With all dims bound everything is an int, and the NumPy definitions apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuser.graph.dims import Dim, DimExpr, floordiv, is_decided, maximum, minimum, modulo
from fuser.graph.ir import Attrs, Node, Value
from fuser.graph.ops.primitive import Array
from fuser.graph.ops.registry import primitive

LIMIT = 4096
"""Tensors with more elements are data, not shape arithmetic."""


class _Undecided(Exception):
    """A comparison or conversion depends on the value of a symbol."""


class KnownValues:
    """A memo of the elements of values."""

    def __init__(self) -> None:
        self._memo: dict[Value, Array | None] = {}

    def get(self, value: Value) -> Array | None:
        """The elements (object dtype if one is symbolic), or None where data decides."""
        if value not in self._memo:
            self._memo[value] = self._compute(value)
        return self._memo[value]

    def _compute(self, value: Value) -> Array | None:
        node = value.node
        size = 1
        for dim in value.type.shape:
            if isinstance(dim, DimExpr):
                return None
            size *= dim
        if node is None or size > LIMIT:
            return None
        if node.op == "constant":
            array: Array = node.attrs["value"]
            return array
        operands = []
        for operand in node.inputs:
            known = self.get(operand)
            if known is None:
                return None
            operands.append(known)
        if node.op == "dims" or any(array.dtype == object for array in operands):
            return _symbolic(node, operands, value)
        return primitive(node.op).evaluate(operands, node.attrs)[value.index]


def _symbolic(node: Node, operands: Sequence[Array], value: Value) -> Array | None:
    """Evaluate a primitive on arrays of dims."""
    try:
        if node.op == "dims":
            result = np.empty(len(node.attrs["values"]), object)
            result[:] = node.attrs["values"]
            result = result.reshape(node.attrs["shape"])
        elif node.op in _MOVEMENT and not (node.op == "gather" and operands[1].dtype == object):
            (result,) = primitive(node.op).evaluate(operands, node.attrs)
        elif node.op in _RULES:
            result = np.asarray(_RULES[node.op](operands, node.attrs), object)
        else:
            return None
    except _Undecided:
        return None
    # NumPy hands a rank-0 object array back as its element.
    result = np.asarray(result, None if isinstance(result, np.ndarray) else object)
    if any(isinstance(element, DimExpr) for element in result.reshape(-1)):
        return result.astype(object)
    return result.astype(value.dtype.numpy)


_MOVEMENT = {"reshape", "transpose", "broadcast", "slice", "concat", "gather"}


def _sign(a: Dim, b: Dim) -> tuple[bool, bool]:
    """Whether a - b is surely >= 0, and surely > 0."""
    at_least = maximum(a, b) == a
    above = at_least and maximum(a, b + 1) == a
    return at_least, above


def _less(a: Dim, b: Dim) -> bool:
    if is_decided(a, b):
        return a < b
    if _sign(b, a)[1]:
        return True
    if _sign(a, b)[0]:
        return False
    raise _Undecided


def _equal(a: Dim, b: Dim) -> bool:
    if a == b:
        return True
    if is_decided(a, b):
        return False
    if _sign(a, b)[1] or _sign(b, a)[1]:
        return False
    raise _Undecided


def _truncated(a: Dim, b: Dim) -> Dim:
    """a / b, rounded towards zero. Sizes are not negative, but their differences may be."""
    if is_decided(a, b) and (a < 0) != (b < 0):
        return -floordiv(-a, b) if a < 0 else -floordiv(a, -b)
    return floordiv(a, b)


def _elementwise(function: Callable[..., Any]) -> Callable[[Sequence[Array], Attrs], Array]:
    ufunc = np.frompyfunc(function, function.__code__.co_argcount, 1)

    def apply(operands: Sequence[Array], attrs: Attrs) -> Array:
        # tolist: plain Python ints, not NumPy ones, meet the dims.
        plain = [np.asarray(_plain(array), object) for array in operands]
        return np.asarray(ufunc(*plain), object)

    return apply


def _plain(array: Array) -> Array:
    result = np.empty(array.shape, object)
    for index, element in np.ndenumerate(array):
        result[index] = element.item() if isinstance(element, np.generic) else element
    return result


def _reduce(function: Callable[[Dim, Dim], Dim]) -> Callable[[Sequence[Array], Attrs], Array]:
    ufunc = np.frompyfunc(function, 2, 1)

    def apply(operands: Sequence[Array], attrs: Attrs) -> Array:
        result = _plain(operands[0])
        for axis in sorted(attrs["axes"], reverse=True):
            result = np.asarray(ufunc.reduce(result, axis=axis), object)
        return result

    return apply


def _cast(operands: Sequence[Array], attrs: Attrs) -> Array:
    dtype = attrs["dtype"]
    if dtype.is_float:
        raise _Undecided
    if dtype.kind == "bool":
        return _RULES["ne"]((operands[0], np.asarray(0)), attrs)
    return operands[0]


def _select(operands: Sequence[Array], attrs: Attrs) -> Array:
    condition, a, b = operands
    if condition.dtype == object:
        raise _Undecided
    return np.where(condition, _plain(a), _plain(b))


_RULES: dict[str, Callable[[Sequence[Array], Attrs], Array]] = {
    "neg": _elementwise(lambda a: -a),
    "add": _elementwise(lambda a, b: a + b),
    "sub": _elementwise(lambda a, b: a - b),
    "mul": _elementwise(lambda a, b: a * b),
    "div": _elementwise(lambda a, b: _truncated(a, b)),
    "mod": _elementwise(lambda a, b: modulo(a, b)),
    "min": _elementwise(lambda a, b: minimum(a, b)),
    "max": _elementwise(lambda a, b: maximum(a, b)),
    "eq": _elementwise(lambda a, b: _equal(a, b)),
    "ne": _elementwise(lambda a, b: not _equal(a, b)),
    "lt": _elementwise(lambda a, b: _less(a, b)),
    "gt": _elementwise(lambda a, b: _less(b, a)),
    "le": _elementwise(lambda a, b: not _less(b, a)),
    "ge": _elementwise(lambda a, b: not _less(a, b)),
    "reduce_sum": _reduce(lambda a, b: a + b),
    "reduce_prod": _reduce(lambda a, b: a * b),
    "reduce_max": _reduce(maximum),
    "reduce_min": _reduce(minimum),
    "cast": _cast,
    "select": _select,
}
