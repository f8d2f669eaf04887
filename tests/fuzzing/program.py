"""A random program: inputs, statements in Python, and what it returns. Its text is all there is of
it, so a failing one is printed as it runs, and is made smaller by leaving out lines.

A statement's freedom says how far two right evaluations of it may lie apart:

- EXACT: one answer, bit by bit: movement, comparisons, integers, explicit casts;
- ORDER: the same, but which of two zeros comes first is open (maxima, sorting);
- BASIC: correctly rounded arithmetic: one answer, but a result of 16 bits may be left unrounded;
- FUNCTION: a few units in the last place of the result;
- SUM: terms may be added in any order (sums, means), exact where the terms are small whole numbers;
- DOT: the same, but for the sign of a zero (matmuls, NumPy's running sums: libraries differ there);
- FOLD: operands and result move by a few units (softmax, norms, variances);
- CANCEL: a function within moves by a few units of 1, the result by as many of the operand's (gelu:
  x / 2 * (1 + erf(x / sqrt(2))), of which little is left where erf is near -1);
- PARTS: a fold of operators each of which may round to 16 bits (attention: its weights).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

EXACT, ORDER, BASIC = "exact", "order", "basic"
FUNCTION, SUM, DOT, FOLD = "function", "sum", "dot", "fold"
CANCEL, PARTS = "cancel", "parts"
SUMS = (SUM, DOT)


@dataclass(frozen=True)
class Input:
    """An argument: its array, what the library calls its dtype, and how it lies in memory, as an
    expression of the contiguous array `{0}`.

    other: the array of a second call, which may have another first size, or None."""

    name: str
    array: Array
    dtype: str
    layout: str = "{0}"
    other: Array | None = None


@dataclass(frozen=True)
class Statement:
    """One line. target: the name it binds, or that it changes in place (`in_place`)."""

    target: str
    text: str
    freedom: str = EXACT
    in_place: bool = False

    @property
    def line(self) -> str:
        return self.text if self.in_place else f"{self.target} = {self.text}"

    @property
    def names(self) -> list[str]:
        """The names of values in the text."""
        return list(dict.fromkeys(NAME.findall(self.text)))


NAME = re.compile(r"\b[vx]\d+\b")


@dataclass(frozen=True)
class Program:
    """A function of its inputs."""

    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    def text(self, name: str = "f") -> str:
        """The function's definition."""
        lines = [f"def {name}({', '.join(given.name for given in self.inputs)}):"]
        lines += [f"    {statement.line}" for statement in self.statements]
        returned = ", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")
        return "\n".join([*lines, f"    return ({returned})"])

    def function(self, names: Mapping[str, Any]) -> Callable[..., Any]:
        """The function, which sees `names` as its globals."""
        scope = dict(names)
        exec(compile(self.text(), "<program>", "exec"), scope)
        found: Callable[..., Any] = scope["f"]
        return found


def without_dead(program: Program) -> Program:
    """Without statements and inputs that nothing returned depends on. A change in place counts
    wherever an older name is returned or read later, so those go only if nothing reads the name."""
    wanted = set(program.outputs)
    kept: list[Statement] = []
    changing = any(statement.in_place for statement in program.statements)
    for statement in reversed(program.statements):
        if statement.in_place or statement.target in wanted:
            kept.append(statement)
            wanted |= set(statement.names)
    inputs = tuple(x for x in program.inputs if x.name in wanted)
    if not inputs and not changing:
        inputs = program.inputs[:1]
    return replace(program, inputs=inputs or program.inputs[:1], statements=tuple(reversed(kept)))


def literal(array: Array) -> str:
    """The elements as a Python expression in which `nan` and `inf` are names."""
    if array.dtype.kind == "b" or array.dtype.kind in "iu":
        return repr(array.tolist())
    return repr(array.astype(np.float64).tolist())


def renamed(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, text)


def signature(program: Program) -> str:
    """The lines without names and numbers: what failures have in common."""
    lines = [NAME.sub("v", statement.line) for statement in program.statements]
    return "; ".join(re.sub(r"(?<![\w.])-?\d+(\.\d+)?(e-?\d+)?", "n", line) for line in lines)
