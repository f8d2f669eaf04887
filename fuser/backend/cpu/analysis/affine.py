"""Coordinates while a loop nest is emitted: index expressions over loop counters and one lane.

Inside a nest every tile axis stands at an `Index` over scalars (program ids, loop counters) plus,
along the vectorised axis, the *lane*: `Axis(0, width)`. Substituting the coordinates into a load's
expressions and simplifying shows at once what the load is: no lane left means one element for all
lanes, `1 * lane` means consecutive elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuser.graph.sizes import divides, same
from fuser.graph.sizes import divisor as gcd
from fuser.tilegen.index import (
    Atom,
    Axis,
    Extreme,
    FloorDiv,
    Index,
    Lookup,
    Mod,
    Scalar,
    atom_multiple,
    floordiv,
    in_range,
    maximum,
    minimum,
    modulo,
)
from fuser.tilegen.value import INDEX, TileType, Value

Leaf = Callable[[Atom], Index | None]


def lane(width: int) -> Index:
    """0 .. width - 1 across a vector; the constant 0 for one lane."""
    return Index(0) if width == 1 else Index(0, ((Axis(0, width), 1),))


def has_lane(index: Index) -> bool:
    return bool(index.axes())


def at_lane(index: Index, position: int) -> Index:
    """The expression in one lane (no looked up vectors)."""
    return substitute(index, lambda atom: Index(position) if isinstance(atom, Axis) else None)


def first_lane(index: Index, extent: int) -> Index:
    """The expression in the first lane, if all lanes are inside of the extent or outside together:
    neighbours that start at a multiple of the lanes, as many as divide the extent. Else itself."""
    width = width_of((index,))
    if width == 1 or not divides(width, extent):
        return index
    form = lane_form(index)
    whole = form.step == 1 and divides(width, form.rest.multiple)
    return form.rest if whole else index


def width_of(coords: Sequence[Index]) -> int:
    """The lanes of a point: the extent of the lane that its coordinates mention, or 1."""
    for coord in coords:
        for atom, _ in coord.terms:
            found = _atom_width(atom)
            if found > 1:
                return found
    return 1


def _atom_width(atom: Atom) -> int:
    match atom:
        case Axis():
            return atom.extent
        case Lookup():
            return atom.value.shape[0] if atom.axes else 1
        case FloorDiv() | Mod():
            return width_of((atom.base,))
        case Extreme():
            return width_of(atom.items)
        case _:
            return 1


def substitute(index: Index, leaf: Leaf) -> Index:
    """Replace leaf atoms and simplify, divisions by aligned groups included."""
    if not index.terms:
        return index
    result = Index(index.constant)
    for atom, coefficient in index.terms:
        result = result + _substitute_atom(atom, leaf) * coefficient
    return result


def _substitute_atom(atom: Atom, leaf: Leaf) -> Index:
    match atom:
        case FloorDiv():
            return divide(substitute(atom.base, leaf), atom.divisor)
        case Mod():
            return remainder(substitute(atom.base, leaf), atom.divisor)
        case Extreme():
            items = [substitute(item, leaf) for item in atom.items]
            return minimum(*items) if atom.fn == "min" else maximum(*items)
        case _:
            found = leaf(atom)
            return Index(0, ((atom, 1),)) if found is None else found


def _aligned(base: Index, divisor: int) -> tuple[Index, Index] | None:
    """base = big + small with big a multiple of some g | divisor and 0 <= small < g.

    Then base // divisor = big // divisor and base % divisor = big % divisor + small: a group of
    g neighbours never straddles a multiple of the divisor.
    """
    if len(base.terms) + bool(base.constant) < 2:
        return None
    groups = {gcd(divisor, c * atom_multiple(a)) for a, c in base.terms}
    for group in sorted(groups, reverse=True):
        if group <= 1:
            break
        big = tuple((a, c) for a, c in base.terms if divides(group, c * atom_multiple(a)))
        small = tuple((a, c) for a, c in base.terms if not divides(group, c * atom_multiple(a)))
        rest = Index(0 if divides(group, base.constant) else base.constant % group, small)
        if (small or not same(rest.constant, 0)) and in_range(rest, group):
            return Index(base.constant - rest.constant, big), rest
    return None


def divide(base: Index, divisor: int) -> Index:
    split = _aligned(base, divisor)
    return floordiv(split[0] if split else base, divisor)


def remainder(base: Index, divisor: int) -> Index:
    split = _aligned(base, divisor)
    if split is None:
        return modulo(base, divisor)
    return modulo(split[0], divisor) + split[1]


def flatten(coords: Sequence[Index], shape: Sequence[int]) -> Index:
    """The row-major position of a point."""
    flat = Index(0)
    for coord, extent in zip(coords, shape, strict=True):
        flat = flat * extent + coord
    return flat


def unflatten(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The coordinates of a row-major position."""
    coords: list[Index] = []
    step = 1
    for position, extent in reversed(list(enumerate(shape))):
        if extent == 1:
            coords.append(Index(0))
            continue
        quotient = divide(flat, step)
        coords.append(quotient if position == 0 else remainder(quotient, extent))
        step *= extent
    coords.reverse()
    return tuple(coords)


@dataclass(frozen=True)
class LaneForm:
    """An address seen from the lanes: `rest` is equal for all; `step` elements a lane.

    step None: no single step (a division, or an index looked up, differs between lanes).
    """

    step: int | None
    rest: Index


def lane_form(index: Index) -> LaneForm:
    inside, rest = index.split((0,))
    if not inside.terms:
        return LaneForm(0, rest)
    if len(inside.terms) == 1 and isinstance(inside.terms[0][0], Axis):
        return LaneForm(inside.terms[0][1], rest)
    return LaneForm(None, rest)


def any_counter(extent: int) -> Index:
    """A coordinate that stands for every position of an axis, to be looked at, not emitted."""
    value = Value(TileType(INDEX), "any", 0, max(0, extent - 1))
    return Index(0, ((Scalar(value), 1),)) if extent > 1 else Index(0)


def steps_of(
    index: Index, counters: Sequence[Index], wanted: Sequence[int | None] = ()
) -> list[int] | None:
    """The step of each counter (0: it counts to 1) in an index that is a sum of them and of what
    does not count; None if it is not, or where a step is not the wanted one (None: any)."""
    found = []
    for position, counter in enumerate(counters):
        step = index.coefficient(counter.terms[0][0]) if counter.terms else 0
        if counter.terms and wanted and wanted[position] not in (None, step):
            return None
        index = index - counter * step
        found.append(step)
    used = {value for counter in counters for value in counter.values()}
    return None if used & set(index.values()) else found
