"""`numerics=`: which rewrites may change the numbers of a model, chosen by the caller.

"model"   The default. A rewrite gives the same bits for all inputs, or leaves out a rounding that
          no operator asks for, or orders the terms of one sum. A Cast rounds.
"fast"    Adds rewrites that change values: divisions become products, products are contracted with
          sums, constants are merged, convolutions go through Winograd's transforms.
"strict"  The operators one by one, each rounded to its own dtype.

batch_invariant=True beside each: the bits of a row do not depend on how many rows there are.
docs/numerics.md lists every rule with its class.

    with using("fast"):
        ...                       # graphs that are made here are compiled under "fast"

A graph carries its numerics (`Graph.numerics`), so that whoever rewrites it knows what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

from fuser.errors import UsageError

Mode = Literal["model", "fast", "strict"]
MODES: tuple[Mode, ...] = get_args(Mode)

RuleClass = Literal["exact", "wider", "function", "order", "finite", "fast"]
"""What a rule does to numbers. exact: the same bits for all inputs (a NaN may be another NaN).
wider: the same in float32, and in narrower floats a rounding between two operators is left out.
function: another formula for one function, at most 2 units in the last place of float32 off, with
the same special values. order: the terms of one reduction or matmul are added in another order, or
a factor of all of them is applied to the sum. finite: the same bits for finite values; what stands
beside a weight of 0 is not read. fast: anything else."""

_ALLOWED: dict[Mode, frozenset[RuleClass]] = {
    "strict": frozenset(("exact",)),
    "model": frozenset(("exact", "wider", "function", "order", "finite")),
    "fast": frozenset(get_args(RuleClass)),
}


@dataclass(frozen=True)
class Numerics:
    """mode: which rewrites are allowed. batch_invariant: whether the order in which the terms of a
    row are added must not depend on the number of rows.

    Raises UsageError for a mode that does not exist."""

    mode: Mode = "model"
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(
                f"there is no numerics {self.mode!r}", hint=f"one of {', '.join(MODES)}"
            )

    def allows(self, kind: RuleClass) -> bool:
        """Whether rewrites of a class may run."""
        return kind in _ALLOWED[self.mode]

    @property
    def is_fast(self) -> bool:
        return self.mode == "fast"

    @property
    def is_strict(self) -> bool:
        return self.mode == "strict"

    def __str__(self) -> str:
        return f"{self.mode}, batch invariant" if self.batch_invariant else self.mode


@dataclass(frozen=True)
class Rewritten:
    """A rewrite that is not exact: the rule, its class, and the model's nodes that it changed."""

    rule: str
    kind: RuleClass
    nodes: tuple[str, ...]


_current: ContextVar[Numerics] = ContextVar("numerics", default=Numerics())  # noqa: B039  frozen


def current() -> Numerics:
    """The numerics that graphs made here are compiled under."""
    return _current.get()


@contextmanager
def using(
    mode: Mode | Numerics | None = None, batch_invariant: bool | None = None
) -> Iterator[Numerics]:
    """Hold the numerics within the block; what is None stays as it is around the block.

    Raises UsageError for a mode that does not exist."""
    outer = current()
    if isinstance(mode, Numerics):
        chosen = mode
    else:
        chosen = Numerics(
            outer.mode if mode is None else mode,
            outer.batch_invariant if batch_invariant is None else batch_invariant,
        )
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)


__all__ = ["MODES", "Mode", "Numerics", "Rewritten", "RuleClass", "current", "using"]
