"""Bounds of stores, over tile axes: which hold at every point, which become limits of loops."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend import text
from fuser.backend.cpu.analysis import affine, kernel_facts
from fuser.backend.cpu.lowering.emitter import Condition
from fuser.backend.cpu.lowering.values import Values
from fuser.backend.text import Reg
from fuser.graph.sizes import certain, is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Scalar, atom_range, in_range
from fuser.tilegen.ir import Kernel


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


def idle(low: Values, kernel: Kernel) -> Reg | None:
    """Whether a program stores nothing, told from its ids: all of its stores are beyond one bound.
    None where that is so for no program of the grid, or not known before they run.

    Such programs hang over the rows where these are swept in groups.
    """
    found: list[Condition] | None = None
    for op in kernel.walk():
        if isinstance(op, ops.AtomicAdd | ops.Atomic):
            return None
        if isinstance(op, ops.Store):
            firsts = [
                (_first(low, e), n)
                for e, n in zip(op.indices, op.view.shape, strict=True)
                if not is_symbolic(n) and not in_range(e, n)
            ]
            found = [item for item in firsts if found is None or item in found]
    for first, extent in found or ():
        if not is_symbolic(*first.range) and first.range[1] >= extent:
            return low.f.icmp("sge", low.index(first), extent)
    return None


def _first(low: Values, index: Index) -> Index:
    """The least that an index of a program can be, as an expression of the program's ids."""
    least = index.constant
    kept = Index(0)
    for atom, coefficient in index.terms:
        if isinstance(atom, Scalar) and atom.value in low.scalars:
            kept = kept + Index(0, ((atom, coefficient),))
        else:
            ends = atom_range(atom)
            least = least + min(end * coefficient for end in ends)
    return kept + least
