"""Arithmetic of integers that LLVM leaves undefined in some cases: division and powers.

Elements are scalars or vectors. A division by zero must not only not trap: LLVM takes a divisor for
something other than zero from there on, and drops the masks of stores that say otherwise.
"""

from __future__ import annotations

from fuser.backend import text
from fuser.backend.function import Function
from fuser.backend.text import Reg, integer
from fuser.dtypes import DType


def divide(f: Function, a: Reg, b: Reg, signed: bool) -> tuple[Reg, Reg]:
    """(quotient, rest), truncating; both 0 where b is 0, and no trap for least / -1."""
    type = a.type
    zero, one = integer(0, type), integer(1, type)
    none = f.icmp("eq", b, zero)
    bad = none
    if signed:
        least = f.icmp("eq", a, integer(1 << (text.bits(type) - 1), type))
        minus = f.icmp("eq", b, integer(-1, type))
        bad = f.binary("or", none, f.binary("and", least, minus))
    safe = f.select(bad, one, b)
    quotient = f.binary("sdiv" if signed else "udiv", a, safe)
    rest = f.binary("srem" if signed else "urem", a, safe)
    return f.select(none, zero, quotient), f.select(none, zero, rest)


def power(f: Function, a: Reg, b: Reg, dtype: DType) -> Reg:
    """a ** b, wrapping; negative exponents truncate: 0, or +-1 where |a| is 1."""
    type = a.type
    zero, one = integer(0, type), integer(1, type)
    negative = f.icmp("slt", b, zero) if dtype.kind == "int" else None

    def step(i: Reg, carried: list[Reg]) -> list[Reg]:
        base, exponent, result = carried
        odd = f.icmp("ne", f.binary("and", exponent, one), zero)
        result = f.select(odd, f.binary("mul", result, base), result)
        return [f.binary("mul", base, base), f.binary("lshr", exponent, one), result]

    # For -1 the parity of a negative exponent is that of its low bit, which the loop sees too.
    result = f.loop(0, dtype.bits, 1, [a, b, one], step, hint="pow")[2]
    if negative is None:
        return result
    unit = f.icmp("ule", f.binary("add", a, one), integer(2, type))
    unit = f.binary("and", unit, f.icmp("ne", a, zero))
    return f.select(negative, f.select(unit, result, zero), result)
