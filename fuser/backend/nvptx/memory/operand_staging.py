"""Operands of dots in shared memory: which tile a load has there, copies into it, reads, writes."""

from __future__ import annotations

from collections.abc import Iterator

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.analysis.dont_care_rows import has_dont_care_rows
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import SharedTile, Tile, tile_bytes
from fuser.backend.nvptx.layouts.assignment import Assignment
from fuser.backend.nvptx.layouts.layout import Layout, blocked
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.tilegen import ops
from fuser.tilegen.index import Axis, Index, Scalar

# registers <-> shared -----------------------------------------------------------------------------


def read(low: Recording, tile: SharedTile, layout: Layout) -> Tile:
    """A shared tile in registers."""
    return low.add(
        gpu.ReadTile(source=tile, results=(low.new(tile.dtype, tile.shape, layout, "read"),))
    )


def write(low: Recording, source: Tile, target: SharedTile) -> None:
    """Store a tile from registers into a shared tile that is at least as large."""
    low.do(gpu.WriteTile(target=target, x=source))


# global -> shared ---------------------------------------------------------------------------------


def copy_layout(access: Access, tile: SharedTile, warps: int) -> Layout:
    """How threads share the copy: 16-byte pieces, lanes along rows."""
    order = (0,) if tile.flat else (tile.inner, 1 - tile.inner)
    return blocked(tile.shape, warps, order, access.width)


def copy_async(low: Builder, op: ops.Load, tile: SharedTile) -> None:
    """Issue the copies of a load into a shared tile: zeros where it is out of bounds."""
    access = low.assignment.accesses[op]
    layout = copy_layout(access, tile, low.warps)
    low.do(gpu.CopyAsync(
        at=low.place(access, layout), target=tile, layout=layout, settled=_settled(low, op),
        fill=not _leaves_rows(low.assignment, op),
    ))  # fmt: skip


def _leaves_rows(assignment: Assignment, op: ops.Load) -> bool:
    """Whether a copy may leave out rows that are out of bounds: of few rows by what is decoded,
    where each block copies most of a tile for nothing."""
    dots = list(dots_fed_by(assignment, op))
    plans = [assignment.dots[dot] for dot, _, _ in dots]
    few = bool(dots) and all(plan.grid is not None and plan.grid.run for plan in plans)
    left = all(role == "a" and not turned for _, role, turned in dots)
    return few and left and has_dont_care_rows(op, [dot for dot, _, _ in dots], assignment)


def _settled(low: Builder, op: ops.Load) -> str | None:
    """The condition that a load's elements all were there before the run (`View.settled`)."""
    if op.view.settled is None or not low.follows_early:
        return None
    dim, count = op.view.settled
    at = op.indices[dim]
    linear = all(isinstance(a, Axis | Scalar) and (isinstance(a, Scalar) or c > 0)
                 for a, c in at.terms)  # fmt: skip
    if not linear:
        return None
    last = low.evaluate(at.replace(lambda a: Index(a.extent - 1) if isinstance(a, Axis) else None))
    return low.scalars.compare("slt", last, low.scalars.size(count))


def commit_copies(low: Recording) -> None:
    """Close a group of copies, which `wait_copies` counts."""
    low.do(gpu.CommitCopies())


def wait_copies(low: Recording, pending: int) -> None:
    """Wait until at most `pending` groups of copies are in flight, for whoever reads them."""
    low.do(gpu.WaitCopies(pending=pending))


def shared_tile_for(low: Recording, op: ops.Load, stages: int = 1) -> SharedTile:
    """Allocate a load's tile, large enough for every dot that reads it."""
    access = low.assignment.accesses[op]
    inner = access.axis
    shape = _cover(low.assignment, op)
    slot = low.shared.allocate(tile_bytes(shape, inner, op.view.dtype) * stages, 1024)
    return SharedTile(op.view.dtype, shape, inner, slot)


def _cover(assignment: Assignment, op: ops.Load) -> tuple[int, ...]:
    """The extents that the dots read, garbage-free: warps may cover more than the tile."""
    if len(op.shape) == 1:
        return op.shape
    rows, columns = op.shape
    for dot, role, turned in dots_fed_by(assignment, op):
        need = operand_cover(assignment, dot, role)[:: -1 if turned else 1]
        rows, columns = max(rows, need[0]), max(columns, need[1])
    return rows, columns


def dots_fed_by(assignment: Assignment, op: ops.Load) -> Iterator[tuple[ops.Dot, str, bool]]:
    """The dots that read a load of two axes, as which operand ("a" or "b"), and whether turned."""
    todo = [(op.result, False)]
    while todo:
        value, turned = todo.pop()
        for use in assignment.uses.get(value, ()):
            if isinstance(use, ops.Permute):
                todo.append((use.result, turned ^ (tuple(use.axes) == (1, 0))))
            elif isinstance(use, ops.Dot):
                for role in ("a", "b"):
                    if getattr(use, role) is value:
                        yield use, role, turned


def operand_cover(assignment: Assignment, op: ops.Dot, role: str) -> tuple[int, int]:
    """The shape of the operand that the dot's instructions read."""
    plan = assignment.dots[op]
    assert plan.grid is not None
    step = 8 if plan.kind in ("tf32", "wide") else plan.grid.k_block
    k = -(-op.a.shape[1] // step) * step
    m, n = plan.grid.covered
    if plan.grid.lower_half:
        m = 8
    return (m, k) if role == "a" else (k, n)


def stage_once(low: Builder, op: ops.Load) -> None:
    """Copy a load into shared memory where it stands; the first dot after it waits."""
    tile = shared_tile_for(low, op)
    copy_async(low, op, tile)
    commit_copies(low)
    low.copies.await_later()
    low.env[op.result] = tile


def land_copies(low: Builder) -> None:
    """Wait for copies that were issued outside of a pipeline."""
    if low.copies.pending:
        wait_copies(low, 0)
        low.copies.await_later(False)
