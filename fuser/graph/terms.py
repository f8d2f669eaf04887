"""Formulas over values of a graph, written with Python's operators.

    x = Term(b, value)
    return where(x > 1.0, x.map("log") * 2.0, -x).value

Numbers take the dtype of the term beside them, as `Builder.map` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser.graph.builder import Builder, Operand
from fuser.graph.ir import Value


class Term:
    """A value with operators."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, b: Builder, value: Value) -> None:
        self.b, self.value = b, value

    def map(self, op: str, *others: Term | float) -> Term:
        """A map primitive of this term and others."""
        return Term(self.b, self.b.map(op, self.value, *map(_plain, others)))

    def _of(self, op: str, number: float) -> Term:
        """A map primitive of a number and this term."""
        return Term(self.b, self.b.map(op, number, self.value))

    def __add__(self, other: Term | float) -> Term:
        return self.map("add", other)

    def __radd__(self, other: float) -> Term:
        return self.map("add", other)

    def __sub__(self, other: Term | float) -> Term:
        return self.map("sub", other)

    def __rsub__(self, other: float) -> Term:
        return self._of("sub", other)

    def __mul__(self, other: Term | float) -> Term:
        return self.map("mul", other)

    def __truediv__(self, other: Term | float) -> Term:
        return self.map("div", other)

    def __rtruediv__(self, other: float) -> Term:
        return self._of("div", other)

    def __neg__(self) -> Term:
        return self.map("neg")

    def __and__(self, other: Term) -> Term:
        return self.map("logical_and", other)

    def __or__(self, other: Term) -> Term:
        return self.map("logical_or", other)

    def __lt__(self, other: Term | float) -> Term:
        return self.map("lt", other)

    def __le__(self, other: Term | float) -> Term:
        return self.map("le", other)

    def __gt__(self, other: Term | float) -> Term:
        return self.map("gt", other)

    def __ge__(self, other: Term | float) -> Term:
        return self.map("ge", other)

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return self.map("eq", other)  # type: ignore[arg-type]


def where(condition: Term, a: Term | float, b: Term | float) -> Term:
    """a where the condition holds, else b."""
    return Term(condition.b, condition.b.map("select", condition.value, _plain(a), _plain(b)))


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """sum of coefficients[i] * x**i."""
    total: Term | float = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = x * total + coefficient
    assert isinstance(total, Term)
    return total


def _plain(x: Any) -> Operand:
    found: Operand = x.value if isinstance(x, Term) else x
    return found
