"""Dims as code of the native launch: what a launch computes from its grid and its integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuser.graph.dims import Atom, Dim, DimExpr
from fuser.runtime.native_words import MOST, Code

_OPS = {"floordiv": Code.FLOORDIV, "mod": Code.MOD, "min": Code.MIN, "max": Code.MAX}
CHECKS = {">=": 0, "==": 1, "!=": 2}


class Formulas:
    """values: of a symbol the place of a value and what it is divided by, without a rest. Raises
    ValueError for what the code cannot say."""

    def __init__(self, values: Mapping[str, tuple[int, int]]) -> None:
        self.values = values
        self._words: list[int] = []
        self._depth = 0

    def out(self, dim: Dim, result: int) -> None:
        """results[result] = dim"""
        self._push(dim)
        self._emit(Code.OUT, result, -1)

    def check(self, dim: Dim, relation: str) -> None:
        """dim relation 0, or the launch is not this kernel's."""
        self._push(dim)
        self._emit(Code.CHECK, CHECKS[relation], -1)

    def check_value(self, value: int, dim: Dim) -> None:
        """The value at this place is dim."""
        self._emit(Code.VALUE, value, 1)
        self._push(dim if isinstance(dim, int) and dim == 0 else -dim)
        self._emit(Code.ADD, 0, -1)
        self._emit(Code.CHECK, CHECKS["=="], -1)

    @property
    def words(self) -> list[int]:
        return [*self._words, Code.END, 0]

    def _emit(self, code: Code, operand: int, change: int) -> None:
        self._depth += change
        if self._depth > MOST:
            raise ValueError("a formula is too deep")
        self._words += [code, operand]

    def _push(self, dim: Dim) -> None:
        if not isinstance(dim, DimExpr):
            if not -(1 << 63) <= dim < 1 << 63:
                raise ValueError(f"{dim} is too large")
            self._emit(Code.CONSTANT, int(dim), 1)
            return
        for position, (monomial, factor) in enumerate(dim.terms):
            self._push_term(monomial, factor)
            if position:
                self._emit(Code.ADD, 0, -1)

    def _push_term(self, monomial: Sequence[Atom], factor: int) -> None:
        if factor != 1 or not monomial:
            self._push(factor)
        for position, atom in enumerate(monomial):
            if atom.op == "symbol":
                if atom.name not in self.values:
                    raise ValueError(f"the launch has no value for {atom.name}")
                place, by = self.values[atom.name]
                self._emit(Code.VALUE, place, 1)
                if by != 1:
                    self._emit(Code.CONSTANT, by, 1)
                    self._emit(Code.FLOORDIV, 0, -1)
            else:
                self._push(atom.args[0])
                self._push(atom.args[1])
                self._emit(_OPS[atom.op], 0, -1)
            if position or factor != 1:
                self._emit(Code.MULTIPLY, 0, -1)
