"""Elementary functions as LLVM IR, for scalars and vectors of float and double.

Each emitter takes (function, operands...) and appends plain LLVM instructions: fma, selects, bit
operations. No library call is made, so they run on every target that LLVM has. exp, log, tanh and
erf have float versions of their own; the other float functions round a double result once.
Polynomials are fits of our own (math_tables.py). The greatest errors seen, in units in the last
place of the result, are `MAX_ULP`; tests/backend/test_math.py asserts them over the whole range.
Denormal results are kept. sin, cos and tan keep their accuracy up to |x| = 2**30.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fuser.backend import math_tables as tables
from fuser.backend import text
from fuser.backend.text import Function, Reg, integer, like, real

INFINITY = float("inf")
NAN = float("nan")
LN2 = math.log(2.0)
LOG2_E = 1.0 / LN2

SCALEF = "scalef"
"""Function.traits: AVX-512's x * 2**n with n a float is at hand."""


def horner(f: Function, x: Reg, coefficients: Sequence[float]) -> Reg:
    """sum of coefficients[i] * x**i."""
    result = real(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        result = f.fma(result, x, real(coefficient, x.type))
    return result


def _is_double(x: Reg) -> bool:
    return text.element(x.type) == "double"


def _word(type: str) -> str:
    """The integer type of the same width."""
    return like(type, "i64" if text.element(type) == "double" else "i32")


def _bits(f: Function, x: Reg) -> Reg:
    return f.convert("bitcast", x, _word(x.type))


def _float(f: Function, x: Reg, type: str) -> Reg:
    return f.convert("bitcast", x, type)


def _mul(f: Function, a: Reg, b: Reg | float) -> Reg:
    return f.binary("fmul", a, b if isinstance(b, Reg) else real(b, a.type))


def _add(f: Function, a: Reg, b: Reg | float) -> Reg:
    return f.binary("fadd", a, b if isinstance(b, Reg) else real(b, a.type))


def _sub(f: Function, a: Reg | float, b: Reg) -> Reg:
    return f.binary("fsub", a if isinstance(a, Reg) else real(a, b.type), b)


def _div(f: Function, a: Reg | float, b: Reg) -> Reg:
    return f.binary("fdiv", a if isinstance(a, Reg) else real(a, b.type), b)


def _fma(f: Function, a: Reg, b: Reg | float, c: Reg | float) -> Reg:
    wide = [item if isinstance(item, Reg) else real(item, a.type) for item in (b, c)]
    return f.fma(a, *wide)


def _test(f: Function, predicate: str, a: Reg, b: Reg | float) -> Reg:
    return f.fcmp(predicate, a, b if isinstance(b, Reg) else real(b, a.type))


def _pick(f: Function, condition: Reg, a: Reg | float, b: Reg | float) -> Reg:
    type = a.type if isinstance(a, Reg) else b.type if isinstance(b, Reg) else ""
    left, right = (item if isinstance(item, Reg) else real(item, type) for item in (a, b))
    return f.select(condition, left, right)


def _at_most(f: Function, x: Reg, limit: float) -> Reg:
    """min(x, limit), NaN kept: one instruction."""
    return _pick(f, _test(f, "ogt", x, limit), limit, x)


def _at_least(f: Function, x: Reg, limit: float) -> Reg:
    return _pick(f, _test(f, "olt", x, limit), limit, x)


def _abs(f: Function, x: Reg) -> Reg:
    return f.intrinsic("fabs", x)


def _copysign(f: Function, x: Reg, sign: Reg) -> Reg:
    return f.intrinsic("copysign", x, sign)


def _through_double(emit: Callable[..., Reg]) -> Callable[..., Reg]:
    """The float version of a function: its double version, rounded once."""

    def wrapped(f: Function, *args: Reg) -> Reg:
        if _is_double(args[0]):
            return emit(f, *args)
        wide = [f.convert("fpext", x, like(x.type, "double")) for x in args]
        return f.convert("fptrunc", emit(f, *wide), args[0].type)

    return wrapped


# exp and log --------------------------------------------------------------------------------------


def _scale(f: Function, x: Reg, n: Reg, biased: Reg) -> Reg:
    """x * 2**n, denormals right; n is a whole float and `biased` has n in its low bits."""
    type, count = x.type, text.lanes(x.type)
    double = _is_double(x)
    native = {16: "ps.512", 8: "ps.256", 4: "ps.128"} if not double else {
        8: "pd.512", 4: "pd.256", 2: "pd.128"
    }  # fmt: skip
    if SCALEF in f.traits and count in native:
        mask = Reg(f"i{max(8, count)}", "-1")
        rounding = [Reg("i32", "4")] if native[count].endswith("512") else []
        name = f"llvm.x86.avx512.mask.scalef.{native[count]}"
        return f.call(type, name, x, n, real(0.0, type), mask, *rounding)
    # Two factors, so that neither leaves the range of normal numbers.
    mantissa, bias = (52, 1023) if double else (23, 127)
    word = biased.type
    low = f.binary("ashr", biased, integer(1, word))
    high = f.binary("sub", biased, low)

    def power(k: Reg) -> Reg:
        shifted = f.binary("shl", f.binary("add", k, integer(bias, word)), integer(mantissa, word))
        return _float(f, shifted, type)

    return _mul(f, _mul(f, x, power(low)), power(high))


def _exp_parts(f: Function, x: Reg) -> tuple[Reg, Reg, Reg]:
    """(n, n as an integer, x - n log 2) with n = round(x / log 2); |x| bounded by the caller."""
    # Adding 1.5 * 2**mantissa rounds to a whole number and leaves it in the low bits.
    magic = 1.5 * 2.0 ** (52 if _is_double(x) else 23)
    shifted = _fma(f, x, LOG2_E, magic)
    n = f.binary("fsub", shifted, real(magic, x.type))
    word = _word(x.type)
    base = text.real_bits(magic, text.element(x.type))
    whole = f.binary("sub", _float(f, shifted, word), integer(base, word))
    high = 0.693359375 if not _is_double(x) else float.fromhex("0x1.62e42fefa0000p-1")
    low = LN2 - high if not _is_double(x) else float.fromhex("0x1.cf79abc9e3b39p-40")
    rest = _fma(f, n, -high, x)
    return n, whole, _fma(f, n, -low, rest)


def exp(f: Function, x: Reg) -> Reg:
    low, high = (-745.2, 710.0) if _is_double(x) else (-104.0, 89.0)
    # Arguments whose result is 0, such as masked scores, must not go through denormal numbers:
    # processors take a hundred cycles over each of those.
    none = _test(f, "olt", x, low)
    x = _pick(f, none, 0.0, _at_most(f, x, high))
    n, whole, rest = _exp_parts(f, x)
    table = tables.EXP_F64 if _is_double(x) else tables.EXP_F32
    result = _scale(f, horner(f, rest, (1.0, 1.0, *table[2:])), n, whole)
    return _pick(f, none, 0.0, result)


def log(f: Function, x: Reg) -> Reg:
    double = _is_double(x)
    type, word = x.type, _word(x.type)
    mantissa = 52 if double else 23
    least = 2.0**-1022 if double else 2.0**-126
    tiny = _test(f, "olt", x, least)
    scaled = _pick(f, tiny, _mul(f, x, 2.0**mantissa), x)
    bits = _bits(f, scaled)
    # Take the exponent so that the fraction lies between sqrt(1/2) and sqrt(2).
    root = text.real_bits(math.sqrt(0.5), text.element(type))
    offset = f.binary("sub", bits, integer(root, word))
    exponent = f.binary("ashr", offset, integer(mantissa, word))
    fraction = _float(
        f, f.binary("sub", bits, f.binary("shl", exponent, integer(mantissa, word))), type
    )
    e = f.convert("sitofp", exponent, type)
    e = _pick(f, tiny, _add(f, e, -float(mantissa)), e)
    r = _add(f, fraction, -1.0)
    if double:
        result = _log_double(f, r, e)
    else:
        square = _mul(f, r, r)
        tail = _mul(f, _mul(f, square, r), horner(f, r, tables.LOG_F32))
        tail = _fma(f, e, LN2 - 0.693359375, tail)
        tail = _fma(f, square, -0.5, tail)
        result = _fma(f, e, 0.693359375, _add(f, r, tail))
    result = _pick(f, _test(f, "oeq", x, INFINITY), x, result)
    result = _pick(f, _test(f, "ult", x, 0.0), NAN, result)
    return _pick(f, _test(f, "oeq", x, 0.0), -INFINITY, result)


def _log_double(f: Function, r: Reg, e: Reg) -> Reg:
    """e log 2 + log(1 + r), from the series of atanh in s = r / (2 + r)."""
    s = _div(f, r, _add(f, r, 2.0))
    z = _mul(f, s, s)
    rest = _mul(f, z, horner(f, z, tables.LOG_F64))
    half_square = _mul(f, _mul(f, r, r), 0.5)
    # log(1 + r) = r - (r*r/2 - s (r*r/2 + rest))
    tail = _mul(f, s, _add(f, half_square, rest))
    tail = _fma(f, e, float.fromhex("0x1.cf79abc9e3b39p-40"), tail)
    inner = _sub(f, _sub(f, half_square, tail), r)
    high = _mul(f, e, float.fromhex("0x1.62e42fefa0000p-1"))
    return _sub(f, high, inner)


def _log1p(f: Function, u: Reg) -> Reg:
    """log(1 + u) of doubles u > -1, accurate near 0."""
    whole = _add(f, u, 1.0)
    lost = _add(f, whole, -1.0)
    exact = _test(f, "oeq", lost, 0.0)
    ratio = _div(f, u, _pick(f, exact, 1.0, lost))
    big = _test(f, "oge", u, 2.0**53)
    result = _mul(f, log(f, whole), _pick(f, big, 1.0, ratio))
    return _pick(f, exact, u, result)


# hyperbolic ---------------------------------------------------------------------------------------


def _odd(f: Function, x: Reg, table: Sequence[float]) -> Reg:
    """x + x**3 P(x**2)"""
    z = _mul(f, x, x)
    return _fma(f, _mul(f, z, horner(f, z, table)), x, x)


def tanh(f: Function, x: Reg) -> Reg:
    double = _is_double(x)
    near, table = (0.55, tables.TANH_F64) if double else (0.63, tables.TANH_F32)
    size = _abs(f, x)
    bounded = _at_most(f, size, 20.0 if double else 10.0)
    e = exp(f, _add(f, bounded, bounded))
    far = _sub(f, 1.0, _div(f, 2.0, _add(f, e, 1.0)))
    small = _odd(f, x, table)
    return _pick(f, _test(f, "olt", size, near), small, _copysign(f, far, x))


def sinh(f: Function, x: Reg) -> Reg:
    size = _abs(f, x)
    # Half of exp(x) twice, so that it overflows only where sinh does.
    e = exp(f, _mul(f, size, 0.5))
    half = _mul(f, _mul(f, e, 0.5), e)
    far = _sub(f, half, _div(f, 0.25, half))
    return _pick(f, _test(f, "olt", size, 1.0), _odd(f, x, tables.SINH_F64), _copysign(f, far, x))


def cosh(f: Function, x: Reg) -> Reg:
    e = exp(f, _mul(f, _abs(f, x), 0.5))
    half = _mul(f, _mul(f, e, 0.5), e)
    return _add(f, half, _div(f, 0.25, half))


def asinh(f: Function, x: Reg) -> Reg:
    size = _abs(f, x)
    huge = _test(f, "ogt", size, 1e9)
    bounded = _at_most(f, size, 1e9)
    square = _mul(f, bounded, bounded)
    root = f.intrinsic("sqrt", _add(f, square, 1.0))
    near = _log1p(f, _add(f, bounded, _div(f, square, _add(f, root, 1.0))))
    far = _add(f, log(f, size), LN2)
    return _copysign(f, _pick(f, huge, far, near), x)


def acosh(f: Function, x: Reg) -> Reg:
    huge = _test(f, "ogt", x, 1e9)
    t = _add(f, _at_most(f, x, 1e9), -1.0)
    root = f.intrinsic("sqrt", _fma(f, t, t, _add(f, t, t)))
    near = _log1p(f, _add(f, t, root))
    result = _pick(f, huge, _add(f, log(f, x), LN2), near)
    return _pick(f, _test(f, "olt", x, 1.0), NAN, result)


def atanh(f: Function, x: Reg) -> Reg:
    size = _abs(f, x)
    ratio = _div(f, _add(f, size, size), _sub(f, 1.0, size))
    result = _copysign(f, _mul(f, _log1p(f, ratio), 0.5), x)
    result = _pick(f, _test(f, "oeq", size, 1.0), _copysign(f, real(INFINITY, x.type), x), result)
    return _pick(f, _test(f, "ogt", size, 1.0), NAN, result)


# erf ----------------------------------------------------------------------------------------------


def erf(f: Function, x: Reg) -> Reg:
    double = _is_double(x)
    size = _abs(f, x)
    z = _mul(f, x, x)
    if double:
        near, small = 1.0, _mul(f, x, horner(f, z, tables.ERF_F64))
        bounded = _at_least(f, _at_most(f, size, 6.0), 1.0)
        square = _mul(f, bounded, bounded)
        lost = f.fma(bounded, bounded, f.fneg(square))
        e = exp(f, f.fneg(square))
        e = _fma(f, e, f.fneg(lost), e)
        q = _div(f, _add(f, bounded, -2.0), _add(f, bounded, 2.0))
        scaled = _div(f, horner(f, q, tables.ERFC_F64), _fma(f, bounded, 2.0, 1.0))
        far = _sub(f, 1.0, _mul(f, e, scaled))
    else:
        near, small = 0.93, _mul(f, x, horner(f, z, tables.ERF_F32))
        bounded = _at_most(f, size, 3.95)
        far = _sub(f, 1.0, exp(f, horner(f, bounded, tables.ERFC_F32)))
    return _pick(f, _test(f, "olt", size, near), small, _copysign(f, far, x))


# circular -----------------------------------------------------------------------------------------

_PI_2 = (math.pi / 2, 6.123233995736766e-17, -1.4973849048591833e-33)


def _quadrant(f: Function, x: Reg) -> tuple[Reg, Reg]:
    """(q as i64, x - q pi / 2) with q = round(2 x / pi), for doubles."""
    q = f.intrinsic("roundeven", _mul(f, x, 2 / math.pi))
    r = x
    for part in _PI_2:
        r = _fma(f, q, -part, r)
    type = like(x.type, "i64")
    # Out of range (|x| > 2**60, infinite, NaN) the quadrant does not matter.
    whole = f.op(type, f"fptosi {q.typed} to {type}")
    return f.op(type, f"freeze {whole.typed}"), r


def _sin_cos(f: Function, r: Reg) -> tuple[Reg, Reg]:
    z = _mul(f, r, r)
    cosine = _fma(f, _mul(f, z, z), horner(f, z, tables.COS_F64), _fma(f, z, -0.5, 1.0))
    return _odd(f, r, tables.SIN_F64), cosine


def _bit_set(f: Function, x: Reg, bit: int) -> Reg:
    return f.icmp("ne", f.binary("and", x, integer(bit, x.type)), integer(0, x.type))


def _wave(f: Function, x: Reg, shift: int) -> Reg:
    q, r = _quadrant(f, x)
    q = f.binary("add", q, integer(shift, q.type))
    sine, cosine = _sin_cos(f, r)
    result = f.select(_bit_set(f, q, 1), cosine, sine)
    return f.select(_bit_set(f, q, 2), f.fneg(result), result)


def sin(f: Function, x: Reg) -> Reg:
    return _wave(f, x, 0)


def cos(f: Function, x: Reg) -> Reg:
    return _wave(f, x, 1)


def tan(f: Function, x: Reg) -> Reg:
    q, r = _quadrant(f, x)
    sine, cosine = _sin_cos(f, r)
    odd = _bit_set(f, q, 1)
    top = f.select(odd, f.fneg(cosine), sine)
    return _div(f, top, f.select(odd, sine, cosine))


def atan(f: Function, x: Reg) -> Reg:
    size = _abs(f, x)
    # Fold [0, inf) onto [0, tan(pi / 8)]: 1/x first, then (t - 1) / (t + 1).
    inverted = _test(f, "ogt", size, 1.0)
    t = _pick(f, inverted, _div(f, 1.0, size), size)
    middle = _test(f, "ogt", t, math.tan(math.pi / 8))
    folded = _pick(f, middle, _div(f, _add(f, t, -1.0), _add(f, t, 1.0)), t)
    result = _odd(f, folded, tables.ATAN_F64)
    result = _pick(f, middle, _add(f, result, math.pi / 4), result)
    turned = _sub(f, math.pi / 2, _add(f, result, -6.123233995736766e-17))
    return _copysign(f, _pick(f, inverted, turned, result), x)


def _asin_parts(f: Function, x: Reg) -> tuple[Reg, Reg, Reg]:
    """(|x| > 1/2, asin of the folded argument, that argument's sign taken off)."""
    size = _abs(f, x)
    folded = _test(f, "ogt", size, 0.5)
    z = _fma(f, size, -0.5, 0.5)
    t = _pick(f, folded, f.intrinsic("sqrt", z), size)
    return folded, _odd(f, t, tables.ASIN_F64), size


def asin(f: Function, x: Reg) -> Reg:
    folded, part, _ = _asin_parts(f, x)
    far = _sub(f, math.pi / 2, _add(f, _add(f, part, part), -6.123233995736766e-17))
    return _copysign(f, _pick(f, folded, far, part), x)


def acos(f: Function, x: Reg) -> Reg:
    folded, part, _ = _asin_parts(f, x)
    negative = _test(f, "olt", x, 0.0)
    twice = _add(f, part, part)
    far = _pick(f, negative, _sub(f, math.pi, _add(f, twice, -1.2246467991473532e-16)), twice)
    near = _sub(f, math.pi / 2, _add(f, _copysign(f, part, x), -6.123233995736766e-17))
    return _pick(f, folded, far, near)


# powers and remainders ----------------------------------------------------------------------------


def pow(f: Function, a: Reg, b: Reg) -> Reg:
    """a ** b as C has it."""
    size = _abs(f, a)
    result = exp(f, _mul(f, b, log(f, size)))
    whole = _test(f, "oeq", f.intrinsic("trunc", b), b)
    half = _mul(f, b, 0.5)
    odd = f.binary("and", whole, _test(f, "une", f.intrinsic("trunc", half), half))
    negative = f.icmp("slt", _bits(f, a), integer(0, _word(a.type)))
    result = f.select(f.binary("and", negative, odd), f.fneg(result), result)
    invalid = f.binary(
        "and", _test(f, "olt", a, 0.0), f.binary("xor", whole, integer(-1, whole.type))
    )
    invalid = f.binary("and", invalid, _test(f, "une", size, INFINITY))
    result = _pick(f, invalid, NAN, result)
    unit = f.binary("or", _test(f, "oeq", b, 0.0), _test(f, "oeq", a, 1.0))
    endless = f.binary("and", _test(f, "oeq", size, 1.0), _test(f, "oeq", _abs(f, b), INFINITY))
    return _pick(f, f.binary("or", unit, endless), 1.0, result)


def divide_all(f: Function, x: Reg, divisor: Reg) -> Reg:
    """x / divisor for a vector x of floats and one scalar divisor, without a vector division.

    One reciprocal for all lanes, then a step that corrects the product's last bit.
    """
    count = text.lanes(x.type)
    # A divisor whose reciprocal would overflow is scaled, and x with it.
    tiny = _test(f, "olt", _abs(f, divisor), 2.0**-100)
    scale = _pick(f, tiny, real(2.0**64, divisor.type), 1.0)
    divisor = _mul(f, divisor, scale)
    inverse = f.splat(_div(f, 1.0, divisor), count)
    wide = f.splat(divisor, count)
    scaled = _mul(f, x, f.splat(scale, count))
    product = _mul(f, scaled, inverse)
    rest = f.fma(f.fneg(product), wide, scaled)
    better = f.fma(rest, inverse, product)
    # The correction of an infinity is NaN: keep the product.
    return _pick(f, _test(f, "uno", better, better), product, better)


def fmod(f: Function, a: Reg, b: Reg) -> Reg:
    """The rest of a / b with the sign of a, exact: long division of the mantissas as integers."""
    mantissa, bias, step = (52, 1075, 11) if _is_double(a) else (23, 150, 8)
    word = _word(a.type)
    one, zero = integer(1, word), integer(0, word)
    x, y = _abs(f, a), _abs(f, b)

    def parts(value: Reg) -> tuple[Reg, Reg]:
        """value = m * 2**(e - bias), denormals included."""
        bits = _bits(f, value)
        field = f.binary("lshr", bits, integer(mantissa, word))
        fraction = f.binary("and", bits, integer((1 << mantissa) - 1, word))
        tiny = f.icmp("eq", field, zero)
        whole = f.binary("or", fraction, integer(1 << mantissa, word))
        return f.select(tiny, fraction, whole), f.select(tiny, one, field)

    (top, top_exponent), (divisor, exponent) = parts(x), parts(y)
    divisor = f.select(f.icmp("eq", divisor, zero), one, divisor)
    steps = f.intrinsic("smax", f.binary("sub", top_exponent, exponent), zero)
    finite = f.binary("and", _test(f, "olt", x, INFINITY), _test(f, "olt", y, INFINITY))
    steps = f.select(finite, steps, zero)
    # While any lane has bits left: rest = rest * 2**k mod divisor.
    before, head, body, done = f.at, f.block("fmod"), f.block("fmod.step"), f.block("fmod.end")
    start = f.binary("urem", top, divisor)
    f.br(head)
    f.enter(head)
    rest = f.phi(word, (start, before))
    left = f.phi(word, (steps, before))
    more = f.icmp("sgt", left.reg, zero)
    some = more if text.lanes(word) == 1 else f.intrinsic("vector.reduce.or", more, type="i1")
    f.cbr(some, body, done)
    f.enter(body)
    shift = f.intrinsic("smin", left.reg, integer(step, word))
    rest.add(f.binary("urem", f.binary("shl", rest.reg, shift), divisor), f.at)
    left.add(f.binary("sub", left.reg, shift), f.at)
    f.br(head)
    f.enter(done)
    # m * 2**(e - bias) by two exact factors.
    result = f.convert("uitofp", rest.reg, a.type)
    power = f.binary("sub", exponent, integer(bias, word))
    half = f.binary("ashr", power, one)
    for part in (half, f.binary("sub", power, half)):
        field = f.binary("add", part, integer(bias - mantissa, word))
        result = _mul(f, result, _float(f, f.binary("shl", field, integer(mantissa, word)), a.type))
    result = _pick(f, _test(f, "olt", x, y), x, result)
    result = _copysign(f, result, a)
    bad = f.binary("or", _test(f, "oeq", x, INFINITY), _test(f, "oeq", y, 0.0))
    return _pick(f, f.binary("or", bad, _test(f, "uno", a, b)), NAN, result)


FUNCTIONS: dict[str, Callable[..., Reg]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sin": _through_double(sin),
    "cos": _through_double(cos),
    "tan": _through_double(tan),
    "asin": _through_double(asin),
    "acos": _through_double(acos),
    "atan": _through_double(atan),
    "sinh": _through_double(sinh),
    "cosh": _through_double(cosh),
    "asinh": _through_double(asinh),
    "acosh": _through_double(acosh),
    "atanh": _through_double(atanh),
    "pow": _through_double(pow),
}
"""Emitters by the graph primitive's name."""

MAX_ULP: dict[str, tuple[float, float]] = {
    "exp": (1.0, 1.0),
    "log": (0.9, 0.9),
    "tanh": (1.5, 1.5),
    "erf": (2.5, 1.8),
    "sin": (0.501, 1.8),
    "cos": (0.501, 1.8),
    "tan": (0.501, 3.0),
    "asin": (0.501, 2.5),
    "acos": (0.501, 1.5),
    "atan": (0.501, 3.0),
    "sinh": (0.501, 3.0),
    "cosh": (0.501, 3.0),
    "asinh": (0.501, 3.0),
    "acosh": (0.501, 3.0),
    "atanh": (0.501, 3.0),
    "pow": (0.501, 1000.0),
}
"""Greatest error of the float and the double version. pow of doubles has no extended logarithm:
its error grows with |b log a|."""
