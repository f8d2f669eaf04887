"""Views from places: what a load or store of pointers touches, as a view with bounds.

    x + rows[:, None] * stride + cols[None, :]                 view &x: x[M, N] strides(stride, 1)
    mask: rows[:, None] < M and cols[None, :] < N        =>    at [rows, cols]

A bound `e < n` of the mask with n known at launch becomes a dim of n elements at index e, if e is
never negative. Its stride is what a step of e moves the address by; what is left of the address is
one more dim without bounds. All that is left of the mask stays a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from fuser.graph import dims
from fuser.graph.dims import DimExpr
from fuser.graph.sizes import certain, is_symbolic, same
from fuser.language.emitter import Emitter
from fuser.language.tensors import Bound, Pointer, Tensor
from fuser.language.types import int1
from fuser.tilegen.index import Atom, Axis, Index, Lookup, atom_range
from fuser.tilegen.ir import View
from fuser.tilegen.value import UNBOUNDED


@dataclass(frozen=True)
class Place:
    """A view, the index of each of its dims, and what is left of the mask.

    why: how the access was read, for `explain`: empty where it is affine in the tile's axes.
    """

    view: View
    indices: tuple[Index, ...]
    mask: Tensor | None
    why: str


def place_of(e: Emitter, pointer: Pointer, mask: Tensor | None) -> Place:
    """Where a tile of pointers points, under a mask of its shape."""
    rest = e.index_of(pointer.offset)
    extents: list[int] = []
    strides: list[int] = []
    indices: list[Index] = []
    left: list[Bound] = []
    bounds = mask.bounds if mask is not None and mask.bounds is not None else ()
    lower = [bound.limit - bound.below - 1 for bound in bounds]
    """Of each bound what it says is not negative."""
    implied: set[Bound] = set()
    for bound in bounds:
        found = _as_extent(bound, lower)
        if found is None:
            left.append(bound)
            continue
        at, extent = found
        implied |= {b for b, known in zip(bounds, lower, strict=True) if known == at}
        stride = _stride(rest, at)
        rest = rest - at * stride
        extents.append(extent)
        strides.append(stride)
        indices.append(at)
    left = [bound for bound in left if bound not in implied]
    offset = 0
    known = dims_of(rest)
    if known is not None:
        offset = rest.constant
        for at, extent, stride in known:
            extents.append(extent)
            strides.append(stride)
            indices.append(at)
    else:
        extents.append(UNBOUNDED)
        strides.append(1)
        indices.append(rest)
    order = sorted(range(len(strides)), key=lambda dim: _nearness(extents[dim], strides[dim]))
    extents, strides = [extents[d] for d in order], [strides[d] for d in order]
    view = e.builder.view(pointer.buffer, extents, strides, offset)
    places = tuple(indices[d] for d in order)
    return Place(view, places, _rest_of(mask, left), _irregular(rest))


def _nearness(extent: int, stride: int) -> tuple[int, int]:
    """A key to sort dims by, the nearest in memory last; those without bounds come first."""
    if not is_symbolic(extent) and extent >= UNBOUNDED:
        return 0, 0
    return (1, 0) if is_symbolic(stride) else (2, -stride)


def dims_of(rest: Index) -> list[tuple[Index, int, int]] | None:
    """(index, extent, stride) of dims that make up an address whose terms all have known ends, so
    that no bound is ever reached; None where one has not. Terms of one stride are one dim."""
    if not certain(rest.constant):
        return None
    groups: dict[tuple[dims.Atom, ...], tuple[Index, int]] = {}
    numbers: list[tuple[int, Atom]] = []
    for atom, coefficient in rest.terms:
        low, high = atom_range(atom)
        if not certain(low) or (not is_symbolic(high) and high >= UNBOUNDED):
            return None
        if isinstance(coefficient, DimExpr):
            if len(coefficient.terms) != 1:
                return None
            ((monomial, factor),) = coefficient.terms
            if factor <= 0:
                return None
            index, by = groups.get(monomial, (Index(0), 0))
            term = Index(0, ((atom, factor),))
            groups[monomial] = (index + term, gcd(by, factor))
        elif coefficient <= 0:
            return None
        else:
            numbers.append((coefficient, atom))
    found: list[tuple[Index, int, int]] = []
    for monomial, (index, by) in groups.items():
        scaled = Index(0, tuple((atom, c // by) for atom, c in index.terms))
        unit = dims.product([dims.of_atom(atom) for atom in monomial])
        found.append((scaled, scaled.range[1] + 1, dims.as_int(unit * by)))
    return found + _numbered(sorted(numbers, key=lambda item: item[0]))


def _numbered(terms: list[tuple[int, Atom]]) -> list[tuple[Index, int, int]]:
    """Dims of terms whose strides are numbers, ascending: one that reaches as far as the next
    stride is the next one's dim, too."""
    found: list[tuple[Index, int, int]] = []
    for stride, atom in terms:
        if found:
            index, extent, unit = found[-1]
            apart = not is_symbolic(extent) and stride >= unit * extent
            if not apart and stride % unit == 0:
                joined = index + Index(0, ((atom, stride // unit),))
                found[-1] = (joined, joined.range[1] + 1, unit)
                continue
        alone = Index(0, ((atom, 1),))
        found.append((alone, alone.range[1] + 1, stride))
    return found


def _as_extent(bound: Bound, lower: list[Index]) -> tuple[Index, int] | None:
    """(index, extent) of a bound: what changes is moved to the left of `<`."""
    limit = Index(bound.limit.constant)
    at = bound.below - (bound.limit - limit)
    if not at.terms or (not certain(at.range[0]) and at not in lower):
        return None
    if not certain(limit.constant):
        return None
    return at, limit.constant


def _stride(address: Index, at: Index) -> int:
    """How far the address moves where `at` grows by one; 0 where that cannot be told."""
    axes = [term for term in at.terms if isinstance(term[0], Axis)]
    for atom, coefficient in axes or list(at.terms):
        found = address.coefficient(atom)
        if same(found, 0):
            continue
        quotient = _quotient(found, coefficient)
        if quotient is not None:
            return quotient
    return 0


def _quotient(a: int, b: int) -> int | None:
    """a / b where that is a whole number at all sizes."""
    if same(b, 1):
        return a
    if isinstance(a, DimExpr) or isinstance(b, DimExpr):
        found = dims.floordiv(a, b)
        back = found * b
        return found if same(back, a) else None
    return a // b if a % b == 0 else None


def _rest_of(mask: Tensor | None, left: list[Bound]) -> Tensor | None:
    if mask is None or mask.literal is True:
        return None
    if mask.bounds is None:
        return mask
    if not left:
        return mask.rest
    return Tensor(int1, mask.shape, bounds=tuple(left), rest=mask.rest)


def _irregular(rest: Index) -> str:
    """Why an address is no affine function of the tile's axes; empty if it is one."""
    for atom, _ in rest.terms:
        if isinstance(atom, Lookup):
            return "its address is loaded or computed element by element: a gather"
        if not isinstance(atom, Axis) and _reads_axes(atom):
            return "its address divides a coordinate of the tile"
    return ""


def _reads_axes(atom: Atom) -> bool:
    return bool(Index(0, ((atom, 1),)).axes())
