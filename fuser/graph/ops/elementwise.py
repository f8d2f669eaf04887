"""Map primitives: one result element for each operand element, all operands of one shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType, from_numpy
from fuser.errors import ShapeError
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.primitive import (
    Array,
    Primitive,
    check_same_dtype,
    check_same_shape,
    is_half,
    widen,
)
from fuser.graph.ops.special import erf


def _infer_same(op: str) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        check_same_shape(op, types)
        check_same_dtype(op, types)
        return (types[0],)

    return infer


def _infer_predicate(op: str) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        check_same_shape(op, types)
        check_same_dtype(op, types)
        return (TensorType(dtypes.bool_, types[0].shape),)

    return infer


def _computed(
    function: Callable[..., Array], predicate: bool = False
) -> Callable[..., tuple[Array]]:
    """Apply function in float32 for the 16-bit floats and round once at the end."""

    def evaluate(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array]:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*map(widen, arrays)))
            if not predicate and is_half(arrays[0]):
                result = result.astype(arrays[0].dtype)
        return (result,)

    return evaluate


def _infer_integers(op: str) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        if not types[0].dtype.is_integer:
            raise ShapeError(f"{op}: {types[0]} holds no integers")
        return _infer_same(op)(types, attrs)

    return infer


def _unary(name: str, function: Callable[[Array], Array]) -> Primitive:
    return Primitive(name, "map", 1, _infer_same(name), _computed(function))


def _binary(name: str, function: Callable[[Array, Array], Array]) -> Primitive:
    return Primitive(name, "map", 2, _infer_same(name), _computed(function))


def _predicate(name: str, arity: int, function: Callable[..., Array]) -> Primitive:
    return Primitive(name, "map", arity, _infer_predicate(name), _computed(function, True))


def _div(a: Array, b: Array) -> Array:
    """True division of floats; integers truncate towards zero, and give 0 divided by 0."""
    if a.dtype.kind not in "iub":
        return np.asarray(a / b)
    if a.dtype.kind == "i":
        a = np.where(b == 0, 0, a).astype(a.dtype)
    quotient = np.asarray(np.floor_divide(a, b))
    return np.asarray(quotient + ((quotient * b != a) & ((a < 0) != (b < 0))).astype(a.dtype))


def _pow(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        # NumPy refuses negative integer exponents; ONNX leaves them open.
        return np.asarray(np.power(a.astype(np.float64), b) if (b < 0).any() else a**b, a.dtype)
    found = np.power(a, b)
    # vector code of NumPy gives nan for powers of -inf that are no whole numbers
    infinite = np.isneginf(a) & (b != np.floor(b)) & np.isfinite(b)
    return np.asarray(np.where(infinite, np.where(b > 0, np.inf, 0.0), found), a.dtype)


def _minimum(a: Array, b: Array) -> Array:
    """The lesser one, NaN where one is; -0 is less than 0 (IEEE 754-2019, minimum)."""
    least = np.asarray(np.minimum(a, b))
    if a.dtype.kind in "iub":
        return least
    return np.asarray(np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), least))


def _maximum(a: Array, b: Array) -> Array:
    """The greater one, NaN where one is; 0 is greater than -0."""
    most = np.asarray(np.maximum(a, b))
    if a.dtype.kind in "iub":
        return most
    return np.asarray(np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), most))


def _sign(x: Array) -> Array:
    return np.asarray(np.sign(x))


def _fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once: of float32 by way of float64, whose last bit says whether the sum
    was exact; of float64 with what the product and the sum lose added at the end."""
    if a.dtype == np.float32:
        product, wide = a.astype(np.float64) * b, c.astype(np.float64)
        total = np.asarray(product + wide)
        lost = _lost(product, wide, total)
        word = total.view(np.int64)
        away = np.where((lost > 0) == (total > 0), 1, -1)
        inexact = (lost != 0) & np.isfinite(lost) & (word & 1 == 0)
        return np.asarray(np.where(inexact, word + away, word).view(np.float64), np.float32)
    product = np.asarray(a * b)
    total = np.asarray(product + c)
    rest = _lost_product(a, b, product) + _lost(product, c, total)
    return np.asarray(np.where(np.isfinite(rest), total + rest, total))


def _lost(a: Array, b: Array, total: Array) -> Array:
    """What a + b lost by rounding to total."""
    back = total - a
    return np.asarray((a - (total - back)) + (b - back))


def _lost_product(a: Array, b: Array, product: Array) -> Array:
    def halves(x: Array) -> tuple[Array, Array]:
        scaled = x * 134217729.0  # 2**27 + 1
        high = scaled - (scaled - x)
        return high, x - high

    (a1, a0), (b1, b0) = halves(a), halves(b)
    return np.asarray(((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0)


def _shift_left(a: Array, b: Array) -> Array:
    """A shift by the width or more, undefined in C and LLVM, gives 0, as NumPy has it."""
    return np.asarray(np.left_shift(a, b))


def _shift_right(a: Array, b: Array) -> Array:
    """Signed shifts fill with the sign; a shift by the width or more leaves only that fill, as
    NumPy has it."""
    return np.asarray(np.right_shift(a, b))


def _mul_high(a: Array, b: Array) -> Array:
    """The upper half of the product of two integers, which has twice as many bits."""
    bits = a.dtype.itemsize * 8
    product = a.astype(object) * b.astype(object)
    return np.asarray(product >> bits, a.dtype)


def _dp4a(total: Array, codes: Array, digits: Array) -> Array:
    """total plus the sum of four products: bytes of `codes`, unsigned, by those of `digits`."""
    left = codes.astype(np.int32).view(np.uint8).reshape(*codes.shape, 4).astype(np.int32)
    right = digits.astype(np.int32).view(np.int8).reshape(*digits.shape, 4).astype(np.int32)
    return np.asarray(total + (left * right).sum(-1, dtype=np.int32), np.int32)


def _infer_words(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    if types[0].dtype is not dtypes.i32:
        raise ShapeError(f"dp4a: {types[0]} holds no 32-bit integers")
    return _infer_same("dp4a")(types, attrs)


def _infer_select(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_same_shape("select", types)
    check_same_dtype("select", types[1:])
    if types[0].dtype is not dtypes.bool_:
        raise ShapeError(f"select: the condition is {types[0]}, not bool")
    return (types[1],)


def _evaluate_select(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    condition, a, b = arrays
    return (np.where(condition, a, b),)


def _infer_cast(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    dtype: DType = attrs["dtype"]
    return (TensorType(dtype, types[0].shape),)


def _evaluate_cast(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    target: DType = attrs["dtype"]
    with np.errstate(all="ignore"):
        if target is dtypes.bool_:
            return (np.asarray(x != 0),)
        return (x.astype(target.numpy),)


_BITS = {dtypes.f32: dtypes.i32, dtypes.f64: dtypes.i64}
_NUMBERS = {whole: real for real, whole in _BITS.items()}


def _infer_bits(
    op: str, table: Mapping[DType, DType]
) -> Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        if types[0].dtype not in table:
            raise ShapeError(f"{op}: {types[0]} has no such bits")
        return (TensorType(table[types[0].dtype], types[0].shape),)

    return infer


def _evaluate_float_bits(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    """dtype, of the result, says which bits are meant where the operand was widened."""
    (x,) = arrays
    whole: DType = attrs.get("dtype") or _BITS[from_numpy(x.dtype)]
    return (x.astype(_NUMBERS[whole].numpy, order="C").view(whole.numpy),)


def _evaluate_bits_float(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    found = np.asarray(x, order="C").view(_NUMBERS[from_numpy(x.dtype)].numpy)
    wanted: DType | None = attrs.get("dtype")
    return (found if wanted is None else found.astype(wanted.numpy),)


_UNARY: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("neg", np.negative),
    ("abs", np.abs),
    ("sign", _sign),
    ("exp", np.exp),
    ("exp2", np.exp2),
    ("log", np.log),
    ("log2", np.log2),
    ("sqrt", np.sqrt),
    ("rsqrt", lambda x: np.asarray(np.reciprocal(np.sqrt(x)))),
    ("reciprocal", np.reciprocal),
    ("sin", np.sin),
    ("cos", np.cos),
    ("tan", np.tan),
    ("asin", np.arcsin),
    ("acos", np.arccos),
    ("atan", np.arctan),
    ("sinh", np.sinh),
    ("cosh", np.cosh),
    ("asinh", np.arcsinh),
    ("acosh", np.arccosh),
    ("atanh", np.arctanh),
    ("tanh", np.tanh),
    ("erf", erf),
    ("floor", np.floor),
    ("ceil", np.ceil),
    ("round", np.round),
    ("logical_not", np.logical_not),
    ("bitwise_not", np.bitwise_not),
)
_BINARY: tuple[tuple[str, Callable[[Array, Array], Array]], ...] = (
    ("add", np.add),
    ("sub", np.subtract),
    ("mul", np.multiply),
    ("div", _div),
    ("mod", np.mod),
    ("fmod", np.fmod),
    ("pow", _pow),
    ("min", _minimum),
    ("max", _maximum),
    ("fmin", np.fmin),
    ("fmax", np.fmax),
    ("logical_and", np.logical_and),
    ("logical_or", np.logical_or),
    ("logical_xor", np.logical_xor),
    ("bitwise_and", np.bitwise_and),
    ("bitwise_or", np.bitwise_or),
    ("bitwise_xor", np.bitwise_xor),
    ("shift_left", _shift_left),
    ("shift_right", _shift_right),
)
_COMPARE: tuple[tuple[str, Callable[[Array, Array], Array]], ...] = (
    ("eq", np.equal),
    ("ne", np.not_equal),
    ("lt", np.less),
    ("le", np.less_equal),
    ("gt", np.greater),
    ("ge", np.greater_equal),
)

KERNELS_ONLY = frozenset(("fmin", "fmax", "mul_high", "exp2", "log2", "fma", "dp4a"))
"""Maps that kernels have, of the block language or of emitters (dp4a, on CPUs), and no front end
makes: graphs spell them by others. tests/backend has them in kernels, against NumPy."""

PRIMITIVES: tuple[Primitive, ...] = (
    *(_unary(name, function) for name, function in _UNARY),
    *(_binary(name, function) for name, function in _BINARY),
    *(_predicate(name, 2, function) for name, function in _COMPARE),
    Primitive("fma", "map", 3, _infer_same("fma"), _computed(_fma)),
    Primitive("mul_high", "map", 2, _infer_integers("mul_high"), _computed(_mul_high)),
    Primitive("dp4a", "map", 3, _infer_words, _computed(_dp4a)),
    _predicate("is_nan", 1, np.isnan),
    _predicate("is_inf", 1, np.isinf),
    Primitive("select", "map", 3, _infer_select, _evaluate_select),
    Primitive("cast", "map", 1, _infer_cast, _evaluate_cast),
    Primitive("float_bits", "map", 1, _infer_bits("float_bits", _BITS), _evaluate_float_bits),
    Primitive("bits_float", "map", 1, _infer_bits("bits_float", _NUMBERS), _evaluate_bits_float),
)
