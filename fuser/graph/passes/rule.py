"""A rewrite rule as data: what it matches and makes, what it does to numbers, and its examples.

`tests/rules` checks the class of every rule from its examples: over all values of an 8-bit float
format, over float16 and float32, and over integers. A rule without examples cannot be made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from fuser.graph.builder import Builder
from fuser.graph.ir import Node, Value
from fuser.graph.numerics import RuleClass

Apply: TypeAlias = "Callable[[Builder, Node, tuple[Value, ...]], Value | None]"
Operands: TypeAlias = "tuple[Value, ...]"
Kind = Literal["float", "int", "bool"]


class Sample(Protocol):
    """What an example is made of: tensors of one dtype whose elements a check chooses."""

    @property
    def b(self) -> Builder: ...

    def tensor(self, *shape: int) -> Value:
        """A new input. Without a shape, elementwise: each element meets each of the others."""

    def number(self) -> Value:
        """A constant, the same number throughout, of the shape of elementwise inputs."""

    def fixed(self, value: float) -> Value:
        """A constant that the pattern asks for, of that shape."""


@dataclass(frozen=True)
class Example:
    """A graph that a rule applies to for at least some numbers. kinds: of dtypes to try it in."""

    make: Callable[[Sample], Value]
    kinds: tuple[Kind, ...] = ("float",)


@dataclass(frozen=True)
class Rule:
    """apply(builder, node, operands): what the node becomes, or None. ops: the primitives that it
    is asked about. kind: its class (graph/numerics.py). what: one line for docs/numerics.md.

    Raises ValueError without examples."""

    name: str
    kind: RuleClass
    ops: tuple[str, ...]
    apply: Apply
    what: str
    examples: tuple[Example, ...]

    def __post_init__(self) -> None:
        if not self.examples:
            raise ValueError(f"the rule {self.name} has no example that its class is checked by")


def rule(kind: RuleClass, ops: Sequence[str], *examples: Example) -> Callable[[Apply], Rule]:
    """Make a function a Rule; the first line of its docstring says what it does."""

    def make(apply: Apply) -> Rule:
        what = (apply.__doc__ or "").strip().split("\n")[0].rstrip(".")
        return Rule(apply.__name__, kind, tuple(ops), apply, what, examples)

    return make


def by_op(*rules: Rule) -> dict[str, tuple[Rule, ...]]:
    """The rules of each primitive, in order."""
    table: dict[str, tuple[Rule, ...]] = {}
    for item in rules:
        for op in item.ops:
            table[op] = (*table.get(op, ()), item)
    return table


__all__ = ["Apply", "Example", "Kind", "Operands", "Rule", "Sample", "by_op", "rule"]
