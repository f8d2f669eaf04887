"""Bounds of stores, over tile axes: which hold at every point, which become limits of loops."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend import text
from fuser.backend.cpu import affine, kernel_facts
from fuser.backend.cpu.emitter import Condition
from fuser.backend.cpu.values import Values
from fuser.backend.text import Reg
from fuser.graph.sizes import certain
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Scalar, in_range


def store_bounds(op: ops.WRITES) -> list[Condition]:
    """The bounds of a store that do not hold for every program, over tile axes."""
    pairs = zip(op.indices, op.view.shape, strict=True)
    return sorted(((e, n) for e, n in pairs if not in_range(e, n)), key=str)


def proved_over(low: Values, expression: Index, extent: int, shape: Sequence[int]) -> bool:
    """Whether a bound holds at every point of a tile."""
    coords = []
    for n in shape:
        if n == 1:
            coords.append(Index(0))
            continue
        place = low.placeholder(n)
        coords.append(place)
    return low.proved(symbolic(low, expression, coords), extent)


def symbolic(low: Values, index: Index, coords: Sequence[Index]) -> Index:
    """An expression at a point, without code for scalars that were not computed yet."""

    def leaf(atom: Atom) -> Index | None:
        if isinstance(atom, Axis):
            return coords[atom.axis]
        if isinstance(atom, Scalar) and atom.value in low.counters:
            return low.counters[atom.value]
        if isinstance(atom, Scalar) and atom.value not in low.scalars:
            op = low.known.producers.get(atom.value)
            if isinstance(op, ops.IndexTile) and not op.shape:
                return symbolic(low, op.expression, ())
        return None

    return affine.substitute(index, leaf)


def conditions_of(low: Values, stores: Sequence[ops.Store]) -> list[Condition]:
    """The bounds of stores that are not known to hold at every point."""
    return [
        (e, extent)
        for op in stores
        for e, extent in store_bounds(op)
        if not proved_over(low, e, extent, op.value.shape)
    ]


def clippable(conditions: Sequence[Condition], shape: tuple[int, ...]) -> list[Condition]:
    """The bounds of the form `axis + scalars`."""
    found = []
    for expression, extent in conditions:
        axes = expression.axes()
        if len(axes) != 1:
            continue
        (axis,) = axes
        inside, rest = expression.split((axis,))
        if inside.terms == ((Axis(axis, shape[axis]), 1),) and not any(kernel_facts.lookups(rest)):
            found.append((expression, extent))
    return found


def clips(
    low: Values, conditions: Sequence[Condition], shape: tuple[int, ...]
) -> tuple[dict[int, tuple[Reg, Reg]], list[Condition]]:
    """Loop limits that make bounds of the form `axis + scalars` hold."""
    f = low.f
    found: dict[int, tuple[Reg, Reg]] = {}
    established: list[Condition] = []
    for expression, extent in clippable(conditions, shape):
        (axis,) = expression.axes()
        rest = expression.split((axis,))[1]
        offset = low.resolve(rest, ())
        first, last = found.get(axis, (text.integer(0), text.integer(shape[axis])))
        start = low.index(offset)
        if not certain(offset.range[0]):
            first = f.intrinsic("smax", first, f.sub(text.integer(0), start))
        last = f.intrinsic("smin", last, f.sub(text.integer(extent), start))
        found[axis] = (first, last)
        established.append((expression, extent))
    return found, established
