"""Two reductions of one row, the second around what the first gives, made together.

    top = reduce.max(x)        sum = reduce.sum(exp(x - top))
    all = reduce.sum(x)        sum = reduce.sum((x - all/n)^2)

As they are written, the second must wait until every thread, warp and block has told its part of
the first. But a sum around another number can be corrected:

    sum exp(x - top) = exp(t - top) * sum exp(x - t)
    sum (x - mean)^2 = sum (x - m)^2 + n (m - mean)^2      where m is the mean of these n elements

(an online softmax; Chan, Golub, LeVeque 1979). So every strip of a row is summed around its own
maximum or mean, threads, warps and blocks merge pairs in a fixed order, and one pass and one
exchange do for both. No sum of squares around a far number appears, so a mean far from zero costs
no accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuser.backend.nvptx.elementwise import apply
from fuser.backend.nvptx.layout import Layout
from fuser.backend.nvptx.reduce import (
    Partial,
    combiner,
    parts_of_blocks,
    parts_of_warps,
    shuffle,
    tree,
)
from fuser.backend.nvptx.values import Tile, literal
from fuser.dtypes import DType
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

Regs = list[str]


@dataclass(frozen=True, eq=False)
class Pair:
    """first, second: the reductions. squares: of differences, else exponentials. between: the ops
    that lead from the result of the first to what the second reduces, in order."""

    first: ops.Reduce
    second: ops.Reduce
    squares: bool
    between: tuple[Op, ...]


def find_pair(second: ops.Reduce, makers: dict[Value, Op]) -> tuple[ops.Reduce, bool] | None:
    """(the reduction that a sum is relative to, whether it is one of squares); None where it is
    not such a sum, or where elements are masked that its mean must not count."""
    if second.fn != "sum" or not second.x.dtype.is_float:
        return None
    made = makers.get(second.x)
    if not isinstance(made, ops.Map):
        return None
    squares = made.fn == "mul" and made.args[0] is made.args[1]
    if not squares and made.fn != "exp":
        return None
    shift = makers.get(made.args[0])
    if not isinstance(shift, ops.Map) or shift.fn != "sub":
        return None
    spread = makers.get(shift.args[1])
    if not isinstance(spread, ops.Broadcast):
        return None
    around = makers.get(spread.x)
    axis, shape = second.axis, second.x.shape
    if squares:
        around = _scaled(around, makers, shape[axis])
    folds = ("sum",) if squares else ("max", "fmax")
    if not isinstance(around, ops.Reduce) or around.fn not in folds:
        return None
    kept = tuple(a for a in range(len(shape)) if a != axis)
    same = around.x is shift.args[0] and around.axis == axis and spread.axes == kept
    return (around, squares) if same else None


def _scaled(op: Op | None, makers: dict[Value, Op], count: int) -> Op | None:
    """What makes x where an op is x / count."""
    if not isinstance(op, ops.Map) or op.fn not in ("mul", "div"):
        return None
    for value, other in (op.args, op.args[::-1]) if op.fn == "mul" else (op.args,):
        number = makers.get(other)
        if isinstance(number, ops.Full):
            factor = float(number.value) if op.fn == "mul" else 1 / (float(number.value) or 1)
            return makers.get(value) if math.isclose(factor * count, 1, rel_tol=1e-6) else None
    return None


def plan_pairs(low: Lowering, reductions: list[ops.Reduce], whole: Layout) -> list[Pair]:
    """The pairs among reductions of rows of a layout. Each may be part of one; what lies between
    must be where the threads have their rows, as every thread has other numbers there at first."""
    plan = low.assignment
    found: list[Pair] = []
    for second in reductions:
        pair = find_pair(second, plan.makers)
        if pair is None or pair[0] not in reductions:
            continue
        first, squares = pair
        if first.fn == "fmax":
            continue  # a strip without a number has no maximum to sum around
        if any(first in (p.first, p.second) or second is p.first for p in found):
            continue
        if squares and whole.shape[first.axis] != first.x.shape[first.axis]:
            continue  # elements past the edge of the tile would count
        if first.x.dtype is not second.x.dtype or first.x.dtype.compute is not first.x.dtype:
            continue
        between = _between(low, first, second)
        rows = whole.reduced(first.axis)
        short = [v for v in _short(first, between) if v not in plan.flexible]
        if all(low.layout(v) == rows for v in short):
            found.append(Pair(first, second, squares, between))
    return found


def _between(low: Lowering, first: ops.Reduce, second: ops.Reduce) -> tuple[Op, ...]:
    """The ops that lead from the result of one reduction to the operand of another, in order."""
    after = {first.result}
    found = []
    needed, pending = set[Value](), [second.x]
    while pending:
        value = pending.pop()
        maker = low.assignment.makers.get(value)
        if value not in needed and maker is not None and value is not first.result:
            needed.add(value)
            pending += maker.operands()
    for op in low.kernel.body.ops:
        if op.results and op.results[0] in needed:
            if after & set(op.operands()):
                after.update(op.results)
                found.append(op)
            elif isinstance(op, ops.Full):  # it may stand behind the first reduction
                found.append(op)
    return tuple(found)


def _short(first: ops.Reduce, between: tuple[Op, ...]) -> list[Value]:
    """Of what lies between, the values as short as the results."""
    shape = first.result.shape
    return [v for v in (first.result, *(op.results[0] for op in between)) if v.shape == shape]


@dataclass
class Running:
    """What a thread has of a pair. firsts: maxima or sums; seconds: sums around the maxima or the
    means; count: elements of each; like: the fold that they are parts of."""

    pair: Pair
    like: Partial
    firsts: Regs
    seconds: Regs
    count: int


def add_strip(
    low: Lowering,
    pair: Pair,
    before: Running | None,
    fold: Callable[[ops.Reduce], Partial],
    run: Callable[[Op], None],
) -> Running:
    """Take a strip of a pair's row into account: `fold` folds a strip of a reduction's operand in
    each thread, `run` emits an op for this strip."""
    plain = fold(pair.first)
    firsts, dtype = plain.regs, plain.dtype
    count = len(plain.of.regs) // len(plain.layout.regs)
    if pair.squares:
        around = [_times(low, dtype, s, pair.first.x.shape[plain.axis] / count) for s in firsts]
    else:
        if before is not None:
            top = combiner(low, "max", dtype)
            firsts = [top(a, b) for a, b in zip(before.firsts, firsts, strict=True)]
        around = [_finite(low, dtype, m) for m in firsts]
    result = pair.first.result
    low.env[result] = Tile(dtype, result.shape, plain.layout, around)
    low.converted = {key: tile for key, tile in low.converted.items() if key[0] is not result}
    for op in pair.between:
        run(op)
    seconds = fold(pair.second).regs
    if before is None:
        return Running(pair, plain, firsts, seconds, count)
    if not pair.squares:
        kept = zip(before.seconds, before.firsts, around, strict=True)
        moved = [_moved(low, dtype, s, _finite(low, dtype, m), t) for s, m, t in kept]
        return Running(pair, plain, firsts, _add(low, dtype, moved, seconds), count)
    parts = [
        (before.count, before.firsts, before.seconds),
        (count, firsts, seconds),
    ]
    firsts, seconds = _join_two(low, dtype, *parts)
    return Running(pair, plain, firsts, seconds, before.count + count)


def merge_threads(low: Lowering, part: Running) -> tuple[Tile, Tile]:
    """The results of both reductions of what the threads have: lanes, warps, blocks."""
    like, dtype = part.like, part.like.dtype
    firsts, seconds, count = part.firsts, part.seconds, part.count
    steps = [1 << bit for bit, basis in enumerate(like.of.lanes) if basis[like.axis]]
    if part.pair.squares:
        for step in steps:
            others = [[shuffle(low, x, dtype, step) for x in xs] for xs in (firsts, seconds)]
            mine = (count, firsts, seconds)
            firsts, seconds = _join_two(low, dtype, mine, (count, others[0], others[1]))
            count *= 2
    elif steps:
        top, add = combiner(low, "max", dtype), combiner(low, "sum", dtype, lanes=True)
        most = firsts
        for step in steps:
            most = [top(x, shuffle(low, x, dtype, step)) for x in most]
        seconds = _around(low, dtype, firsts, seconds, most)
        for step in steps:
            seconds = [add(x, shuffle(low, x, dtype, step)) for x in seconds]
        firsts = most
    bits = [bit for bit, basis in enumerate(like.of.warps) if basis[like.axis]]
    inside, blocks = low.cluster.split(bits)
    for gather, which in ((parts_of_warps, inside), (parts_of_blocks, blocks)):
        if which:
            parts = gather(low, [firsts, seconds], dtype, like.layout, which)
            firsts, seconds = _join(low, part.pair.squares, dtype, parts, count)
            count *= len(parts)
    if not part.pair.squares:  # where all is -inf, or some inf, the sum is NaN
        minus = [apply(low.emitter, "sub", dtype, [m, m]) for m in firsts]
        seconds = _add(low, dtype, seconds, minus)
    results = part.pair.first.result, part.pair.second.result
    made = zip(results, (firsts, seconds), strict=True)
    first, second = (Tile(dtype, result.shape, like.layout, regs) for result, regs in made)
    return first, second


def _join(
    low: Lowering, squares: bool, dtype: DType, parts: list[list[Regs]], count: int
) -> tuple[Regs, Regs]:
    """The pair of parts of `count` elements each."""
    firsts, seconds = [part[0] for part in parts], [part[1] for part in parts]
    add = combiner(low, "sum", dtype)

    def fold(items: list[Regs], combine: Callable[[str, str], str]) -> Regs:
        return [tree(list(column), combine) for column in zip(*items, strict=True)]

    if not squares:
        most = fold(firsts, combiner(low, "max", dtype))
        moved = [_around(low, dtype, m, s, most) for m, s in zip(firsts, seconds, strict=True)]
        return most, fold(moved, add)
    total = fold(firsts, add)
    means = [_times(low, dtype, s, 1 / (count * len(parts))) for s in total]
    apart = [
        [_distance(low, dtype, s, mean, 1 / count) for s, mean in zip(part, means, strict=True)]
        for part in firsts
    ]
    squared = [_times(low, dtype, s, count) for s in fold(apart, add)]
    return total, _add(low, dtype, fold(seconds, add), squared)


def _join_two(
    low: Lowering, dtype: DType, a: tuple[int, Regs, Regs], b: tuple[int, Regs, Regs]
) -> tuple[Regs, Regs]:
    """(sums, squares around the mean) of two parts with (count, sums, squares) each: the same bits
    whichever comes first."""
    (n, sums, squares), (m, more_sums, more_squares) = a, b
    weight = n * m / (n + m)
    means = [[_times(low, dtype, s, 1 / k) for s in x] for k, x in ((n, sums), (m, more_sums))]
    apart = [_distance(low, dtype, x, y, 1.0) for x, y in zip(*means, strict=True)]
    between = [_times(low, dtype, x, weight) for x in apart]
    within = _add(low, dtype, squares, more_squares)
    return _add(low, dtype, sums, more_sums), _add(low, dtype, within, between)


def _around(low: Lowering, dtype: DType, tops: Regs, sums: Regs, most: Regs) -> Regs:
    """Sums around some maxima as sums around others."""
    finite = [[_finite(low, dtype, x) for x in xs] for xs in (tops, most)]
    return [_moved(low, dtype, s, m, t) for s, m, t in zip(sums, *finite, strict=True)]


def _moved(low: Lowering, dtype: DType, total: str, old: str, new: str) -> str:
    """A sum around one number as that around another."""
    shift = apply(low.emitter, "sub", dtype, [old, new])
    return apply(low.emitter, "mul", dtype, [total, apply(low.emitter, "exp", dtype, [shift])])


def _finite(low: Lowering, dtype: DType, top: str) -> str:
    """A maximum to sum around: 0 where there is nothing but -inf, so far."""
    lowest = literal(-math.inf, dtype)
    nothing = low.emitter.value(f"fcmp oeq {dtype.llvm} {top}, {lowest}")
    return apply(low.emitter, "select", dtype, [nothing, literal(0.0, dtype), top])


def _distance(low: Lowering, dtype: DType, x: str, y: str, factor: float) -> str:
    """(x * factor - y) squared."""
    apart = apply(low.emitter, "sub", dtype, [_times(low, dtype, x, factor), y])
    return apply(low.emitter, "mul", dtype, [apart, apart])


def _times(low: Lowering, dtype: DType, x: str, factor: float) -> str:
    return x if factor == 1 else apply(low.emitter, "mul", dtype, [x, literal(factor, dtype)])


def _add(low: Lowering, dtype: DType, xs: Regs, ys: Regs) -> Regs:
    add = combiner(low, "sum", dtype)
    return [add(x, y) for x, y in zip(xs, ys, strict=True)]
