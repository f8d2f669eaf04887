"""How each primitive of the graph becomes tile ops at given coordinates (the backward half).

`LOWERINGS`, at the end, has map primitives, movement, creation, gather, reductions whole in a tile,
scans and windows. Contractions are anchors and have emitters of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product as cartesian

from fuser.dtypes import DType, i32
from fuser.errors import LoweringError
from fuser.graph import walks
from fuser.graph.ir import Node, Value
from fuser.graph.ops.collective import COLLECTIVES
from fuser.graph.ops.registry import PRIMITIVES
from fuser.graph.passes.rules_arithmetic import is_nonnegative
from fuser.graph.sizes import certain, is_symbolic
from fuser.tilegen.emit.constants import progression, uniform
from fuser.tilegen.emit.maps import (
    MOVEMENT,
    Coords,
    Guard,
    backward,
    delinearise,
    linearise,
    product,
)
from fuser.tilegen.emit.space import Emission, Lowering, Operands, Piece
from fuser.tilegen.index import Index, in_range, lookup
from fuser.tilegen.ops import ReduceFn
from fuser.tilegen.rules.common import cover


def identity_of(fn: str, dtype: DType) -> float | int:
    """The identity of a fold in `dtype`."""
    table = {"sum": 0, "prod": 1, "max": dtype.lowest, "min": dtype.highest}
    return float(table[fn]) if dtype.is_float else table[fn]


def _constant(em: Emission, node: Node, coords: Coords) -> Piece:
    return em.read(node.output, coords)


def _map(em: Emission, node: Node, coords: Coords) -> Piece:
    """The primitive in its compute type; under strict numerics a narrow float is rounded at once,
    else that waits for a store."""
    result = em.map(node.op, *(em.tile(operand, coords) for operand in node.inputs))
    return rounded(em, result, node.output.dtype)


def rounded(em: Emission, x: Piece, dtype: DType) -> Piece:
    """A piece in the compute type of a dtype, rounded to that dtype where every operator rounds."""
    if dtype.compute is dtype or not em.numerics.is_strict:
        return x
    return em.cast(em.cast(x, dtype), dtype.compute)


def _map_operands(em: Emission, node: Node, coords: Coords) -> Operands:
    return [(operand, coords) for operand in node.inputs]


def _compare(em: Emission, node: Node, coords: Coords) -> Piece:
    """Positions are compared as index expressions: such comparisons are masks."""
    sides = _compared(em, node, coords)
    if sides is None:
        return _map(em, node, coords)
    return em.map(node.op, *map(em.index_piece, sides))


def _compare_operands(em: Emission, node: Node, coords: Coords) -> Operands:
    return _map_operands(em, node, coords) if _compared(em, node, coords) is None else []


def _compared(em: Emission, node: Node, coords: Coords) -> list[Index] | None:
    """Both sides of a comparison of positions; None if the node is none."""
    sides = [index_of(em, operand, coords) for operand in node.inputs]
    known = [side for side in sides if side is not None and max(map(abs, side.range)) < 1 << 31]
    return known if len(known) == len(sides) else None


def _move(em: Emission, node: Node, coords: Coords) -> Piece:
    ((operand, at),) = _move_operands(em, node, coords)
    return em.tile(operand, at)


def _move_operands(em: Emission, node: Node, coords: Coords) -> Operands:
    at = backward(node, coords)
    assert at is not None
    return [(node.inputs[0], at)]


def _iota(em: Emission, node: Node, coords: Coords) -> Piece:
    """Positions. A narrow float is rounded here where it cannot hold them all: they are data, as
    exact as a constant, and no result whose rounding may wait for a store."""
    dtype: DType = node.output.dtype
    at = em.index_piece(coords[node.attrs["axis"]], dtype.compute)
    exact = {"f16": 1 << 11, "bf16": 1 << 8}.get(dtype.name)
    if exact is None or certain(exact + 1 - node.attrs["shape"][node.attrs["axis"]]):
        return at
    return em.cast(em.cast(at, dtype), dtype.compute)


def _dims(em: Emission, node: Node, coords: Coords) -> Piece:
    """Symbolic dims as numbers: a chain of selects on the position, where they are several."""
    dtype = node.output.dtype.compute
    at = linearise(coords, node.output.shape)
    values = node.attrs["values"]
    result = Piece(dtype, splat=values[-1])
    for number, dim in reversed(list(enumerate(values[:-1]))):
        here = em.map("eq", em.index_piece(at), Piece(i32, splat=number))
        result = em.map("select", here, Piece(dtype, splat=dim), result)
    return result


def index_of(em: Emission, value: Value, coords: Coords) -> Index | None:
    """An integer value at `coords` as an index expression, if it is made of positions: iota,
    constant numbers and ranges, their sums and multiples. Comparisons of those are masks.

    None where the value may wrap around in its dtype, as expressions do not."""
    if not value.dtype.is_integer:
        return None

    def parts(at: tuple[Value, Coords]) -> list[tuple[Value, Coords]]:
        return _parts_of(em, *at)

    for at in walks.post_order((value, coords), parts, em.positions):
        em.positions[at] = _index_of(em, *at)
    return em.positions[value, coords]


def _parts_of(em: Emission, value: Value, coords: Coords) -> list[tuple[Value, Coords]]:
    """The integers that a value is a sum, a multiple or a movement of."""
    node = value.node
    if node is None or value.constant is not None or not em.is_inside(value):
        return []
    at: Coords | None = coords
    if node.op not in ("cast", "add", "sub", "mul"):
        at = backward(node, coords) if node.op in MOVEMENT and len(node.inputs) == 1 else None
    return [] if at is None else [(part, at) for part in node.inputs if part.dtype.is_integer]


def _index_of(em: Emission, value: Value, coords: Coords) -> Index | None:
    """`index_of` an integer, known of its parts."""
    found = _expression_of(em, value, coords)
    if found is None or (value.dtype.kind == "int" and value.dtype.bits == 64):
        return found
    low, high = found.range
    fits = certain(low - int(value.dtype.lowest)) and certain(int(value.dtype.highest) - high)
    return found if fits else None


def _expression_of(em: Emission, value: Value, coords: Coords) -> Index | None:
    number = uniform(value)
    if number is not None:
        return Index(int(number))
    node = value.node
    if node is not None and node.op == "dims" and len(node.attrs["values"]) == 1:
        return Index(node.attrs["values"][0])
    if value.constant is not None:
        found = progression(value)
        return None if found is None else coords[found[0]] * found[2] + found[1]
    if node is None or not em.is_inside(value):
        return None
    match node.op:
        case "iota":
            axis: int = node.attrs["axis"]
            return coords[axis]
        case "cast":
            return em.positions.get((node.inputs[0], coords))
        case "add" | "sub" | "mul":
            a, b = (em.positions.get((operand, coords)) for operand in node.inputs)
            if a is None or b is None:
                return None
            if node.op == "mul":
                if a.is_constant:
                    a, b = b, a
                return a * b.constant if b.is_constant else None
            return a + b if node.op == "add" else a - b
    moved = backward(node, coords) if len(node.inputs) == 1 else None
    return None if moved is None else em.positions.get((node.inputs[0], moved))


def _cast(em: Emission, node: Node, coords: Coords) -> Piece:
    """A cast between the compute types, rounded to a narrow float: the operator asks for that.
    Under fast numerics the rounding waits for a store, unless the node is there for it (`rounds`);
    so it does except under strict ones where it is no operator of the model (`result`)."""
    x = em.tile(node.inputs[0], coords)
    dtype = node.output.dtype
    waits = em.numerics.is_fast or (node.attrs.get("result") and not em.numerics.is_strict)
    if dtype.compute is not dtype and (node.attrs.get("rounds") or not waits):
        x = em.cast(x, dtype)
    return em.cast(x, dtype.compute)


def _gather(em: Emission, node: Node, coords: Coords) -> Piece:
    """Read at an index that a tile of integers gives; negative ones count from the end."""
    data, indices = node.inputs
    axis, rank = node.attrs["axis"], indices.type.rank
    found = em.tile(indices, coords[axis : axis + rank])
    size = data.shape[axis]
    at = position(em, found, size)
    piece = em.tile(data, (*coords[:axis], at, *coords[axis + rank :]))
    if em.is_inside(data) or uniform(data) is not None:
        # What is computed here is something outside of the data, too; a load would have read 0.
        piece = em.select(em.within([(at, size)]), piece, Piece(piece.dtype, splat=0))
    return piece


def position(em: Emission, found: Piece, size: int) -> Index:
    """An integer piece as an index expression into an axis of `size`; -1 or `size` for an index
    out of range, so that neither 32 bits nor a product with a stride wrap it into the range."""
    if found.value is None and found.splat is not None and not is_symbolic(found.splat):
        number = int(found.splat)
        if certain(size - 1 - number) and certain(number + size):
            return Index(number if number >= 0 else number + size)
        if not is_symbolic(size):
            return Index(size)
    dtype = found.dtype
    if dtype.bits < i32.bits:  # the size may be no number of a narrower type
        found = em.cast(found, i32)
    value = em.full_value(found, found.axes)
    unsigned = dtype.kind == "uint"
    high = value.high if is_symbolic(value.high) else min(value.high, int(dtype.highest))
    if not certain(size - 1 - high):
        found = em.map("min", found, Piece(found.dtype, splat=size))
    if not unsigned and not certain(value.low + size):
        found = em.map("max", found, Piece(found.dtype, splat=-1 - size))
    if not unsigned and not certain(value.low):
        negative = em.map("lt", found, Piece(found.dtype, splat=0))
        wrapped = em.map("add", found, Piece(found.dtype, splat=size))
        found = em.map("select", negative, wrapped, found)
    return lookup(em.full_value(found, found.axes), found.axes)


def _concat(em: Emission, node: Node, coords: Coords) -> Piece:
    """A chain of selects on the coordinate; operands that it cannot reach are left out."""
    axis = node.attrs["axis"]
    low, high = coords[axis].range
    result: Piece | None = None
    end = node.output.shape[axis]
    for position_, operand in reversed(list(enumerate(node.inputs))):
        start = end - operand.shape[axis]
        last = position_ == len(node.inputs) - 1
        reached = not certain(low - end) or position_ == 0
        reached = reached and (not certain(start - 1 - high) or last)
        if reached and operand.shape[axis]:
            at = coords[axis] - start
            piece = em.tile(operand, (*coords[:axis], at, *coords[axis + 1 :]))
            if result is None:
                result = piece
            else:
                limit = Piece(i32, splat=end)
                result = em.map(
                    "select", em.map("lt", em.index_piece(coords[axis]), limit), piece, result
                )
        end = start
    if result is None:
        raise LoweringError("an empty concat", where=em.region.name)
    return result


def _pad(em: Emission, node: Node, coords: Coords) -> Piece:
    """The operand where the coordinates are inside it, the pad value elsewhere."""
    (x,) = node.inputs
    inner = tuple(c - low for c, low in zip(coords, node.attrs["low"], strict=True))
    number = node.attrs["value"]
    return padded(em, x, inner, number.item() if hasattr(number, "item") else number)


def padded(em: Emission, x: Value, coords: Coords, number: float | int | bool) -> Piece:
    """`x` at coordinates that may lie outside it; `number` there."""
    guards: list[Guard] = [(c, dim) for c, dim in zip(coords, x.shape, strict=True)]
    if all(in_range(*guard) for guard in guards):
        return em.tile(x, coords)
    if not em.is_inside(x) and uniform(x) is None:
        return em.read(x, coords, pad=number)
    if x.node is not None and x.node.op == "cast":
        (source,) = x.node.inputs
        if source.dtype.compute is x.dtype.compute:  # the same numbers in a tile: loads can pad
            return padded(em, source, coords, number)
    condition = em.within(guards)
    return em.select(condition, em.tile(x, coords), Piece(x.dtype.compute, splat=number))


# reductions -------------------------------------------------------------------------------------


def padded_extent(em: Emission, extent: int) -> int:
    """The extent of a tile axis that holds `extent` elements: a power of two on a GPU."""
    if is_symbolic(extent):
        return cover(extent)
    return 1 << (extent - 1).bit_length() if em.target.is_cuda and extent > 1 else extent


def reduction_axis(em: Emission, total: int) -> Index:
    """The frame axis along which rows of `total` elements are folded."""
    if total not in em.reduction_axes:
        em.reduction_axes[total] = em.axis(padded_extent(em, total))
    return em.reduction_axes[total]


def operand_coords(node: Node, coords: Coords, k: Index) -> Coords:
    """Coordinates of the operand of a reduction, where `k` runs over the reduced dims.

    Raises LoweringError where the result is wanted at places that move with `k` as well: one axis
    of the frame cannot be folded and kept."""
    if k.axes() and any(c.axes() & k.axes() for c in coords):
        raise LoweringError(f"{node.op} is read along the axis that it folds", where=node.op)
    axes = reduced_axes(node)
    shape = node.inputs[0].shape
    inner = dict(zip(axes, delinearise(k, [shape[a] for a in axes]), strict=True))
    kept = iter(coords)
    return tuple(inner[a] if a in inner else next(kept) for a in range(len(shape)))


def reduced_axes(node: Node) -> tuple[int, ...]:
    """The operand axes that a reduction (or scan) folds, in increasing order."""
    if "axes" in node.attrs:
        return tuple(sorted(node.attrs["axes"]))
    return (node.attrs["axis"],)


def _whole_row(em: Emission, node: Node, coords: Coords) -> tuple[Piece, Index, int]:
    shape = node.inputs[0].shape
    total = product([shape[a] for a in reduced_axes(node)])
    k = reduction_axis(em, total)
    return em.tile(node.inputs[0], operand_coords(node, coords, k)), k, total


def _frame_axis(k: Index) -> int | None:
    return next(iter(k.axes()), None)


def _reduce(em: Emission, node: Node, coords: Coords) -> Piece:
    """Fold the reduced extent: as one tile axis, or in chunks where a row is too long for it. The
    padded tail is neutral."""
    fn: ReduceFn = node.op.removeprefix("reduce_")  # type: ignore[assignment]
    shape = node.inputs[0].shape
    total = product([shape[a] for a in reduced_axes(node)])
    with em.outside(coords):
        if total in em.chunks:
            return _reduce_chunks(em, node, coords, fn, total)
        x, k, _ = _whole_row(em, node, coords)
        axis = _frame_axis(k)
        if axis is not None:
            x = em.reduce(fn, neutral_tail(em, fn, x, k, total), axis)
        return from_zero(em, x) if fn == "sum" and not is_nonnegative(node.inputs[0]) else x


def from_zero(em: Emission, total: Piece) -> Piece:
    """A sum, which begins with 0 and not with its first term: one of nothing but -0 is 0."""
    return em.map("add", total, Piece(total.dtype, splat=0.0)) if total.dtype.is_float else total


def _reduce_chunks(em: Emission, node: Node, coords: Coords, fn: ReduceFn, total: int) -> Piece:
    """Fold a long row: partial results of a chunk's shape, then one fold of those."""
    inner = em.chunks[total]
    axis = _frame_axis(inner)
    assert axis is not None
    x = node.inputs[0]
    dtype = x.dtype.compute
    combine = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}[fn]
    used = frozenset((axis,)).union(*(c.axes() for c in coords))
    start = Piece(dtype, tuple(sorted(used)), splat=identity_of(fn, dtype))

    def body(at: Index, carried: list[Piece]) -> list[Piece]:
        k = at + inner
        piece = em.tile(x, operand_coords(node, coords, k))
        return [em.map(combine, carried[0], neutral_tail(em, fn, piece, k, total))]

    (partial,) = em.loop(0, total, em.extents[axis], [start], body)
    return em.reduce(fn, partial, axis)


def neutral_tail(em: Emission, fn: str, x: Piece, k: Index, total: int) -> Piece:
    """x with the identity of `fn` where k >= total."""
    dtype = x.dtype
    return em.select(em.within([(k, total)]), x, Piece(dtype, splat=identity_of(fn, dtype)))


def _extreme(em: Emission, node: Node, coords: Coords) -> Piece:
    """argmax and argmin: the least (or last) index whose element is the extreme. Long rows keep the
    best of each place of a chunk, with its index."""
    total = node.inputs[0].shape[node.attrs["axis"]]
    fn: ReduceFn = "max" if node.op == "argmax" else "min"
    last = node.attrs.get("select_last", False)
    with em.outside(coords):
        if total in em.chunks:
            x, at = _extreme_chunks(em, node, coords, fn, last)
            axis = _frame_axis(em.chunks[total])
        else:
            x, k, _ = _whole_row(em, node, coords)
            x, at = neutral_tail(em, fn, x, k, total), em.index_piece(k)
            axis = _frame_axis(k)
        if axis is None:
            return Piece(node.output.dtype, splat=0)
        hit = em.map("eq", x, em.reduce(fn, x, axis))
        if x.dtype.is_float:
            hit = em.map("logical_or", hit, em.map("is_nan", x))
        inside = em.map("lt", at, Piece(i32, splat=total))
        none = Piece(i32, splat=-1 if last else total)
        at = em.map("select", em.map("logical_and", hit, inside), at, none)
        return em.cast(em.reduce("max" if last else "min", at, axis), node.output.dtype)


def _extreme_chunks(
    em: Emission, node: Node, coords: Coords, fn: ReduceFn, last: bool
) -> tuple[Piece, Piece]:
    """The extreme of every place of a chunk over all chunks, and its index in the row."""
    x = node.inputs[0]
    total = x.shape[node.attrs["axis"]]
    inner = em.chunks[total]
    dtype = x.dtype.compute
    axes = tuple(sorted(inner.axes().union(*(c.axes() for c in coords))))
    better = {"max": "ge" if last else "gt", "min": "le" if last else "lt"}[fn]

    def body(at: Index, carried: list[Piece]) -> list[Piece]:
        k = at + inner
        piece = neutral_tail(em, fn, em.tile(x, operand_coords(node, coords, k)), k, total)
        wins = em.map(better, piece, carried[0])
        if dtype.is_float:
            fresh = em.map("logical_not", em.map("is_nan", carried[0]))
            wins = em.map("logical_or", wins, em.map("logical_and", em.map("is_nan", piece), fresh))
        first = em.map("lt", carried[1], Piece(i32, splat=0))  # nothing was seen here yet
        wins = em.map("logical_or", wins, first)
        return [
            em.map("select", wins, piece, carried[0]),
            em.map("select", wins, em.index_piece(k), carried[1]),
        ]

    start = [Piece(dtype, axes, splat=identity_of(fn, dtype)), Piece(i32, axes, splat=-1)]
    best, at = em.loop(0, total, em.extents[next(iter(inner.axes()))], start, body)
    return best, at


def _cumsum(em: Emission, node: Node, coords: Coords) -> Piece:
    """A running sum along a tile axis that holds the whole extent."""
    axis_ = node.attrs["axis"]
    k = coords[axis_]
    total = node.output.shape[axis_]
    axis = _frame_axis(k)
    fn: ReduceFn = node.attrs.get("fn", "sum")
    identity = identity_of(fn, node.output.dtype.compute)
    if total == 1:
        x = em.tile(node.inputs[0], coords)
        if node.attrs.get("exclusive", False):
            return Piece(x.dtype, splat=identity)
        return from_zero(em, x) if fn == "sum" else x
    carried = em.running.get(node)
    if axis is None or (k != em.reduction_axes.get(total) and carried is None):
        raise LoweringError("cumsum needs its axis whole in a tile", where=em.region.name)
    reverse = node.attrs.get("reverse", False)
    if node.attrs.get("exclusive", False):
        # the running sum of the operand moved by one: subtracting would turn inf into nan
        before = k + 1 if reverse else k - 1
        x = padded(em, node.inputs[0], (*coords[:axis_], before, *coords[axis_ + 1 :]), identity)
    else:
        x = em.tile(node.inputs[0], coords)
    x = neutral_tail(em, fn, x, k, total)
    axes = x.axes if axis in x.axes else tuple(sorted((*x.axes, axis)))
    tile = em.full_value(x, axes)
    place = axes.index(axis)
    value = em.emit((tile,), lambda: em.b.scan(fn, tile, place, reverse))
    result = Piece(x.dtype, axes, value)
    if carried is not None:
        combine = "add" if fn == "sum" else "mul"
        em.running[node] = em.map(combine, carried, em.reduce(fn, x, axis))
        result = em.map(combine, result, carried)
    return result


MOST_UNROLLED = 32
"""Taps of a window that become one term each; a longer window is a loop."""

TAPS_AN_ITERATION = 8
"""Taps in the body of that loop: enough to hide what an iteration costs beside them."""


def _window(em: Emission, node: Node, coords: Coords) -> Piece:
    """Pooling: the taps of the window, unrolled; those of a long window in a loop."""
    window: tuple[int, ...] = node.attrs["window"]
    if product(window) <= MOST_UNROLLED:
        result = _taps(em, node, coords, [range(extent) for extent in window], None)
        total = node.attrs["fn"] == "sum" and not is_nonnegative(node.inputs[0])
        return from_zero(em, result) if total else result
    x = node.inputs[0]
    axes = tuple(sorted(frozenset[int]().union(*(c.axes() for c in coords))))
    start = Piece(x.dtype.compute, axes, splat=_window_identity(node))
    with em.outside(coords):
        return _long_window(em, node, coords, [], start)


def _long_window(
    em: Emission, node: Node, coords: Coords, outer: list[Index], start: Piece
) -> Piece:
    """`start` and the taps of the window at the taps `outer` of its first axes."""
    window: tuple[int, ...] = node.attrs["window"]
    axis = len(outer)
    inner = product(window[axis + 1 :])
    step = max(1, TAPS_AN_ITERATION // inner)
    whole = window[axis] - window[axis] % step

    def taps(here: Iterable[Index | int]) -> list[Iterable[Index | int]]:
        return [*([tap] for tap in outer), here, *map(range, window[axis + 1 :])]

    def body(at: Index, carried: list[Piece]) -> list[Piece]:
        if inner > TAPS_AN_ITERATION:
            return [_long_window(em, node, coords, [*outer, at], carried[0])]
        return [_taps(em, node, coords, taps([at + tap for tap in range(step)]), carried[0])]

    (result,) = em.loop(0, whole, step, [start], body)
    if whole == window[axis]:
        return result
    return _taps(em, node, coords, taps(range(whole, window[axis])), result)


def _taps(
    em: Emission, node: Node, coords: Coords, taps: Sequence[Iterable[Index | int]],
    start: Piece | None,
) -> Piece:  # fmt: skip
    """`start` and the elements under some taps of the window, given along each axis."""
    (x,), attrs = node.inputs, node.attrs
    fn = "add" if attrs["fn"] == "sum" else "max"
    identity = _window_identity(node)
    result = start
    for tap in cartesian(*taps):
        at = tuple(
            c * stride + t * dilation - low
            for c, stride, t, dilation, (low, _) in zip(
                coords, attrs["strides"], tap, attrs["dilation"], attrs["padding"], strict=True
            )
        )
        piece = padded(em, x, at, identity)
        result = piece if result is None else em.map(fn, result, piece)
    assert result is not None
    return result


def _window_identity(node: Node) -> float | int:
    return 0 if node.attrs["fn"] == "sum" else node.inputs[0].dtype.compute.lowest


_MAP = Lowering(_map, _map_operands)
_COMPARE = Lowering(_compare, _compare_operands)
_MOVE = Lowering(_move, _move_operands)
_REDUCE = Lowering(_reduce)
_EXTREME = Lowering(_extreme)


def _exchange_operands(em: Emission, node: Node, coords: Coords) -> Operands:
    """What this rank alone would give. No such program runs: it shows what a collective reads and
    writes (pipeline/collectives.py)."""
    at = {"all_gather": coords[1:], "reduce_scatter": (Index(0), *coords)}.get(node.op, coords)
    return [(node.inputs[0], at)]


def _exchange(em: Emission, node: Node, coords: Coords) -> Piece:
    ((operand, at),) = _exchange_operands(em, node, coords)
    return em.tile(operand, at)


LOWERINGS: dict[str, Lowering] = {
    **{name: _MAP for name, primitive in PRIMITIVES.items() if primitive.kind == "map"},
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _COMPARE),
    **dict.fromkeys(("reshape", "transpose", "broadcast", "slice"), _MOVE),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), _REDUCE),
    **dict.fromkeys(("argmax", "argmin"), _EXTREME),
    **dict.fromkeys(COLLECTIVES, Lowering(_exchange, _exchange_operands)),
    "cast": Lowering(_cast, _map_operands),
    "concat": Lowering(_concat),
    "constant": Lowering(_constant),
    "cumsum": Lowering(_cumsum),
    "dims": Lowering(_dims),
    "gather": Lowering(_gather),
    "iota": Lowering(_iota),
    "pad": Lowering(_pad),
    "reduce_window": Lowering(_window),
}
