"""The operations on single integers: their arity, their types and what they mean, in one table.

    %s3 := add i32 %x, 4                    both operands and the result are i32
    %c := ult i32 %s3, 100                  a comparison: the result is i1
    %at := select i32 %c, %s3, 0            the condition is i1
    %l := sext i32 %at to i64
    %t := tid.x i32                         a special register

Whoever needs numbers (the simulator, offsets of stages, folding) asks `evaluate` or `meaning_of`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fuser.backend.nvptx.ir.values import Operand

Arithmetic = Literal[
    "add", "sub", "mul", "udiv", "urem", "sdiv", "srem", "and", "or", "xor", "shl", "lshr", "ashr",
    "umin", "umax", "smin", "smax",
]  # fmt: skip
"""Operations on two integers of one type, which the result has too."""
Comparison = Literal["eq", "ne", "ult", "ule", "ugt", "uge", "slt", "sle", "sgt", "sge"]
Conversion = Literal["zext", "sext", "trunc"]
Kind = Literal["arithmetic", "comparison", "select", "conversion", "lane", "register"]
Number = Any
"""A Python int, or an array of int64: signed, of the width of its type; a condition is 0 or 1."""
Meaning = Callable[..., Number]
"""A function of the type's width in bits and the operands; `cut` makes the result fit its type."""


@dataclass(frozen=True)
class Function:
    """meaning: None of what depends on which thread asks."""

    kind: Kind
    arity: int
    meaning: Meaning | None = None


def width_of(type: str) -> int:
    """The bits of an integer type."""
    return int(type[1:])


def _as_unsigned(a: Number, bits: int) -> Number:
    if bits == 64 and not isinstance(a, int):
        return a.view(np.uint64)
    return a & ((1 << bits) - 1)


def cut(a: Number, bits: int) -> Number:
    """A signed number of so many bits; a condition is 0 or 1."""
    if bits == 1:
        return a & 1
    if bits == 64 and not isinstance(a, int):
        return a.view(np.int64)  # arrays wrap around by themselves
    return ((a & ((1 << bits) - 1)) ^ (1 << (bits - 1))) - (1 << (bits - 1))


def _quotient(a: Number, b: Number) -> Number:
    """Rounded towards zero; any number where the divisor is 0, here as if it were 1."""
    b = b + (b == 0)
    down = a // b
    return down + ((down * b != a) & ((a < 0) != (b < 0)))


def _signed(function: Callable[[Number, Number], Number]) -> Meaning:
    return lambda bits, a, b: function(a, b)


def _unsigned(function: Callable[[Number, Number], Number]) -> Meaning:
    return lambda bits, a, b: function(_as_unsigned(a, bits), _as_unsigned(b, bits))


_ARITHMETIC: dict[Arithmetic, Meaning] = {
    "add": _signed(operator.add),
    "sub": _signed(operator.sub),
    "mul": _signed(operator.mul),
    "udiv": _unsigned(lambda a, b: a // (b + (b == 0))),
    "urem": _unsigned(lambda a, b: a % (b + (b == 0))),
    "sdiv": _signed(_quotient),
    "srem": _signed(lambda a, b: a - _quotient(a, b) * (b + (b == 0))),
    "and": _signed(operator.and_),
    "or": _signed(operator.or_),
    "xor": _signed(operator.xor),
    "shl": _signed(operator.lshift),
    "lshr": _unsigned(operator.rshift),
    "ashr": _signed(operator.rshift),
    "umin": _unsigned(lambda a, b: b + (a - b) * (a < b)),
    "umax": _unsigned(lambda a, b: b + (a - b) * (a > b)),
    "smin": _signed(lambda a, b: b + (a - b) * (a < b)),
    "smax": _signed(lambda a, b: b + (a - b) * (a > b)),
}
_COMPARISONS: dict[Comparison, Meaning] = {
    "eq": _signed(operator.eq),
    "ne": _signed(operator.ne),
    "ult": _unsigned(operator.lt),
    "ule": _unsigned(operator.le),
    "ugt": _unsigned(operator.gt),
    "uge": _unsigned(operator.ge),
    "slt": _signed(operator.lt),
    "sle": _signed(operator.le),
    "sgt": _signed(operator.gt),
    "sge": _signed(operator.ge),
}
_CONVERSIONS: dict[Conversion, Meaning] = {
    "zext": lambda bits, a: _as_unsigned(a, bits),
    "sext": lambda bits, a: -a if bits == 1 else a,
    "trunc": lambda bits, a: a,
}
REGISTERS = (
    "tid.x", "ctaid.x", "ctaid.y", "ctaid.z", "clusterid.x", "clusterid.y", "clusterid.z",
    "cluster.ctarank",
)  # fmt: skip
"""Special registers: the numbers of the thread in its block, of the block and the cluster in the
launch, and of the block in its cluster."""
FUNCTIONS: dict[str, Function] = {
    **{name: Function("arithmetic", 2, meaning) for name, meaning in _ARITHMETIC.items()},
    **{name: Function("comparison", 2, meaning) for name, meaning in _COMPARISONS.items()},
    **{name: Function("conversion", 1, meaning) for name, meaning in _CONVERSIONS.items()},
    "select": Function("select", 3, lambda bits, c, a, b: b + (a - b) * (c != 0)),
    "shfl.idx": Function("lane", 2),
    **dict.fromkeys(REGISTERS, Function("register", 0)),
}
"""`shfl.idx` is the first operand in the lane of the warp whose number is the second."""


def meaning_of(fn: str) -> Meaning:
    """What an operation means. Raises ValueError where that depends on the thread."""
    meaning = FUNCTIONS[fn].meaning
    if meaning is None:
        raise ValueError(f"{fn} is another number in each thread")
    return meaning


def evaluate(fn: str, type: str, operands: Sequence[Number], to: str = "") -> Number:
    """The result of an operation on numbers. Raises ValueError as `meaning_of` does."""
    found = meaning_of(fn)(width_of(type), *operands)
    return cut(found, width_of(result_type(fn, type, to)))


# types -------------------------------------------------------------------------------------------


def result_type(fn: str, type: str, to: str = "") -> str:
    """The type of the result."""
    kind = FUNCTIONS[fn].kind
    return "i1" if kind == "comparison" else to if kind == "conversion" else type


def operand_types(fn: str, type: str) -> tuple[str, ...]:
    """The types of the operands."""
    known = FUNCTIONS[fn]
    first = "i1" if known.kind == "select" else type
    return (first, *(type,) * (known.arity - 1)) if known.arity else ()


def conversion_problem(fn: str, type: str, to: str) -> str:
    """Why an operation does not give the type `to`; "" where it does, or converts nothing."""
    if FUNCTIONS[fn].kind != "conversion":
        return f"{fn} does not convert to {to}" if to else ""
    if not to:
        return f"{fn} needs the type that it gives"
    fits = to != type and (width_of(to) > width_of(type)) == (fn != "trunc")
    return "" if fits else f"{fn} does not make an {to} of an {type}"


# text --------------------------------------------------------------------------------------------


def text_of(fn: str, type: str, operands: Sequence[Operand], to: str = "") -> str:
    """An operation in the text of the GPU IR."""
    listed = f" {', '.join(map(str, operands))}" if operands else ""
    return f"{fn} {type}{listed} to {to}" if to else f"{fn} {type}{listed}"
