"""Map primitives and casts on LLVM values: scalars or vectors of any width.

Meaning follows graph/README.md: integer `div` truncates, `mod` has the sign of b, `fmod` of a,
min and max propagate NaN, comparisons give i1. float16 and bfloat16 compute in float32 and round
once. What C leaves undefined is defined here: integer division by zero gives 0, a shift by the
width or more leaves nothing but the sign, a float outside an integer's range saturates.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend import math, text
from fuser.backend.function import Function
from fuser.backend.math_integer import divide, power
from fuser.backend.text import Reg, integer, like, mangle, real
from fuser.dtypes import DType, bf16, f16, f32, f64
from fuser.errors import LoweringError

_COMPARE = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
_BITWISE = {
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
    "logical_and": "and", "logical_or": "or", "logical_xor": "xor",
}  # fmt: skip
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FLOAT_UNARY = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven",
}  # fmt: skip


def apply(f: Function, fn: str, dtype: DType, args: Sequence[Reg]) -> Reg:
    """The primitive `fn` on operands of `dtype` (of the last two for select), all of one LLVM type.

    Raises LoweringError for a primitive that the dtype does not have.
    """
    if fn == "select":
        condition, a, b = args
        return f.select(condition, a, b)
    if fn in ("float_bits", "bits_float"):
        to = {"float": "i32", "double": "i64", "i32": "float", "i64": "double"}[dtype.llvm]
        return f.convert("bitcast", args[0], like(args[0].type, to))
    if dtype in (f16, bf16):
        wide = [cast(f, x, dtype, f32) for x in args]
        result = apply(f, fn, f32, wide)
        return result if text.element(result.type) == "i1" else cast(f, result, f32, dtype)
    if fn in _COMPARE:
        ordered, signed, unsigned = _COMPARE[fn]
        a, b = args
        if dtype.is_float:
            return f.fcmp(ordered, a, b)
        return f.icmp(signed if dtype.kind == "int" else unsigned, a, b)
    if fn.startswith("logical_"):
        args = [cast(f, x, dtype, _bool()) for x in args]
        if fn == "logical_not":
            return f.binary("xor", args[0], integer(1, args[0].type))
    if fn in _BITWISE:
        return f.binary(_BITWISE[fn], args[0], args[1])
    if dtype.is_float:
        return _float(f, fn, args)
    return _integer(f, fn, dtype, args)


def _bool() -> DType:
    from fuser.dtypes import bool_

    return bool_


def _float(f: Function, fn: str, args: Sequence[Reg]) -> Reg:
    x = args[0]
    type = x.type
    if fn in _FLOAT_BINARY:
        return f.binary(_FLOAT_BINARY[fn], x, args[1])
    if fn in _FLOAT_UNARY:
        return f.intrinsic(_FLOAT_UNARY[fn], x)
    match fn:
        case "neg":
            return f.fneg(x)
        case "reciprocal":
            return f.binary("fdiv", real(1.0, type), x)
        case "rsqrt":
            return f.binary("fdiv", real(1.0, type), f.intrinsic("sqrt", x))
        case "sign":
            one = f.intrinsic("copysign", real(1.0, type), x)
            flat = f.fcmp("ueq", x, real(0.0, type))  # keeps NaN, and makes -0 to 0
            return f.select(flat, f.binary("fadd", x, real(0.0, type)), one)
        case "fma":
            return f.fma(*args)
        case "max" | "min":
            return extreme(f, fn, *args)
        case "fmax" | "fmin":
            a, b = args
            other = f.select(f.fcmp("ogt" if fn == "fmax" else "olt", a, b), a, b)
            return f.select(f.fcmp("uno", b, b), a, other)
        case "is_nan":
            return f.fcmp("uno", x, x)
        case "is_inf":
            return f.fcmp("oeq", f.intrinsic("fabs", x), real(float("inf"), type))
        case "fmod":
            return math.fmod(f, *args)
        case "mod":
            rest = math.fmod(f, *args)
            zero = real(0.0, type)
            differ = f.binary("xor", f.fcmp("olt", rest, zero), f.fcmp("olt", args[1], zero))
            moved = f.select(differ, f.binary("fadd", rest, args[1]), rest)
            whole = f.fcmp("oeq", rest, zero)  # then with the sign of the divisor
            return f.select(whole, f.intrinsic("copysign", zero, args[1]), moved)
    emitter = math.FUNCTIONS.get(fn)
    if emitter is None:
        raise LoweringError(f"no float lowering of the map {fn!r}")
    return emitter(f, *args)


def _is_literal(x: Reg) -> bool:
    return not x.ref.startswith("%") and "0x7FF8" not in x.ref


def extreme(f: Function, fn: str, a: Reg, b: Reg) -> Reg:
    """min or max of floats; NaN if either is NaN. One instruction where one side is a literal."""
    if _is_literal(b):
        a, b = b, a
    if _is_literal(a):
        # `a > b ? a : b` is b where either is NaN, which is what the vector instructions do.
        return f.select(f.fcmp("ogt" if fn == "max" else "olt", a, b), a, b)
    # nsz: either zero will do, and the test for signs would cost as much as the rest.
    name = f"llvm.{fn}imum.{mangle(a.type)}"
    return f.op(a.type, f"call nsz {a.type} @{name}({a.typed}, {b.typed})")


def _dp4a(f: Function, total: Reg, codes: Reg, digits: Reg) -> Reg:
    """One instruction for vectors where there is one (VNNI)."""
    lanes = text.lanes(total.type)
    if math.DP4A in f.traits and lanes in (4, 8, 16):
        bytes_ = [f.convert("bitcast", x, text.vector("i8", 4 * lanes)) for x in (codes, digits)]
        return f.call(total.type, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total, *bytes_)
    for byte in range(4):
        up, most = integer(24 - 8 * byte, total.type), integer(24, total.type)
        code = f.binary("lshr", f.binary("shl", codes, up), most)
        digit = f.binary("ashr", f.binary("shl", digits, up), most)
        total = f.binary("add", total, f.binary("mul", code, digit))
    return total


def _integer(f: Function, fn: str, dtype: DType, args: Sequence[Reg]) -> Reg:
    x = args[0]
    type = x.type
    signed = dtype.kind == "int"
    zero, one = integer(0, type), integer(1, type)
    if dtype.kind == "bool":
        # Booleans add and multiply as or and and, the way NumPy has it.
        as_logic = {"add": "or", "max": "or", "mul": "and", "min": "and"}
        as_logic |= {"fmax": "or", "fmin": "and"}
        if fn in as_logic:
            return f.binary(as_logic[fn], x, args[1])
        if fn in ("abs", "sign"):
            return x
        if fn == "bitwise_not":
            return f.binary("xor", x, one)
        raise LoweringError(f"no lowering of the map {fn!r} on bool")
    match fn:
        case "add" | "sub" | "mul":
            return f.binary(fn, x, args[1])
        case "neg":
            return f.binary("sub", zero, x)
        case "abs":
            return (
                f.call(type, f"llvm.abs.{text.mangle(type)}", x, Reg("i1", "false"))
                if signed
                else x
            )
        case "sign":
            positive = f.convert("zext", f.icmp("sgt" if signed else "ugt", x, zero), type)
            if not signed:
                return positive
            negative = f.convert("sext", f.icmp("slt", x, zero), type)
            return f.binary("or", positive, negative)
        case "min" | "max" | "fmin" | "fmax":
            return f.intrinsic(("s" if signed else "u") + fn[-3:], *args)
        case "mul_high":
            wide = like(type, f"i{2 * dtype.bits}")
            a, b = (f.convert("sext" if signed else "zext", arg, wide) for arg in args)
            high = f.binary("lshr", f.binary("mul", a, b), integer(dtype.bits, wide))
            return f.convert("trunc", high, type)
        case "dp4a":
            return _dp4a(f, *args)
        case "bitwise_not":
            return f.binary("xor", x, integer(-1, type))
        case "floor" | "ceil" | "round":
            return x
        case "is_nan" | "is_inf":
            return integer(0, like(type, "i1"))
        case "shift_left" | "shift_right":
            name = "shl" if fn == "shift_left" else "ashr" if signed else "lshr"
            fits = f.icmp("ult", args[1], integer(dtype.bits, type))
            shifted = f.binary(name, x, f.select(fits, args[1], zero))
            gone = f.binary("ashr", x, integer(dtype.bits - 1, type)) if name == "ashr" else zero
            return f.select(fits, shifted, gone)
        case "div":
            return divide(f, x, args[1], signed)[0]
        case "fmod":
            return divide(f, x, args[1], signed)[1]
        case "mod":
            rest = divide(f, x, args[1], signed)[1]
            if not signed:
                return rest
            differ = f.icmp("slt", f.binary("xor", rest, args[1]), zero)
            differ = f.binary("and", differ, f.icmp("ne", rest, zero))
            return f.select(differ, f.binary("add", rest, args[1]), rest)
        case "pow":
            return power(f, x, args[1], dtype)
    raise LoweringError(f"no integer lowering of the map {fn!r}")


# casts --------------------------------------------------------------------------------------------


def cast(f: Function, x: Reg, source: DType, target: DType, flush: bool = False) -> Reg:
    """Convert a value: float to int truncates, to bool is `!= 0`, to a narrower float rounds.
    flush: results that are denormal may be 0."""
    if source == target or (source.llvm == target.llvm and source.is_integer and target.is_integer):
        return x
    type = like(x.type, target.llvm)
    if target.kind == "bool":
        if source.is_float:
            wide = cast(f, x, source, source.compute)
            return f.fcmp("une", wide, real(0.0, wide.type))
        return f.icmp("ne", x, integer(0, x.type))
    if flush and source == f32 and target == bf16 and math.ROUND_BF16 in f.traits:
        if (lanes := text.lanes(x.type)) in (8, 16):
            return f.call(type, f"llvm.x86.avx512bf16.cvtneps2bf16.{lanes * 32}", x)
    if source.is_float and target.is_float:
        return _float_cast(f, x, source, target, type)
    if source.is_float:
        wide = cast(f, x, source, source.compute)
        return _to_integer(f, wide, target, type)
    if target.is_float:
        name = "sitofp" if source.kind == "int" else "uitofp"
        wide_type = target.compute
        return cast(f, f.convert(name, x, like(x.type, wide_type.llvm)), wide_type, target)
    if target.bits <= source.bits:
        return f.convert("trunc", x, type) if source.kind != "bool" else f.convert("zext", x, type)
    return f.convert("sext" if source.kind == "int" else "zext", x, type)


def _to_integer(f: Function, x: Reg, target: DType, type: str) -> Reg:
    """The integer towards zero; the nearest one beyond the ends, 0 of NaN. LLVM's intrinsic for it
    takes vectors apart, element by element."""
    signed = target.kind == "int"
    name = "fptosi" if signed else "fptoui"
    if text.lanes(type) == 1:
        return f.call(type, f"llvm.{name}.sat.{text.mangle(type)}.{text.mangle(x.type)}", x)
    least = -(1 << target.bits - 1) if signed else 0
    most = least + (1 << target.bits) - 1
    if target.bits <= 16:  # exact ends of all floats, and within 32 bits
        if signed:
            x = f.select(f.fcmp("uno", x, x), real(0.0, x.type), x)
        low, high = real(float(least), x.type), real(float(most), x.type)
        x = f.select(f.fcmp("ogt", x, low), x, low)
        x = f.select(f.fcmp("olt", x, high), x, high)
        return f.convert("trunc", f.convert("fptosi", x, like(x.type, "i32")), type)
    low, high = real(float(least), x.type), real(float(most + 1), x.type)
    within = f.binary("and", f.fcmp("olt", x, high), f.fcmp("oge", x, low))  # no NaN is
    whole = f.convert(name, f.select(within, x, real(0.0, x.type)), type)
    whole = f.select(f.fcmp("oge", x, high), integer(most, type), whole)
    return f.select(f.fcmp("olt", x, low), integer(least, type), whole)


def bitcast(f: Function, x: Reg, source: DType, target: DType) -> Reg:
    """The same bits as another dtype; booleans are the bytes 0 and 1."""
    if source.kind == "bool" or target.kind == "bool":
        return cast(f, x, source, target)
    return f.convert("bitcast", x, like(x.type, target.llvm))


def _float_cast(f: Function, x: Reg, source: DType, target: DType, type: str) -> Reg:
    if source.bits == target.bits == 16:
        return cast(f, cast(f, x, source, f32), f32, target)
    if source == bf16:
        # bfloat16 is the upper half of a float32.
        raw = f.convert("bitcast", x, like(x.type, "i16"))
        word = f.convert("zext", raw, like(x.type, "i32"))
        word = f.binary("shl", word, integer(16, word.type))
        return cast(f, f.convert("bitcast", word, like(x.type, "float")), f32, target)
    if target.bits > source.bits:
        return f.convert("fpext", x, type)
    if source == f64 and target.bits == 16:
        return cast(f, _round_to_odd(f, x), f32, target)
    if target == bf16:
        return _to_bfloat(f, x)
    if target.bits == 16 and text.lanes(type) == 1:
        # Of copysign(double), rounded to float, LLVM would take the sign's half by itself: by a
        # function of a library that the process lacks. It does not see through a fence.
        x = f.intrinsic("arithmetic.fence", x)
    return f.convert("fptrunc", x, type)


def _round_to_odd(f: Function, x: Reg) -> Reg:
    """float64 to float32 so that a second rounding, to 16 bits, is still correct.

    An inexact result whose last bit is even moves to its odd neighbour towards x.
    """
    near = f.convert("fptrunc", x, like(x.type, "float"))
    back = f.convert("fpext", near, x.type)
    word = f.convert("bitcast", near, like(x.type, "i32"))
    one = integer(1, word.type)
    even = f.icmp("eq", f.binary("and", word, one), integer(0, word.type))
    inexact = f.fcmp("one", back, x)
    grow = f.fcmp("olt", f.intrinsic("fabs", back), f.intrinsic("fabs", x))
    moved = f.select(grow, f.binary("add", word, one), f.binary("sub", word, one))
    word = f.select(f.binary("and", even, inexact), moved, word)
    return f.convert("bitcast", word, near.type)


def _to_bfloat(f: Function, x: Reg) -> Reg:
    """float32 to bfloat16, to nearest even; denormals kept (the x86 instruction drops them)."""
    word = f.convert("bitcast", x, like(x.type, "i32"))
    shift = integer(16, word.type)
    last = f.binary("and", f.binary("lshr", word, shift), integer(1, word.type))
    bumped = f.binary("add", word, f.binary("add", last, integer(0x7FFF, word.type)))
    quiet = f.binary("or", word, integer(0x400000, word.type))
    word = f.select(f.fcmp("uno", x, x), quiet, bumped)
    half = f.convert("trunc", f.binary("lshr", word, shift), like(x.type, "i16"))
    return f.convert("bitcast", half, like(x.type, "bfloat"))


# folding ------------------------------------------------------------------------------------------

NUMBERS_ONLY = {"fmax": "number_max", "fmin": "number_min"}
"""Folds of floats that drop NaN, and how they are folded from an infinity on: right wherever
something but an infinity or NaN was folded."""


def identity(fn: str, dtype: DType) -> float | int:
    """What a fold of `fn` starts from."""
    if fn in NUMBERS_ONLY.values():
        return dtype.lowest if fn == "number_max" else dtype.highest
    if fn in ("fmax", "fmin"):
        # every number is greater, and less, than NaN, which is left where there are none
        return float("nan") if dtype.is_float else identity(fn[1:], dtype)
    whole = 1 if dtype.kind == "bool" else -1
    starts = {"bitwise_and": whole, "bitwise_or": 0, "bitwise_xor": 0}
    return ({"sum": 0, "prod": 1, "max": dtype.lowest, "min": dtype.highest} | starts)[fn]


def combine(f: Function, fn: str, dtype: DType, a: Reg, b: Reg) -> Reg:
    """One step of a fold: a and b of `dtype`."""
    if fn in NUMBERS_ONLY.values():
        # one instruction: `b > a ? b : a` is a where b is NaN
        return f.select(f.fcmp("ogt" if fn == "number_max" else "olt", b, a), b, a)
    return apply(f, {"sum": "add", "prod": "mul"}.get(fn, fn), dtype, [a, b])


def literal(value: float | int | bool, dtype: DType, lanes: int = 1) -> Reg:
    """A constant of the dtype."""
    type = text.vector(dtype.llvm, lanes)
    return real(float(value), type) if dtype.is_float else integer(int(value), type)
