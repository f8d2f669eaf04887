"""What a load or store touches: its linear address, bounds to check, and how wide a vector fits.

Vectors are found by asking how an index expression moves when one tile axis steps from a multiple
of `width` to the next elements: through // and % it stays put or follows as long as `width`
divides what matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fuser.graph.sizes import certain, divides, is_symbolic, same, size_hint
from fuser.graph.sizes import divisor as gcd
from fuser.tilegen.index import Atom, Axis, Extreme, FloorDiv, Index, Mod, atom_multiple
from fuser.tilegen.ir import Buffer, View
from fuser.tilegen.ops import Atomic, AtomicAdd, Load, Store
from fuser.tilegen.value import UNBOUNDED, Value

VECTOR_BYTES = 16

MaskUniform = Callable[[Value, int, int], bool]
"""Whether a mask has one value for the whole of every vector: of (mask, axis, width)."""


@dataclass(frozen=True)
class Access:
    """Facts of one load or store over a tile of `shape`.

    linear: element offset in the buffer. bounds: (index, size) pairs that need a check at run time.
    order: tile axes from the one nearest in memory to the farthest. width: elements of one vector
    access along order[0]; ragged: of a longer one, where bounds may end within it, 0 if there is
    none. mask: a bool tile of the shape; where it is false, nothing is touched.
    """

    view: View
    shape: tuple[int, ...]
    linear: Index
    bounds: tuple[tuple[Index, int], ...]
    order: tuple[int, ...]
    width: int
    mask: Value | None = None
    ragged: int = 0

    @property
    def vector(self) -> int:
        """Elements of the longest vector access."""
        return self.ragged or self.width

    @property
    def axis(self) -> int:
        return self.order[0]

    @property
    def bytes(self) -> int:
        count = self.view.dtype.bytes
        for dim in self.shape:
            count *= dim
        return count


def alignment(buffer: Buffer) -> int:
    """Bytes that the start of a buffer is a multiple of; no more than the widest access."""
    if not buffer.open:
        return VECTOR_BYTES
    return math.gcd(max(buffer.align, buffer.dtype.bytes), VECTOR_BYTES)


def access_of(op: Load | Store | AtomicAdd | Atomic, uniform: MaskUniform | None = None) -> Access:
    """The access facts of an op. uniform: what is known of masks."""
    mask = None if isinstance(op, AtomicAdd) else op.mask
    shape = op.shape if isinstance(op, Load) else op.value.shape
    view = op.view
    linear = Index(view.offset)
    checks: list[tuple[Index, int]] = []
    proven = isinstance(op, Load) and op.pad is None
    for at, size, stride in zip(op.indices, view.shape, view.strides, strict=True):
        linear = linear + at * stride
        if not is_symbolic(size) and size >= UNBOUNDED:
            continue
        low, high = at.range
        if not proven and not (certain(low) and certain(size - 1 - high)):
            checks.append((at, size))
    bounds = tuple(checks)
    rank = len(shape)
    if not rank:
        return Access(view, shape, linear, bounds, (), 1, mask)
    widest = max(1, alignment(view.buffer) // view.dtype.bytes)
    widths = {axis: _width(linear, bounds, axis, shape[axis], widest) for axis in range(rank)}
    strides = {axis: _stride(linear, axis) for axis in range(rank)}
    if mask is not None:
        for axis in widths:
            while widths[axis] > 1 and not (uniform and uniform(mask, axis, widths[axis])):
                widths[axis] //= 2
    order = sorted(range(rank), key=lambda axis: (-widths[axis], strides[axis], -axis))
    axis = order[0]
    width, ragged = widths[axis], 0
    if mask is None and width * view.dtype.bytes < VECTOR_BYTES:
        ragged = _width(linear, bounds, axis, shape[axis], widest, _ends_within)
    ragged = ragged if ragged > width else 0
    return Access(view, shape, linear, bounds, tuple(order), width, mask, ragged)


def _width(
    linear: Index, bounds: tuple[tuple[Index, int], ...], axis: int, extent: int, widest: int,
    allowed: Callable[[Index, int, int, int], bool] | None = None,
) -> int:  # fmt: skip
    """Elements of the longest aligned vector along an axis. allowed: bounds that it may have."""
    allowed = allowed or _uniform
    width = widest
    while width > 1:
        fits = extent % width == 0 and same(step_of(linear, axis, width), 1)
        if fits and multiple_of(linear, axis, width) % width == 0:
            if all(allowed(at, size, axis, width) for at, size in bounds):
                return width
        width //= 2
    return 1


def _ends_within(at: Index, size: int, axis: int, width: int) -> bool:
    """Whether a bounds check that holds at both ends of a vector holds in all of it."""
    step = step_of(at, axis, width)
    return same(step, 0) or same(step, 1)


def _uniform(at: Index, size: int, axis: int, width: int) -> bool:
    """Whether a bounds check gives one answer for the whole vector."""
    step = step_of(at, axis, width)
    if same(step, 0):
        return True
    return same(step, 1) and divides(width, size) and multiple_of(at, axis, width) % width == 0


def step_of(at: Index, axis: int, width: int) -> int | None:
    """d such that the value at coordinate q * width + j is the value at q * width plus d * j."""
    total = 0
    for atom, coefficient in at.terms:
        step = _atom_step(atom, axis, width)
        if step is None:
            return None
        total += coefficient * step
    return total


def _depends(atom: Atom, axis: int) -> bool:
    return axis in Index(0, ((atom, 1),)).axes()


def _atom_step(atom: Atom, axis: int, width: int) -> int | None:
    if not _depends(atom, axis):
        return 0
    match atom:
        case Axis():
            return 1
        case FloorDiv() | Mod():
            step = step_of(atom.base, axis, width)
            if same(step, 0):
                return 0
            aligned = multiple_of(atom.base, axis, width) % width == 0
            if same(step, 1) and aligned and divides(width, atom.divisor):
                return 0 if isinstance(atom, FloorDiv) else 1
    return None


def multiple_of(at: Index, axis: int, width: int) -> int:
    """A divisor of every value of `at`, where the coordinate along `axis` is one of `width`."""
    result = gcd(at.constant)
    for atom, coefficient in at.terms:
        result = gcd(result, coefficient * _atom_multiple(atom, axis, width))
    return abs(result)


def _atom_multiple(atom: Atom, axis: int, width: int) -> int:
    match atom:
        case Axis():
            return width if atom.axis == axis else 1
        case Mod():
            return gcd(multiple_of(atom.base, axis, width), atom.divisor)
        case FloorDiv():
            base = multiple_of(atom.base, axis, width)
            return base // atom.divisor if base and divides(atom.divisor, base) else 1
        case Extreme():
            result = 0
            for item in atom.items:
                result = gcd(result, multiple_of(item, axis, width))
            return result
        case _:
            return atom_multiple(atom)


def _stride(at: Index, axis: int) -> float:
    """About how far memory moves for one step along a tile axis; infinity where it does not."""
    best = float("inf")
    for atom, coefficient in at.terms:
        if not _depends(atom, axis):
            continue
        match atom:
            case Axis():
                size = float(abs(size_hint(coefficient)))
            case Mod():
                size = abs(size_hint(coefficient)) * _stride(atom.base, axis)
            case FloorDiv():
                size = abs(size_hint(coefficient)) * _stride(atom.base, axis)
                size /= size_hint(atom.divisor)
            case _:
                size = abs(size_hint(coefficient)) * 1024.0
        best = min(best, size)
    return best
