"""Formulas over language values, written with Python's operators.

t = Formula(e)
x, y = t(a), t(b)
return t.where(x > y, x * 2.0, -y).value
"""

from __future__ import annotations

from typing import Any

from fuser.language import elementwise
from fuser.language.arithmetic import as_tensor, binary, cast, mapped, unary, where
from fuser.language.emitter import Emitter
from fuser.language.tensors import Tensor
from fuser.language.types import ElementType


class Term:
    """A tensor with operators."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, e: Emitter, value: Tensor) -> None:
        self.e, self.value = e, value

    @property
    def dtype(self) -> ElementType:
        return self.value.dtype

    def _op(self, op: str, a: Any, b: Any) -> Term:
        return Term(self.e, binary(self.e, op, plain(a), plain(b)))

    def __add__(self, other: Any) -> Term:
        return self._op("+", self, other)

    def __radd__(self, other: Any) -> Term:
        return self._op("+", other, self)

    def __sub__(self, other: Any) -> Term:
        return self._op("-", self, other)

    def __rsub__(self, other: Any) -> Term:
        return self._op("-", other, self)

    def __mul__(self, other: Any) -> Term:
        return self._op("*", self, other)

    def __rmul__(self, other: Any) -> Term:
        return self._op("*", other, self)

    def __truediv__(self, other: Any) -> Term:
        return self._op("/", self, other)

    def __rtruediv__(self, other: Any) -> Term:
        return self._op("/", other, self)

    def __and__(self, other: Any) -> Term:
        return self._op("&", self, other)

    def __or__(self, other: Any) -> Term:
        return self._op("|", self, other)

    def __xor__(self, other: Any) -> Term:
        return self._op("^", self, other)

    def __lshift__(self, other: Any) -> Term:
        return self._op("<<", self, other)

    def __rshift__(self, other: Any) -> Term:
        return self._op(">>", self, other)

    def __lt__(self, other: Any) -> Term:
        return self._op("<", self, other)

    def __le__(self, other: Any) -> Term:
        return self._op("<=", self, other)

    def __gt__(self, other: Any) -> Term:
        return self._op(">", self, other)

    def __ge__(self, other: Any) -> Term:
        return self._op(">=", self, other)

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return self._op("==", self, other)

    def __ne__(self, other: object) -> Term:  # type: ignore[override]
        return self._op("!=", self, other)

    def __neg__(self) -> Term:
        return Term(self.e, unary(self.e, "-", self.value))

    def __invert__(self) -> Term:
        return Term(self.e, unary(self.e, "~", self.value))

    def to(self, dtype: ElementType) -> Term:
        return Term(self.e, cast(self.e, self.value, dtype))

    def bits(self, dtype: ElementType) -> Term:
        """The same bits as another type."""
        return Term(self.e, elementwise.bits_as(self.e, self.value, dtype))


class Formula:
    """Makes terms of one kernel."""

    def __init__(self, e: Emitter) -> None:
        self.e = e

    def __call__(self, value: Any, dtype: ElementType | None = None) -> Term:
        """A tensor or number as a term; dtype: to which it is cast."""
        made = Term(self.e, as_tensor(self.e, plain(value)))
        return made if dtype is None else made.to(dtype)

    def where(self, condition: Any, a: Any, b: Any) -> Term:
        return Term(self.e, where(self.e, plain(condition), plain(a), plain(b)))

    def map(self, fn: str, *args: Term) -> Term:
        """A primitive of the Tile IR on terms of one type and shape."""
        values = [item.value for item in args]
        return Term(self.e, mapped(self.e, fn, values[-1].dtype, *values))

    def fma(self, a: Any, b: Any, c: Any) -> Term:
        return Term(self.e, elementwise.fma(self.e, plain(a), plain(b), plain(c)))

    def umulhi(self, a: Any, b: Any) -> Term:
        return Term(self.e, elementwise.umulhi(self.e, plain(a), plain(b)))


def plain(value: Any) -> Any:
    """What a term holds; anything else as it is."""
    return value.value if isinstance(value, Term) else value
