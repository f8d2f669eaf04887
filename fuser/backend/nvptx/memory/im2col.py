"""Loads whose rows are windows on an image, as the copy engine fetches them: its im2col mode.

The rows of such a tile count through several dims of a view, the inner ones wrapping: a row is a
pixel, number p of an image that is W wide has column p % W and line p // W, both times a stride and
moved by where the tap of a window is. The engine walks the same way: from a base position through
a bounding box in steps, column by column, line by line and image by image; every position it adds
an offset to, and what then lies outside of the tensor is zero, which is what a padded load means.

Any indices of that form will do: they need not be of a convolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.graph.sizes import divides, is_symbolic, same
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, FloorDiv, Index, Mod, floordiv, in_range, modulo

ZERO = Index(0)
MAX_STEP = 8
MAX_ROWS = 1024
CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}
"""By number of dims with a bounding box: its corners are from minus this on, and less than this;
offsets are less than twice as much."""


@dataclass(frozen=True)
class Digit:
    """What an index expression has of a tile's row r: (r + shift) // period, % count if there is a
    count. shift is an index without tile axes."""

    period: int
    shift: Index
    count: int | None = None

    def at(self, row: int) -> Index:
        value = floordiv(self.shift + row, self.period)
        return value if self.count is None else modulo(value, self.count)


@dataclass(frozen=True)
class ViewDim:
    """A dim of a view, or what one is cut into: index = step * digit + columns + rest. digit is
    None where rows do not matter; columns: whether the tile's columns run along it."""

    extent: int
    stride: int
    digit: Digit | None
    step: int
    columns: bool
    rest: Index


@dataclass(frozen=True)
class WalkDim:
    """A dim of the tensor map but the columns'. Positions are step * digit + lower, from lower to
    extent - 1 + upper, and elements at positions + offset."""

    extent: int
    stride: int
    digit: Digit
    step: int = 1
    lower: int = 0
    upper: int = 0
    offset: Index = ZERO

    def position(self, row: int) -> Index:
        """Where a walk from a row of the tile begins."""
        return self.digit.at(row) * self.step + self.lower


@dataclass(frozen=True)
class Im2colWalk:
    """columns: (extent, where they begin). dims: the innermost first; the last one has no bounding
    box."""

    columns: tuple[int, Index]
    dims: tuple[WalkDim, ...]


def im2col_walk_of(op: ops.Load, access: Access, bytes_: int = 2) -> Im2colWalk | None:
    """The windows that a two-dimensional load of elements of so many bytes reads, or None where
    the copy engine cannot walk like that."""
    view, size, inner = op.view, op.view.dtype.bytes, access.axis
    if len(op.shape) != 2 or size != bytes_ or op.shape[1 - inner] > MAX_ROWS:
        return None
    view_dims: list[ViewDim] = []
    for at, extent, stride in zip(op.indices, view.shape, view.strides, strict=True):
        found = _cut(at, extent, stride, op.shape, inner)
        if found is None:
            return None
        view_dims += found
    view_dims = [dim for dim in view_dims if not _is_nothing(dim)]
    along = [dim for dim in view_dims if dim.columns]
    others = [dim for dim in view_dims if not dim.columns]
    if len(along) != 1 or along[0].digit or not same(along[0].stride, 1):
        return None
    if not divides(16, view.offset * size):
        return None
    numbers = [n for p in others for n in (p.stride, p.step, *p.rest.range, p.rest.constant)]
    if is_symbolic(along[0].extent, *numbers):
        return None
    if not all(dim.stride > 0 and dim.stride * size % 16 == 0 for dim in others):
        return None
    dims = _walk(others, op.shape[1 - inner])
    return Im2colWalk((along[0].extent, along[0].rest), dims) if dims else None


def _is_nothing(dim: ViewDim) -> bool:
    """A dim of 1 that every element is at the start of."""
    still = dim.digit is None and not dim.columns and dim.rest == Index(0)
    return still and same(dim.extent, 1)


# digits of the row -------------------------------------------------------------------------------


def _digit(atom: Atom, rows: int) -> Digit | None:
    """An atom as a digit of the coordinate along the axis `rows`."""
    match atom:
        case Axis():
            return Digit(1, Index(0))
        case FloorDiv() | Mod() if not is_symbolic(atom.divisor):
            moving, rest = atom.base.split((rows,))
            if len(moving.terms) != 1 or moving.terms[0][1] != 1 or rest.axes():
                return None
            base = _digit(moving.terms[0][0], rows)
            if base is None or base.count is not None:
                return None
            shift = base.shift + rest * base.period
            if isinstance(atom, Mod):
                return Digit(base.period, shift, atom.divisor)
            return Digit(base.period * atom.divisor, shift)
    return None


def _cut(
    at: Index, extent: int, stride: int, shape: tuple[int, ...], inner: int
) -> list[ViewDim] | None:
    """A view's dim cut so that no part has two terms of the tile's coordinates, the outermost part
    first: where an index of lines of W * C elements is digit * C + column, lines of W and C."""
    rows = 1 - inner
    line = Axis(inner, shape[inner])
    view_dims: list[ViewDim] = []
    while True:
        moving, rest = at.split((0, 1))
        digits: list[tuple[int, Digit, Index]] = []
        columns = False
        for atom, factor in moving.terms:
            if atom == line and factor == 1:
                columns = True
                continue
            digit = _digit(atom, rows) if rows in Index(0, ((atom, 1),)).axes() else None
            if digit is None or factor <= 0 or is_symbolic(factor):
                return None
            digits.append((factor, digit, Index(0, ((atom, factor),))))
        if len(digits) + columns <= 1:
            step, digit = (digits[0][0], digits[0][1]) if digits else (1, None)
            return [*view_dims, ViewDim(extent, stride, digit, step, columns, rest)]
        factor, digit, term = max(digits, key=lambda item: item[0])
        pitch = factor if is_symbolic(extent) else math.gcd(factor, extent)
        if not divides(pitch, extent):
            return None
        inside = modulo(rest, pitch) + (moving - term)
        if not in_range(inside, pitch):
            return None
        outside = floordiv(rest, pitch)
        view_dims.append(
            ViewDim(extent // pitch, stride * pitch, digit, factor // pitch, False, outside)
        )
        at, extent = inside, pitch


# the walk ----------------------------------------------------------------------------------------


def _walk(view_dims: list[ViewDim], rows: int) -> tuple[WalkDim, ...] | None:
    """The dims of the tensor map in the order in which the engine counts."""
    moving = sorted(
        (p for p in view_dims if p.digit), key=lambda p: p.digit.period if p.digit else 0
    )
    still = sorted((p for p in view_dims if p.digit is None), key=lambda p: _reach(p.rest))
    if not moving or not _counts(tuple(dim.digit for dim in moving if dim.digit)):
        return None
    order = [*moving, *still]
    end = _unbounded(order[-1])
    if end is None:
        end = WalkDim(1, order[-1].stride * order[-1].extent, Digit(1, Index(0)))
    else:
        order.pop()
    if len(order) not in CORNERS:
        return None
    bounded = [_bounded(dim, CORNERS[len(order)], rows) for dim in order]
    if is_symbolic(end.stride) or not all(bounded):
        return None
    return (*(dim for dim in bounded if dim), end)


def _counts(digits: tuple[Digit, ...]) -> bool:
    """Whether each digit steps when the one before it wraps, and the last one does not wrap."""
    period, shift = 1, Index(0)
    for number, digit in enumerate(digits):
        if digit.period != period or (number and (digit.shift - shift).multiple % period):
            return False
        if (digit.count is None) != (number == len(digits) - 1):
            return False
        period, shift = period * (digit.count or 1), digit.shift
    return True


def _reach(at: Index) -> int:
    low, high = at.range
    return high - low


def _unbounded(dim: ViewDim) -> WalkDim | None:
    """A dim of a view as the dim that is counted last: without a step."""
    if dim.digit is None:
        return WalkDim(dim.extent, dim.stride, Digit(1, dim.rest))
    step, digit = dim.step, dim.digit
    if dim.rest.multiple % step:
        return None
    shift = digit.shift + floordiv(dim.rest, step) * digit.period
    return WalkDim(-(-dim.extent // step), dim.stride * step, Digit(digit.period, shift))


def _bounded(dim: ViewDim, most: int, rows: int) -> WalkDim | None:
    """A part with a box around its positions, which ends where the digit wraps; with corners below
    `most`. rows: of the tile."""
    if is_symbolic(dim.extent):
        return None
    low, high = dim.rest.range
    step, digit, offset = dim.step, dim.digit, dim.rest - low
    if digit is None:
        count, digit, offset = high - low + 1, Digit(1, dim.rest - low), Index(0)
    elif high - low >= 2 * most or digit.shift.range[0] < 0:
        return None
    else:
        count = digit.count or (digit.shift.range[1] + rows - 1) // digit.period + 1
    upper = (count - 1) * step + low - (dim.extent - 1)
    if not (-most <= low < most and -most <= upper < most and 1 <= step <= MAX_STEP):
        return None
    return WalkDim(dim.extent, dim.stride, digit, step, low, upper, offset)


# code --------------------------------------------------------------------------------------------


def start_of(
    low: Recording, walk: Im2colWalk, number: Operand, slices: int, rows: int
) -> list[Operand]:
    """The coordinates, but the columns', where a walk begins: at slice number `number` of so many
    slices of the tile, of `rows` rows each."""
    e = low.scalars
    found: list[Operand] = []
    for dim in walk.dims:
        if isinstance(number, int):
            found.append(low.evaluate(dim.position(number * rows)))
            continue
        place = low.evaluate(dim.position(0))
        for other in range(1, slices):
            chosen = e.compare("eq", number, other)
            place = e.pick(chosen, low.evaluate(dim.position(other * rows)), place)
        found.append(place)
    return found


def offsets_of(low: Recording, windows: Im2colWalk) -> list[Operand]:
    """What is added to the positions of the dims with a bounding box."""
    return [low.evaluate(dim.offset) for dim in windows.dims[:-1]]
