"""Intervals that every correct evaluation of a graph stays in: the oracle with its error bound.

Floats are intervals of float64, with a mark where NaN may or must come out; integers and bools are
exact until a decision about floats (a comparison, a cast, an argmax) could go either way. An
interval grows by what its inputs allow and by the roundings of the primitive itself, in units of
the dtype's rounding error u:

- `ROUNDINGS` for arithmetic: a rewrite may replace an operation by a few (x / c by x * (1 / c));
- `FUNCTION_ROUNDINGS` for elementary functions, which the back ends promise to 2.5 ulp;
- n u sum|x| for a sum of n terms, in any order (Higham, Accuracy and Stability, section 4.2);
- for float16 and bfloat16 one rounding to 16 bits, which happens or does not, as kernels compute in
  float32 and round where they store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.registry import primitive

Array = np.ndarray[Any, Any]

ROUNDINGS = 4
FUNCTION_ROUNDINGS = 8
UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
TINIEST = {"f64": 2.0**-1074, "f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}
GREATEST = {
    "f64": float(np.finfo(np.float64).max), "f32": float(np.finfo(np.float32).max),
    "f16": 65504.0, "bf16": 3.3895313892515355e38,
}  # fmt: skip
NEVER, MAYBE, ALWAYS = 0, 1, 2


@dataclass(frozen=True)
class Bound:
    """What a tensor may hold: low <= x <= high, and where it may (1) or must (2) be NaN.

    Floats: low and high are float64. Others: arrays of the dtype; low == high where the value is
    exact, anything goes where not.
    """

    dtype: DType
    low: Array
    high: Array
    nan: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.low.shape)

    @property
    def loose(self) -> Array:
        """Where an integer or bool is not known."""
        return np.asarray(self.low != self.high)


def exact(array: Array, dtype: DType | None = None) -> Bound:
    """The bound of data: no error."""
    dtype = dtype or dtypes.from_numpy(array.dtype)
    if not dtype.is_float:
        return Bound(dtype, array, array, np.zeros(array.shape, np.uint8))
    wide = array.astype(np.float64)
    missing = np.isnan(wide)
    filled = np.where(missing, 0.0, wide)
    return Bound(dtype, filled, filled, np.where(missing, ALWAYS, NEVER).astype(np.uint8))


def mismatches(actual: Array, bound: Bound, flushed: bool = False) -> Array:
    """Where an array of the bound's dtype is outside of it. flushed: 0 may stand for what may be
    less than the least normal number of float32."""
    if not bound.dtype.is_float:
        inside = (actual >= bound.low) & (actual <= bound.high) | bound.loose
        return np.asarray(~inside)
    have = actual.astype(np.float64)
    missing = np.isnan(have)
    with np.errstate(all="ignore"):
        inside = (have >= bound.low) & (have <= bound.high) & (bound.nan != ALWAYS)
        if flushed and bound.dtype.compute.name == "f32":
            small = np.minimum(np.abs(bound.low), np.abs(bound.high)) < 2.0**-126
            inside |= (have == 0) & small
    return np.asarray(~np.where(missing, bound.nan != NEVER, inside))


def propagate(op: str, operands: Sequence[Bound], attrs: Attrs) -> tuple[Bound, ...]:
    """The bounds of a primitive's results."""
    with np.errstate(all="ignore"):
        from tests.random_graphs.bounds_wide import WIDE

        if op in WIDE:
            return WIDE[op](op, operands, attrs)
        if primitive(op).kind == "create":
            return tuple(exact(a) for a in primitive(op).evaluate((), attrs))
        if op in MOVES:
            return (_move(op, operands, attrs),)
        if op == "select":
            return (_select(operands),)
        if op == "cast":
            return (_cast(operands[0], attrs["dtype"]),)
        if op == "float_bits":
            return (_float_bits(operands[0]),)
        if op == "bits_float":
            return (_bits_float(operands[0]),)
        if op in ("is_nan", "is_inf"):
            return (_predicate(op, operands[0]),)
        if op in _COMPARE:
            return (_compare(op, *operands),)
        if not operands[0].dtype.is_float:
            return (_whole(op, operands, attrs),)
        return (_float_map(op, operands),)


# shared -------------------------------------------------------------------------------------------


def rounded(dtype: DType, low: Array, high: Array, nan: Array, roundings: float) -> Bound:
    """Floats after an operation of `roundings` roundings in the compute type, and perhaps one to
    the dtype. An infinity of the wrong kind (inf - inf) is a NaN that `nan` must already hold."""
    compute = dtype.compute.name
    error = roundings * UNIT[compute] * np.maximum(np.abs(low), np.abs(high)) * (1 + 2.0**-20)
    error = np.where(error > 0, error, 0.0) + roundings * TINIEST[compute]
    return stored(dtype, low - error, high + error, nan)


def stored(dtype: DType, low: Array, high: Array, nan: Array) -> Bound:
    """Floats as a value of the dtype, whose rounding may be left out where it is 16 bits wide."""
    unknown = np.isnan(low) | np.isnan(high)
    low = np.where(unknown, -np.inf, low)
    high = np.where(unknown, np.inf, high)
    if dtype.bits < 32:
        unit, tiny = UNIT[dtype.name], TINIEST[dtype.name]
        low = low - np.where(np.isfinite(low), unit * np.abs(low), 0) - tiny
        high = high + np.where(np.isfinite(high), unit * np.abs(high), 0) + tiny
    greatest = GREATEST[dtype.name]
    high = np.where(high > greatest, np.inf, np.where(high < -greatest, -greatest, high))
    low = np.where(low < -greatest, -np.inf, np.where(low > greatest, greatest, low))
    nan = np.where(unknown, np.maximum(nan, MAYBE), nan)
    return Bound(dtype, np.asarray(low), np.asarray(high), np.asarray(nan, np.uint8))


def any_nan(*operands: Bound) -> Array:
    """NaN where an operand is: an elementwise operation passes it on."""
    result = operands[0].nan
    for other in operands[1:]:
        result = np.maximum(result, other.nan)
    return result


def possible(nan: Array, where: Array) -> Array:
    """`nan`, and perhaps NaN where `where` holds."""
    return np.maximum(nan, np.where(where, MAYBE, NEVER)).astype(np.uint8)


def anything(dtype: DType, value: Array, loose: Array) -> Bound:
    """Exact integers or bools, unknown where `loose`."""
    value = np.asarray(value, dtype.numpy)
    low = np.where(loose, np.asarray(dtype.lowest, dtype.numpy), value).astype(dtype.numpy)
    high = np.where(loose, np.asarray(dtype.highest, dtype.numpy), value).astype(dtype.numpy)
    return Bound(dtype, low, high, np.zeros(value.shape, np.uint8))


# movement -----------------------------------------------------------------------------------------

MOVES = ("reshape", "transpose", "broadcast", "slice", "concat", "pad")


def _move(op: str, operands: Sequence[Bound], attrs: Attrs) -> Bound:
    """Bounds move as the elements do."""
    evaluate = primitive(op).evaluate
    dtype = operands[0].dtype
    if op == "pad" and dtype.is_float:
        attrs = {**attrs, "value": float(np.asarray(attrs["value"], dtype.compute.numpy))}
    (low,) = evaluate([x.low for x in operands], attrs)
    (high,) = evaluate([x.high for x in operands], attrs)
    (nan,) = evaluate([x.nan for x in operands], {**attrs, "value": 0})
    if op == "pad" and dtype.bits == 16 and dtype.is_float:  # the value in the dtype, or as it is
        return stored(dtype, low, high, nan)
    return Bound(dtype, low, high, nan)


# maps ---------------------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _compare(op: str, a: Bound, b: Bound) -> Bound:
    function = _COMPARE[op]
    value = function(a.low, b.low)
    if not a.dtype.is_float:
        return anything(dtypes.bool_, value, a.loose | b.loose)
    # The answer is sure where the intervals do not meet, or are the same point.
    apart = (a.high < b.low) | (b.high < a.low)
    point = (a.low == a.high) & (b.low == b.high)
    nan = any_nan(a, b)
    value = np.where(nan == ALWAYS, op == "ne", value)
    return anything(dtypes.bool_, value, ~(apart | point) & (nan != ALWAYS) | (nan == MAYBE))


def _predicate(op: str, x: Bound) -> Bound:
    if not x.dtype.is_float:
        value = np.zeros(x.shape, bool)
        return anything(dtypes.bool_, value, value)
    if op == "is_nan":
        return anything(dtypes.bool_, x.nan == ALWAYS, x.nan == MAYBE)
    sure = np.isinf(x.low) & (x.low == x.high)
    never = np.isfinite(x.low) & np.isfinite(x.high)
    value = sure & (x.nan != ALWAYS)
    return anything(dtypes.bool_, value, (~(sure | never) | (x.nan == MAYBE)) & (x.nan != ALWAYS))


def _float_bits(x: Bound) -> Bound:
    """Known where the number is; the bits of a NaN are anybody's."""
    value = x.low.astype(x.dtype.numpy, order="C")
    whole = dtypes.i32 if x.dtype is dtypes.f32 else dtypes.i64
    # zero has two signs, which intervals do not tell apart
    return anything(whole, value.view(whole.numpy), (x.low != x.high) | (x.nan > 0) | (x.low == 0))


def _bits_float(x: Bound) -> Bound:
    dtype = dtypes.f32 if x.dtype is dtypes.i32 else dtypes.f64
    found = exact(np.asarray(x.low, order="C").view(dtype.numpy))
    low = np.where(x.loose, -np.inf, found.low)
    high = np.where(x.loose, np.inf, found.high)
    return Bound(dtype, low, high, np.where(x.loose, MAYBE, found.nan).astype(np.uint8))


def _select(operands: Sequence[Bound]) -> Bound:
    condition, a, b = operands
    first, either = condition.low, condition.loose
    low = np.where(either, np.minimum(a.low, b.low), np.where(first, a.low, b.low))
    high = np.where(either, np.maximum(a.high, b.high), np.where(first, a.high, b.high))
    differ = np.where(a.nan == b.nan, a.nan, MAYBE)
    nan = np.where(either, differ, np.where(first, a.nan, b.nan))
    return Bound(a.dtype, low, high, nan.astype(np.uint8))


def _cast(x: Bound, dtype: DType) -> Bound:
    if dtype is x.dtype:
        return x
    if dtype.is_float:
        if x.dtype.is_float:
            low, high = x.low, x.high
        else:
            low, high = (np.asarray(side, np.float64) for side in (x.low, x.high))
        if x.dtype.bits == 64 and not x.dtype.is_float:
            low, high = low - np.abs(low) * 2.0**-53, high + np.abs(high) * 2.0**-53
            if not x.loose.any() and dtype is dtypes.f64:  # one rounding, the same everywhere
                low = high = np.asarray(x.low).astype(np.float64)
        narrower = dtype.compute.bits < 64 and (x.dtype.bits > 16 or not x.dtype.is_float)
        if narrower:
            return rounded(dtype, low, high, x.nan, 1)
        return stored(dtype, low, high, x.nan)
    if not x.dtype.is_float:
        (value,) = primitive("cast").evaluate([x.low], {"dtype": dtype})
        return anything(dtype, value, x.loose)
    if dtype is dtypes.bool_:
        zero = (x.low <= 0) & (x.high >= 0)
        sure = (x.low == x.high) | ~zero | (x.nan == ALWAYS)
        value = (x.low != 0) | (x.nan == ALWAYS)
        return anything(dtype, value, ~sure | (x.nan == MAYBE))
    low, high = np.trunc(x.low), np.trunc(x.high)
    # 2**63 is a float64, 2**63 - 1 is not
    inside = (low >= float(dtype.lowest)) & (high < float(dtype.highest) + 1) & (x.nan == NEVER)
    value = np.where(inside, low, 0).astype(dtype.numpy)
    return anything(dtype, value, (low != high) | ~inside)


def _whole(op: str, operands: Sequence[Bound], attrs: Attrs) -> Bound:
    """A map of integers or bools: exact where its operands are."""
    (value,) = primitive(op).evaluate([x.low for x in operands], attrs)
    loose = np.zeros(value.shape, bool)
    for operand in operands:
        loose = loose | operand.loose
    return anything(operands[0].dtype, value, loose)


_RISING: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "asin": np.arcsin, "atan": np.arctan,
    "sinh": np.sinh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil, "round": np.round, "sign": np.sign,
}  # fmt: skip
_DOMAIN: dict[str, tuple[float, float]] = {
    "log": (0, np.inf), "sqrt": (0, np.inf), "asin": (-1, 1), "acos": (-1, 1),
    "acosh": (1, np.inf), "atanh": (-1, 1), "rsqrt": (0, np.inf),
}  # fmt: skip
_EXACT = ("floor", "ceil", "round", "sign", "neg", "abs", "min", "max")
_BASIC = ("add", "sub", "mul", "div", "sqrt", "reciprocal", "rsqrt")


def _float_map(op: str, operands: Sequence[Bound]) -> Bound:
    x = operands[0]
    nan = any_nan(*operands)
    if op in _DOMAIN:
        least, most = _DOMAIN[op]
        outside = (x.high < least) | (x.low > most)
        partly = (x.low < least) | (x.high > most)
        nan = np.where(outside, ALWAYS, possible(nan, partly)).astype(np.uint8)
        clipped = (np.clip(x.low, least, most), np.clip(x.high, least, most))
        x = Bound(x.dtype, *clipped, nan)
        operands = (x, *operands[1:])
    low, high, nan = _ends(op, operands, nan)
    if op in _EXACT:
        return stored(x.dtype, low, high, nan)
    basic = op in _BASIC or op in ("mod", "fmod")
    return rounded(x.dtype, low, high, nan, ROUNDINGS if basic else FUNCTION_ROUNDINGS)


def _ends(op: str, operands: Sequence[Bound], nan: Array) -> tuple[Array, Array, Array]:
    x = operands[0]
    if op in _RISING:
        function = _RISING[op]
        return function(x.low), function(x.high), nan
    if op == "erf":
        (low,), (high,) = (primitive("erf").evaluate([side], {}) for side in (x.low, x.high))
        return low, high, nan
    if op in ("neg", "acos"):
        function = np.negative if op == "neg" else np.arccos
        return function(x.high), function(x.low), nan
    if op in ("abs", "cosh"):
        function = np.abs if op == "abs" else np.cosh
        ends = function(x.low), function(x.high)
        least = np.where((x.low <= 0) & (x.high >= 0), function(np.zeros(())), np.minimum(*ends))
        return least, np.maximum(*ends), nan
    if op in ("sin", "cos", "tan"):
        return _wave(op, x, nan)
    if op == "rsqrt":
        return 1 / np.sqrt(x.high), 1 / np.sqrt(x.low), nan
    if op == "reciprocal":
        one = exact(np.ones(x.shape))
        return _quotient(one, x, nan)
    a, b = operands
    if op in ("add", "sub"):
        other = (b.low, b.high) if op == "add" else (-b.high, -b.low)
        low, high = a.low + other[0], a.high + other[1]
        opposite = (np.isposinf(a.high) & np.isneginf(other[0])) | (
            np.isneginf(a.low) & np.isposinf(other[1])
        )
        return low, high, possible(nan, opposite)
    if op in ("min", "max"):
        function = np.minimum if op == "min" else np.maximum
        return function(a.low, b.low), function(a.high, b.high), nan
    if op == "mul":
        if a is b:  # a square
            return _ends("abs", [_square(a)], nan)
        ends = [p * q for p in (a.low, a.high) for q in (b.low, b.high)]
        unknown = functools_any(np.isnan(end) for end in ends)
        for one, other in ((a, b), (b, a)):  # infinity times zero
            infinite = np.isinf(one.low) | np.isinf(one.high)
            unknown = unknown | infinite & (other.low <= 0) & (other.high >= 0)
        return *_hull(ends), possible(nan, unknown)
    if op == "div":
        return _quotient(a, b, nan)
    if op in ("mod", "fmod"):
        return _remainder(op, a, b, nan)
    if op == "pow":
        return _power(a, b, nan)
    raise NotImplementedError(op)


def functools_any(parts: Any) -> Array:
    result: Array = np.zeros((), bool)
    for part in parts:
        result = result | part
    return result


def _square(x: Bound) -> Bound:
    ends = x.low * x.low, x.high * x.high
    least = np.where((x.low <= 0) & (x.high >= 0), 0.0, np.minimum(*ends))
    return Bound(x.dtype, least, np.maximum(*ends), x.nan)


def _hull(ends: Sequence[Array]) -> tuple[Array, Array]:
    low, high = ends[0], ends[0]
    for end in ends[1:]:
        low, high = np.minimum(low, end), np.maximum(high, end)
    return low, high


def _wave(op: str, x: Bound, nan: Array) -> tuple[Array, Array, Array]:
    """The middle's value, and as far from it as the slope allows."""
    middle, reach = (x.low + x.high) / 2, (x.high - x.low) / 2
    value = {"sin": np.sin, "cos": np.cos, "tan": np.tan}[op](middle)
    infinite = ~(np.isfinite(x.low) & np.isfinite(x.high))
    nan = possible(nan, infinite)
    if op == "tan":
        slope = 4 * (1 + value * value)
        steep = reach * slope > 0.5
        low = np.where(steep | infinite, -np.inf, value - reach * slope)
        return low, np.where(steep | infinite, np.inf, value + reach * slope), nan
    # the error of the reduced argument: its last place
    slack = reach + 2.0**-52
    low = np.where(infinite, -1.0, np.maximum(value - slack, -1))
    return low, np.where(infinite, 1.0, np.minimum(value + slack, 1)), nan


def _quotient(a: Bound, b: Bound, nan: Array) -> tuple[Array, Array, Array]:
    zero = (b.low <= 0) & (b.high >= 0)
    ends = [p / q for p in (a.low, a.high) for q in (b.low, b.high)]
    low, high = _hull(ends)
    unknown = functools_any(np.isnan(end) for end in ends)
    undefined = zero & (a.low <= 0) & (a.high >= 0)
    return (
        np.where(zero, -np.inf, low),
        np.where(zero, np.inf, high),
        possible(nan, undefined | unknown),
    )


def _remainder(op: str, a: Bound, b: Bound, nan: Array) -> tuple[Array, Array, Array]:
    """Sure where the quotient keeps its whole part; else anything below the divisor's size."""
    value = (np.mod if op == "mod" else np.fmod)(a.low, b.low)
    point = (a.low == a.high) & (b.low == b.high)
    reach = np.maximum(np.abs(b.low), np.abs(b.high))
    sure = point & np.isfinite(value)
    nan = possible(nan, ~sure)
    return np.where(sure, value, -reach), np.where(sure, value, reach), nan


def _power(a: Bound, b: Bound, nan: Array) -> tuple[Array, Array, Array]:
    """exp(b log a) of a positive base; of another base only for exact exponents."""
    ends = [np.power(p, q) for p in (a.low, a.high) for q in (b.low, b.high)]
    low, high = _hull(ends)
    # a float64 power loses what b log a loses in its product
    slack = np.zeros(())
    if a.dtype is dtypes.f64:
        largest = np.maximum(*(np.abs(np.log(np.abs(side))) for side in (a.low, a.high)))
        largest = largest * np.maximum(np.abs(b.low), np.abs(b.high))
        slack = np.maximum(np.abs(low), np.abs(high)) * largest * 4 * UNIT["f64"]
        slack = np.where(np.isfinite(slack), slack, 0.0)
    sure = (a.low > 0) | ((a.low == a.high) & (b.low == b.high))
    sure = sure & np.isfinite(low) & np.isfinite(high) & (nan == NEVER)
    nan = np.minimum(nan, MAYBE)  # NaN ** 0 is 1
    return (
        np.where(sure, low - slack, -np.inf),
        np.where(sure, high + slack, np.inf),
        possible(nan, ~sure),
    )


def sizes_of(shape: Sequence[int], axes: Sequence[int]) -> int:
    """The number of elements along some axes."""
    return prod(shape[axis] for axis in axes)


def type_of(bound: Bound) -> TensorType:
    return TensorType(bound.dtype, bound.shape)
