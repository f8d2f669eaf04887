"""Numbers that follow from open sizes: Python's functions of them, as a traced graph calls them.

    size ** -0.5        %pow = pow(%size, -0.5)        a fraction, which kernels compute
    round(size * 1.5)   %round = round(%mul)           a whole number: kernels are for this size

Whole numbers stay dims. A fraction stays what it is computed from, until an operator wants it as a
tensor, or something asks for its value: from then on what is compiled is for sizes that are as they
are now.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuser.dtypes import f64
from fuser.graph.builder import Builder
from fuser.graph.dims import HIGHEST_POWER, Dim, DimExpr, ceildiv, maximum, minimum, product
from fuser.graph.ir import Value

_MAPS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "neg": "neg",
         "sqrt": "sqrt", "_sym_sqrt": "sqrt", "sym_sqrt": "sqrt"}  # fmt: skip
"""Functions of numbers that kernels compute."""
_EXACT: dict[str, Callable[..., Any]] = {"sym_max": maximum, "sym_min": minimum, "max": maximum,
                                         "min": minimum}  # fmt: skip
"""Those of whole numbers that give one of them."""
_WHOLE = ("round", "ceil", "floor", "trunc", "sym_int", "int")
"""Functions to whole numbers, which leave these as they are."""


@dataclass(frozen=True, eq=False)
class Fraction:
    """A float that follows from open sizes: function(*operands)."""

    function: Callable[..., Any]
    operands: tuple[Fraction | Dim | float, ...]

    def __float__(self) -> float:
        """Its value, a question to the sizes."""
        return float(self.function(*map(known, self.operands)))

    def value(self, b: Builder) -> Value:
        """As a float64 tensor without axes."""
        given: tuple[Any, ...] = self.operands
        operands = [
            one.value(b) if isinstance(one, Fraction) else b.scalar(one, f64) for one in given
        ]
        name = _name(self.function)
        return b.map(_MAPS[name], *operands) if name in _MAPS else operands[0]


def known(number: Any) -> Any:
    """A number as Python's, a question to the sizes where it follows from open ones."""
    if isinstance(number, Fraction):
        return float(number)
    return int(number) if isinstance(number, DimExpr) else number


def compute(function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """A function of numbers, some of which follow from open sizes."""
    name = _name(function)
    if not any(isinstance(x, DimExpr | Fraction) for x in operands):
        return function(*operands)
    if any(isinstance(x, Fraction | float) for x in operands):
        return _of_fractions(function, name, operands)
    if name in _EXACT:
        return _EXACT[name](*operands)
    if name in _WHOLE and len(operands) == 1:
        return operands[0]
    if name == "pow":
        base, exponent = operands[0], known(operands[1])
        if 0 <= exponent <= HIGHEST_POWER:
            return product([base] * exponent)
        return known(base) ** exponent if exponent > 0 else Fraction(function, (base, exponent))
    if name in ("truediv", "sym_float", "float") or (name in _MAPS and not hasattr(operator, name)):
        return Fraction(function, operands)
    if getattr(function, "__module__", "") in ("_operator", "operator"):
        return function(*operands)
    return function(*map(known, operands))


def _of_fractions(function: Callable[..., Any], name: str, operands: tuple[Any, ...]) -> Any:
    if name in _MAPS or name in ("sym_float", "float"):
        return Fraction(function, operands)
    (first, *others) = operands
    if isinstance(first, Fraction) and not others and _name(first.function) == "truediv":
        a, b = first.operands
        if isinstance(a, int | DimExpr) and isinstance(b, int) and b > 0:
            if name == "ceil":
                return ceildiv(a, b)
            if name == "floor" or (name in ("trunc", "sym_int", "int") and a >= 0):
                return a // b
    return function(*map(known, operands))


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", "")).rpartition(".")[2]
