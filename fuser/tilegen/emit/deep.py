"""Matmuls of many steps of k on a CPU: blocks of k outermost, partial sums in memory.

A program has `span` tiles of rows and panels of columns. For one block of k after the other it
takes every panel of that block through all of its rows, so that the rows of a block stay in L2 and
the weights are read once:

    for k block:  for panel:  for row tile:  partial[tile] += rows[tile, k block] @ panel[k block]

The last block of k has the epilogue instead of a store of partial sums. These lie in workspace,
tile by tile, and are added where a block ends: its loop over k then waits for nothing to begin.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.base.target import Target
from fuser.errors import LoweringError
from fuser.graph.ir import Value
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.dot_operands import dot_dtype, dot_op, operand, panel
from fuser.tilegen.emit.dot_shape import DotShape
from fuser.tilegen.emit.placement import Places, spread, store_placed
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.index import Index, index, minimum
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.schedule import Schedule


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule, dots: list[DotShape]
) -> TileProgram:
    """The program of a contraction whose schedule has a span (rules/cpu/k_blocks.py).

    Raises LoweringError where k is not two whole blocks or more.
    """
    em = Emission(region, partition, target, schedule)
    first = dots[0]
    rows, depth, columns = (schedule.block(name) for name in ("m", "k", "n"))
    assert schedule.k_panels is not None
    tiles, panels = schedule.k_panels
    if first.k % depth or first.k < 2 * depth:
        raise LoweringError(f"{first.k} steps are no blocks of {depth}", where=region.name)
    high, wide = ceildiv(first.m, rows), ceildiv(max(dot.n for dot in dots), columns)
    down, across = ceildiv(high, tiles), ceildiv(wide, panels)
    batch = _program(em, 0, first.b)
    top, left = _program(em, 1, down) * tiles, _program(em, 2, across) * panels
    at_m, at_k, at_n = em.axis(rows), em.axis(depth), em.axis(columns)
    shape = (first.b, down * tiles, across * panels, rows, columns)
    kinds = [dot_dtype(target, dot.node) for dot in dots]
    size = first.b * down * tiles * across * panels * rows * columns
    work = [em.memory.workspace(kind.accumulate, size, i) for i, kind in enumerate(kinds)]
    views = [em.b.view(buffer, shape) for buffer in work]

    def tile(k: Index, m: Index, n: Index, begins: bool, ends: bool) -> None:
        place = (batch, m // rows, n // columns, m % rows, n % columns)
        pieces: dict[Value, Piece] = {}
        for dot, kind, view in zip(dots, kinds, views, strict=True):
            a = operand(em, dot.left, dot.coords(0, batch, m, k), (0, 1), kind)
            b = panel(em, dot, batch, n, k, kind)
            none = 0.0 if kind.accumulate.is_float else 0
            zero = em.full_value(Piece(kind.accumulate, (0, 2), splat=none), (0, 2))
            partial = dot_op(em, a, b, zero)
            found = Piece(kind.accumulate, (0, 2), partial)
            if not begins:
                so_far = em.load_view(view, place, axes=(0, 2), after=(partial,))
                found = em.map("add", found, so_far)
            if ends:
                pieces[dot.node.output] = em.cast(found, dot.node.output.dtype.compute)
            else:
                em.store_view(view, place, found)
        if ends:
            places: Places = {
                dot.node.output: (dot.result_coords(batch, m, n), [(m, first.m), (n, dot.n)])
                for dot in dots
            }
            store_placed(em, spread(em, places, pieces))

    def block(k: Index, begins: bool, ends: bool) -> None:
        def along(panel: Index) -> None:
            n = (left + panel) * columns + at_n
            _loop(em, _rest(top, tiles, high), 1,
                  lambda at: tile(k, (top + at) * rows + at_m, n, begins, ends))  # fmt: skip

        _loop(em, _rest(left, panels, wide), 1, along)

    block(at_k, begins=True, ends=False)
    if first.k > 2 * depth:
        _loop(em, index(first.k - depth), depth, lambda k: block(k + at_k, False, False), depth)
    block(at_k + (first.k - depth), begins=False, ends=True)
    return em.finish(sum(2 * d.b * d.m * d.n * d.k for d in dots))


def _program(em: Emission, grid_axis: int, count: int) -> Index:
    return index(em.b.program_id(grid_axis, count)) if count > 1 else Index(0)


def _rest(start: Index, most: int, total: int) -> Index:
    """How many of `total` a program has that starts there: `most`, or fewer at the end."""
    return index(most) if total % most == 0 else minimum(most, index(total) - start)


def _loop(
    em: Emission, stop: Index, step: int, body: Callable[[Index], None], start: int = 0
) -> None:
    """A loop that carries nothing."""

    def iteration(at: Index, _: list[Piece]) -> list[Piece]:
        body(at)
        return []

    em.loop(start, stop, step, [], iteration)
