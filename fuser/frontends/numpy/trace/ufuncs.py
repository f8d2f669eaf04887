"""NumPy's universal functions as primitives.

NumPy itself resolves the dtypes (`ufunc.resolve_dtypes`), so that promotion is its own; a rule gets
operands of the loop's dtypes and writes the primitives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

import numpy as np

from fuser import dtypes
from fuser.dtypes import from_numpy
from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import (
    current,
    default_kinds,
    is_traced,
    lift,
    promotion_kinds,
    strong_bools,
    wrap,
)
from fuser.frontends.numpy.trace.numbers import check_fits, comparable
from fuser.graph.builder import Builder
from fuser.graph.compose import stash
from fuser.graph.ir import Value
from fuser.graph.numeric import (
    arctan2,
    copysign,
    expm1,
    floor_divide,
    hypot,
    is_negative,
    log1p,
    logaddexp,
    power,
    trunc,
    without_nan,
)

Rule: TypeAlias = "Callable[..., Value | tuple[Value, ...]]"

UFUNCS: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        UFUNCS.update(dict.fromkeys(names, function))
        return function

    return register


def _in_float32(rule: Rule) -> Rule:
    """For rules with constants of their own, which 16-bit floats do not hold: those are computed in
    float32. What the caller multiplies by, NumPy rounds to the array's dtype."""

    @wraps(rule)
    def widened(b: Builder, *operands: Value) -> Value | tuple[Value, ...]:
        return rule(b, *(stash(b, x) for x in operands))

    return widened


def _direct(op: str, boolean: str = "") -> Rule:
    """The primitive `op`; for bools the primitive `boolean`, if given."""

    def rule(b: Builder, *operands: Value) -> Value:
        return b.map(boolean if boolean and operands[0].dtype is dtypes.bool_ else op, *operands)

    return rule


UFUNCS.update(
    {name: _direct(op) for name, op in {
        "subtract": "sub", "negative": "neg", "sqrt": "sqrt", "log": "log", "exp": "exp",
        "sin": "sin", "cos": "cos", "tan": "tan", "arcsin": "asin", "arccos": "acos",
        "arctan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "arcsinh": "asinh",
        "arccosh": "acosh", "arctanh": "atanh", "erf": "erf", "remainder": "mod", "fmod": "fmod",
        "left_shift": "shift_left", "right_shift": "shift_right",
    }.items()}
)  # fmt: skip
UFUNCS.update(
    add=_direct("add", "logical_or"),
    multiply=_direct("mul", "logical_and"),
    maximum=_direct("max", "logical_or"),
    minimum=_direct("min", "logical_and"),
    bitwise_and=_direct("bitwise_and", "logical_and"),
    bitwise_or=_direct("bitwise_or", "logical_or"),
    bitwise_xor=_direct("bitwise_xor", "logical_xor"),
    invert=_direct("bitwise_not", "logical_not"),
)


def _identity_for(*kinds: str) -> Callable[[str], Rule]:
    """The primitive for floats; x itself for dtypes of the given kinds."""

    def make(op: str) -> Rule:
        def rule(b: Builder, x: Value) -> Value:
            return x if x.dtype.kind in kinds else b.map(op, x)

        return rule

    return make


UFUNCS.update(
    {name: _identity_for("int", "uint", "bool")(op) for name, op in {
        "floor": "floor", "ceil": "ceil", "rint": "round",
    }.items()}
)  # fmt: skip
UFUNCS.update(dict.fromkeys(("absolute", "fabs"), _identity_for("uint", "bool")("abs")))


def _comparison(op: str) -> Rule:
    """Bools compare as 0 and 1, uint64 and int64 by their size."""

    def rule(b: Builder, x: Value, y: Value) -> Value:
        if x.dtype is dtypes.bool_:
            x, y = b.cast(x, dtypes.u8), b.cast(y, dtypes.u8)
        if x.dtype is y.dtype:
            return b.map(op, x, y)
        signed, least = (x, ("lt", "le")) if x.dtype is dtypes.i64 else (y, ("gt", "ge"))
        whole = b.map(op, b.cast(x, dtypes.u64), b.cast(y, dtypes.u64))
        return b.map("select", b.map("lt", signed, 0), op == "ne" or op in least, whole)

    return rule


UFUNCS.update(
    equal=_comparison("eq"), not_equal=_comparison("ne"), less=_comparison("lt"),
    less_equal=_comparison("le"), greater=_comparison("gt"), greater_equal=_comparison("ge"),
)  # fmt: skip


def _on_truth(op: str) -> Rule:
    def rule(b: Builder, *operands: Value) -> Value:
        return b.map(op, *(b.cast(x, dtypes.bool_) for x in operands))

    return rule


UFUNCS.update(
    {name: _on_truth(name) for name in ("logical_and", "logical_or", "logical_xor", "logical_not")}
)


@_rule("divide")
def _divide(b: Builder, x: Value, y: Value) -> Value:
    return b.map("div", x, y)


UFUNCS.update(
    floor_divide=floor_divide, power=power, float_power=power, trunc=trunc, expm1=expm1,
    log1p=log1p, arctan2=arctan2, hypot=hypot, copysign=copysign, signbit=is_negative,
    logaddexp=_in_float32(logaddexp),
)  # fmt: skip


@_rule("divmod")
def _divmod(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    return floor_divide(b, x, y), b.map("mod", x, y)


@_rule("square")
def _square(b: Builder, x: Value) -> Value:
    return x if x.dtype is dtypes.bool_ else b.map("mul", x, x)


@_rule("positive", "conjugate")
def _positive(b: Builder, x: Value) -> Value:
    return x


@_rule("reciprocal")
def _reciprocal(b: Builder, x: Value) -> Value:
    return b.map("reciprocal", x) if x.dtype.is_float else b.map("div", b.scalar(1, x.dtype), x)


@_rule("sign")
def _sign(b: Builder, x: Value) -> Value:
    return b.cast(b.map("ne", x, 0), x.dtype) if x.dtype.kind == "uint" else b.map("sign", x)


@_rule("exp2")
def _exp2(b: Builder, x: Value) -> Value:
    return b.map("pow", b.scalar(2, x.dtype), x)


@_rule("log2")
@_in_float32
def _log2(b: Builder, x: Value) -> Value:
    return b.map("mul", b.map("log", x), 1 / math.log(2))


@_rule("log10")
@_in_float32
def _log10(b: Builder, x: Value) -> Value:
    return b.map("mul", b.map("log", x), 1 / math.log(10))


@_rule("cbrt")
@_in_float32
def _cbrt(b: Builder, x: Value) -> Value:
    """A power, and a step of Newton's: 1/3 is no float, and its error grows with the logarithm."""
    size = b.map("abs", x)
    root = b.map("pow", size, 1 / 3)
    gap = b.map("sub", root, b.map("div", size, b.map("mul", root, root)))
    better = b.map("sub", root, b.map("div", gap, 3))
    usual = b.map("logical_and", b.map("gt", size, 0), b.map("lt", size, math.inf))
    return copysign(b, b.map("select", usual, better, size), x)


@_rule("deg2rad", "radians")
@_in_float32
def _radians(b: Builder, x: Value) -> Value:
    return b.map("mul", x, math.pi / 180)


@_rule("rad2deg", "degrees")
@_in_float32
def _degrees(b: Builder, x: Value) -> Value:
    return b.map("mul", x, 180 / math.pi)


@_rule("fmax")
def _fmax(b: Builder, x: Value, y: Value) -> Value:
    return _ignoring_nan(b, "max", x, y)


@_rule("fmin")
def _fmin(b: Builder, x: Value, y: Value) -> Value:
    return _ignoring_nan(b, "min", x, y)


def _ignoring_nan(b: Builder, op: str, x: Value, y: Value) -> Value:
    if not x.dtype.is_float:
        return b.map(op, x, y)
    return without_nan(b, op, x, y)


@_rule("logaddexp2")
@_in_float32
def _logaddexp2(b: Builder, x: Value, y: Value) -> Value:
    scale = math.log(2)
    total = logaddexp(b, b.map("mul", x, scale), b.map("mul", y, scale))
    return b.map("mul", total, 1 / scale)


@_rule("modf")
def _modf(b: Builder, x: Value) -> tuple[Value, Value]:
    whole = trunc(b, x)
    part = b.map("select", b.map("is_inf", x), 0, b.map("sub", x, whole))
    return copysign(b, part, x), whole


@_rule("ldexp")
def _ldexp(b: Builder, x: Value, y: Value) -> Value:
    """In two steps, so that a power beyond the dtype can still meet a small x."""
    wide = stash(b, x)
    half = b.map("shift_right", y, 1)
    steps = (half, b.map("sub", y, half))
    for step in steps:
        power_of_two = b.map("exp2", b.cast(step, wide.dtype))
        wide = b.map("mul", wide, power_of_two)
    return b.cast(wide, x.dtype)


@_rule("heaviside")
def _heaviside(b: Builder, x: Value, y: Value) -> Value:
    step = b.cast(b.map("gt", x, 0), x.dtype)
    step = b.map("select", b.map("eq", x, 0), y, step)
    return b.map("select", b.map("is_nan", x), x, step)


def _never(b: Builder, x: Value) -> Value:
    return b.full(False, b.cast(x, dtypes.bool_).type)


@_rule("isnan")
def _isnan(b: Builder, x: Value) -> Value:
    return b.map("is_nan", x) if x.dtype.is_float else _never(b, x)


@_rule("isinf")
def _isinf(b: Builder, x: Value) -> Value:
    return b.map("is_inf", x) if x.dtype.is_float else _never(b, x)


@_rule("isfinite")
def _isfinite(b: Builder, x: Value) -> Value:
    if not x.dtype.is_float:
        return b.map("logical_not", _never(b, x))
    return b.map("logical_not", b.map("logical_or", b.map("is_nan", x), b.map("is_inf", x)))


@_rule("matmul")
def _matmul(b: Builder, x: Value, y: Value) -> Value:
    return b.matmul(x, y)


@_rule("vecdot")
def _vecdot(b: Builder, x: Value, y: Value) -> Value:
    product = b.map("mul", x, y)
    return b.reduce("reduce_sum", product, [product.type.rank - 1])


@_rule("matvec")
def _matvec(b: Builder, x: Value, y: Value) -> Value:
    result = b.matmul(x, b.unsqueeze(y, [y.type.rank]))
    return b.squeeze(result, [result.type.rank - 1])


@_rule("vecmat")
def _vecmat(b: Builder, x: Value, y: Value) -> Value:
    result = b.matmul(b.unsqueeze(x, [x.type.rank - 1]), y)
    return b.squeeze(result, [result.type.rank - 2])


def apply(ufunc: Any, inputs: tuple[Any, ...], dtype: Any = None) -> Any:
    """ufunc(*inputs) as primitives; traced arrays. Raises TraceError, TypeError as NumPy does."""
    rule = UFUNCS.get(ufunc.__name__)
    if rule is None:
        raise TraceError(f"{ufunc.__name__} is not among the functions that can be traced")
    trace = current()
    inputs = comparable(ufunc, inputs)
    kinds = promotion_kinds(inputs)
    weak = max((kind for kind in kinds if isinstance(kind, type)), key=_order, default=None)
    if any(isinstance(kind, np.dtype) for kind in kinds):
        weak = None
    else:
        kinds = default_kinds(kinds)
    kinds = strong_bools(kinds)
    nout = ufunc.nout
    wanted = None if dtype is None else (None,) * len(inputs) + (np.dtype(dtype),) * nout
    options = {} if wanted is None else {"signature": wanted}
    loop = ufunc.resolve_dtypes((*kinds, *(None,) * nout), **options)
    for x, kind in zip(inputs, loop, strict=False):
        check_fits(x, kind)
    if ufunc is np.power and type(inputs[1]) is int and inputs[1] < 0 and loop[0].kind in "iu":
        raise TraceError(
            "integers to negative integer powers are not allowed", hint="make the power a float"
        )
    operands = [lift(x, _loop_kind(kind, kinds)) for x, kind in zip(inputs, loop, strict=False)]

    def call() -> tuple[Value, ...]:
        found = rule(trace.builder, *operands)
        results = found if isinstance(found, tuple) else (found,)
        return tuple(
            trace.builder.cast(value, from_numpy(kind))
            for value, kind in zip(results, loop[len(inputs) :], strict=True)
        )

    traced = [value for value, x in zip(operands, inputs, strict=True) if is_traced(x)]
    values = trace.recorder.record(ufunc.__name__, traced, call, lambda found: found)
    keep = weak if values[0].dtype.numpy == (default_kinds([weak])[0] if weak else None) else None
    wrapped = tuple(wrap(value, keep) for value in values)
    return wrapped if nout > 1 else wrapped[0]


def _loop_kind(kind: np.dtype, given: Sequence[Any]) -> np.dtype:
    """The dtype that a loop computes in. Where NumPy makes float16 of small integers, that is
    float32: the result is then cast, and so rounded, whatever reads it."""
    narrow = kind == np.float16 and all(k != np.float16 for k in given)
    return np.dtype(np.float32) if narrow else kind


def _order(kind: type) -> int:
    return (bool, int, float).index(kind)
