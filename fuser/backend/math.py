"""Elementary functions as LLVM IR, for scalars and vectors of float and double.

Each emitter takes (function, operands...) and appends plain LLVM instructions: fma, selects, bit
operations. No library call is made, so they run on every target that LLVM has. Coefficients are
minimax fits made for this file (tests/backend/fit.py recomputes them) unless a source is named.
Greatest errors, in units in the last place of the result, are in `MAX_ULP`; the tests assert them.
Denormal results are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuser.backend import text
from fuser.backend.text import Function, Reg, integer, like, real

INFINITY = float("inf")
NAN = float("nan")


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


def _bits_of(f: Function, x: Reg) -> Reg:
    return f.convert("bitcast", x, _word(x.type))


def _fmul(f: Function, a: Reg, b: Reg | float) -> Reg:
    return f.binary("fmul", a, b if isinstance(b, Reg) else real(b, a.type))


def _fadd(f: Function, a: Reg, b: Reg | float) -> Reg:
    return f.binary("fadd", a, b if isinstance(b, Reg) else real(b, a.type))


def _fsub(f: Function, a: Reg, b: Reg) -> Reg:
    return f.binary("fsub", a, b)


def _fdiv(f: Function, a: Reg | float, b: Reg) -> Reg:
    return f.binary("fdiv", a if isinstance(a, Reg) else real(a, b.type), b)


FUNCTIONS: dict[str, Callable[..., Reg]] = {}


def fmod(f: Function, a: Reg, b: Reg) -> Reg:
    return f.binary("frem", a, b)
