"""Bounds of primitives that join or reorder elements: reductions, products, windows, indexing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.ir import Attrs
from fuser.graph.ops.registry import primitive
from tests.random_graphs.bounds import (
    ALWAYS,
    MAYBE,
    NEVER,
    TINIEST,
    UNIT,
    Array,
    Bound,
    anything,
    possible,
    rounded,
    sizes_of,
    stored,
)

Rule = Callable[[str, Sequence[Bound], Attrs], tuple[Bound, ...]]


def _summed(
    dtype: DType, low: Array, high: Array, size: Array, nan: Array, terms: int, roundings: int = 0
) -> Bound:
    """A sum of `terms` terms whose magnitudes add up to `size`. roundings: how many halves of a
    unit in the last place it may be off; for ordinary sums one a term, and some to spare."""
    compute = dtype.compute.name
    error = (roundings or terms + 4) * (UNIT[compute] * size * (1 + 2.0**-20) + TINIEST[compute])
    low, high = low - error, high + error
    lost = ~np.isfinite(size)
    low, high = np.where(lost, -np.inf, low), np.where(lost, np.inf, high)
    return stored(dtype, low, high, possible(nan, lost))


def _size(x: Bound) -> Array:
    return np.maximum(np.abs(x.low), np.abs(x.high))


def _reduced_nan(nan: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.max(nan, axis=axes, initial=NEVER), np.uint8)


def _reduce(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    (x,) = operands
    axes = tuple(attrs["axes"])
    evaluate = primitive(op).evaluate
    if not x.dtype.is_float:
        (value,) = evaluate([x.low], attrs)
        return (anything(x.dtype, value, np.any(x.loose, axis=axes)),)
    nan = _reduced_nan(x.nan, axes)
    terms = sizes_of(x.shape, axes)
    if op in ("reduce_max", "reduce_min"):
        (low,), (high,) = evaluate([x.low], attrs), evaluate([x.high], attrs)
        return (stored(x.dtype, low, high, nan),)
    if op == "reduce_sum":
        low, high, size = (np.sum(side, axis=axes) for side in (x.low, x.high, _size(x)))
        return (_summed(x.dtype, low, high, size, nan, terms),)
    return (_product(x, axes, nan, terms),)


def _product(x: Bound, axes: tuple[int, ...], nan: Array, terms: int) -> Bound:
    """The middle's product, and the relative errors of its factors added up."""
    middle, reach = (x.low + x.high) / 2, (x.high - x.low) / 2
    value = np.prod(middle, axis=axes)
    relative = np.sum(np.where(reach > 0, reach / np.abs(middle), 0.0), axis=axes)
    relative = relative + (terms + 4) * UNIT[x.dtype.compute.name]
    unsure = ~(relative < 0.25) | ~np.isfinite(value)
    # partial products must stay in range whatever the order
    least = np.prod(np.minimum(np.abs(middle), 1.0), axis=axes)
    most = np.prod(np.maximum(np.abs(middle), 1.0), axis=axes)
    unsure = unsure | (least < 1e-30) & (least > 0) | (most > 1e30)
    error = 2 * relative * np.abs(value)
    low = np.where(unsure, -np.inf, value - error)
    return stored(x.dtype, low, np.where(unsure, np.inf, value + error), possible(nan, unsure))


def _arg(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    """Sure where one element is the extreme by its whole interval, or all are exact."""
    (x,) = operands
    axis = attrs["axis"]
    (value,) = primitive(op).evaluate([x.low], attrs)
    if not x.dtype.is_float:
        return (anything(dtypes.i64, value, np.any(x.loose, axis=axis)),)
    low, high = (x.low, x.high) if op == "argmax" else (-x.high, -x.low)
    (value,) = primitive("argmax").evaluate([low], attrs)
    best = np.max(low, axis=axis, keepdims=True)
    candidates = np.sum(high >= best, axis=axis)
    points = np.all(x.low == x.high, axis=axis)
    # NaN is the extreme; the first of several counts.
    missing = x.nan == ALWAYS
    (spot,) = primitive("argmax").evaluate([missing.astype(np.int8)], attrs)
    has_nan = np.any(missing, axis=axis)
    value = np.where(has_nan, spot, value)
    unsure = (candidates > 1) & ~points & ~has_nan
    return (anything(dtypes.i64, value, unsure | np.any(x.nan == MAYBE, axis=axis)),)


def _cumsum(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    (x,) = operands
    evaluate, axis = primitive(op).evaluate, attrs["axis"]
    plain = {**attrs, "fn": "sum"}
    if not x.dtype.is_float:
        (value,) = evaluate([x.low], attrs)
        (loose,) = evaluate([x.loose.astype(np.int64)], plain)
        return (anything(x.dtype, value, loose > 0),)
    (missing,) = evaluate([(x.nan == ALWAYS).astype(np.int64)], plain)
    (perhaps,) = evaluate([(x.nan == MAYBE).astype(np.int64)], plain)
    nan = np.where(missing > 0, ALWAYS, np.where(perhaps > 0, MAYBE, NEVER)).astype(np.uint8)
    if attrs.get("fn", "sum") == "sum":
        low, high, size = (evaluate([side], plain)[0] for side in (x.low, x.high, _size(x)))
        return (_summed(x.dtype, low, high, size, nan, x.shape[axis]),)
    middle, reach = (x.low + x.high) / 2, (x.high - x.low) / 2
    (value,) = evaluate([middle], attrs)
    (relative,) = evaluate([np.where(reach > 0, reach / np.abs(middle), 0.0)], plain)
    relative = relative + (x.shape[axis] + 4) * UNIT[x.dtype.compute.name]
    (most,) = evaluate([np.maximum(np.abs(middle), 1.0)], attrs)
    (least,) = evaluate([np.minimum(np.abs(middle), 1.0)], attrs)
    unsure = ~(relative < 0.25) | ~np.isfinite(value) | (most > 1e30) | (least < 1e-30)
    error = 2 * relative * np.abs(value)
    low, high = np.where(unsure, -np.inf, value - error), np.where(unsure, np.inf, value + error)
    return (stored(x.dtype, low, high, possible(nan, unsure)),)


def _contract(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    """Middle and radius: |a b - a' b'| <= |a| rb + ra |b| + ra rb."""
    a, b = operands
    evaluate = primitive(op).evaluate

    def multiply(x: Array, y: Array) -> Array:
        return evaluate([x, y], attrs)[0]

    if not a.dtype.is_float:
        value = multiply(a.low, b.low)
        count = multiply(a.loose.astype(np.float64), np.ones(b.shape))
        count = count + multiply(np.ones(a.shape), b.loose.astype(np.float64))
        return (anything(a.dtype, value, count > 0),)
    if op == "dot_general":
        terms = sizes_of(a.shape, attrs["lhs_contract"])
    else:
        terms = sizes_of(b.shape, range(1, len(b.shape)))
    finite = [np.isfinite(x.low) & np.isfinite(x.high) & (x.nan == NEVER) for x in operands]
    pairs = list(zip(operands, finite, strict=True))
    middles = [np.where(sure, (x.low + x.high) / 2, 0.0) for x, sure in pairs]
    reaches = [np.where(sure, (x.high - x.low) / 2, 0.0) for x, sure in pairs]
    value = multiply(*middles)
    size = multiply(*(np.abs(m) + r for m, r in zip(middles, reaches, strict=True)))
    known = multiply(*map(np.abs, middles))
    reach = np.maximum(size - known, 0) + size * 2.0**-48
    lost = np.zeros(value.shape, bool)
    if not all(sure.all() for sure in finite):
        count = multiply((~finite[0]).astype(float), np.ones(b.shape))
        lost = count + multiply(np.ones(a.shape), (~finite[1]).astype(float)) > 0
    if op == "conv":  # an infinite weight times padding may count or not
        channels = np.any(~finite[1], axis=tuple(range(1, b.low.ndim)))
        lost = lost | channels.reshape(1, -1, *(1,) * (a.low.ndim - 2))
    low, high = (np.where(lost, s * np.inf, value + s * reach) for s in (-1, 1))
    nan = np.where(lost, MAYBE, NEVER).astype(np.uint8)
    size = np.where(lost, np.inf, size)
    # Tensor cores cut each term, and the sum so far, to the last place of the largest (Fasi et al.,
    # "Numerical behavior of NVIDIA tensor cores", 2021), where adding rounds: 2 a term and 2 for
    # the sum. A float32 in two parts of tf32 costs 1 an operand, the product of the small parts 1,
    # the cut of the result 2, adding it to the accumulator 1.
    cut = 2 * terms + 8 if a.dtype.compute.name == "f32" else 0
    return (_summed(a.dtype, low, high, size, nan, terms, cut),)


def _window(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    (x,) = operands
    evaluate = primitive(op).evaluate
    largest = {**attrs, "fn": "max"}
    if not x.dtype.is_float:
        (value,) = evaluate([x.low], attrs)
        (loose,) = evaluate([x.loose.astype(np.int32)], largest)
        return (anything(x.dtype, value, loose > 0),)
    (nan,) = evaluate([x.nan.astype(np.int32)], largest)
    nan = np.maximum(nan, NEVER).astype(np.uint8)
    (low,), (high,) = evaluate([x.low], attrs), evaluate([x.high], attrs)
    if attrs["fn"] == "max":
        return (stored(x.dtype, low, high, nan),)
    (size,) = evaluate([_size(x)], attrs)
    terms = sizes_of(attrs["window"], range(len(attrs["window"])))
    return (_summed(x.dtype, low, high, size, nan, terms),)


def _gather(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    data, indices = operands
    assert not indices.loose.any(), "an index that nobody knows"
    evaluate = primitive(op).evaluate
    low, high, nan = (
        evaluate([side, indices.low], attrs)[0] for side in (data.low, data.high, data.nan)
    )
    return (Bound(data.dtype, low, high, nan),)


def _scatter(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    """Places that are written once or not at all are clear; sums grow by the updates of a place."""
    data, indices, updates = operands
    assert not indices.loose.any(), "an index that nobody knows"
    evaluate, fn = primitive(op).evaluate, attrs.get("reduction", "none")
    index = indices.low

    def put(base: Array, items: Array, how: str) -> Array:
        return evaluate([base, index, items], {**attrs, "reduction": how})[0]

    if not data.dtype.is_float:
        value = put(data.low, updates.low, fn)
        keep = "none" if fn == "none" else "max"
        loose = put(data.loose.astype(np.int8), updates.loose.astype(np.int8), keep)
        return (anything(data.dtype, value, loose > 0),)
    keep = "none" if fn == "none" else "max"
    nan = put(data.nan, updates.nan, keep)
    if fn in ("none", "max", "min"):
        low, high = put(data.low, updates.low, fn), put(data.high, updates.high, fn)
        return (stored(data.dtype, low, high, nan),)
    count = put(np.zeros(data.shape), np.ones(updates.shape), "add")
    terms = int(count.max(initial=0)) + 1
    if fn == "add":
        low, high = put(data.low, updates.low, fn), put(data.high, updates.high, fn)
        return (_summed(data.dtype, low, high, put(_size(data), _size(updates), fn), nan, terms),)
    middles = [(x.low + x.high) / 2 for x in (data, updates)]
    value = put(*middles, "mul")
    parts = [
        np.where(x.high > x.low, (x.high - x.low) / 2 / np.abs(m), 0.0)
        for x, m in zip((data, updates), middles, strict=True)
    ]
    relative = put(*parts, "add") + (terms + 4) * UNIT[data.dtype.compute.name] * (count > 0)
    unsure = ~(relative < 0.25) | ~np.isfinite(value)
    error = 2 * relative * np.abs(value) + (count > 0) * 1e-30
    low, high = np.where(unsure, -np.inf, value - error), np.where(unsure, np.inf, value + error)
    return (stored(data.dtype, low, high, possible(nan, unsure)),)


def _sort(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    """The k-th least of the lows and of the highs bound the k-th element; its index is sure where
    the order of its neighbours is."""
    (x,) = operands
    axis = attrs["axis"]
    evaluate = primitive(op).evaluate
    if not x.dtype.is_float:
        values, order = evaluate([x.low], attrs)
        loose = np.broadcast_to(np.any(x.loose, axis=axis, keepdims=True), x.shape)
        return anything(x.dtype, values, loose), anything(dtypes.i64, order, loose)
    low, order = evaluate([x.low], attrs)
    high, _ = evaluate([x.high], attrs)
    in_order = [np.take_along_axis(side, order, axis) for side in (x.low, x.high)]
    if attrs.get("descending", False):
        in_order = [np.flip(side, axis) for side in in_order]
    size = x.shape[axis]
    first = [np.take(side, range(max(size - 1, 0)), axis) for side in in_order]
    second = [np.take(side, range(1, size), axis) for side in in_order]
    same = (first[0] == first[1]) & (second[0] == second[1])
    unclear = ~((first[1] < second[0]) | same)
    lost = np.broadcast_to(np.any(x.nan > 0, axis=axis, keepdims=True), x.shape)
    unknown = lost | np.any(unclear, axis=axis, keepdims=True)
    low, high = np.where(lost, -np.inf, low), np.where(lost, np.inf, high)
    nan = np.where(lost, MAYBE, NEVER).astype(np.uint8)
    return Bound(x.dtype, low, high, nan), anything(dtypes.i64, order, unknown)


def _dequantize(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    """Of constants: the codes are exact, and so are the factors."""
    assert not any(bound.loose.any() for bound in operands)
    (value,) = primitive(op).evaluate([b.low for b in operands], {**attrs, "dtype": dtypes.f64})
    nan = np.zeros(value.shape, np.uint8)
    return (rounded(attrs["dtype"], value, value, nan, 2 * len(operands)),)


WIDE: dict[str, Rule] = {
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), _reduce),
    "argmax": _arg,
    "argmin": _arg,
    "cumsum": _cumsum,
    "dot_general": _contract,
    "conv": _contract,
    "reduce_window": _window,
    "gather": _gather,
    "scatter": _scatter,
    "sort": _sort,
    "dequantize": _dequantize,
}
