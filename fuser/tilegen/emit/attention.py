"""Attention: a dot, any pointwise score and mask code, a softmax, a dot, with the scores on chip.

A program owns a block of query rows and walks blocks of keys with an online softmax: the running
maximum, the running sum and the output accumulator are carried. The score code is whatever stands
between the first dot and the softmax; it is computed on each block of scores at its coordinates,
so masks, biases, caps and grouped heads need no code here. Frame axes: query rows, the depth of
the first dot, keys, value columns.

Few queries leave most of a GPU idle while they wait for the keys. Then heads that read the same
keys become rows of one program, and the keys are shared out over `split_k` programs; each leaves
its maximum, sum and unscaled output in workspace, and a second program adds them up, in order.
Or, for blocks of many queries, the blocks of a cluster share a program's loop (`cluster`), which a
back end cuts and merges by itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fuser.base.target import Target
from fuser.dtypes import DType
from fuser.errors import LoweringError
from fuser.graph.ir import Value
from fuser.graph.sizes import by_example, certain, is_symbolic
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.bounds import (
    constant_bound,
    keeps_range,
    may_mask,
    raised,
    upper_bound,
)
from fuser.tilegen.emit.constants import triangle, uniform
from fuser.tilegen.emit.dot_operands import behind_movement, dot_dtype, dot_op, dot_unit, operand
from fuser.tilegen.emit.dot_shape import DotShape, dot_shape
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, Guard, delinearise
from fuser.tilegen.emit.masks import key_bounds
from fuser.tilegen.emit.placement import Places, spread, store_placed
from fuser.tilegen.emit.primitives import rounded
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.index import Axis, Index, maximum, minimum
from fuser.tilegen.ir import Buffer, View
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.rules.common import block_of, power_of_two
from fuser.tilegen.rules.gpu.attention import UNEQUAL_WAVES
from fuser.tilegen.rules.record import Reads
from fuser.tilegen.schedule import Schedule

M, D, N, E = 0, 1, 2, 3
"""Frame axes: query rows, depth, keys, value columns."""


def _shared_out(target: Target, programs: int, causal: bool) -> bool:
    """Whether programs that differ in length are shared out beforehand, instead of going to
    whichever multiprocessor is free first: few of them, or those of a window, most of which are
    alike and short, so that what is around their loops counts more."""
    return not causal or programs <= UNEQUAL_WAVES * target.units


@dataclass(frozen=True)
class Parts:
    """What attention is made of: two dots, the operand of the softmax, and whether a row without
    keys gives 0 (else nan)."""

    qk: DotShape
    pv: DotShape
    scores: Value
    empty_rows: bool


def find_parts(region: Region) -> Parts:
    """The parts, from the recogniser's facts or by shape of the code. Raises LoweringError."""
    dots = [node for node in region.nodes if node.op == "dot_general"]
    maxima = [node for node in region.nodes if node.op == "reduce_max"]
    if len(dots) != 2 or not maxima:
        raise LoweringError("no attention in this region", where=region.name)
    facts = region.facts
    qk = dot_shape(facts.get("qk", dots[0]), facts.get("key_side", 1) == 0)
    pv = dot_shape(facts.get("pv", dots[1]), facts.get("value_side", 1) == 0)
    scores = facts.get("scores", maxima[0].inputs[0])
    return Parts(qk, pv, scores, facts.get("empty_rows", False))


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """The program of an attention region."""
    parts = find_parts(region)
    qk, pv = parts.qk, parts.pv
    heads = shared_heads(region, partition, target, parts)
    batches, rows = qk.b // heads, qk.m * heads
    chosen = schedule or rules_of(target, partition.graph.numerics).attention(
        target, batches, rows, qk.n, qk.k, pv.n, qk.left.dtype.bits, _reads(region, parts),
        by_unit=dot_unit(target, qk.node) is not None,
        bounded=_most_score(Emission(region, partition, target, Schedule()), parts) is not None,
        causal=_hides_keys(region, partition, target, parts, heads),
    )  # fmt: skip
    em = Emission(region, partition, target, chosen)
    frame = _frame(em, parts, heads)
    group, row, column = frame.group, frame.row, frame.column
    flops = 2 * qk.b * qk.m * qk.n * (qk.k + pv.n)
    rewrites = ["online_softmax"]
    blocks = -(-qk.n // em.extents[N])
    span = -(-blocks // chosen.split_k) * em.extents[N]
    # of open sizes a part may be left without keys, which the merge gives no weight
    count = chosen.split_k if is_symbolic(qk.n) else -(-qk.n // span)
    start, stop = _visible(em, parts, frame)
    if (start, stop) != (Index(0), Index(qk.n)):
        rewrites.append("hidden_keys")
    if schedule is None and not (start.is_constant and stop.is_constant):
        em.b.kernel.schedule = dataclasses.replace(
            em.b.kernel.schedule,
            persistent=chosen.persistent
            and chosen.warps == 8
            and not is_symbolic(batches, rows, qk.n)
            and _shared_out(target, batches * -(-rows // chosen.block("m")), start.is_constant),
        )
    if chosen.split_k > 1 and count > 1:
        part = program(em, 2, count, 1, "")
        bounds = maximum(start, part * span), minimum(stop, part * span + span)
        state, _ = _online_softmax(em, parts, frame, bounds)
        shared = Partials(count, batches, rows, pv.n, parts.scores.dtype.accumulate)
        for buffer, piece in zip(shared.buffers(em), state, strict=True):
            at = (part, group, row, column)
            em.store_view(*shared.access(em, buffer, at), piece)
        made = em.finish(flops, rewrites=tuple(rewrites))
        return made, _merge(region, partition, target, parts, heads, shared)
    (_, total, out), coords = _online_softmax(em, parts, frame, (start, stop))
    guards: list[Guard] = [(row, rows), (column, pv.n)]
    places: Places = {pv.node.output: (coords, guards)}
    output = _quotient(em, parts, total, out)
    store_placed(em, spread(em, places, {pv.node.output: output}))
    return (em.finish(flops, rewrites=tuple(rewrites)),)


def _frame(em: Emission, parts: Parts, heads: int) -> Frame:
    """The axes of a program, of which heads share keys, by the schedule of the emission."""
    qk, pv, target = parts.qk, parts.pv, em.target
    batches, rows = qk.b // heads, qk.m * heads
    group = program(em, 0, batches, 1, "") if batches > 1 else Index(0)
    row = program(em, 1, rows, em.schedule.block("m"))
    depth = em.axis(_dot_extent(em, qk.k))
    keys = em.schedule.block("n")
    key = em.axis(keys if target.is_cuda else block_of(qk.n, keys))
    return Frame(heads, group, row, depth, key, em.axis(_dot_extent(em, pv.n)))


def _hides_keys(
    region: Region, partition: Partition, target: Target, parts: Parts, heads: int
) -> bool:
    """Whether which keys a block of rows sees depends on the rows."""
    dry = Emission(region, partition, target, Schedule(blocks=(("m", 1), ("n", 1))))
    start, stop = _visible(dry, parts, _frame(dry, parts, heads))
    return bool(start.terms or stop.terms)


@dataclass(frozen=True)
class Frame:
    """Where a program works. group: `heads` neighbouring batch elements that read the same keys
    and values (1 where each has its own); row: the queries of all of them, one head after the
    other; depth, key, column: along the depth, a block of keys, the columns of the values."""

    heads: int
    group: Index
    row: Index
    depth: Index
    key: Index
    column: Index

    def query(self, count: int) -> tuple[Index, Index]:
        """(batch element, query) of the rows; count: queries of a batch element."""
        if self.heads == 1:
            return self.group, self.row
        return self.group * self.heads + self.row // count, self.row % count

    @property
    def batch(self) -> Index:
        """A batch element that reads the keys and values of all rows."""
        return self.group * self.heads


PACKED = 16
"""Most queries a head whose heads are put into one block: more of them fill blocks alone."""


def shared_heads(region: Region, partition: Partition, target: Target, parts: Parts) -> int:
    """How many neighbouring batch elements read the same keys and the same values, where that many
    are to be rows of one block; else 1."""
    qk, pv = parts.qk, parts.pv
    if is_symbolic(qk.m) or qk.m > PACKED:
        return 1
    inner = qk.dims(0, qk.batch[0])[-1] if qk.batch[0] else 1
    for heads in range(inner, 1, -1):
        if inner % heads:
            continue
        dry = Emission(region, partition, target, Schedule())
        group, head = Axis(0, qk.b // heads), Axis(1, heads)
        batch = Index(0, ((group, heads), (head, 1)))
        extents = enumerate((qk.k, qk.n, pv.n), 2)
        depth, n, column = (Index(0, ((Axis(number, e), 1),)) for number, e in extents)
        start: Places = {qk.node.output: (qk.result_coords(batch, Index(0), n), [])}
        places = spread(dry, start, {})
        if parts.pv.left not in places:
            return 1
        values = pv_coords(pv, places[pv.left][0], column)[1]
        reads = ((qk.right, qk.coords(1, batch, n, depth)), (pv.right, values))
        sources = [behind_movement(dry, value, at)[1] for value, at in reads]
        if not any(1 in at.axes() for coords in sources for at in coords):
            return heads
    return 1


@by_example
def _reads(region: Region, parts: Parts) -> Reads:
    """What the score code loads, as of a mask or a bias."""
    pending: list[Value] = [parts.scores]
    seen: set[Value] = set()
    found: Reads = "nothing"
    while pending:
        value = pending.pop()
        if value in seen or value is parts.qk.node.output:
            continue
        seen.add(value)
        if value.node is not None and value.node in region.nodes:
            pending.extend(value.node.inputs)
        elif uniform(value) is None and triangle(value) is None:
            if value.type.size < parts.qk.m * parts.qk.n:
                found = "keys" if found == "nothing" else found
            elif value.dtype.bits == 16 and found != "tiles":
                found = "tiles" if found == "half tile" else "half tile"
            else:
                found = "tiles"
    return found


def _most_score(em: Emission, parts: Parts) -> float | None:
    """A bound of all scores that may be subtracted in the place of the row maxima."""
    ranged = keeps_range(dot_dtype(em.target, parts.pv.node))
    return constant_bound(em, parts.scores, parts.qk.node.output) if ranged else None


def _dot_extent(em: Emission, extent: int) -> int:
    """The tile extent of a whole dot dim: a multiple of 16 on a GPU."""
    # a symbolic one becomes a number here, and its size is the only one
    return -(-extent // 16) * 16 if em.target.is_cuda else int(extent)


def _online_softmax(
    em: Emission, parts: Parts, frame: Frame, bounds: tuple[Index, Index]
) -> tuple[list[Piece], Coords]:
    """What was subtracted from the scores of the rows, the sums of the rows and the output before
    it is divided by the sums, over frame axes (rows, columns), and the output's coordinates in pv's
    result. bounds: (start, stop) of the keys that are looked at, from the start of a block.

    What is subtracted is the running maximum, or what bounds it from above (bounds.py)."""
    qk, pv, block = parts.qk, parts.pv, em.extents[N]
    wide = parts.scores.dtype.accumulate
    kind, p_kind = dot_dtype(em.target, qk.node), dot_dtype(em.target, pv.node)
    result: list[Coords] = []
    most = _most_score(em, parts)
    fixed = None if most is None else Piece(wide, splat=most)

    def step(at: Index, carried: list[Piece]) -> list[Piece]:
        n = at + frame.key
        scores, score_coords, where = _scores(em, parts, frame, n, kind)
        inside = em.within([(n, qk.n)])
        scores = em.select(inside, scores, Piece(wide, splat=float("-inf")))
        shift, top = fixed, [] if fixed is not None else carried[:1]
        if shift is None:
            # the bound of a last block that is not full would need its condition twice
            upper = _upper(em, parts, score_coords) if inside is None else None
            best = em.reduce("max", scores if upper is None else upper, N)
            if top:
                best = em.map("max", top[0], best) if upper is None else raised(em, top[0], best)
            shift = _finite(em, parts, best)
            top = [*top, best]
        p = em.map("exp", em.map("sub", scores, shift))
        total = em.reduce("sum", p, N)
        result.append(pv_coords(pv, where, frame.column)[0])
        em.load_guards = [(n, qk.n), (frame.column, pv.n)]
        v = operand(em, pv.right, _value_coords(em, parts, frame, n), (N, E), p_kind)
        em.load_guards = []
        p_value = em.full_value(em.cast(p, p_kind), (M, N))
        start = Piece(p_kind.accumulate, (M, E), splat=0.0)
        if carried:
            *_, before, start = carried
            if fixed is None:
                scale = em.map("exp", em.map("sub", top[0], shift))
                before = em.map("mul", before, scale)
            total = em.map("add", before, total)
            if fixed is None:
                start = em.map("mul", start, scale)
        added = dot_op(em, p_value, v, em.full_value(start, (M, E)))
        return [*top[-1:], total, Piece(start.dtype, (M, E), added)]

    if certain(block - qk.n):
        state = step(Index(0), [])
    else:
        inits = [
            Piece(wide, (M,), splat=float("-inf")),
            Piece(wide, (M,), splat=0.0),
            Piece(p_kind.accumulate, (M, E), splat=0.0),
        ]
        state = em.loop(*bounds, block, inits if fixed is None else inits[1:], step)
    return state if fixed is None else [fixed, *state], result[0]


def _finite(em: Emission, parts: Parts, best: Piece) -> Piece:
    """A row of -inf so far must not turn into -inf - -inf."""
    if not may_mask(em, parts.scores, parts.qk.node.output):
        return best
    empty = em.map("eq", best, Piece(best.dtype, splat=float("-inf")))
    return em.map("select", empty, Piece(best.dtype, splat=0.0), best)


def _upper(em: Emission, parts: Parts, coords: Coords) -> Piece | None:
    """A bound of the scores from above that is known before the matmul is, where that is worth
    more than their maximum: where the matmuls overlap with what is between them, which then need
    not wait for the last score of a row."""
    overlap = em.target.is_cuda and em.schedule.warps >= 8 and em.schedule.cluster == 1
    if not overlap or not keeps_range(dot_dtype(em.target, parts.pv.node)):
        return None
    upper = upper_bound(em, parts.scores, coords, parts.qk.node.output, frozenset({N}))
    return None if upper is None else em.cast(upper, parts.scores.dtype.accumulate)


def _quotient(em: Emission, parts: Parts, total: Piece, out: Piece) -> Piece:
    """The rows of the output divided by their sums."""
    wide = parts.scores.dtype.accumulate
    if parts.empty_rows and may_mask(em, parts.scores, parts.qk.node.output):
        none = em.map("eq", total, Piece(wide, splat=0.0))
        total = em.map("select", none, Piece(wide, splat=1.0), total)
    out = em.map("mul", em.cast(out, wide), em.map("reciprocal", total))
    dtype = parts.pv.node.output.dtype
    return rounded(em, em.cast(out, dtype.compute), dtype)


@dataclass(frozen=True)
class Partials:
    """What the programs that share the keys of a row leave for the merge."""

    parts: int
    groups: int
    rows: int
    columns: int
    dtype: DType

    def buffers(self, em: Emission) -> list[Buffer]:
        """Workspace for the maxima, the sums and the outputs."""
        rows = self.parts * self.groups * self.rows
        sizes = (rows, rows, rows * self.columns)
        return [em.memory.workspace(self.dtype, size, number) for number, size in enumerate(sizes)]

    def access(
        self, em: Emission, buffer: Buffer, at: tuple[Index, ...]
    ) -> tuple[View, tuple[Index, ...]]:
        """A view of one of the buffers, indexed by `at`: part, group, row and column."""
        shape = (self.parts, self.groups, self.rows, self.columns)
        rank = 3 if buffer.size == self.parts * self.groups * self.rows else 4
        return em.b.view(buffer, shape[:rank]), at[:rank]


def _merge(
    region: Region, partition: Partition, target: Target, parts: Parts, heads: int, shared: Partials
) -> TileProgram:
    """The program that makes one row of the output out of all its parts."""
    qk, pv = parts.qk, parts.pv
    rules = rules_of(target, partition.graph.numerics)
    em = Emission(region, partition, target, rules.merge(target, shared.parts, pv.n))
    padded = power_of_two if target.is_cuda else int
    group = program(em, 0, shared.groups, 1, "") if shared.groups > 1 else Index(0)
    row = program(em, 1, shared.rows, 1)
    part = em.axis(padded(shared.parts))
    column = em.axis(padded(pv.n))
    at = (part, group, row, column)
    accesses = [shared.access(em, buffer, at) for buffer in shared.buffers(em)]
    pads = (float("-inf"), 0.0, 0.0)
    best, total, out = (
        em.load_view(*access, pad, axes)
        for access, pad, axes in zip(accesses, pads, ((0, 1), (0, 1), (0, 1, 2)), strict=True)
    )
    top = em.reduce("max", best, 1)
    empty = em.map("eq", top, Piece(shared.dtype, splat=float("-inf")))
    finite = em.map("select", empty, Piece(shared.dtype, splat=0.0), top)
    weight = em.map("exp", em.map("sub", best, finite))
    total = em.reduce("sum", em.map("mul", total, weight), 1)
    out = em.reduce("sum", em.map("mul", out, weight), 1)
    where = Frame(heads, group, row, Index(0), Index(0), column)
    start: Places = {qk.node.output: (qk.result_coords(*where.query(qk.m), Index(0)), [])}
    coords = pv_coords(pv, spread(em, start, {})[pv.left][0], column)[0]
    guards: list[Guard] = [(column, pv.n)]
    output = _quotient(em, parts, total, out)
    places: Places = {pv.node.output: (coords, guards)}
    store_placed(em, spread(em, places, {pv.node.output: output}))
    return em.finish()


def _value_coords(em: Emission, parts: Parts, frame: Frame, n: Index) -> Coords:
    """Coordinates of the values at keys n."""
    qk = parts.qk
    start: Places = {qk.node.output: (qk.result_coords(frame.batch, Index(0), n), [])}
    places = spread(em, start, {})
    if parts.pv.left not in places:
        raise LoweringError("the softmax does not follow the first dot", where=em.region.name)
    return pv_coords(parts.pv, places[parts.pv.left][0], frame.column)[1]


def _visible(em: Emission, parts: Parts, frame: Frame) -> tuple[Index, Index]:
    """The range of keys that the rows of this program may see."""
    qk = parts.qk
    key = Axis(len(em.extents), qk.n)  # no axis of the frame: it stands for every key
    batch, row = frame.query(qk.m)
    start: Places = {qk.node.output: (qk.result_coords(batch, row, Index(0, ((key, 1),))), [])}
    places = spread(em, start, {})
    if parts.scores not in places:
        return Index(0), Index(qk.n)
    coords = places[parts.scores][0]
    return key_bounds(em, parts.scores, coords, qk.node.output, key, qk.n, em.extents[N])


def _scores(
    em: Emission, parts: Parts, frame: Frame, n: Index, kind: DType
) -> tuple[Piece, Coords, Coords]:
    """A block of scores over (rows, keys), and the coordinates of the scores and of the
    probabilities there."""
    qk, depth = parts.qk, frame.depth
    batch, row = frame.query(qk.m)
    em.load_guards = [(depth, qk.k)]
    q = operand(em, qk.left, qk.coords(0, batch, row, depth), (M, D), kind)
    k = operand(em, qk.right, qk.coords(1, frame.batch, n, depth), (D, N), kind)
    em.load_guards = []
    zero = Piece(kind.accumulate, (M, N), splat=0.0)
    dot = dot_op(em, q, k, em.full_value(zero, (M, N)))
    piece = em.cast(Piece(kind.accumulate, (M, N), dot), qk.node.output.dtype.compute)
    start: Places = {qk.node.output: (qk.result_coords(batch, row, n), [])}
    places = spread(em, start, {qk.node.output: piece})
    if parts.scores not in places or parts.pv.left not in places:
        raise LoweringError("the softmax does not follow the first dot", where=em.region.name)
    coords = places[parts.scores][0]
    scores = em.tile(parts.scores, coords)
    full = em.full_value(scores, (M, N))
    return Piece(scores.dtype, (M, N), full), coords, places[parts.pv.left][0]


def pv_coords(pv: DotShape, left: Coords, column: Index) -> tuple[Coords, Coords]:
    """Coordinates of (the result, the right operand), from those of the left and the column."""
    right = [Index(0)] * pv.right.type.rank
    columns = delinearise(column, pv.dims(1, pv.free[1]))
    for pair in (pv.batch, pv.contract):
        for a, b in zip(*pair, strict=True):
            right[b] = left[a]
    for axis, item in zip(pv.free[1], columns, strict=True):
        right[axis] = item
    rows = [left[a] for a in pv.free[0]]
    free = (*columns, *rows) if pv.flipped else (*rows, *columns)
    return (*(left[a] for a in pv.batch[0]), *free), tuple(right)
