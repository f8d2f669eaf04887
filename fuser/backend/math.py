"""Elementary functions as LLVM IR, for scalars and vectors of float and double.

Each emitter takes (function, operands...) and appends plain LLVM instructions: fma, selects, bit
operations. No library call is made, so they run on every target that LLVM has. exp, log, tanh and
erf have float versions of their own; the other float functions round a double result once.
They are made of the steps in math_steps.py; math_lookup.py has erf for AVX-512,
math_circular.py sin, cos, tan and their inverses.
Polynomials are fits of our own (math_tables.py). The greatest errors seen, in units in the last
place of the result, are `MAX_ULP`; tests/backend/test_math.py asserts them over the whole range.
Denormal results and the signs of zeros are kept. sin, cos and tan reduce huge arguments by integers
(math_huge.py): they are as accurate as near 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from fuser.backend import math_tables as tables
from fuser.backend import text
from fuser.backend.function import SELDOM, Function
from fuser.backend.math_circular import acos, asin, atan, cos, sin, tan
from fuser.backend.math_lookup import erf_by_lookup
from fuser.backend.math_steps import (
    add,
    at_least,
    at_most,
    bits_of,
    copysign,
    div,
    float_of,
    fma,
    horner,
    is_double,
    magnitude,
    mul,
    odd_series,
    pick,
    sub,
    test,
    through_double,
    word_of,
)
from fuser.backend.text import Reg, integer, real

INFINITY = float("inf")
NAN = float("nan")
LN2 = math.log(2.0)
LOG2_E = 1.0 / LN2
TWO_THIRDS_LOW = float(Fraction(2, 3) - Fraction(2 / 3))
SCALEF = "scalef"
"""Function.traits: AVX-512's x * 2**n with n a float is at hand."""
LOOKUP = "lookup"
"""Function.traits: AVX-512's tables of 16 floats are at hand."""
ROUND_BF16 = "round_bf16"
"""Function.traits: AVX-512 BF16's rounding is at hand. It takes denormals as 0."""
DP4A = "dp4a"
"""Function.traits: VNNI's sums of four products of bytes are at hand."""


def _scale(f: Function, x: Reg, n: Reg, biased: Reg) -> Reg:
    """x * 2**n, denormals right; n is a whole float and `biased` has n in its low bits."""
    type, count = x.type, text.lanes(x.type)
    double = is_double(x)
    native = {16: "ps.512", 8: "ps.256", 4: "ps.128"} if not double else {
        8: "pd.512", 4: "pd.256", 2: "pd.128"
    }  # fmt: skip
    if SCALEF in f.traits and count in native:
        mask = Reg(f"i{max(8, count)}", "-1")
        rounding = [Reg("i32", "4")] if native[count].endswith("512") else []
        name = f"llvm.x86.avx512.mask.scalef.{native[count]}"
        return f.call(type, name, x, n, real(0.0, type), mask, *rounding)
    if SCALEF in f.traits and count > max(native) and count % (2 * max(native)) == 0:
        low, high = (  # several registers, each by itself
            _scale(f, f.shuffle(x, None, half), f.shuffle(n, None, half), biased)
            for half in (range(count // 2), range(count // 2, count))
        )
        return f.shuffle(low, high, range(count))
    # Two factors, so that neither leaves the range of normal numbers.
    mantissa, bias = (52, 1023) if double else (23, 127)
    word = biased.type
    low = f.binary("ashr", biased, integer(1, word))
    high = f.binary("sub", biased, low)

    def power(k: Reg) -> Reg:
        shifted = f.binary("shl", f.binary("add", k, integer(bias, word)), integer(mantissa, word))
        return float_of(f, shifted, type)

    return mul(f, mul(f, x, power(low)), power(high))


def _exp_parts(f: Function, x: Reg) -> tuple[Reg, Reg, Reg]:
    """(n, n as an integer, x - n log 2) with n = round(x / log 2); |x| bounded by the caller."""
    # Adding 1.5 * 2**mantissa rounds to a whole number and leaves it in the low bits.
    magic = 1.5 * 2.0 ** (52 if is_double(x) else 23)
    shifted = fma(f, x, LOG2_E, magic)
    n = f.binary("fsub", shifted, real(magic, x.type))
    word = word_of(x.type)
    base = text.real_bits(magic, text.element(x.type))
    whole = f.binary("sub", float_of(f, shifted, word), integer(base, word))
    high = 0.693359375 if not is_double(x) else float.fromhex("0x1.62e42fefa0000p-1")
    low = LN2 - high if not is_double(x) else float.fromhex("0x1.cf79abc9e3b39p-40")
    rest = fma(f, n, -high, x)
    return n, whole, fma(f, n, -low, rest)


def exp(f: Function, x: Reg) -> Reg:
    low, high = (-745.2, 710.0) if is_double(x) else (-104.0, 89.0)
    # Arguments whose result is 0, such as masked scores, must not go through denormal numbers:
    # processors take a hundred cycles over each of those.
    none = test(f, "olt", x, low)
    x = pick(f, none, 0.0, at_most(f, x, high))
    return pick(f, none, 0.0, _exp_within(f, x))


def _exp_within(f: Function, x: Reg) -> Reg:
    """exp where neither an overflow nor a denormal is possible."""
    n, whole, rest = _exp_parts(f, x)
    table = tables.EXP_F64 if is_double(x) else tables.EXP_F32
    return _scale(f, horner(f, rest, (1.0, 1.0, *table[2:])), n, whole)


def exp2(f: Function, x: Reg) -> Reg:
    low, high = (-1076.0, 1025.0) if is_double(x) else (-151.0, 129.0)
    none = test(f, "olt", x, low)
    x = pick(f, none, 0.0, at_most(f, x, high))
    n = f.intrinsic("roundeven", x)
    # NaN has no integer: any will do, since the polynomial is NaN.
    known = pick(f, test(f, "uno", x, x), 0.0, n)
    whole = f.convert("fptosi", known, word_of(x.type))
    rest = mul(f, f.binary("fsub", x, n), LN2)
    table = tables.EXP_F64 if is_double(x) else tables.EXP_F32
    power = _scale(f, horner(f, rest, (1.0, 1.0, *table[2:])), n, whole)
    return pick(f, none, 0.0, power)


def _fraction_and_exponent(f: Function, x: Reg) -> tuple[Reg, Reg]:
    """x = fraction * 2**e, the fraction between sqrt(1/2) and sqrt(2), of positive finite x."""
    double = is_double(x)
    type, word = x.type, word_of(x.type)
    mantissa = 52 if double else 23
    least = 2.0**-1022 if double else 2.0**-126
    tiny = test(f, "olt", x, least)
    scaled = pick(f, tiny, mul(f, x, 2.0**mantissa), x)
    bits = bits_of(f, scaled)
    root = text.real_bits(math.sqrt(0.5), text.element(type))
    offset = f.binary("sub", bits, integer(root, word))
    exponent = f.binary("ashr", offset, integer(mantissa, word))
    fraction = float_of(
        f, f.binary("sub", bits, f.binary("shl", exponent, integer(mantissa, word))), type
    )
    e = f.convert("sitofp", exponent, type)
    return fraction, pick(f, tiny, add(f, e, -float(mantissa)), e)


def log(f: Function, x: Reg) -> Reg:
    double = is_double(x)
    fraction, e = _fraction_and_exponent(f, x)
    r = add(f, fraction, -1.0)
    if double:
        result = _log_double(f, r, e)
    else:
        square = mul(f, r, r)
        tail = mul(f, mul(f, square, r), horner(f, r, tables.LOG_F32))
        tail = fma(f, e, LN2 - 0.693359375, tail)
        tail = fma(f, square, -0.5, tail)
        result = fma(f, e, 0.693359375, add(f, r, tail))
    result = pick(f, test(f, "oeq", x, INFINITY), x, result)
    result = pick(f, test(f, "ult", x, 0.0), NAN, result)
    return pick(f, test(f, "oeq", x, 0.0), -INFINITY, result)


def log2(f: Function, x: Reg) -> Reg:
    """The exponent, exactly, and the logarithm of the fraction times log2 e."""
    fraction, e = _fraction_and_exponent(f, x)
    double = is_double(x)
    high = float.fromhex("0x1.71547652b82fep+0" if double else "0x1.715476p+0")
    low = float.fromhex("0x1.777d0ffda0d24p-56" if double else "0x1.4ae0cp-26")
    near = log(f, fraction)
    result = fma(f, near, high, fma(f, near, low, e))
    result = pick(f, test(f, "oeq", x, INFINITY), x, result)
    result = pick(f, test(f, "ult", x, 0.0), NAN, result)
    return pick(f, test(f, "oeq", x, 0.0), -INFINITY, result)


def _log_double(f: Function, r: Reg, e: Reg) -> Reg:
    """e log 2 + log(1 + r), from the series of atanh in s = r / (2 + r)."""
    s = div(f, r, add(f, r, 2.0))
    z = mul(f, s, s)
    rest = mul(f, z, horner(f, z, tables.LOG_F64))
    half_square = mul(f, mul(f, r, r), 0.5)
    # log(1 + r) = r - (r*r/2 - s (r*r/2 + rest))
    tail = mul(f, s, add(f, half_square, rest))
    tail = fma(f, e, float.fromhex("0x1.cf79abc9e3b39p-40"), tail)
    inner = sub(f, sub(f, half_square, tail), r)
    high = mul(f, e, float.fromhex("0x1.62e42fefa0000p-1"))
    return sub(f, high, inner)


def _log1p(f: Function, u: Reg) -> Reg:
    """log(1 + u) of doubles u > -1, accurate near 0."""
    whole = add(f, u, 1.0)
    lost = add(f, whole, -1.0)
    exact = test(f, "oeq", lost, 0.0)
    ratio = div(f, u, pick(f, exact, 1.0, lost))
    big = test(f, "oge", u, 2.0**53)
    result = mul(f, log(f, whole), pick(f, big, 1.0, ratio))
    return pick(f, exact, u, result)


def tanh(f: Function, x: Reg) -> Reg:
    double = is_double(x)
    near, table = (0.55, tables.TANH_F64) if double else (0.63, tables.TANH_F32)
    size = magnitude(f, x)
    bounded = at_most(f, size, 20.0 if double else 10.0)
    e = exp(f, add(f, bounded, bounded))
    far = sub(f, 1.0, div(f, 2.0, add(f, e, 1.0)))
    small = odd_series(f, x, table)
    return pick(f, test(f, "olt", size, near), small, copysign(f, far, x))


def sinh(f: Function, x: Reg) -> Reg:
    size = magnitude(f, x)
    # Half of exp(x) twice, so that it overflows only where sinh does.
    e = exp(f, mul(f, size, 0.5))
    half = mul(f, mul(f, e, 0.5), e)
    far = sub(f, half, div(f, 0.25, half))
    return pick(
        f, test(f, "olt", size, 1.0), odd_series(f, x, tables.SINH_F64), copysign(f, far, x)
    )


def cosh(f: Function, x: Reg) -> Reg:
    e = exp(f, mul(f, magnitude(f, x), 0.5))
    half = mul(f, mul(f, e, 0.5), e)
    return add(f, half, div(f, 0.25, half))


def asinh(f: Function, x: Reg) -> Reg:
    size = magnitude(f, x)
    huge = test(f, "ogt", size, 1e9)
    bounded = at_most(f, size, 1e9)
    square = mul(f, bounded, bounded)
    root = f.intrinsic("sqrt", add(f, square, 1.0))
    near = _log1p(f, add(f, bounded, div(f, square, add(f, root, 1.0))))
    far = add(f, log(f, size), LN2)
    return copysign(f, pick(f, huge, far, near), x)


def acosh(f: Function, x: Reg) -> Reg:
    huge = test(f, "ogt", x, 1e9)
    t = add(f, at_most(f, x, 1e9), -1.0)
    root = f.intrinsic("sqrt", fma(f, t, t, add(f, t, t)))
    near = _log1p(f, add(f, t, root))
    result = pick(f, huge, add(f, log(f, x), LN2), near)
    return pick(f, test(f, "olt", x, 1.0), NAN, result)


def atanh(f: Function, x: Reg) -> Reg:
    size = magnitude(f, x)
    ratio = div(f, add(f, size, size), sub(f, 1.0, size))
    result = copysign(f, mul(f, _log1p(f, ratio), 0.5), x)
    result = pick(f, test(f, "oeq", size, 1.0), copysign(f, real(INFINITY, x.type), x), result)
    return pick(f, test(f, "ogt", size, 1.0), NAN, result)


def erf(f: Function, x: Reg) -> Reg:
    double = is_double(x)
    if not double and LOOKUP in f.traits:
        return erf_by_lookup(f, x)
    size = magnitude(f, x)
    z = mul(f, x, x)
    if double:
        near, small = 1.0, mul(f, x, horner(f, z, tables.ERF_F64))
        bounded = at_least(f, at_most(f, size, 6.0), 1.0)
        square = mul(f, bounded, bounded)
        lost = f.fma(bounded, bounded, f.fneg(square))
        e = exp(f, f.fneg(square))
        e = fma(f, e, f.fneg(lost), e)
        q = div(f, add(f, bounded, -2.0), add(f, bounded, 2.0))
        scaled = div(f, horner(f, q, tables.ERFC_F64), fma(f, bounded, 2.0, 1.0))
        far = sub(f, 1.0, mul(f, e, scaled))
    else:
        near, small = 0.93, mul(f, x, horner(f, z, tables.ERF_F32))
        bounded = at_most(f, size, 3.95)
        far = sub(f, 1.0, _exp_within(f, horner(f, bounded, tables.ERFC_F32)))
    return pick(f, test(f, "olt", size, near), small, copysign(f, far, x))


def pow(f: Function, a: Reg, b: Reg) -> Reg:
    """a ** b as C has it. A float needs no more than plain doubles; doubles need a logarithm of
    more digits than they have, since its error is multiplied by b."""
    if is_double(a):
        return _power(f, a, b, _power_of_doubles)
    return through_double(lambda f, a, b: _power(f, a, b, _power_in_doubles))(f, a, b)


def _power_in_doubles(f: Function, size: Reg, b: Reg) -> Reg:
    return exp(f, mul(f, b, log(f, size)))


def _power_of_doubles(f: Function, size: Reg, b: Reg) -> Reg:
    """exp(b log size) by pairs of doubles: what is lost in one is in the other."""
    high, low = _log_pair(f, size)
    high = pick(f, test(f, "oeq", size, 0.0), -INFINITY, high)
    high = pick(f, test(f, "olt", size, INFINITY), high, size)  # infinity and NaN are themselves
    y = mul(f, b, high)
    lost = fma(f, b, low, fma(f, b, high, f.fneg(y)))
    lost = pick(f, test(f, "olt", magnitude(f, y), 800.0), lost, 0.0)
    none = test(f, "olt", y, -745.2)
    x = pick(f, none, 0.0, at_most(f, y, 710.0))
    n, whole, rest = _exp_parts(f, x)
    # What the second step of the reduction rounded away.
    exact = fma(f, n, -float.fromhex("0x1.62e42fefa0000p-1"), x)
    lost = add(f, lost, fma(f, n, -float.fromhex("0x1.cf79abc9e3b39p-40"), sub(f, exact, rest)))
    tail = mul(f, mul(f, rest, rest), horner(f, rest, tables.EXP_F64[2:]))
    near = add(f, rest, 1.0)
    tail = fma(f, lost, add(f, near, tail), tail)
    tail = add(f, tail, sub(f, rest, add(f, near, -1.0)))
    return pick(f, none, 0.0, _scale(f, add(f, near, tail), n, whole))


def _log_pair(f: Function, x: Reg) -> tuple[Reg, Reg]:
    """log x of a positive finite double as a sum of two: 2 atanh(s) + e log 2, s = r / (2 + r)."""
    fraction, e = _fraction_and_exponent(f, x)
    r, q = add(f, fraction, -1.0), add(f, fraction, 1.0)
    q_low = sub(f, fraction, add(f, q, -1.0))
    s = div(f, r, q)
    back = f.fneg(s)
    s_low = div(f, fma(f, back, q_low, fma(f, back, q, r)), q)
    # s**3 to twice the digits, its coefficient in the series exact; then the terms after it.
    z = mul(f, s, s)
    z_low = fma(f, add(f, s, s), s_low, fma(f, s, s, f.fneg(z)))
    cube = mul(f, s, z)
    cube_low = fma(f, s_low, z, fma(f, s, z_low, fma(f, s, z, f.fneg(cube))))
    third = mul(f, cube, 2 / 3)
    third_low = fma(f, cube_low, 2 / 3, fma(f, cube, 2 / 3, f.fneg(third)))
    third_low = fma(f, cube, TWO_THIRDS_LOW, third_low)
    rest = mul(f, mul(f, cube, z), horner(f, z, tables.LOG_TAIL_F64))
    twice = add(f, s, s)
    part = add(f, twice, third)
    low = sub(f, third, sub(f, part, twice))
    low = add(f, low, add(f, add(f, third_low, add(f, s_low, s_low)), rest))
    turns = mul(f, e, float.fromhex("0x1.62e42fefa0000p-1"))
    high = add(f, turns, part)
    low = add(f, low, sub(f, part, sub(f, high, turns)))
    low = fma(f, e, float.fromhex("0x1.cf79abc9e3b39p-40"), low)
    total = add(f, high, low)
    return total, sub(f, low, sub(f, total, high))


def _power(f: Function, a: Reg, b: Reg, of_sizes: Callable[[Function, Reg, Reg], Reg]) -> Reg:
    """a ** b by the power of |a|."""
    size = magnitude(f, a)
    result = of_sizes(f, size, b)
    whole = test(f, "oeq", f.intrinsic("trunc", b), b)
    half = mul(f, b, 0.5)
    odd = f.binary("and", whole, test(f, "une", f.intrinsic("trunc", half), half))
    negative = f.icmp("slt", bits_of(f, a), integer(0, word_of(a.type)))
    result = f.select(f.binary("and", negative, odd), f.fneg(result), result)
    invalid = f.binary(
        "and", test(f, "olt", a, 0.0), f.binary("xor", whole, integer(-1, whole.type))
    )
    invalid = f.binary("and", invalid, test(f, "une", size, INFINITY))
    result = pick(f, invalid, NAN, result)
    unit = f.binary("or", test(f, "oeq", b, 0.0), test(f, "oeq", a, 1.0))
    endless = f.binary("and", test(f, "oeq", size, 1.0), test(f, "oeq", magnitude(f, b), INFINITY))
    return pick(f, f.binary("or", unit, endless), 1.0, result)


def divide_all(f: Function, x: Reg, divisor: Reg) -> Reg:
    """x / divisor for a vector x of float32 and one scalar divisor, rounded correctly.

    One reciprocal for all lanes, then two steps that correct the last bits of the product: the
    first leaves a neighbour of the quotient, of which the second makes the nearest number, the
    reciprocal being rounded correctly (Markstein, IBM J. Res. Dev. 34, 1990). That asks for
    remainders that are exact; a vector with numbers far from 1 is divided.
    """
    count = text.lanes(x.type)
    wide = f.splat(divisor, count)
    inverse = f.splat(div(f, 1.0, divisor), count)
    product = quotient = mul(f, x, inverse)
    for _ in range(2):
        rest = f.fma(f.fneg(quotient), wide, x)
        quotient = f.fma(rest, inverse, quotient)
    word = word_of(x.type)
    size = f.binary("and", bits_of(f, x), integer((1 << 31) - 1, word))
    above = f.binary("sub", size, integer(_exponent_field(-86), word))
    unusual = f.icmp("uge", above, integer(_exponent_field(86) - _exponent_field(-86), word))
    some = f.icmp("ne", size, integer(0, word))
    quotient = f.select(some, quotient, product)  # a remainder of -0 would lose the sign of 0
    far = f.binary("and", unusual, some)
    rare = f.intrinsic("vector.reduce.or", far, type="i1")
    known = magnitude(f, divisor)
    for beyond in (test(f, "ult", known, 2.0**-40), test(f, "ugt", known, 2.0**40)):
        rare = f.binary("or", rare, beyond)
    return f.when(
        rare, lambda: [f.binary("fdiv", x, wide)], lambda: [quotient], hint="divide",
        metadata=SELDOM,
    )[0]  # fmt: skip


def _exponent_field(exponent: int) -> int:
    """The bits of the float32 number 2**exponent."""
    return (exponent + 127) << 23


def fmod(f: Function, a: Reg, b: Reg) -> Reg:
    """The rest of a / b with the sign of a, exact: long division of the mantissas as integers."""
    mantissa, bias, step = (52, 1075, 11) if is_double(a) else (23, 150, 8)
    word = word_of(a.type)
    one, zero = integer(1, word), integer(0, word)
    x, y = magnitude(f, a), magnitude(f, b)

    def parts(value: Reg) -> tuple[Reg, Reg]:
        """value = m * 2**(e - bias), denormals included."""
        bits = bits_of(f, value)
        field = f.binary("lshr", bits, integer(mantissa, word))
        fraction = f.binary("and", bits, integer((1 << mantissa) - 1, word))
        tiny = f.icmp("eq", field, zero)
        whole = f.binary("or", fraction, integer(1 << mantissa, word))
        return f.select(tiny, fraction, whole), f.select(tiny, one, field)

    (top, top_exponent), (divisor, exponent) = parts(x), parts(y)
    divisor = f.select(f.icmp("eq", divisor, zero), one, divisor)
    steps = f.intrinsic("smax", f.binary("sub", top_exponent, exponent), zero)
    finite = f.binary("and", test(f, "olt", x, INFINITY), test(f, "olt", y, INFINITY))
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
        result = mul(
            f, result, float_of(f, f.binary("shl", field, integer(mantissa, word)), a.type)
        )
    result = pick(f, test(f, "olt", x, y), x, result)
    result = copysign(f, result, a)
    bad = f.binary("or", test(f, "oeq", x, INFINITY), test(f, "oeq", y, 0.0))
    return pick(f, f.binary("or", bad, test(f, "uno", a, b)), NAN, result)


FUNCTIONS: dict[str, Callable[..., Reg]] = {
    "exp": exp,
    "exp2": exp2,
    "log": log,
    "log2": log2,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": through_double(asin),
    "acos": through_double(acos),
    "atan": through_double(atan),
    "sinh": through_double(sinh),
    "cosh": through_double(cosh),
    "asinh": through_double(asinh),
    "acosh": through_double(acosh),
    "atanh": through_double(atanh),
    "pow": pow,
}
"""Emitters by the graph primitive's name."""
MAX_ULP: dict[str, tuple[float, float]] = {
    "exp": (1.0, 1.0),
    "exp2": (1.0, 1.0),
    "log": (0.9, 0.9),
    "log2": (1.5, 1.5),
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
    "pow": (0.501, 0.75),
}
"""Greatest error of the float and the double version."""
