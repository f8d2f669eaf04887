"""Evaluate a program line by line, as it is or with the freedom of its statements used at random.

Monte Carlo arithmetic: where a right answer may differ (`tests.fuzzing.program`), it does, by a
random number of units. What several such evaluations agree on is settled; how far they differ is
how far a compiler's answer may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tests.fuzzing.judge import EPSILON, TINY
from tests.fuzzing.program import (
    BASIC,
    CANCEL,
    DOT,
    EXACT,
    FOLD,
    ORDER,
    PARTS,
    SUMS,
    Program,
    Statement,
)

Array = np.ndarray[Any, Any]

HALVES = ("float16", "bfloat16")
FUNCTION_UNITS = 4.0
SMALL_WHOLE = 2.0**20
"""Sums of whole numbers below are exact in float32, in any order."""


class Library(Protocol):
    """What NumPy and PyTorch differ in."""

    names: dict[str, Any]

    def dtype(self, value: Any) -> str | None:
        """The name of an array's dtype; None of anything else."""

    def wide(self, value: Any) -> Array:
        """A float array as float64."""

    def stored(self, value: Any, wide: Array) -> Any:
        """The value with these elements: the same array, or a new one where it has no memory."""

    def shifted(self, value: Any, change: Array) -> Any:
        """A new array, `value + change` in the value's dtype."""


class Freedom:
    """Uses the freedom of statements, with numbers of its own. wider: how much farther than usual;
    zeros: whether a zero of 16 bits may be what was rounded to it."""

    def __init__(self, library: Library, seed: int, wider: float = 1.0, zeros: bool = False):
        self.library = library
        self.rng = np.random.default_rng(seed)
        self.wider = wider
        self.zeros = zeros

    def operands(self, statement: Statement, scope: dict[str, Any]) -> dict[str, Any]:
        """What a fold reads instead: its terms, moved by as much as adding them up may cost, or as
        rounding what is computed of them may."""
        if statement.freedom not in (*SUMS, FOLD, PARTS) or self._is_exact(statement, scope):
            return {}
        found = {}
        for name in self._floats(statement, scope):
            dtype = self.library.dtype(scope[name])
            half = dtype in HALVES
            if half and statement.freedom != PARTS:
                continue
            if not (statement.in_place and name == statement.target):
                wide = self.library.wide(scope[name])
                units = self.wider * (2 if half else 2 + wide.size / 8)
                random = self.rng.uniform(-1, 1, wide.shape)
                found[name] = self.library.shifted(
                    scope[name], random * units * EPSILON[str(dtype)] / 2 * np.abs(wide)
                )
        return found

    def result(self, statement: Statement, scope: dict[str, Any], value: Any) -> Any:
        """A result, moved within the statement's freedom."""
        dtype = self.library.dtype(value)
        if statement.freedom == EXACT or dtype not in EPSILON:
            return value
        half = dtype in HALVES
        if statement.freedom == ORDER:
            wide = self.library.wide(value)
            signs = self.rng.choice([0.0, -0.0], wide.shape)
            return self.library.stored(value, np.where(wide == 0, signs, wide))
        if statement.freedom == BASIC or self._is_exact(statement, scope):
            units = 1.0 if half else 0.0
        else:
            units = 1.5 if half else FUNCTION_UNITS
        if not units and statement.freedom != DOT:
            return value
        wide = self.library.wide(value)
        reach = units * self.wider * EPSILON[dtype] * np.abs(wide)
        unit = TINY[dtype] * units * self.wider
        reach = reach + np.where((wide != 0) | (half and self.zeros), unit, 0.0)
        if half and statement.freedom in (*SUMS, FOLD, PARTS):
            reach = reach + self._terms(statement, scope)
        if statement.freedom == CANCEL:
            unit = 2.0**-23 if half else EPSILON[dtype]
            for name in self._floats(statement, scope):
                size = np.abs(self.library.wide(scope[name]))
                reach = reach + FUNCTION_UNITS * self.wider * unit * size
        if statement.freedom in (
            DOT,
            PARTS,
        ):  # whether the sum begins with 0 or with its first term
            wide = np.where(wide == 0, self.rng.choice([0.0, -0.0], wide.shape), wide)
        random = self.rng.uniform(-1, 1, wide.shape)
        with np.errstate(all="ignore"):
            moved = wide + random * np.where(np.isfinite(wide), reach, 0.0)
        return self.library.stored(value, moved)

    def _floats(self, statement: Statement, scope: dict[str, Any]) -> list[str]:
        return [n for n in statement.names if self.library.dtype(scope.get(n)) in EPSILON]

    def _terms(self, statement: Statement, scope: dict[str, Any]) -> float:
        """What float32 may lose of terms of 16 bits that cancel."""
        size = 0.0
        for name in self._floats(statement, scope):
            wide = self.library.wide(scope[name])
            finite = np.abs(wide[np.isfinite(wide)])
            size += wide.size * float(finite.max(initial=0.0))
        return 2.0**-23 * size

    def _is_exact(self, statement: Statement, scope: dict[str, Any]) -> bool:
        """Whether a sum is one of small whole numbers."""
        if statement.freedom not in SUMS:
            return False
        bound, count = 1.0, 1
        for name in self._floats(statement, scope):
            wide = self.library.wide(scope[name])
            if not np.isfinite(wide).all() or (wide != np.round(wide)).any():
                return False
            bound *= max(1.0, float(np.abs(wide).max(initial=0.0)))
            count = max(count, wide.size)
        return bound * count < SMALL_WHOLE


def run(
    program: Program, library: Library, values: Sequence[Any], freedom: Freedom | None = None,
    rewrite: Callable[[str], str] = str, notice: Callable[[Any], Any] = lambda value: value,
) -> dict[str, Any]:  # fmt: skip
    """All names after the program's lines. rewrite: of each line first; notice: of each new
    value."""
    scope = dict(library.names)
    scope.update(zip((given.name for given in program.inputs), values, strict=True))
    for statement in program.statements:
        step(statement, scope, freedom, rewrite, notice)
    return scope


def step(
    statement: Statement, scope: dict[str, Any], freedom: Freedom | None = None,
    rewrite: Callable[[str], str] = str, notice: Callable[[Any], Any] = lambda value: value,
) -> None:  # fmt: skip
    """One line."""
    moved = freedom.operands(statement, scope) if freedom is not None else {}
    before = {name: scope[name] for name in moved}
    scope.update(moved)
    try:
        exec(rewrite(statement.line), scope)
    finally:
        scope.update({name: x for name, x in before.items() if name != statement.target})
    value = scope[statement.target]
    if freedom is not None:
        value = scope[statement.target] = freedom.result(statement, scope, value)
    if not statement.in_place:
        notice(value)
