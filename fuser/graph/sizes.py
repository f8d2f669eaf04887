"""Sized symbols: what makes one compile serve many sizes.

While a `Sizes` is active, a symbolic dim answers every question that code asks of an int.
Arithmetic gives dims again. A comparison that holds for all sizes is answered at once; any other is
answered for the *example* sizes, and the answer is kept as a `Guard`: what was compiled is right
for the sizes at which all its guards hold. Where code needs a plain int (an array's shape, a
range), the guard is that the dim equals its example. So nothing between model and machine code has
to know about symbols to be right with them; it only has to ask little to be general:

    with Sizes({"rows": 100}) as sizes:
        rows = symbol("rows")
        blocks = ceildiv(rows, 32)       # a dim
        if rows > 1: ...                 # true: symbols start at 2, so no guard
        if rows <= 512: ...              # true, and a guard
        size_hint(rows)                  # 100: for costs, which decide speed and not meaning

A size of 0 or 1 is never a symbol: it changes what broadcasts, and deserves code of its own.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from fuser.graph import dims
from fuser.graph.dims import HUGE, Atom, Dim, DimExpr, substitute

LEAST = 2
"""The least size of a symbol."""

P = ParamSpec("P")
R = TypeVar("R")
Relation = Literal[">=", "==", "!="]
Bounds = tuple[int | None, int | None]


@dataclass(frozen=True)
class Guard:
    """`expression relation 0` must hold. where: the code that asked, as file:line."""

    expression: DimExpr
    relation: Relation
    where: str = ""

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it holds for these sizes of all its symbols."""
        value = evaluate(self.expression, sizes)
        if self.relation == ">=":
            return value >= 0
        return (value == 0) == (self.relation == "==")

    @property
    def key(self) -> tuple[DimExpr, Relation]:
        return self.expression, self.relation

    def __str__(self) -> str:
        left, right = _sides(self.expression)
        return f"{left} {self.relation} {right}"

    def to_list(self) -> list[str]:
        return [str(self.expression), self.relation, self.where]


def guard_from_list(record: list[str]) -> Guard:
    """The guard that to_list wrote. Raises ParseError or ValueError."""
    expression = dims.parse(record[0])
    if not isinstance(expression, DimExpr) or record[1] not in (">=", "==", "!="):
        raise ValueError(f"{record} is no guard")
    return Guard(expression, record[1], record[2])  # type: ignore[arg-type]


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The value of a dim whose symbols all have a size."""
    value = substitute(dim, sizes)
    if isinstance(value, DimExpr):
        raise KeyError(f"{dim} has no value at {dict(sizes)}")
    return value


def size_hint(dim: Dim) -> int:
    """The dim at the example sizes, without a guard: for what decides speed and not meaning."""
    if not isinstance(dim, DimExpr):
        return int(dim)
    active = dims.active()
    return dims.as_int(dim) if active is None else evaluate(dim, active.examples)


def is_symbolic(*items: object) -> bool:
    """Whether any of the numbers is a symbolic dim."""
    return any(isinstance(item, DimExpr) for item in items)


def certain(difference: Dim) -> bool:
    """Whether difference >= 0 at all sizes: an answer without a guard, false where unknown."""
    if not isinstance(difference, DimExpr):
        return difference >= 0
    active = dims.active()
    return isinstance(active, Sizes) and active.proves(difference)


def same(a: Dim | None, b: Dim | None) -> bool:
    """Whether two dims are equal at all sizes, as far as their form shows; no guard. None is equal
    to None only."""
    if isinstance(a, DimExpr) or isinstance(b, DimExpr):
        return a is b
    return a == b


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes are equal at all sizes, as far as their form shows; no guard. For
    questions to which "no" is always a right answer."""
    return len(a) == len(b) and all(map(same, a, b))


def moves(*items: Dim) -> bool:
    """Whether any of the numbers depends on a size that changes from run to run of one launch
    (`Sizes.moving`)."""
    active = dims.active()
    if not isinstance(active, Sizes) or not active.moving:
        return False
    return any(not active.moving.isdisjoint(dims.symbols_of(item)) for item in items)


def divisor(*items: Dim) -> int:
    """The greatest known common divisor, 0 if all are 0: of a dim, that of its coefficients."""
    found = 0
    for item in items:
        if isinstance(item, DimExpr):
            found = math.gcd(found, *(value for _, value in item.terms))
        else:
            found = math.gcd(found, item)
    return found


def divides(by: Dim, dim: Dim) -> bool:
    """Whether dim is a multiple of `by` at all sizes, as far as its form shows; no guard."""
    if not isinstance(by, DimExpr) and not isinstance(dim, DimExpr):
        return dim % by == 0
    return same(dims.modulo(dim, by), 0)


def order_key(dim: Dim) -> tuple[int, int, str]:
    """A key to sort dims by their form: numbers first."""
    return (1, 0, str(dim)) if isinstance(dim, DimExpr) else (0, dim, "")


def by_example(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function's questions be answered for the example sizes without guards: for code whose
    result decides speed, never meaning."""

    @functools.wraps(function)
    def inner(*args: P.args, **named: P.kwargs) -> R:
        active = dims.active()
        if not isinstance(active, Sizes) or active.quiet:
            return function(*args, **named)
        active.quiet = True
        try:
            return function(*args, **named)
        finally:
            active.quiet = False

    return inner


class Sizes:
    """The example sizes of symbols, and what was asked of them. A context: `with Sizes(...)`."""

    def __init__(self, examples: Mapping[str, int], moving: Iterable[str] = ()) -> None:
        self.examples = dict(examples)
        self.moving = frozenset(moving)
        """Symbols whose sizes kernels of a GPU read from memory: a launch that was recorded once
        (a CUDA graph) serves all of them. A host kernel reads all its sizes so."""
        if low := [name for name, size in self.examples.items() if size < LEAST]:
            raise ValueError(f"{low[0]} is below {LEAST}: bind it")
        self.quiet = False
        """Whether answers leave no guard (see `by_example`)."""
        self._guards: dict[tuple[DimExpr, Relation], Guard] = {}
        self._lows: dict[str, int] = {}
        self._highs: dict[str, int] = {}
        self._token: Token[dims.Decider | None] | None = None

    def __enter__(self) -> Sizes:
        self._token = dims.ACTIVE.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        dims.ACTIVE.reset(self._token)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What was taken to hold, each fact once."""
        return tuple(self._guards.values())

    def add(self, guard: Guard) -> None:
        """Take a fact to hold that was found elsewhere."""
        self._guards.setdefault(guard.key, guard)
        self._learn(guard)

    # questions ----------------------------------------------------------------------------------

    def at_least(self, difference: Dim) -> bool:
        """Whether difference >= 0."""
        if not isinstance(difference, DimExpr):
            return difference >= 0
        huge = [value for _, value in difference.terms if abs(value) >= HUGE]
        if len(huge) == 1:
            return huge[0] > 0  # of a bound that stands for infinity
        if self.proves(difference):
            return True
        opposite = -1 - difference
        if self.proves(opposite):
            return False
        holds = evaluate(difference, self.examples) >= 0
        self._record(difference if holds else opposite, ">=")
        return holds

    def is_zero(self, difference: Dim) -> bool:
        """Whether difference == 0."""
        if not isinstance(difference, DimExpr):
            return difference == 0
        if any(abs(value) >= HUGE for _, value in difference.terms):
            return False
        if self.proves(difference - 1) or self.proves(-1 - difference):
            return False
        if (difference, "==") in self._guards:
            return True
        holds = evaluate(difference, self.examples) == 0
        self._record(difference, "==" if holds else "!=")
        return holds

    def value(self, dim: DimExpr) -> int:
        """The dim as an int, which from now on it must be."""
        found = evaluate(dim, self.examples)
        self._record(dim - found, "==")
        return found

    def _record(self, expression: Dim, relation: Relation) -> None:
        known = (expression, relation) in self._guards
        if self.quiet or known or not isinstance(expression, DimExpr):
            return
        guard = Guard(expression, relation, _caller())
        self._guards[guard.key] = guard
        self._learn(guard)

    def _learn(self, guard: Guard) -> None:
        """Bounds of single symbols."""
        terms = dict(guard.expression.terms)
        constant = terms.pop((), 0)
        if guard.relation == "!=" or len(terms) != 1:
            return
        ((monomial, factor),) = terms.items()
        if len(monomial) != 1 or monomial[0].op != "symbol":
            return
        name = monomial[0].name
        if guard.relation == "==" or factor > 0:
            self._lows[name] = max(self._lows.get(name, LEAST), -(constant // factor))
        if guard.relation == "==" or factor < 0:
            high = constant // -factor
            self._highs[name] = min(self._highs.get(name, high), high)

    # proofs -------------------------------------------------------------------------------------

    def proves(self, expression: Dim) -> bool:
        """Whether expression >= 0 follows from the ranges of the symbols and one fact at most."""
        if not isinstance(expression, DimExpr):
            return expression >= 0
        if self._nonnegative(expression):
            return True
        bad = self._unbounded(expression)
        facts = [g for g in self._guards.values() if g.relation != "!="]
        for guard in facts[:200]:
            if bad and all(monomial != bad for monomial, _ in guard.expression.terms):
                continue  # it leaves the term as it is
            if self._nonnegative(expression - guard.expression):
                return True
            if guard.relation == "==" and self._nonnegative(expression + guard.expression):
                return True
        return False

    def _unbounded(self, expression: DimExpr) -> tuple[Atom, ...]:
        """The first term of a sum of multiples of different atoms that may be as low as it likes,
        if there is one: no other term makes up for it."""
        if any(len(monomial) > 1 for monomial, _ in expression.terms):
            return ()
        for monomial, factor in expression.terms:
            if monomial and self._bounds_of(monomial[0])[factor < 0] is None:
                return monomial
        return ()

    def _nonnegative(self, expression: Dim) -> bool:
        """By moving every atom to an end of its range: all coefficients are then >= 0."""
        if not isinstance(expression, DimExpr):
            return expression >= 0
        if self._unbounded(expression):
            return False
        atoms = {id(atom): atom for monomial, _ in expression.terms for atom in monomial}
        choices: list[list[tuple[int, int, int]]] = []
        for key, atom in atoms.items():
            low, high = self._bounds_of(atom)
            ends = [(key, low, 1)] if low is not None else []
            ends += [(key, high, -1)] if high is not None else []
            choices.append(ends)
        if len(choices) > 4:
            choices = [ends[:1] for ends in choices]
        for chosen in itertools.product(*choices):
            moved = {key: (start, sign) for key, start, sign in chosen}
            if all(value >= 0 for value in _expanded(expression, moved).values()):
                return True
        return False

    def bounds(self, dim: Dim) -> Bounds:
        """(least, greatest) by interval arithmetic; None where unknown."""
        if not isinstance(dim, DimExpr):
            return dim, dim
        low: int | None = 0
        high: int | None = 0
        for monomial, factor in dim.terms:
            ends = [self._bounds_of(atom) for atom in monomial]
            least: int | None
            most: int | None
            if len(ends) == 1:
                least, most = ends[0]
            elif all(end[0] is not None and end[0] >= 0 for end in ends):
                least = math.prod(end[0] or 0 for end in ends)
                known = [end[1] for end in ends if end[1] is not None]
                most = math.prod(known) if len(known) == len(ends) else None
            else:
                least = most = None
            if factor < 0:
                least, most = most, least
            low = None if low is None or least is None else low + factor * least
            high = None if high is None or most is None else high + factor * most
        return low, high

    def _bounds_of(self, atom: Atom) -> Bounds:
        if atom.op == "symbol":
            return self._lows.get(atom.name, LEAST), self._highs.get(atom.name)
        (a_low, a_high), (b_low, b_high) = map(self.bounds, atom.args)
        match atom.op:
            case "floordiv" if isinstance(atom.args[1], int) and atom.args[1] > 0:
                by = atom.args[1]
                return (
                    None if a_low is None else a_low // by,
                    None if a_high is None else a_high // by,
                )
            case "floordiv" if a_low is not None and a_low >= 0 and b_low is not None and b_low > 0:
                return 0, None if a_high is None else a_high // b_low
            case "floordiv" if a_high is not None and a_high < 0 and b_low and b_low > 0:
                return a_low, -1
            case "mod" if b_low is not None and b_low > 0:
                return 0, None if b_high is None else b_high - 1
            case "min":
                highs = [high for high in (a_high, b_high) if high is not None]
                low = None if a_low is None or b_low is None else min(a_low, b_low)
                return low, min(highs, default=None)
            case "max":
                lows = [low for low in (a_low, b_low) if low is not None]
                high = None if a_high is None or b_high is None else max(a_high, b_high)
                return max(lows, default=None), high
        return None, None


def _expanded(
    expression: DimExpr, moved: Mapping[int, tuple[int, int]]
) -> dict[tuple[int, ...], int]:
    """The polynomial with each atom written as start + sign * (something >= 0)."""
    total: dict[tuple[int, ...], int] = {}
    for monomial, factor in expression.terms:
        parts: dict[tuple[int, ...], int] = {(): factor}
        for atom in monomial:
            start, sign = moved[id(atom)]
            grown: dict[tuple[int, ...], int] = {}
            for key, value in parts.items():
                grown[key] = grown.get(key, 0) + value * start
                longer = tuple(sorted((*key, id(atom))))
                grown[longer] = grown.get(longer, 0) + value * sign
            parts = grown
        for key, value in parts.items():
            total[key] = total.get(key, 0) + value
    return total


def _sides(expression: DimExpr) -> tuple[Dim, Dim]:
    """(left, right) with no negative term on either side: `512 - n` is 512 and n."""
    left: Dim = 0
    right: Dim = 0
    for monomial, factor in expression.terms:
        part: Dim = abs(factor)
        for atom in monomial:
            part = part * dims.of_atom(atom)
        if factor > 0:
            left = left + part
        else:
            right = right + part
    return left, right


_ROOT = Path(__file__).parents[1]
_OWN = frozenset((__file__, dims.__file__))


def _caller() -> str:
    """The code outside of this module that asked."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename in _OWN or not frame.f_code.co_filename.startswith(str(_ROOT))
    ):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name
    return f"{name}:{frame.f_lineno}"


@contextmanager
def no_sizes() -> Iterator[None]:
    """Symbols answer nothing in here, as if no Sizes were active."""
    token = dims.ACTIVE.set(None)
    try:
        yield
    finally:
        dims.ACTIVE.reset(token)
