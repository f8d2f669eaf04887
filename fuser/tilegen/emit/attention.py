"""Attention: a dot, any pointwise score and mask code, a softmax, a dot, with the scores on chip.

A program owns a block of query rows and walks blocks of keys with an online softmax: the running
maximum, the running sum and the output accumulator are carried. The score code is whatever stands
between the first dot and the softmax; it is computed on each block of scores at its coordinates,
so masks, biases, caps and grouped heads need no code here. Frame axes: query rows, the depth of
the first dot, keys, value columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.dtypes import DType
from fuser.errors import LoweringError
from fuser.graph.ir import Node, Value
from fuser.partition.region import Partition, Region
from fuser.target import Target
from fuser.tilegen import rules
from fuser.tilegen.emit.contraction import (
    DotShape,
    dot_dtype,
    dot_op,
    dot_shape,
    operand,
    store_placed,
)
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, Guard, delinearise
from fuser.tilegen.emit.masks import key_bounds
from fuser.tilegen.emit.memory import triangle, uniform
from fuser.tilegen.emit.space import Emission, Piece, Places, spread
from fuser.tilegen.index import Axis, Index
from fuser.tilegen.program import TileProgram
from fuser.tilegen.schedule import Schedule

M, D, N, E = 0, 1, 2, 3
"""Frame axes: query rows, depth, keys, value columns."""


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
    chosen = schedule or rules.attention_schedule(
        target, qk.b, qk.m, qk.n, qk.k, pv.n, qk.left.dtype.bits, _reads(region, parts)
    )
    em = Emission(region, partition, target, chosen)
    batch = program(em, 0, qk.b, 1, "") if qk.b > 1 else Index(0)
    row = program(em, 1, qk.m, chosen.block("m"))
    depth = em.axis(_dot_extent(em, qk.k))
    key = em.axis(min(chosen.block("n"), qk.n) if not target.is_cuda else chosen.block("n"))
    column = em.axis(_dot_extent(em, pv.n))
    output, coords = _online_softmax(em, parts, batch, row, depth, key, column)
    guards: list[Guard] = [(row, qk.m), (column, pv.n)]
    places: Places = {pv.node.output: (coords, guards)}
    store_placed(em, spread(em, places, {pv.node.output: output}))
    return (em.finish(2 * qk.b * qk.m * qk.n * (qk.k + pv.n)),)


def _reads(region: Region, parts: Parts) -> bool:
    """Whether the score code loads tiles, as of a mask or a bias."""
    pending: list[Value] = [parts.scores]
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in seen or value is parts.qk.node.output:
            continue
        seen.add(value)
        if value.node is None or value.node not in region.nodes:
            if uniform(value) is None and triangle(value) is None:
                return True
            continue
        pending.extend(value.node.inputs)
    return False


def _dot_extent(em: Emission, extent: int) -> int:
    """The tile extent of a whole dot dim: a multiple of 16 on a GPU."""
    return -(-extent // 16) * 16 if em.target.is_cuda else extent


def _online_softmax(
    em: Emission, parts: Parts, batch: Index, row: Index, depth: Index, key: Index, column: Index
) -> tuple[Piece, Coords]:
    """The attention output over frame axes (rows, columns), and its coordinates in pv's result."""
    qk, pv, block = parts.qk, parts.pv, em.extents[N]
    masked = may_mask(em, parts)
    wide = parts.scores.dtype.accumulate
    kind, p_kind = dot_dtype(em.target, qk.node), dot_dtype(em.target, pv.node)
    result: list[Coords] = []

    def step(at: Index, carried: list[Piece]) -> list[Piece]:
        n = at + key
        scores, where = _scores(em, parts, batch, row, depth, n, kind)
        scores = em.select(em.within([(n, qk.n)]), scores, Piece(wide, splat=float("-inf")))
        best = em.reduce("max", scores, N)
        if carried:
            best = em.map("max", carried[0], best)
        # a row of -inf so far must not turn into -inf - -inf
        finite = best
        if masked:
            empty = em.map("eq", best, Piece(wide, splat=float("-inf")))
            finite = em.map("select", empty, Piece(wide, splat=0.0), best)
        p = em.map("exp", em.map("sub", scores, finite))
        total = em.reduce("sum", p, N)
        coords = pv_coords(pv, where, column)
        em.load_guards = [(n, qk.n), (column, pv.n)]
        v = operand(em, pv.right, coords[1], (N, E), p_kind)
        em.load_guards = []
        result.append(coords[0])
        p_value = em.full_value(em.cast(p, p_kind), (M, N))
        start = Piece(p_kind.accumulate, (M, E), splat=0.0)
        if carried:
            scale = em.map("exp", em.map("sub", carried[0], finite))
            total = em.map("add", em.map("mul", carried[1], scale), total)
            start = em.map("mul", carried[2], scale)
        product = dot_op(em, p_value, v, em.full_value(start, (M, E)))
        return [best, total, Piece(start.dtype, (M, E), product)]

    if qk.n <= block:
        _, total, out = step(Index(0), [])
    else:
        inits = [
            Piece(wide, (M,), splat=float("-inf")),
            Piece(wide, (M,), splat=0.0),
            Piece(p_kind.accumulate, (M, E), splat=0.0),
        ]
        start, stop = _visible(em, parts, batch, row)
        _, total, out = em.loop(start, stop, block, inits, step)
    if masked and parts.empty_rows:
        none = em.map("eq", total, Piece(wide, splat=0.0))
        total = em.map("select", none, Piece(wide, splat=1.0), total)
    out = em.map("div", em.cast(out, wide), total)
    return em.cast(out, pv.node.output.dtype.compute), result[0]


def _visible(em: Emission, parts: Parts, batch: Index, row: Index) -> tuple[Index, Index]:
    """The range of keys that the rows of this program may see."""
    qk = parts.qk
    key = Axis(len(em.extents), qk.n)  # no axis of the frame: it stands for every key
    start: Places = {qk.node.output: (qk.result_coords(batch, row, Index(0, ((key, 1),))), [])}
    places = spread(em, start, {})
    if parts.scores not in places:
        return Index(0), Index(qk.n)
    coords = places[parts.scores][0]
    return key_bounds(em, parts.scores, coords, qk.node.output, key, qk.n, em.extents[N])


def _scores(
    em: Emission, parts: Parts, batch: Index, row: Index, depth: Index, n: Index, kind: DType
) -> tuple[Piece, Coords]:
    """A block of scores over (rows, keys), and the coordinates of the probabilities there."""
    qk = parts.qk
    em.load_guards = [(depth, qk.k)]
    q = operand(em, qk.left, qk.coords(0, batch, row, depth), (M, D), kind)
    k = operand(em, qk.right, qk.coords(1, batch, n, depth), (D, N), kind)
    em.load_guards = []
    zero = Piece(kind.accumulate, (M, N), splat=0.0)
    dot = dot_op(em, q, k, em.full_value(zero, (M, N)))
    piece = em.cast(Piece(kind.accumulate, (M, N), dot), qk.node.output.dtype.compute)
    start: Places = {qk.node.output: (qk.result_coords(batch, row, n), [])}
    places = spread(em, start, {qk.node.output: piece})
    if parts.scores not in places or parts.pv.left not in places:
        raise LoweringError("the softmax does not follow the first dot", where=em.region.name)
    scores = em.tile(parts.scores, places[parts.scores][0])
    full = em.full_value(scores, (M, N))
    return Piece(scores.dtype, (M, N), full), places[parts.pv.left][0]


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


def may_mask(em: Emission, parts: Parts) -> bool:
    """Whether a score may be -inf: there is a select or a non-scalar sum in the score code."""
    pending: list[Value] = [parts.scores]
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        node: Node | None = value.node
        if value in seen or value is parts.qk.node.output or node is None:
            continue
        seen.add(value)
        if not em.is_inside(value):
            return uniform(value) is None
        if node.op in ("select", "add", "sub", "log", "max", "min", "concat"):
            return True
        pending.extend(node.inputs)
    return False
