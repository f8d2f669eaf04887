"""Two reductions of one row, the second around what the first gives, made together.

    top = reduce.max(x)        sum = reduce.sum(exp(x - top))
    all = reduce.sum(x)        sum = reduce.sum((x - all/n)^2)

As they are written, the second must wait until every thread, warp and block has told its part of
the first. But a sum around another number can be corrected:

    sum exp(x - top) = exp(t - top) * sum exp(x - t)
    sum (x - mean)^2 = sum (x - m)^2 + n (m - mean)^2      where m is the mean of these n elements

(an online softmax; Chan, Golub, LeVeque 1979). So every strip of a row is summed around its own
maximum or mean, threads, warps and blocks merge both in a fixed order, and one pass and one
exchange do for both. No sum of squares around a far number appears, so a mean far from zero costs
no accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.lowering.reduce import (
    Partial,
    fold_partials,
    fold_registers,
    partials_of_blocks,
    partials_of_warps,
)
from fuser.backend.nvptx.lowering.tiles import finite, full_like, map_of, new_like
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value


@dataclass(frozen=True, eq=False)
class OnlineReduction:
    """first, second: the reductions. squares: of differences, else exponentials. between: the ops
    that lead from the result of the first to what the second reduces, in order."""

    first: ops.Reduce
    second: ops.Reduce
    squares: bool
    between: tuple[Op, ...]


def find_online_reduction(second: ops.Reduce, makers: dict[Value, Op]) -> OnlineReduction | None:
    """The online reduction that ends in a sum; None where the sum is not around the result of
    another reduction, or where elements are masked that its mean must not count."""
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
    if not isinstance(spread, ops.Broadcast) or spread.x not in makers:
        return None
    axis, shape = second.axis, second.x.shape
    lead = _scaled(makers[spread.x], makers, shape[axis]) if squares else (makers[spread.x],)
    first = lead[0] if lead else None
    folds = ("sum",) if squares else ("max", "fmax")
    if not isinstance(first, ops.Reduce) or first.fn not in folds:
        return None
    kept = tuple(a for a in range(len(shape)) if a != axis)
    if first.x is not shift.args[0] or first.axis != axis or spread.axes != kept:
        return None
    return OnlineReduction(first, second, squares, (*lead[1:], spread, shift, made))


def _scaled(op: Op, makers: dict[Value, Op], count: int) -> tuple[Op, ...]:
    """(what makes x, what makes the number, the op) where an op is x / count; else nothing."""
    if not isinstance(op, ops.Map) or op.fn not in ("mul", "div"):
        return ()
    for value, other in (op.args, op.args[::-1]) if op.fn == "mul" else (op.args,):
        number = makers.get(other)
        if isinstance(number, ops.Full):
            factor = float(number.value) if op.fn == "mul" else 1 / (float(number.value) or 1)
            is_mean = value in makers and math.isclose(factor * count, 1, rel_tol=1e-6)
            return (makers[value], number, op) if is_mean else ()
    return ()


def plan_online_reductions(
    low: Recording, reductions: list[ops.Reduce], whole: Layout
) -> list[OnlineReduction]:
    """The online reductions among reductions of rows of a layout. Each may be part of one; what
    lies between must be where the threads have their rows, as every thread has other numbers there
    at first."""
    plan = low.assignment
    found: list[OnlineReduction] = []
    for second in reductions:
        reduction = find_online_reduction(second, plan.makers)
        if reduction is None or reduction.first not in reductions:
            continue
        first = reduction.first
        if first.fn == "fmax":
            continue  # a strip without a number has no maximum to sum around
        if any(first in (p.first, p.second) or second is p.first for p in found):
            continue
        if reduction.squares and whole.shape[first.axis] != first.x.shape[first.axis]:
            continue  # elements past the edge of the tile would count
        if first.x.dtype is not second.x.dtype or first.x.dtype.compute is not first.x.dtype:
            continue
        rows = whole.reduced(first.axis)
        short = {op.results[0] for op in (first, *reduction.between)} - plan.flexible
        if all(low.layout(v) == rows for v in short if v.shape == first.result.shape):
            found.append(reduction)
    return found


@dataclass
class Running:
    """What a thread has of an online reduction. first: maxima or sums; second: sums around the
    maxima or the means; count: elements of each; like: the fold that they are partial results
    of."""

    reduction: OnlineReduction
    like: Partial
    first: Tile
    second: Tile
    count: int


def fold_strip(low: Recording, op: ops.Reduce, before: Partial | None = None) -> Partial:
    """Fold the strip that is being recorded, of what an op reduces, in each thread."""
    return fold_registers(low, op.fn, low.tile(op.x, low.layout(op.x)), op.axis, before)


def add_strip(low: Builder, reduction: OnlineReduction, before: Running | None) -> Running:
    """Take the strip of the row that is being recorded into account."""
    plain = fold_strip(low, reduction.first)
    first = plain.tile
    count = len(plain.of.regs) // len(plain.layout.regs)
    if reduction.squares:
        around = _times(low, first, reduction.first.x.shape[plain.axis] / count)
    else:
        if before is not None:
            first = map_of(low, "max", before.first, first)
        around = finite(low, first)
    low.env[reduction.first.result] = around
    for op in reduction.between:
        low.op(op)
    second = fold_strip(low, reduction.second).tile
    if before is None:
        return Running(reduction, plain, first, second, count)
    if not reduction.squares:
        moved = _moved(low, before.second, finite(low, before.first), around)
        return Running(reduction, plain, first, map_of(low, "add", moved, second), count)
    partials = (before.count, before.first, before.second), (count, first, second)
    first, second = _join_two(low, *partials)
    return Running(reduction, plain, first, second, before.count + count)


def merge_threads(low: Builder, running: Running) -> tuple[Tile, Tile]:
    """The results of both reductions of what the threads have: lanes, warps, blocks."""
    like, first, second, count = running.like, running.first, running.second, running.count
    steps = tuple(1 << bit for bit, basis in enumerate(like.of.lanes) if basis[like.axis])
    if running.reduction.squares:
        for step in steps:
            others = [_shuffled(low, x, step) for x in (first, second)]
            mine = (count, first, second)
            first, second = _join_two(low, mine, (count, others[0], others[1]))
            count *= 2
    elif steps:
        most = low.add(
            gpu.FoldLanes(fn="max", x=first, steps=steps, results=(new_like(low, first),))
        )
        second = _around(low, first, second, most)
        made = new_like(low, second)
        second = low.add(gpu.FoldLanes(fn="sum", x=second, steps=steps, results=(made,)))
        first = most
    bits = [bit for bit, basis in enumerate(like.of.warps) if basis[like.axis]]
    inside, blocks = low.cluster.split(bits)
    for gather, which in ((partials_of_warps, inside), (partials_of_blocks, blocks)):
        if which:
            partials = gather(low, [first, second], which)
            first, second = _join(low, running.reduction.squares, partials, count)
            count *= len(partials)
    if not running.reduction.squares:  # where all is -inf, or some inf, the sum is NaN
        second = map_of(low, "add", second, map_of(low, "sub", first, first))
    return first, second


def _join(
    low: Recording, squares: bool, partials: list[list[Tile]], count: int
) -> tuple[Tile, Tile]:
    """The two results of partial ones of `count` elements each."""
    firsts, seconds = [running[0] for running in partials], [running[1] for running in partials]
    if not squares:
        most = fold_partials(low, "max", firsts)
        moved = [_around(low, m, s, most) for m, s in zip(firsts, seconds, strict=True)]
        return most, fold_partials(low, "sum", moved)
    total = fold_partials(low, "sum", firsts)
    mean = _times(low, total, 1 / (count * len(partials)))
    apart = [_distance(low, running, mean, 1 / count) for running in firsts]
    squared = _times(low, fold_partials(low, "sum", apart), count)
    return total, map_of(low, "add", fold_partials(low, "sum", seconds), squared)


def _join_two(
    low: Recording, a: tuple[int, Tile, Tile], b: tuple[int, Tile, Tile]
) -> tuple[Tile, Tile]:
    """(sums, squares around the mean) of two parts with (count, sums, squares) each: the same bits
    whichever comes first."""
    (n, total, squares), (m, more_total, more_squares) = a, b
    weight = n * m / (n + m)
    means = [_times(low, x, 1 / k) for k, x in ((n, total), (m, more_total))]
    between = _times(low, _distance(low, means[0], means[1], 1.0), weight)
    within = map_of(low, "add", squares, more_squares)
    return map_of(low, "add", total, more_total), map_of(low, "add", within, between)


def _around(low: Recording, top: Tile, total: Tile, most: Tile) -> Tile:
    """Sums around some maxima as sums around others."""
    return _moved(low, total, finite(low, top), finite(low, most))


def _moved(low: Recording, total: Tile, old: Tile, new: Tile) -> Tile:
    """Sums around some numbers as those around others."""
    return map_of(low, "mul", total, map_of(low, "exp", map_of(low, "sub", old, new)))


def _distance(low: Recording, x: Tile, y: Tile, factor: float) -> Tile:
    """(x * factor - y) squared."""
    apart = map_of(low, "sub", _times(low, x, factor), y)
    return map_of(low, "mul", apart, apart)


def _times(low: Recording, x: Tile, factor: float) -> Tile:
    return x if factor == 1 else map_of(low, "mul", x, full_like(low, x, factor))


def _shuffled(low: Recording, x: Tile, step: int) -> Tile:
    return low.add(gpu.Shuffle(kind="bfly", x=x, amount=step, results=(new_like(low, x),)))
