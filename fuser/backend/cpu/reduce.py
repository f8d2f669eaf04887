"""Reductions and scans on a CPU.

Along the innermost axis a reduction runs on several independent vector accumulators, which are
folded together in a fixed order at the end; along any other axis vectors stay vectors and the fold
is a plain loop. Values that the analysis wants to keep are written to scratch in the same loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuser.backend import text
from fuser.backend.cpu import affine, costs, maps
from fuser.backend.cpu.storage import One, Point
from fuser.backend.text import Reg
from fuser.dtypes import DType, f32
from fuser.tilegen import ops
from fuser.tilegen.index import Index

if TYPE_CHECKING:
    from fuser.backend.cpu.lower import Lowering


def accumulator(dtype: DType) -> DType:
    """What a fold of `dtype` is kept in: float32 for the 16-bit floats."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def lower_reduce(low: Lowering, first: ops.Reduce) -> None:
    """Emit a reduction, with its ready siblings over the same space, in one loop nest."""
    group = _with_siblings(low, first)
    low.passes += 1
    x, axis = first.x, first.axis
    shape = first.result.shape
    width = low.width_for([op.x for op in group])
    trees = [op.x for op in group]
    along = costs.probe(x.shape, axis, width)
    lanes = min(width, x.shape[axis])
    inner = sum(costs.lane_cost(low.known, tree, along, lanes) for tree in trees)
    # Folding the lanes of one result costs about as much as ten vectors.
    inner = (inner + 0.5) / lanes + 10 / max(1, x.shape[axis])
    outer_axis, outer = costs.choose_axis(low.known, x.shape, trees, width, banned=axis)
    horizontal = outer_axis < 0 or inner <= outer
    if first.result.type.size == 1:
        zeros = tuple(Index(0) for _ in shape)
        results = _fold(low, group, zeros, width if horizontal else 1)
        for op, reg in zip(group, results, strict=True):
            low.places[op.result] = One(reg)
    else:
        held = {op: low.allocate(op.result) for op in group}

        def body(coords: Point, count: int) -> None:
            regs = _fold(low, group, coords, width if horizontal else 1)
            for op, reg in zip(group, regs, strict=True):
                place = held[op]
                address = low.memory_address(place, coords)
                low.write(place.pointer, op.result.dtype, address, reg, count)

        vector = -1 if horizontal else outer_axis - (outer_axis > axis)
        low.nest(shape, vector, width, body, values=trees)
        low.places.update((op.result, place) for op, place in held.items())
    low.finish_through()


def _with_siblings(low: Lowering, first: ops.Reduce) -> list[ops.Reduce]:
    low.gather_through(first.x)
    group = [first]
    for op in low.known.blocks[first.result].ops:
        if not isinstance(op, ops.Reduce) or op is first or op.result in low.places:
            continue
        same = op.x.shape == first.x.shape and op.axis == first.axis
        if same and op.result in low.known.users and low.ready(op.x):
            group.append(op)
    return group


def _insert(coords: Sequence[Index], axis: int, here: Index) -> Point:
    return (*coords[:axis], here, *coords[axis:])


def _fold(low: Lowering, group: list[ops.Reduce], coords: Point, width: int) -> list[Reg]:
    """The results at a point; width > 1: the point has no lane and the fold makes its own."""
    first = group[0]
    axis, extent = first.axis, first.x.shape[first.axis]
    cost = sum(costs.tree_cost(low.known, op.x) for op in group)
    full, tail = divmod(extent, width)
    unroll = _accumulators(full, cost)
    lanes = max(affine.width_of(coords), width)
    accs: list[list[Reg | None]] = [[None] * unroll for _ in group]
    blocks = full // unroll if unroll else 0

    def value(op: ops.Reduce, start: Index, count: int) -> Reg:
        here = start + affine.lane(count) if width > 1 else start
        reg = low.vector_at(op.x, _insert(coords, axis, here), count if width > 1 else lanes)
        return maps.cast(low.f, reg, op.x.dtype, accumulator(op.x.dtype))

    def join(op: ops.Reduce, acc: Reg | None, reg: Reg) -> Reg:
        if acc is None:
            return reg
        return maps.combine(low.f, op.fn, accumulator(op.x.dtype), acc, reg)

    if blocks > 1:
        place = low.placeholder(extent, width)
        here = place + affine.lane(width)
        low.hoist([(op.x, _insert(coords, axis, here)) for op in group], place, lanes=width == 1)
        starts = []
        for op in group:
            dtype = accumulator(op.x.dtype)
            starts += [maps.literal(maps.identity(op.fn, dtype), dtype, lanes)] * unroll

        def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
            with low.scope():
                step = unroll * width
                start = low.counter(i, 0, (blocks - 1) * step, step)
                out = list(carried)
                for u in range(unroll):
                    for g, op in enumerate(group):
                        slot = g * unroll + u
                        out[slot] = join(op, out[slot], value(op, start + u * width, width))
            return out

        done = low.f.loop(
            0, blocks * unroll * width, unroll * width, starts, iteration, hint="fold"
        )
        accs = [list(done[g * unroll : (g + 1) * unroll]) for g in range(len(group))]
    else:
        blocks = 0
    for step in range(blocks * unroll, full):
        for g, op in enumerate(group):
            u = step % unroll
            accs[g][u] = join(op, accs[g][u], value(op, Index(step * width), width))
    results = []
    for g, op in enumerate(group):
        dtype = accumulator(op.x.dtype)
        total: Reg | None = None
        for acc in accs[g]:
            total = acc if total is None else total if acc is None else join(op, total, acc)
        if width > 1 and tail:
            rest = value(op, Index(full * width), tail)
            total = _join_tail(low, op, total, rest, dtype)
        assert total is not None
        if width > 1:
            total = horizontal(low, op.fn, dtype, total)
        results.append(maps.cast(low.f, total, dtype, op.result.dtype))
    return results


def _accumulators(full: int, cost: float) -> int:
    most = 4 if cost <= 40 else 2
    if full < most:
        return max(1, full)
    for count in range(most, most // 2, -1):
        if full % count == 0:
            return count
    return most


def _join_tail(low: Lowering, op: ops.Reduce, total: Reg | None, rest: Reg, dtype: DType) -> Reg:
    """Fold a narrower last vector in, filled up with the identity."""
    have = text.lanes(rest.type)
    want = text.lanes(total.type) if total is not None else 1 << (have - 1).bit_length()
    if have < want:
        fill = maps.literal(maps.identity(op.fn, dtype), dtype, have)
        if have == 1:
            wide = Reg(text.vector(rest.type, want), f"splat ({fill.typed})")
            rest = low.f.insert(wide, rest, 0)
        else:
            order = [i if i < have else have for i in range(want)]
            rest = low.f.shuffle(rest, fill, order)
    return rest if total is None else maps.combine(low.f, op.fn, dtype, total, rest)


def horizontal(low: Lowering, fn: str, dtype: DType, reg: Reg) -> Reg:
    """Fold the lanes (a power of two) of a vector, halves first."""
    while text.lanes(reg.type) > 1:
        half = text.lanes(reg.type) // 2
        if half == 1:
            a, b = low.f.extract(reg, 0), low.f.extract(reg, 1)
        else:
            a = low.f.shuffle(reg, None, range(half))
            b = low.f.shuffle(reg, None, range(half, 2 * half))
        reg = maps.combine(low.f, fn, dtype, a, b)
    return reg


def lower_scan(low: Lowering, op: ops.Scan) -> None:
    """A running fold: vectors along another axis where that is contiguous, else one by one."""
    low.require(op.x)
    place = low.allocate(op.result)
    x, axis = op.x, op.axis
    dtype = accumulator(x.dtype)
    width = low.width_for([x])
    shape = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
    vector, cost = costs.choose_axis(low.known, x.shape, [x], width, banned=axis)
    if cost > 4 / width:
        vector = -1
    extent = x.shape[axis]

    def body(coords: Point, lanes: int) -> None:
        start = maps.literal(maps.identity(op.fn, dtype), dtype, lanes)

        def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
            with low.scope():
                step = low.counter(i, 0, extent - 1)
                here = (step * -1) + (extent - 1) if op.reverse else step
                point = (*coords[:axis], here, *coords[axis + 1 :])
                reg = maps.cast(low.f, low.vector_at(x, point, lanes), x.dtype, dtype)
                total = maps.combine(low.f, op.fn, dtype, carried[0], reg)
                low.write(
                    place.pointer, op.result.dtype, low.memory_address(place, point),
                    maps.cast(low.f, total, dtype, op.result.dtype), lanes,
                )  # fmt: skip
            return [total]

        low.f.loop(0, extent, 1, [start], iteration, hint="scan")

    low.nest(shape, vector, width, body)
    low.places[op.result] = place
