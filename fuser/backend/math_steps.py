"""The steps that elementary functions are made of: arithmetic with literals, bits, polynomials.

Where an operand may be a number, it becomes a literal of the other operand's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuser.backend import text
from fuser.backend.function import Function
from fuser.backend.text import Reg, like, real


def horner(f: Function, x: Reg, coefficients: Sequence[float]) -> Reg:
    """sum of coefficients[i] * x**i."""
    result = real(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        result = f.fma(result, x, real(coefficient, x.type))
    return result


def is_double(x: Reg) -> bool:
    """Whether a value is a double, or a vector of them; otherwise it is of floats."""
    return text.element(x.type) == "double"


def word_of(type: str) -> str:
    """The integer type of the same width."""
    return like(type, "i64" if text.element(type) == "double" else "i32")


def bits_of(f: Function, x: Reg) -> Reg:
    """The bits of a float, as the integer of its width."""
    return f.convert("bitcast", x, word_of(x.type))


def float_of(f: Function, x: Reg, type: str) -> Reg:
    """The float of the given type that has these bits."""
    return f.convert("bitcast", x, type)


def mul(f: Function, a: Reg, b: Reg | float) -> Reg:
    return f.binary("fmul", a, b if isinstance(b, Reg) else real(b, a.type))


def add(f: Function, a: Reg, b: Reg | float) -> Reg:
    return f.binary("fadd", a, b if isinstance(b, Reg) else real(b, a.type))


def sub(f: Function, a: Reg | float, b: Reg) -> Reg:
    return f.binary("fsub", a if isinstance(a, Reg) else real(a, b.type), b)


def div(f: Function, a: Reg | float, b: Reg) -> Reg:
    return f.binary("fdiv", a if isinstance(a, Reg) else real(a, b.type), b)


def fma(f: Function, a: Reg, b: Reg | float, c: Reg | float) -> Reg:
    """a * b + c, rounded once."""
    wide = [item if isinstance(item, Reg) else real(item, a.type) for item in (b, c)]
    return f.fma(a, *wide)


def test(f: Function, predicate: str, a: Reg, b: Reg | float) -> Reg:
    """a against b, by a predicate of fcmp."""
    return f.fcmp(predicate, a, b if isinstance(b, Reg) else real(b, a.type))


def pick(f: Function, condition: Reg, a: Reg | float, b: Reg | float) -> Reg:
    """a where the condition holds, b elsewhere."""
    type = a.type if isinstance(a, Reg) else b.type if isinstance(b, Reg) else ""
    left, right = (item if isinstance(item, Reg) else real(item, type) for item in (a, b))
    return f.select(condition, left, right)


def at_most(f: Function, x: Reg, limit: float) -> Reg:
    """min(x, limit), NaN kept: one instruction."""
    return pick(f, test(f, "ogt", x, limit), limit, x)


def at_least(f: Function, x: Reg, limit: float) -> Reg:
    """max(x, limit), NaN kept: one instruction."""
    return pick(f, test(f, "olt", x, limit), limit, x)


def magnitude(f: Function, x: Reg) -> Reg:
    return f.intrinsic("fabs", x)


def copysign(f: Function, x: Reg, sign: Reg) -> Reg:
    return f.intrinsic("copysign", x, sign)


def through_double(emit: Callable[..., Reg]) -> Callable[..., Reg]:
    """The float version of a function: its double version, rounded once."""

    def wrapped(f: Function, *args: Reg) -> Reg:
        if is_double(args[0]):
            return emit(f, *args)
        wide = [f.convert("fpext", x, like(x.type, "double")) for x in args]
        return f.convert("fptrunc", emit(f, *wide), args[0].type)

    return wrapped


def odd_series(f: Function, x: Reg, table: Sequence[float]) -> Reg:
    """x + x**3 P(x**2)"""
    z = mul(f, x, x)
    # Too little to change a sum with 1, but it keeps the sign of -0: -0 * -0 + -0 would be 0.
    tail = fma(f, z, horner(f, z, table), 1e-30)
    return fma(f, tail, x, x)
