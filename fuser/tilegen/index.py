"""Index expressions: where in a view an element of a tile lives.

A load or store gives one expression per view dim, over
  - `Axis(a, extent)`: the coordinate along axis `a` of the tile, 0 <= it < extent;
  - `Scalar(value)`: an index scalar of the program (program id, loop variable);
  - `Lookup(value, axes)`: an element of an integer tile, at the tile coordinates `axes` (a gather);
and +, * by constants, floor division, modulo, min and max. An expression is kept as
`constant + sum(coefficient * atom)` with atoms sorted and ranges known, so that splitting and
merging dims cancels: (f // 6) * 6 + f % 6 is f again. Nothing here knows layouts or addresses.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fuser.base.forks import cached_property
from fuser.base.limits import check_time
from fuser.errors import LoweringError
from fuser.graph import dims
from fuser.graph.dims import DimExpr
from fuser.graph.sizes import certain, divides, is_symbolic, no_sizes, order_key, same
from fuser.graph.sizes import divisor as gcd
from fuser.tilegen.value import UNBOUNDED, Value

MOST_ATOMS = 256
"""Atoms of an expression, those within others counted as often as they are written: with more, a
value on the way is better stored. What walks an expression may do so without a memo."""


@dataclass(frozen=True)
class Axis:
    """The coordinate along tile axis `axis`, in [0, extent)."""

    axis: int
    extent: int


@dataclass(frozen=True)
class Scalar:
    """An index scalar; its range and divisibility are facts of the value."""

    value: Value


@dataclass(frozen=True)
class Lookup:
    """An element of an integer tile: tile axis i of the lookup is at tile coordinate axes[i]."""

    value: Value
    axes: tuple[int, ...]


@dataclass(frozen=True)
class FloorDiv:
    base: Index
    divisor: int


@dataclass(frozen=True)
class Mod:
    base: Index
    divisor: int


@dataclass(frozen=True)
class Extreme:
    """min or max of expressions."""

    fn: str  # "min" or "max"
    items: tuple[Index, ...]


Atom = Axis | Scalar | Lookup | FloorDiv | Mod | Extreme


@dataclass(frozen=True)
class Index:
    """constant + sum of coefficient * atom. Build with `index`, `axis`, `scalar` and operators."""

    constant: int
    terms: tuple[tuple[Atom, int], ...] = ()

    def __eq__(self, other: object) -> bool:
        """Equality of form: no guard for symbolic dims in it."""
        if not isinstance(other, Index):
            return NotImplemented
        if dims.active() is None:
            return (self.constant, self.terms) == (other.constant, other.terms)
        with no_sizes():
            return (self.constant, self.terms) == (other.constant, other.terms)

    # arithmetic ---------------------------------------------------------------------------------

    def __add__(self, other: Index | int) -> Index:
        rhs = index(other)
        if not rhs.terms:
            return Index(self.constant + rhs.constant, self.terms)
        if not self.terms:
            return Index(self.constant + rhs.constant, rhs.terms)
        table = dict(self.terms)
        for atom, coefficient in rhs.terms:
            table[atom] = table.get(atom, 0) + coefficient
        return _linear(self.constant + rhs.constant, table)

    __radd__ = __add__

    def __sub__(self, other: Index | int) -> Index:
        return self + index(other) * -1

    def __mul__(self, factor: int) -> Index:
        if same(factor, 0):
            return Index(0)
        if same(factor, 1):
            return self
        return Index(self.constant * factor, tuple((a, c * factor) for a, c in self.terms))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        return floordiv(self, divisor)

    def __mod__(self, divisor: int) -> Index:
        return modulo(self, divisor)

    # facts --------------------------------------------------------------------------------------

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @cached_property
    def range(self) -> tuple[int, int]:
        """Least and greatest value (inclusive); +-UNBOUNDED where unknown."""
        low = high = self.constant
        for atom, coefficient in self.terms:
            atom_low, atom_high = atom_range(atom)
            if is_symbolic(atom_low, atom_high, coefficient):
                ends = _symbolic_ends(atom_low, atom_high, coefficient)
            else:
                ends = (atom_low * coefficient, atom_high * coefficient)
                ends = (min(ends), max(ends))
            low, high = low + ends[0], high + ends[1]
        if not is_symbolic(low):
            low = max(low, -UNBOUNDED)
        if not is_symbolic(high):
            high = min(high, UNBOUNDED)
        return low, high

    @cached_property
    def multiple(self) -> int:
        """The greatest known divisor of every value (0 for the constant 0)."""
        return gcd(self.constant, *(c * atom_multiple(atom) for atom, c in self.terms))

    @cached_property
    def atoms(self) -> int:
        """How many atoms are written in it."""
        return sum(_atoms_of(atom) for atom, _ in self.terms)

    def axes(self) -> frozenset[int]:
        """The tile axes that the value depends on."""
        found: set[int] = set()
        for atom, _ in self.terms:
            found |= _atom_axes(atom)
        return frozenset(found)

    def values(self) -> tuple[Value, ...]:
        """The SSA values it reads, without repetition."""
        return tuple(dict.fromkeys(itertools.chain(*(_atom_values(a) for a, _ in self.terms))))

    def leaves(self) -> Iterator[Atom]:
        """Its atoms that hold no others, in order."""
        for atom, _ in self.terms:
            match atom:
                case FloorDiv() | Mod():
                    yield from atom.base.leaves()
                case Extreme():
                    for item in atom.items:
                        yield from item.leaves()
                case _:
                    yield atom

    def replace(self, fn: Callable[[Atom], Index | None]) -> Index:
        """Rebuild with each leaf (Axis, Scalar, Lookup) replaced where `fn` gives an Index. What
        has no such leaf stays as it is: self, if there is none at all."""
        found = [(_replace_atom(atom, fn), (atom, factor)) for atom, factor in self.terms]
        if all(new is None for new, _ in found):
            return self
        result = Index(self.constant, tuple(term for new, term in found if new is None))
        for new, (_, coefficient) in found:
            if new is not None:
                result = result + new * coefficient
        return result

    def split(self, axes: Iterable[int]) -> tuple[Index, Index]:
        """(terms that depend on `axes`, the rest with the constant); separable addresses split."""
        wanted = frozenset(axes)
        inside = tuple((a, c) for a, c in self.terms if _atom_axes(a) & wanted)
        outside = tuple((a, c) for a, c in self.terms if not _atom_axes(a) & wanted)
        return Index(0, inside), Index(self.constant, outside)

    def terms_of(self, chosen: Iterable[tuple[Atom, int]]) -> tuple[tuple[Atom, int], ...]:
        """Those of the terms that are in `chosen`, in canonical order."""
        kept = set(chosen)
        return tuple(term for term in self.terms if term in kept)

    def coefficient(self, atom: Atom) -> int:
        return dict(self.terms).get(atom, 0)

    def __str__(self) -> str:
        return show(self)


# order and text -----------------------------------------------------------------------------------

_Key = tuple[Any, ...]


def _serial(value: Value) -> int:
    return value.serial


def order_of(atom: Atom, rank: Callable[[Value], int] = _serial) -> _Key:
    """The sort key of an atom: by kind, then by the rank of the values it reads, never by name."""
    match atom:
        case Scalar():
            return (0, rank(atom.value))
        case Lookup():
            return (1, rank(atom.value), atom.axes)
        case FloorDiv():
            return (2, order_key(atom.divisor), _expression_order(atom.base, rank))
        case Mod():
            return (3, order_key(atom.divisor), _expression_order(atom.base, rank))
        case Extreme():
            items = sorted(_expression_order(item, rank) for item in atom.items)
            return (4, atom.fn, tuple(items))
        case Axis():
            return (5, atom.axis, order_key(atom.extent))


def _expression_order(expression: Index, rank: Callable[[Value], int]) -> _Key:
    keys = sorted((order_of(atom, rank), order_key(c)) for atom, c in expression.terms)
    return (order_key(expression.constant), tuple(keys))


def _name(value: Value) -> str:
    return f"%{value.name}"


def show(
    expression: Index,
    name: Callable[[Value], str] = _name,
    rank: Callable[[Value], int] = _serial,
) -> str:
    """The expression as text, `%pid*32 + #0`: values by `name`, terms in the order of `rank`."""
    text = ""
    for atom, coefficient in sorted(expression.terms, key=lambda term: order_of(term[0], rank)):
        part = _show_atom(atom, name, rank)
        if isinstance(coefficient, DimExpr):
            text += (" + " if text else "") + f"({part})*{show_dim(coefficient)}"
            continue
        if coefficient != 1 and isinstance(atom, FloorDiv | Mod):
            part = f"({part})"
        if abs(coefficient) != 1:
            part += f"*{abs(coefficient)}"
        if text:
            text += f" + {part}" if coefficient > 0 else f" - {part}"
        else:
            text = part if coefficient > 0 else f"-{part}"
    if not text:
        return show_dim(expression.constant)
    if isinstance(expression.constant, DimExpr):
        text += f" + {show_dim(expression.constant)}"
    elif expression.constant:
        text += f" {'+' if expression.constant > 0 else '-'} {abs(expression.constant)}"
    return text


def show_dim(dim: int) -> str:
    """A number, or a symbolic dim in backticks."""
    return f"`{dim}`" if isinstance(dim, DimExpr) else str(dim)


def _is_bare(base: Index) -> bool:
    """Whether it needs no brackets as a dividend: one atom that is not a division itself."""
    if len(base.terms) != 1 or base.constant or base.terms[0][1] != 1:
        return False
    return not isinstance(base.terms[0][0], FloorDiv | Mod)


def _show_atom(atom: Atom, name: Callable[[Value], str], rank: Callable[[Value], int]) -> str:
    match atom:
        case Axis():
            return f"#{atom.axis}"
        case Scalar():
            return name(atom.value)
        case Lookup():
            return f"{name(atom.value)}[{', '.join(f'#{a}' for a in atom.axes)}]"
        case FloorDiv() | Mod():
            base = show(atom.base, name, rank)
            if not _is_bare(atom.base):
                base = f"({base})"
            return f"{base} {'//' if isinstance(atom, FloorDiv) else '%'} {show_dim(atom.divisor)}"
        case Extreme():
            items = sorted(atom.items, key=lambda item: _expression_order(item, rank))
            return f"{atom.fn}({', '.join(show(item, name, rank) for item in items)})"


# builders ---------------------------------------------------------------------------------------


def index(value: Index | Value | int) -> Index:
    """An int, an index scalar or an Index, as an Index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, int | DimExpr):
        return Index(value)
    return scalar(value)


def axis(number: int, extent: int) -> Index:
    """The coordinate along a tile axis; an extent of 1 is the constant 0."""
    return Index(0) if same(extent, 1) else Index(0, ((Axis(number, extent), 1),))


def scalar(value: Value) -> Index:
    low, high = value.range
    return Index(low) if same(low, high) else Index(0, ((Scalar(value), 1),))


def lookup(value: Value, axes: Iterable[int]) -> Index:
    return Index(0, ((Lookup(value, tuple(axes)), 1),))


def in_range(expression: Index, limit: int) -> bool:
    """Whether 0 <= expression < limit holds for all values and, symbolic or not, at all sizes."""
    if not is_symbolic(limit) and limit >= UNBOUNDED:
        return True  # a dim without bounds
    low, high = expression.range
    if is_symbolic(low, high, limit):
        return certain(low) and certain(limit - 1 - high)
    return low >= 0 and high < limit


def minimum(*items: Index | int) -> Index:
    return _extreme("min", items)


def maximum(*items: Index | int) -> Index:
    return _extreme("max", items)


def floordiv(base: Index | int, divisor: int) -> Index:
    """base // divisor, rounded down; divisor > 0. Whole multiples leave the division."""
    base = index(base)
    if same(divisor, 1):
        return base
    quotient, rest = _divide(base, divisor)
    if (only := _one_quotient(rest, divisor)) is not None:
        return quotient + only
    if (parts := _coarse_and_fine(rest, divisor)) is not None:
        return quotient + floordiv(parts[0], divisor)
    if len(rest.terms) == 1 and same(rest.constant, 0) and same(rest.terms[0][1], 1):
        inner = rest.terms[0][0]
        if isinstance(inner, FloorDiv):
            return quotient + floordiv(inner.base, inner.divisor * divisor)
        if isinstance(inner, Mod) and divides(divisor, inner.divisor):
            # (x % (a*d)) // d is (x // d) % a
            return quotient + modulo(floordiv(inner.base, divisor), inner.divisor // divisor)
    common = _common_factor(rest, divisor)
    if common > 1:
        return quotient + floordiv(_scaled_down(rest, common), divisor // common)
    return quotient + Index(0, ((FloorDiv(_checked(rest), divisor), 1),))


def modulo(base: Index | int, divisor: int) -> Index:
    """base % divisor, in [0, divisor)."""
    base = index(base)
    if same(divisor, 1):
        return Index(0)
    _, rest = _divide(base, divisor)
    if (only := _one_quotient(rest, divisor)) is not None:
        return rest - only * divisor
    if (parts := _coarse_and_fine(rest, divisor)) is not None:
        return modulo(parts[0], divisor) + parts[1]
    if len(rest.terms) == 1 and same(rest.constant, 0) and same(rest.terms[0][1], 1):
        inner = rest.terms[0][0]
        if isinstance(inner, Mod) and divides(divisor, inner.divisor):
            return modulo(inner.base, divisor)
    common = _common_factor(rest, divisor)
    if common > 1:
        return modulo(_scaled_down(rest, common), divisor // common) * common
    return Index(0, ((Mod(_checked(rest), divisor), 1),))


def _checked(part: Index) -> Index:
    """A part of another expression. Raises LoweringError where it would grow beyond use."""
    if part.atoms > MOST_ATOMS:
        raise LoweringError(f"an index of more than {MOST_ATOMS} parts")
    return part


def _symbolic_ends(low: int, high: int, factor: int) -> tuple[int, int]:
    """(least, greatest) of factor times something in [low, high]."""
    known_low, known_high = low > -UNBOUNDED, high < UNBOUNDED
    if factor < 0:
        low, high, known_low, known_high = high, low, known_high, known_low
    return low * factor if known_low else -UNBOUNDED, high * factor if known_high else UNBOUNDED


def _one_quotient(rest: Index, divisor: int) -> int | None:
    """The quotient that every value has, if that is known."""
    low, high = rest.range
    if is_symbolic(low, high, divisor):
        return 0 if certain(low) and certain(divisor - 1 - high) else None
    return low // divisor if low // divisor == high // divisor else None


def _common_factor(rest: Index, divisor: int) -> int:
    return gcd(rest.constant, divisor, *(c for _, c in rest.terms))


def _scaled_down(rest: Index, factor: int) -> Index:
    return Index(rest.constant // factor, tuple((a, c // factor) for a, c in rest.terms))


def _coarse_and_fine(rest: Index, divisor: int) -> tuple[Index, Index] | None:
    """rest = coarse + fine with coarse a multiple of some g that divides the divisor and fine in
    [0, g): then fine changes no quotient, and is what the remainder of coarse lacks. It splits
    (block*64 + #0) // 128 and the like, so that addresses stay sums over single axes."""
    steps = {gcd(c * atom_multiple(atom), divisor) for atom, c in rest.terms}
    for step in sorted(steps, reverse=True):
        if step <= 1:
            continue
        coarse: dict[Atom, int] = {}
        fine: dict[Atom, int] = {}
        for atom, c in rest.terms:
            (coarse if divides(step, c * atom_multiple(atom)) else fine)[atom] = c
        remainder = _linear(rest.constant % step, fine)
        low, high = remainder.range
        inside = certain(low) and certain(step - 1 - high)
        if coarse and (fine or remainder.constant) and inside:
            return _linear(rest.constant - rest.constant % step, coarse), remainder
    return None


def _divide(base: Index, divisor: int) -> tuple[Index, Index]:
    """base = divisor * quotient + rest, moving whole multiples of the divisor to the quotient."""
    quotient: dict[Atom, int] = {}
    rest: dict[Atom, int] = {}
    for atom, coefficient in base.terms:
        whole = coefficient // divisor if divides(divisor, coefficient) else 0
        if not same(whole, 0):
            quotient[atom] = whole
        else:
            rest[atom] = coefficient
    # A scalar known to be a multiple of the divisor stays: its quotient is not an atom we have.
    if is_symbolic(base.constant, divisor):
        if divides(divisor, base.constant):
            return _linear(base.constant // divisor, quotient), _linear(0, rest)
        return _linear(0, quotient), _linear(base.constant, rest)
    return (
        _linear(base.constant // divisor, quotient),
        _linear(base.constant % divisor, rest),
    )


def _split_multiples(base: Index, divisor: int) -> tuple[Index, Index]:
    """base = coarse + fine, where coarse is a multiple of some g that divides `divisor` and
    0 <= fine < g. Then base // divisor is coarse // divisor, and base % divisor is
    coarse % divisor + fine: a block that lies inside one row of a finer split needs no division.
    """
    ranked = sorted(base.terms, key=lambda t: -gcd(t[1] * atom_multiple(t[0]), divisor))
    for count in range(len(ranked) - 1, 0, -1):
        step = gcd(divisor, *(c * atom_multiple(a) for a, c in ranked[:count]))
        fine = Index(base.constant % step, base.terms_of(ranked[count:]))
        low, high = fine.range
        if step > 1 and certain(low) and certain(step - 1 - high):
            coarse = Index(base.constant - base.constant % step, base.terms_of(ranked[:count]))
            return coarse, fine
    return base, Index(0)


def _linear(constant: int, table: Mapping[Atom, int]) -> Index:
    check_time()  # whatever walk this is part of
    live = {atom: c for atom, c in table.items() if not same(c, 0)}
    merged = _merge_split(live)
    if merged is not None:
        extra, remaining = merged
        return _linear(constant, remaining) + extra
    return Index(constant, tuple(sorted(live.items(), key=lambda term: order_of(term[0]))))


def _merge_split(table: dict[Atom, int]) -> tuple[Index, dict[Atom, int]] | None:
    """Find c*(x % k) and c*k*(x // k): together they are c*x; or c*k*((x // k) % j): c*(x % kj)."""
    for atom, coefficient in table.items():
        if not isinstance(atom, Mod):
            continue
        high = floordiv(atom.base, atom.divisor)
        if len(high.terms) != 1 or not (same(high.constant, 0) and same(high.terms[0][1], 1)):
            continue
        partner = high.terms[0][0]
        if same(table.get(partner, 0), coefficient * atom.divisor):
            rest = {a: c for a, c in table.items() if a not in (atom, partner)}
            return atom.base * coefficient, rest
        for other, other_coefficient in table.items():
            if (
                isinstance(other, Mod)
                and same(other_coefficient, coefficient * atom.divisor)
                and other.base == high
            ):
                rest = {a: c for a, c in table.items() if a not in (atom, other)}
                return modulo(atom.base, atom.divisor * other.divisor) * coefficient, rest
    return None


def _extreme(fn: str, items: Iterable[Index | int]) -> Index:
    flat = list(dict.fromkeys(index(item) for item in items))
    pick = min if fn == "min" else max
    kept = list(flat)
    for item in flat:
        low, high = item.range
        # a tie drops the constant: min(x, 512) is x where x <= 512
        margin = 0 if item.is_constant else 1
        for other in kept:  # not what is dropped: equals may each beat the other
            if other is item:
                continue
            other_low, other_high = other.range
            if (fn == "min" and certain(low - other_high - margin)) or (
                fn == "max" and certain(other_low - high - margin)
            ):
                kept = [other for other in kept if other is not item]
                break
    if all(item.is_constant for item in kept):
        if is_symbolic(*(item.constant for item in kept)):
            return Index(symbolic_extreme(fn, [item.constant for item in kept]))
        return Index(pick(item.constant for item in kept))
    if len(kept) == 1:
        return kept[0]
    parts = tuple(map(_checked, sorted(kept, key=_extreme_order)))
    return Index(0, ((Extreme(fn, parts), 1),))


def _extreme_order(item: Index) -> _Key:
    return _expression_order(item, _serial)


# facts of atoms -----------------------------------------------------------------------------------


def atom_range(atom: Atom) -> tuple[int, int]:
    match atom:
        case Axis():
            return 0, atom.extent - 1
        case Scalar():
            return atom.value.range
        case Lookup():
            return atom.value.range
        case FloorDiv():
            low, high = atom.base.range
            if is_symbolic(low, high, atom.divisor):
                return (
                    low // atom.divisor if low > -UNBOUNDED else low,
                    high // atom.divisor if high < UNBOUNDED else high,
                )
            return low // atom.divisor, high // atom.divisor
        case Mod():
            return 0, atom.divisor - 1
        case Extreme():
            pick = min if atom.fn == "min" else max
            lows, highs = zip(*(item.range for item in atom.items), strict=True)
            if is_symbolic(*lows, *highs):
                return symbolic_extreme(atom.fn, lows), symbolic_extreme(atom.fn, highs)
            return pick(lows), pick(highs)


def symbolic_extreme(fn: str, items: Iterable[int]) -> int:
    """min or max of dims, as a dim: no guard."""

    def pick(a: int, b: int) -> int:
        above, below = certain(a - b), certain(b - a)
        if above or below:
            return a if above == (fn == "max") else b
        with no_sizes():
            return (dims.minimum if fn == "min" else dims.maximum)(a, b)  # type: ignore[return-value]

    return functools.reduce(pick, items)


def atom_multiple(atom: Atom) -> int:
    """The greatest known divisor of every value of the atom."""
    match atom:
        case Scalar() | Lookup():
            return atom.value.multiple
        case Mod():
            return gcd(atom.base.multiple, atom.divisor)
        case FloorDiv() if atom.base.multiple and divides(atom.divisor, atom.base.multiple):
            return atom.base.multiple // atom.divisor
        case Extreme():
            return gcd(*(item.multiple for item in atom.items))
        case _:
            return 1


def _atoms_of(atom: Atom) -> int:
    match atom:
        case FloorDiv() | Mod():
            return 1 + atom.base.atoms
        case Extreme():
            return 1 + sum(item.atoms for item in atom.items)
        case _:
            return 1


def _atom_axes(atom: Atom) -> frozenset[int]:
    match atom:
        case Axis():
            return frozenset((atom.axis,))
        case Lookup():
            return frozenset(atom.axes)
        case FloorDiv() | Mod():
            return atom.base.axes()
        case Extreme():
            return frozenset().union(*(item.axes() for item in atom.items))
        case _:
            return frozenset()


def _atom_values(atom: Atom) -> tuple[Value, ...]:
    match atom:
        case Scalar() | Lookup():
            return (atom.value,)
        case FloorDiv() | Mod():
            return atom.base.values()
        case Extreme():
            return tuple(itertools.chain(*(item.values() for item in atom.items)))
        case _:
            return ()


def _replace_atom(atom: Atom, fn: Callable[[Atom], Index | None]) -> Index | None:
    """What an atom becomes; None where none of its leaves is replaced."""
    match atom:
        case FloorDiv() | Mod():
            base = atom.base.replace(fn)
            if base is atom.base:
                return None
            return (floordiv if isinstance(atom, FloorDiv) else modulo)(base, atom.divisor)
        case Extreme():
            items = [item.replace(fn) for item in atom.items]
            if all(new is old for new, old in zip(items, atom.items, strict=True)):
                return None
            return _extreme(atom.fn, items)
        case _:
            return fn(atom)
