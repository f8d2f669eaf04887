"""Reductions and scans on a CPU.

Along the innermost axis a reduction runs on several independent vector accumulators, which are
folded together in a fixed order at the end; along any other axis vectors stay vectors and the fold
is a plain loop. Values that the analysis wants to keep are written to scratch in the same loop.

Which of them it is depends on how many rows there are. In a kernel of `row_order` both add up in
one order: element i goes to sum i modulo the lanes of a vector, and then halves of these sums are
added, whether they are the lanes of one vector or a vector each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuser.backend import text
from fuser.backend.cpu.analysis import affine, costs
from fuser.backend.cpu.analysis.decisions import Nest
from fuser.backend.cpu.loops.edges import (
    Edge,
    below,
    beyond,
    find_edge,
    unread_beyond,
    written_on_the_way,
)
from fuser.backend.cpu.lowering import maps
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.lowering.values import Wanted
from fuser.backend.cpu.memory.storage import Local, One, Place, Point, unwritten
from fuser.backend.function import SELDOM
from fuser.backend.text import Reg
from fuser.dtypes import DType, f32
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value


def accumulator(dtype: DType) -> DType:
    """What a fold of `dtype` is kept in: float32 for the 16-bit floats."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def lower_reduce(low: Lowering, first: ops.Reduce) -> Mapping[Value, Place]:
    """Emit a reduction, with its ready siblings over the same space, in one loop nest."""
    local = low.gather_through(first.x)
    written = {value: filling.memory for value, filling in local.items() if filling.memory}
    group = _with_siblings(low, first, local)
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
    vectorised = axis if horizontal else outer_axis
    record = Nest("reduce", tuple(op.x for op in group), x.shape, vectorised, width)
    if first.result.type.size == 1:
        low.begin(record)
        zeros = tuple(Index(0) for _ in shape)
        results = _fold(low, group, zeros, width if horizontal else 1, local)
        return written | {op.result: One(reg) for op, reg in zip(group, results, strict=True)}
    held = {op.result: low.allocate(op.result) for op in group}

    def body(coords: Point, count: int) -> None:
        regs = _fold(low, group, coords, width if horizontal else 1, local)
        for (value, place), reg in zip(held.items(), regs, strict=True):
            low.write_at(place, value.dtype, coords, reg, count)

    vector = -1 if horizontal else outer_axis - (outer_axis > axis)
    place = low.placeholder(x.shape[axis])

    def reads(coords: Point) -> list[Wanted]:
        return [(tree, _insert(coords, axis, place)) for tree in trees]

    low.nest(shape, vector, width, body, record, values=trees, reads=reads, local=local)
    return written | held


def _with_siblings(low: Lowering, first: ops.Reduce, local: Local) -> list[ops.Reduce]:
    group = [first]
    for op in low.known.blocks[first.result].ops:
        if not isinstance(op, ops.Reduce) or op is first or op.result in low.places:
            continue
        same = op.x.shape == first.x.shape and op.axis == first.axis
        if same and op.result in low.known.users and low.ready(op.x, local):
            group.append(op)
    return group


def _insert(coords: Sequence[Index], axis: int, here: Index) -> Point:
    return (*coords[:axis], here, *coords[axis:])


def _fold(
    low: Lowering, group: list[ops.Reduce], coords: Point, width: int, local: Local
) -> list[Reg]:
    """The results at a point; width > 1: the point has no lane and the fold makes its own."""
    fold = _Fold(low, group, coords, width, local)
    full = fold.extent // width
    if fold.by_lanes:
        unroll = 1 if width > 1 else low.width_for([op.x for op in group])
    else:
        unroll = _accumulators(full, sum(costs.tree_cost(low.known, op.x) for op in group))
    edge = find_edge(low, fold.wanted, width, fold.extent, local) if width > 1 else None
    if edge is not None:
        fold.drop_nan()
        totals = _fold_to_edge(fold, edge, 1 << (unroll.bit_length() - 1))
    else:
        if full // unroll > 1:
            fold.drop_nan()
        totals = _fold_whole(fold, full, unroll)
    results = []
    for g, op in enumerate(group):
        total = totals[g]
        if width > 1:
            total = horizontal(low, fold.fns[g], fold.dtypes[g], total)
        if fold.fns[g] != op.fn:
            total = _or_nan(fold, g, total)
        results.append(maps.cast(low.f, total, fold.dtypes[g], op.result.dtype))
    return results


class _Fold:
    """Reductions of a group at one point: what they fold, and how."""

    def __init__(
        self, low: Lowering, group: list[ops.Reduce], coords: Point, width: int, local: Local
    ) -> None:
        self.low, self.group, self.coords, self.width = low, group, coords, width
        self.local = local
        self.axis, self.extent = group[0].axis, group[0].x.shape[group[0].axis]
        self.lanes = max(affine.width_of(coords), width)
        self.fns: list[str] = [op.fn for op in group]
        self.dtypes = [accumulator(op.x.dtype) for op in group]
        self.by_lanes: bool = low.known.kernel.row_order
        """Whether sums are added as the lanes of a vector are, halves first."""

    def drop_nan(self) -> None:
        """Fold floats without NaN in one instruction; what is left to do is `_or_nan`."""
        for g, dtype in enumerate(self.dtypes):
            if dtype.is_float:
                self.fns[g] = maps.NUMBERS_ONLY.get(self.fns[g], self.fns[g])

    def wanted(self, here: Index) -> list[Wanted]:
        """What is folded, where the axis of the fold is at a place."""
        return [(op.x, _insert(self.coords, self.axis, here)) for op in self.group]

    def identity(self, g: int) -> Reg:
        dtype = self.dtypes[g]
        return maps.literal(maps.identity(self.fns[g], dtype), dtype, self.lanes)

    def value(self, g: int, start: Index, count: int) -> Reg:
        """`count` elements from `start` on, to be folded."""
        low, op = self.low, self.group[g]
        here = start + affine.lane(count) if self.width > 1 else start
        point = _insert(self.coords, self.axis, here)
        reg = low.vector_at(op.x, point, count if self.width > 1 else self.lanes, self.local)
        return maps.cast(low.f, reg, op.x.dtype, self.dtypes[g])

    def join(self, g: int, total: Reg | None, reg: Reg) -> Reg:
        if total is None:
            return reg
        return maps.combine(self.low.f, self.fns[g], self.dtypes[g], total, reg)

    def joined(self, g: int, totals: Sequence[Reg | None]) -> Reg | None:
        """Several accumulators as one."""
        total: Reg | None = None
        if self.by_lanes:
            while len(totals) > 1:  # a power of two
                half = len(totals) // 2
                pairs = zip(totals[:half], totals[half:], strict=True)
                totals = [a if b is None else self.join(g, a, b) for a, b in pairs]
            return totals[0]
        for reg in totals:
            total = total if reg is None else self.join(g, total, reg)
        return total

    def hoist(self) -> None:
        """Compute what is the same for the whole fold, before its loops."""
        place = self.low.placeholder(self.extent, self.width)
        wanted = self.wanted(place + affine.lane(self.width))
        self.low.hoist(wanted, place, lanes=self.width == 1, local=self.local)

    def loop(
        self, start: Reg, stop: Reg, accs: Sequence[Sequence[Reg]], edge: Edge | None = None
    ) -> list[list[Reg]]:
        """Fold from start to stop into the accumulators, one vector an iteration into each. edge:
        where all of it is below."""
        low, width, unroll = self.low, self.width, len(accs[0])
        step = unroll * width

        def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
            with low.scope():
                last = self.extent // step * step - step
                here = low.counter(i, 0, last, step)
                out = list(carried)
                for u in range(unroll):
                    at = here + u * width
                    with low.assuming(below(edge, at + affine.lane(width))):
                        for g in range(len(self.group)):
                            slot = g * unroll + u
                            out[slot] = self.join(g, out[slot], self.value(g, at, width))
            return out

        flat = [reg for own in accs for reg in own]
        done = low.f.loop(start, stop, step, flat, iteration, hint="fold")
        return [list(done[g * unroll : (g + 1) * unroll]) for g in range(len(self.group))]


def _fold_whole(fold: _Fold, full: int, unroll: int) -> list[Reg]:
    """All of the axis, of which `full` vectors are whole ones."""
    low, width = fold.low, fold.width
    accs: list[list[Reg | None]] = [[None] * unroll for _ in fold.group]
    blocks = full // unroll
    if blocks > 1:
        fold.hoist()
        starts = [[fold.identity(g)] * unroll for g in range(len(fold.group))]
        stop = text.integer(blocks * unroll * width)
        accs = [list(own) for own in fold.loop(text.integer(0), stop, starts)]
    else:
        blocks = 0
    for step in range(blocks * unroll, full):
        for g in range(len(fold.group)):
            u = step % unroll
            accs[g][u] = fold.join(g, accs[g][u], fold.value(g, Index(step * width), width))
    totals = []
    for g, dtype in enumerate(fold.dtypes):
        total = fold.joined(g, accs[g])
        if width > 1 and fold.extent % width:
            rest = fold.value(g, Index(full * width), fold.extent % width)
            total = _join_tail(low, fold.fns[g], total, rest, dtype)
        assert total is not None
        totals.append(total)
    return totals


def _fold_to_edge(fold: _Fold, edge: Edge, unroll: int) -> list[Reg]:
    """Whole vectors below the edge, then those with masks, as far as they change the result."""
    f = fold.low.f
    fold.hoist()
    stop = _end(fold, edge)
    middle = f.binary("and", edge.reg, text.integer(-unroll * fold.width))
    starts = [[fold.identity(g)] * unroll for g in range(len(fold.group))]
    accs = fold.loop(text.integer(0), middle, starts, edge)
    rest = fold.loop(middle, stop, [own[:1] for own in accs])
    totals = []
    for g, own in enumerate(accs):
        total = fold.joined(g, [*rest[g], *own[1:]])
        assert total is not None
        totals.append(total)
    return totals


def _end(fold: _Fold, edge: Edge) -> Reg:
    """Where a fold may stop: at the edge where all after it is the identity of every reduction,
    and where kept values that are written on the way are not read there."""
    low, f = fold.low, fold.low.f
    extent = text.integer(fold.extent)
    kept = written_on_the_way(low, [op.x for op in fold.group], fold.local)
    if not all(unread_beyond(low, edge, fold.axis, value, fold.group) for value in kept):
        return extent
    values = beyond(low, edge, fold.wanted, fold.extent, fold.local)
    if values is None:
        return extent
    same: Reg | None = None
    for g, reg in enumerate(values):
        dtype = fold.dtypes[g]
        wide = maps.cast(f, reg, fold.group[g].x.dtype, dtype)
        identity = maps.literal(maps.identity(fold.fns[g], dtype), dtype)
        test = f.fcmp("oeq", wide, identity) if dtype.is_float else f.icmp("eq", wide, identity)
        same = test if same is None else f.binary("and", same, test)
    return extent if same is None else f.select(same, edge.reg, extent)


def _or_nan(fold: _Fold, g: int, total: Reg) -> Reg:
    """The result of a fold that dropped NaN and started from an infinity. Where that is still the
    result there may have been nothing but NaN: such a row is folded once more, exactly."""
    low, op = fold.low, fold.group[g]
    f, dtype = low.f, fold.dtypes[g]
    start = maps.literal(maps.identity(fold.fns[g], dtype), dtype, text.lanes(total.type))
    doubtful = f.fcmp("oeq", total, start)
    if text.lanes(total.type) > 1:
        doubtful = f.intrinsic("vector.reduce.or", doubtful, type="i1")

    def again() -> list[Reg]:
        with low.scope():
            exact = _Fold(low, [op], fold.coords, fold.width, unwritten(fold.local))
            full = fold.extent // fold.width
            (reg,) = _fold_whole(exact, full, 1)
            if fold.width > 1:
                reg = horizontal(low, op.fn, dtype, reg)
        return [reg]

    return f.when(doubtful, again, lambda: [total], hint="nan", metadata=SELDOM)[0]


def _accumulators(full: int, cost: float) -> int:
    most = 4 if cost <= 40 else 2
    if full < most:
        return max(1, full)
    for count in range(most, most // 2, -1):
        if full % count == 0:
            return count
    return most


def _join_tail(low: Lowering, fn: str, total: Reg | None, rest: Reg, dtype: DType) -> Reg:
    """Fold a narrower last vector in, filled up with the identity."""
    have = text.lanes(rest.type)
    want = text.lanes(total.type) if total is not None else 1 << (have - 1).bit_length()
    if have < want:
        fill = maps.literal(maps.identity(fn, dtype), dtype, have)
        if have == 1:
            wide = Reg(text.vector(rest.type, want), f"splat ({fill.typed})")
            rest = low.f.insert(wide, rest, 0)
        else:
            order = [i if i < have else have for i in range(want)]
            rest = low.f.shuffle(rest, fill, order)
    return rest if total is None else maps.combine(low.f, fn, dtype, total, rest)


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


def lower_scan(low: Lowering, op: ops.Scan) -> dict[Value, Place]:
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
                result = maps.cast(low.f, total, dtype, op.result.dtype)
                low.write_at(place, op.result.dtype, point, result, lanes)
            return [total]

        low.f.loop(0, extent, 1, [start], iteration, hint="scan")

    low.nest(shape, vector, width, body, Nest("scan", (x,), x.shape, vector, width))
    return {op.result: place}
