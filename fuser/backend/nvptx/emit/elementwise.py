"""Elementwise primitives and casts, one scalar register at a time.

float32 functions use the special-function unit (ex2, rcp, rsqrt) and polynomials with a relative
error near 1e-6; everything else takes the target-neutral forms of fuser.backend.math. float16 and
bfloat16 compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend import math, math_integer, math_steps
from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.backend.text import Reg, real
from fuser.dtypes import BY_NAME, DType, bf16
from fuser.errors import LoweringError

LOG2_E = 1.4426950408889634
f32 = BY_NAME["f32"]

_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_BITWISE = {
    "logical_and": "and", "logical_or": "or", "logical_xor": "xor",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
}  # fmt: skip
_SUFFIX = {"float": "f32", "double": "f64"}


def apply(emitter: Emitter, fn: str, dtype: DType, args: list[str]) -> str:
    """One primitive on scalars. dtype: of the last operand (of both values, for select)."""
    if fn == "select":
        return emitter.value(f"select i1 {args[0]}, {dtype.llvm} {args[1]}, {dtype.llvm} {args[2]}")
    if fn in ("float_bits", "bits_float"):
        to = {"float": "i32", "double": "i64", "i32": "float", "i64": "double"}[dtype.llvm]
        return emitter.value(f"bitcast {dtype.llvm} {args[0]} to {to}")
    if dtype.is_float:
        if dtype.compute is not dtype:
            wide = [cast(emitter, arg, dtype, f32) for arg in args]
            result = _float(emitter, fn, f32, wide)
            is_predicate = fn in _FLOAT_COMPARE or fn in ("is_nan", "is_inf", "logical_not")
            return result if is_predicate else cast(emitter, result, f32, dtype)
        return _float(emitter, fn, dtype, args)
    return _integer(emitter, fn, dtype, args)


# floats -------------------------------------------------------------------------------------------


def _float(e: Emitter, fn: str, dtype: DType, args: list[str]) -> str:
    type, suffix = dtype.llvm, _SUFFIX[dtype.llvm]
    a = args[0]
    if fn in _FLOAT_COMPARE:
        return e.value(f"fcmp {_FLOAT_COMPARE[fn]} {type} {a}, {args[1]}")
    if fn in ("add", "sub", "mul"):
        verb = f"f{fn} contract" if e.fast else f"f{fn}"
        return e.value(f"{verb} {type} {a}, {args[1]}")
    if fn == "fma":
        operands = ", ".join(f"{type} {arg}" for arg in args)
        return e.value(f"call {type} @llvm.fma.{suffix}({operands})")
    if fn in ("min", "max"):
        return e.value(f"call {type} @llvm.{fn}imum.{suffix}({type} {a}, {type} {args[1]})")
    if fn in ("fmin", "fmax"):
        return e.value(f"call {type} @llvm.{fn[1:]}num.{suffix}({type} {a}, {type} {args[1]})")
    if fn == "abs":
        return _magnitude(e, type, a)
    if fn in ("floor", "ceil", "round"):
        name = {"round": "roundeven"}.get(fn, fn)
        return e.value(f"call {type} @llvm.{name}.{suffix}({type} {a})")
    if fn == "neg":
        return e.value(f"fneg {type} {a}")
    if fn == "is_nan":
        return e.value(f"fcmp uno {type} {a}, {a}")
    if fn == "is_inf":
        size = e.value(f"call {type} @llvm.fabs.{suffix}({type} {a})")
        return e.value(f"fcmp oeq {type} {size}, {real(float('inf'), type)}")
    if type == "float" and fn in _SINGLE and (e.fast or fn not in _ROUNDED):
        return _SINGLE[fn](e, *args)
    if fn == "div":
        return e.value(f"fdiv {type} {a}, {args[1]}")
    if fn == "sqrt":
        return e.value(f"call {type} @llvm.sqrt.{suffix}({type} {a})")
    if fn in ("rsqrt", "reciprocal"):
        below = _float(e, "sqrt", dtype, [a]) if fn == "rsqrt" else a
        return e.value(f"fdiv {type} {real(1.0, type)}, {below}")
    if fn == "sign":
        one = e.value(f"call {type} @llvm.copysign.{suffix}({type} {real(1.0, type)}, {type} {a})")
        apart = e.value(f"fcmp one {type} {a}, {real(0.0, type)}")  # false for NaN: stays itself
        flat = e.value(f"fadd {type} {a}, {real(0.0, type)}")  # of -0: 0
        return e.value(f"select i1 {apart}, {type} {one}, {type} {flat}")
    if fn in ("fmod", "mod"):
        return _remainder(e, fn, type, a, args[1])
    if fn in math.FUNCTIONS:
        return math.FUNCTIONS[fn](e, *(Reg(type, arg) for arg in args)).ref
    raise LoweringError(f"{fn} of {dtype} has no lowering for NVIDIA GPUs")


def _remainder(e: Emitter, fn: str, type: str, a: str, b: str) -> str:
    """fmod has the sign of a, mod the sign of b."""
    rest = e.value(f"frem {type} {a}, {b}")
    if fn == "fmod":
        return rest
    zero = real(0.0, type)
    below = e.value(f"fcmp olt {type} {rest}, {zero}")
    negative = e.value(f"fcmp olt {type} {b}, {zero}")
    differ = e.value(f"xor i1 {below}, {negative}")
    sum_ = e.value(f"fadd {type} {rest}, {b}")
    moved = e.value(f"select i1 {differ}, {type} {sum_}, {type} {rest}")
    whole = e.value(f"fcmp oeq {type} {rest}, {zero}")  # then with the sign of the divisor
    flat = e.value(f"call {type} @llvm.copysign.{_SUFFIX[type]}({type} {zero}, {type} {b})")
    return e.value(f"select i1 {whole}, {type} {flat}, {type} {moved}")


def _div(e: Emitter, a: str, b: str) -> str:
    return e.value(f"call float @llvm.nvvm.div.full(float {a}, float {b})")


def _exp2_of_any(e: Emitter, a: str) -> str:
    """2 units in the last place; small results stay denormal."""
    return e.value(f"call float @llvm.nvvm.ex2.approx.f(float {a})")


def _exp2(e: Emitter, a: str) -> str:
    return e.value(f"call float @llvm.nvvm.ex2.approx.ftz.f(float {a})")


# log2(e) less its float32. 1.5 * 2^23: a small number added to it is rounded to a whole one; and
# 127 more: then the last 8 bits of the sum are the exponent of 2 to that number.
_LOG2_E_REST = 1.92596303e-08
_TO_EXPONENT = 12582912.0 + 127


def _exp(e: Emitter, a: str) -> str:
    """2^n * 2^f for x * log2(e) = n + f with |f| <= 1/2: 2 units in the last place for every x.
    n stays within the exponents of float32; beyond them f is what is left, and 2^f is 0 or inf."""
    most, least = real(_TO_EXPONENT + 127), real(_TO_EXPONENT - 126)
    shifted = _fma(e, a, real(LOG2_E).ref, real(_TO_EXPONENT).ref)
    shifted = e.value(f"call float @llvm.minnum.f32(float {shifted}, float {most})")
    shifted = e.value(f"call float @llvm.maxnum.f32(float {shifted}, float {least})")
    whole = e.value(f"fsub float {shifted}, {real(_TO_EXPONENT)}")
    rest = _fma(e, a, real(LOG2_E).ref, e.value(f"fneg float {whole}"))
    rest = _fma(e, a, real(_LOG2_E_REST).ref, rest)
    bits = e.value(f"bitcast float {shifted} to i32")
    power = e.value(f"shl i32 {bits}, 23")
    scale = e.value(f"bitcast i32 {power} to float")
    return e.value(f"fmul float {_exp2(e, rest)}, {scale}")


def fast_exp(e: Emitter, x: str, scale: float = 1.0) -> str:
    """exp(x * scale) for results of 16 bits: relative error |x * scale| * 6e-8."""
    return _exp2(e, e.value(f"fmul contract float {x}, {real(LOG2_E * scale)}"))


def fast_reciprocal(e: Emitter, x: str, scale: float = 1.0) -> str:
    """1 / (x * scale) for results of 16 bits: 2 units in the last place of float32."""
    scaled = x if scale == 1.0 else e.value(f"fmul contract float {x}, {real(scale)}")
    return _reciprocal(e, scaled)


def _reciprocal(e: Emitter, a: str) -> str:
    return _div(e, real(1.0).ref, a)


def _sqrt(e: Emitter, a: str) -> str:
    return e.value(f"call float @llvm.nvvm.sqrt.rn.f(float {a})")


def _rsqrt(e: Emitter, a: str) -> str:
    return e.value(f"call float @llvm.nvvm.rsqrt.approx.f(float {a})")


def _horner(e: Emitter, x: str, coefficients: tuple[float, ...]) -> str:
    return math_steps.horner(e, Reg("float", x), coefficients).ref


def _fma(e: Emitter, a: str, b: str, c: str) -> str:
    return e.value(f"call float @llvm.fma.f32(float {a}, float {b}, float {c})")


def _fabs(e: Emitter, a: str) -> str:
    return e.value(f"call float @llvm.fabs.f32(float {a})")


def _signed(e: Emitter, size: str, sign: str) -> str:
    return e.value(f"call float @llvm.copysign.f32(float {size}, float {sign})")


# (tanh(x) / x - 1) / x^2 as a polynomial of x^2 on |x| < 0.6: error 3e-8
_TANH = (-0.33333331, 0.13332932, -0.05387632, 0.02112145, -0.00628366)
# erf(x) / x as a polynomial of x^2 on |x| < 1: error 1e-9
_ERF = (
    1.12837917, -0.376126271, 0.112836002, -0.0268544445, 0.00518953509, -0.000802083916,
    0.0000788911275,
)  # fmt: skip
# log2(erfc(x)) / x on 0.95 < x < 4: erf within 1e-9
_ERFC = (
    -1.6283204, -0.916229682, -0.153431461, 0.0344216776, -0.0053208269, 0.000481805689,
    -0.0000178023587,
)  # fmt: skip


def _tanh(e: Emitter, a: str) -> str:
    square = e.value(f"fmul contract float {a}, {a}")
    # The literal is too small to matter, but for the sign of -0: -0 * -0 + -0 would be 0.
    inner = _fma(e, square, _horner(e, square, _TANH), real(1e-30).ref)
    near = _fma(e, inner, a, a)
    size = _fabs(e, a)
    grown = _exp2(e, e.value(f"fmul contract float {size}, {real(2 * LOG2_E)}"))
    ratio = _div(e, real(2.0).ref, e.value(f"fadd float {grown}, {real(1.0)}"))
    far = _signed(e, e.value(f"fsub float {real(1.0)}, {ratio}"), a)
    small = e.value(f"fcmp olt float {size}, {real(0.6)}")
    return e.value(f"select i1 {small}, float {near}, float {far}")


def _erf(e: Emitter, a: str) -> str:
    square = e.value(f"fmul contract float {a}, {a}")
    near = e.value(f"fmul contract float {a}, {_horner(e, square, _ERF)}")
    size = _fabs(e, a)
    clamped = e.value(f"call float @llvm.minimum.f32(float {size}, float {real(4.0)})")
    power = e.value(f"fmul contract float {clamped}, {_horner(e, clamped, _ERFC)}")
    far = _signed(e, e.value(f"fsub float {real(1.0)}, {_exp2(e, power)}"), a)
    small = e.value(f"fcmp olt float {size}, {real(0.97)}")
    return e.value(f"select i1 {small}, float {near}, float {far}")


_SINGLE: dict[str, Callable[..., str]] = {
    "div": _div, "exp": _exp, "exp2": _exp2_of_any, "reciprocal": _reciprocal, "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "tanh": _tanh, "erf": _erf,
}  # fmt: skip
_ROUNDED = frozenset(("div", "reciprocal", "rsqrt"))
"""Of these, what is rounded correctly unless the program is fast."""


# log2((1 + erf(x)) / (1 - erf(x))) / x as a polynomial of x^2 on |x| < 3.5, fitted for the least
# greatest error of 1 + erf(x): 6e-8, as much as rounding erf(x) to float32 costs
_ERF_LOGIT = (
    3.25581551, 0.296518505, -0.000532022328, -0.00180544134,
    0.000258854066, -1.72706896e-05, 4.58635753e-07,
)  # fmt: skip


# log2((1 - erf(x)) / 2) as a polynomial on 0 <= x < 4.4: error 5e-6. It falls on beyond
_HALF_ERFC = (
    -0.999995293, -1.62811488, -0.916928571, -0.152622538, 0.0340319315, -0.00526400657,
    0.000492821427, -2.07614285e-05,
)  # fmt: skip


def one_plus_tanh(e: Emitter, x: str, scale: float = 1.0) -> str:
    """1 + tanh(x * scale) as 1 / (1/2 + 1/2 exp(-2 x scale)): relative error near 1e-6."""
    power = _exp2(e, e.value(f"fmul contract float {x}, {real(-2 * LOG2_E * scale)}"))
    return _two_over_one_plus(e, power)


def one_plus_erf(e: Emitter, x: str, scale: float = 1.0) -> str:
    """1 + erf(x * scale) for results of 16 bits: absolute error 3e-7, and a relative one of 1e-2
    down to values of 1e-6. erf is a tanh of x times a slowly growing function of x^2."""
    most, coefficients = 12.25 / scale**2, scaled_terms(_ERF_LOGIT, scale)
    square = e.value(f"fmul contract float {x}, {x}")
    least = e.value(f"call float @llvm.minnum.f32(float {square}, float {real(most)})")
    logit = e.value(f"fmul contract float {x}, {_horner(e, least, coefficients)}")
    return _two_over_one_plus(e, _exp2(e, e.value(f"fneg float {logit}")))


def gelu(e: Emitter, x: str, scale: float = 1.0) -> str:
    """x/2 * (1 + erf(x * scale)) for results of 16 bits: relative error 4e-6 where x * scale is
    above -4.4, absolute error 1e-8 / scale below. As max(x, 0) - |x| erfc(|x| scale) / 2 it takes
    one special function; for arguments of 12 and more, to which they are cut, that one is 0. Of
    -inf it is 0, the limit."""
    coefficients = tuple(c * scale**power for power, c in enumerate(_HALF_ERFC))
    most, zero = real(12.0 / scale), real(0.0)
    size = e.value(f"call float @llvm.minimum.f32(float {_fabs(e, x)}, float {most})")
    share = _exp2(e, _horner(e, size, coefficients))
    above = e.value(f"call float @llvm.maximum.f32(float {x}, float {zero})")
    return _fma(e, e.value(f"fneg float {size}"), share, above)


def scaled_terms(coefficients: tuple[float, ...], scale: float) -> tuple[float, ...]:
    """Those of an odd polynomial of x * scale, as one of x."""
    return tuple(c * scale ** (2 * power + 1) for power, c in enumerate(coefficients))


def capped(e: Emitter, x: str, scale: float = 1.0) -> str:
    """tanh(x * scale) for scores: absolute error 2e-7, whatever the size."""
    power = _exp2(e, e.value(f"fmul contract float {x}, {real(2 * LOG2_E * scale)}"))
    return _fma(e, _two_over_one_plus(e, power), real(-1.0).ref, real(1.0).ref)


def fast_tanh(e: Emitter, x: str, scale: float = 1.0) -> str:
    """tanh(x * scale) for results of 16 bits: relative error 4e-6. Near 0 it is x - x^3 / 3."""
    scaled = e.value(f"fmul contract float {x}, {real(scale)}") if scale != 1.0 else x
    square = e.value(f"fmul contract float {scaled}, {scaled}")
    third = e.value(f"fmul contract float {square}, {real(-1 / 3)}")
    near = _fma(e, third, scaled, scaled)
    small = e.value(f"fcmp olt float {square}, {real(2.0**-8)}")
    return e.value(f"select i1 {small}, float {near}, float {capped(e, x, scale)}")


def rough_tanh(e: Emitter, x: str, scale: float = 1.0) -> str:
    """tanh(x * scale) as one instruction, for scores of bfloat16 matmuls: relative error 5e-4
    (2^-11, PTX ISA 9.7.3, tanh.approx.f32)."""
    scaled = e.value(f"fmul contract float {x}, {real(scale)}") if scale != 1.0 else x
    return e.value(f'call float asm "tanh.approx.f32 $0, $1;", "=f,f"(float {scaled})')


def _two_over_one_plus(e: Emitter, power: str) -> str:
    half = real(0.5).ref
    below = _fma(e, power, half, half)
    return e.value(f"call float @llvm.nvvm.rcp.approx.ftz.f(float {below})")


def exponential_of_difference(e: Emitter, xs: list[str], ys: list[str], scale: float) -> list[str]:
    """exp2(x * scale - y * log2(e)) for registers; a y that repeats is multiplied once."""
    scaled: dict[str, str] = {}
    results = []
    for x, y in zip(xs, ys, strict=True):
        if y not in scaled:
            scaled[y] = e.value(f"fmul float {y}, {real(-LOG2_E)}")
        results.append(_exp2(e, _fma(e, x, real(scale).ref, scaled[y])))
    return results


# integers and bool --------------------------------------------------------------------------------


def _integer(e: Emitter, fn: str, dtype: DType, args: list[str]) -> str:
    type = dtype.llvm
    letter = "s" if dtype.kind == "int" else "u"
    a = args[0]
    b = args[1] if len(args) > 1 else ""
    if fn in ("eq", "ne"):
        return e.value(f"icmp {fn} {type} {a}, {b}")
    if fn in ("lt", "le", "gt", "ge"):
        return e.value(f"icmp {letter}{fn} {type} {a}, {b}")
    if fn in _BITWISE:
        return e.value(f"{_BITWISE[fn]} {type} {a}, {b}")
    if fn in ("logical_not", "bitwise_not"):
        ones = "true" if dtype.kind == "bool" else "-1"
        if fn == "logical_not" and dtype.kind != "bool":
            return e.value(f"icmp eq {type} {a}, 0")
        return e.value(f"xor {type} {a}, {ones}")
    if dtype.kind == "bool":
        simple = {
            "add": "or", "max": "or", "fmax": "or", "mul": "and", "min": "and", "fmin": "and",
            "sub": "xor",
        }  # fmt: skip
        if fn in simple:
            return e.value(f"{simple[fn]} i1 {a}, {b}")
    if fn in ("add", "sub", "mul"):
        return e.value(f"{fn} {type} {a}, {b}")
    if fn in ("min", "max", "fmin", "fmax"):
        return _extreme(e, fn[-3:], dtype, a, b)
    if fn == "mul_high":
        return _mul_high(e, dtype, a, b)
    if fn == "neg":
        return e.value(f"sub {type} 0, {a}")
    if fn == "abs":
        if letter == "u":
            return a
        return _absolute(e, type, a)
    if fn == "sign":
        above = e.value(f"icmp {letter}gt {type} {a}, 0")
        one = e.value(f"zext i1 {above} to {type}")
        if letter == "u":
            return one
        below = e.value(f"ashr {type} {a}, {dtype.bits - 1}")
        return e.value(f"or {type} {one}, {below}")
    if fn in ("div", "mod", "fmod"):
        quotient, rest = math_integer.divide(e, Reg(type, a), Reg(type, b), letter == "s")
        if fn != "mod" or letter == "u":
            return (quotient if fn == "div" else rest).ref
        moved = e.value(f"add {type} {rest}, {b}")
        signs = e.value(f"xor {type} {rest}, {b}")
        differ = e.value(f"icmp slt {type} {signs}, 0")
        some = e.value(f"icmp ne {type} {rest}, 0")
        wrong = e.value(f"and i1 {differ}, {some}")
        return e.value(f"select i1 {wrong}, {type} {moved}, {type} {rest}")
    if fn in ("shift_left", "shift_right"):
        op = "shl" if fn == "shift_left" else ("ashr" if letter == "s" else "lshr")
        shifted = e.value(f"{op} {type} {a}, {b}")
        fits = e.value(f"icmp ult {type} {b}, {dtype.bits}")
        gone = e.value(f"ashr {type} {a}, {dtype.bits - 1}") if op == "ashr" else "0"
        return e.value(f"select i1 {fits}, {type} {shifted}, {type} {gone}")
    if fn == "pow":
        return math_integer.power(e, Reg(type, a), Reg(type, b), dtype).ref
    raise LoweringError(f"{fn} of {dtype} has no lowering for NVIDIA GPUs")


# casts --------------------------------------------------------------------------------------------


def cast(emitter: Emitter, x: str, source: DType, target: DType) -> str:
    """Convert one element: float to int truncates, anything to bool is `!= 0`."""
    if source == target:
        return x
    e, a, b = emitter, source.llvm, target.llvm
    if target.kind == "bool":
        if source.is_float:
            return e.value(f"fcmp une {a} {x}, {real(0.0, a)}")
        return e.value(f"icmp ne {a} {x}, 0")
    if source.is_float and target.is_float:
        if source.bits == target.bits or (source.bits == 16 and target.bits == 64):
            return cast(e, cast(e, x, source, f32), f32, target)
        if source == bf16:
            return _upper_half(e, x)
        return e.value(f"{'fpext' if source.bits < target.bits else 'fptrunc'} {a} {x} to {b}")
    if source.is_float:
        if source.bits == 16:
            return cast(e, cast(e, x, source, f32), f32, target)
        op = "fptosi" if target.kind == "int" else "fptoui"
        if target.bits < 32:  # through 32 bits, so that out of range values wrap
            wide = BY_NAME["i32"]
            return cast(e, cast(e, x, source, wide), wide, target)
        return e.value(f"call {b} @llvm.{op}.sat.{b}.{_SUFFIX[a]}({a} {x})")
    if target.is_float:
        if target.bits == 16:
            return cast(e, cast(e, x, source, f32), f32, target)
        op = "sitofp" if source.kind == "int" else "uitofp"
        return e.value(f"{op} {a} {x} to {b}")
    if source.bits == target.bits and source.kind != "bool":
        return x
    if source.kind == "bool" or source.bits < target.bits:
        op = "sext" if source.kind == "int" else "zext"
        return e.value(f"{op} {a} {x} to {b}")
    return e.value(f"trunc {a} {x} to {b}")


def _upper_half(e: Emitter, x: str) -> str:
    """bfloat16 as float32. LLVM would round the operands of a fptrunc(fpext x + fpext y) to half
    instead of the sum, though they may be out of half's range; it does not see through bits."""
    word = e.value(f"zext i16 {e.value(f'bitcast bfloat {x} to i16')} to i32")
    return e.value(f"bitcast i32 {e.value(f'shl i32 {word}, 16')} to float")


def _widened(emitter: Emitter, regs: list[str]) -> list[str]:
    """bfloat16 as float32: the upper half of the word. From a vector that was loaded, one
    instruction each; the halves of a word apart from each other would take three for two."""
    words: dict[tuple[str, int], str] = {}
    vectors: dict[str, str] = {}
    results = []
    for reg in regs:
        if reg not in emitter.sources.packed:
            results.append(_upper_half(emitter, reg))
            continue
        vector, width, place = emitter.sources.packed[reg]
        if vector not in vectors:
            cast = f"bitcast <{width} x bfloat> {vector} to <{width // 2} x i32>"
            vectors[vector] = emitter.value(cast)
        key = (vector, place // 2)
        if key not in words:
            whole = f"<{width // 2} x i32> {vectors[vector]}"
            words[key] = emitter.value(f"extractelement {whole}, i32 {place // 2}")
        step = f"and i32 {words[key]}, -65536" if place % 2 else f"shl i32 {words[key]}, 16"
        results.append(emitter.value(f"bitcast i32 {emitter.value(step)} to float"))
    return results


def cast_registers(emitter: Emitter, regs: list[str], source: DType, target: DType) -> list[str]:
    """Convert a tile's registers; float32 to 16 bits goes in pairs, one instruction each,
    from sm_80 on."""
    if source == bf16 and target.name == "f32":
        return _widened(emitter, regs)
    packed = source.name == "f32" and target.name in ("f16", "bf16")
    if not packed or not emitter.rounds_packed:
        return [cast(emitter, reg, source, target) for reg in regs]
    results: list[str] = []
    type = target.llvm
    for start in range(0, len(regs) - 1, 2):
        low, high = regs[start], regs[start + 1]
        short = "bf16x2" if type == "bfloat" else "f16x2"
        pair = emitter.value(
            f"call <2 x {type}> @llvm.nvvm.ff2{short}.rn(float {high}, float {low})"
        )
        for position in range(2):
            results.append(emitter.value(f"extractelement <2 x {type}> {pair}, i32 {position}"))
    if len(regs) % 2:
        results.append(cast(emitter, regs[-1], source, target))
    return results


def _extreme(e: Emitter, fn: str, dtype: DType, a: str, b: str) -> str:
    """min or max of two integers. ptxas (CUDA 13.0, from -O1 on) makes max(max(-a, b), c) one
    instruction of three operands and loses the sign: up to 32 bits they are chosen by hand."""
    type, letter = dtype.llvm, "s" if dtype.kind == "int" else "u"
    if dtype.bits > 32:
        return e.value(f"call {type} @llvm.{letter}{fn}.{type}({type} {a}, {type} {b})")
    if dtype.bits < 32:
        extend = "sext" if letter == "s" else "zext"
        a, b = (e.value(f"{extend} {type} {x} to i32") for x in (a, b))
    order = "lt" if fn == "min" else "gt"
    chosen = e.value(
        f'call i32 asm "{{.reg .pred p; setp.{order}.{letter}32 p, $1, $2; '
        f'selp.b32 $0, $1, $2, p;}}", "=r,r,r"(i32 {a}, i32 {b})'
    )
    return chosen if dtype.bits == 32 else e.value(f"trunc i32 {chosen} to {type}")


def _mul_high(e: Emitter, dtype: DType, a: str, b: str) -> str:
    """The upper half of the product."""
    bits, type = dtype.bits, dtype.llvm
    extend = "sext" if dtype.kind == "int" else "zext"
    x, y = (e.value(f"{extend} {type} {item} to i{2 * bits}") for item in (a, b))
    product = e.value(f"mul i{2 * bits} {x}, {y}")
    upper = e.value(f"lshr i{2 * bits} {product}, {bits}")
    return e.value(f"trunc i{2 * bits} {upper} to {type}")


def _magnitude(e: Emitter, type: str, a: str) -> str:
    """|a|. ptxas takes what abs gives to be at least 0, NaN as well: |NaN| > -1 would hold."""
    bits, letter = (32, "f") if type == "float" else (64, "d")
    mask = (1 << (bits - 1)) - 1
    return e.value(
        f'call {type} asm "and.b{bits} $0, $1, {mask:#x};", "={letter},{letter}"({type} {a})'
    )


def _absolute(e: Emitter, type: str, a: str) -> str:
    """|a|, the least integer staying as it is. ptxas takes what abs gives for a number from 0 on,
    and divides it without a sign."""
    if type == "i8":  # done in 16 bits, where it has no such number
        return e.value(f"call {type} @llvm.abs.{type}({type} {a}, i1 false)")
    bits, letter = type[1:], {"i16": "h", "i32": "r", "i64": "l"}[type]
    return e.value(
        f'call {type} asm "{{.reg .s{bits} n; .reg .pred below; neg.s{bits} n, $1; '
        f'setp.lt.s{bits} below, $1, 0; selp.b{bits} $0, n, $1, below;}}", '
        f'"={letter},{letter}"({type} {a})'
    )
