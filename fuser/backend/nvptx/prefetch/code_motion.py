"""What passes that move ops ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.loops import step_of
from fuser.backend.nvptx.ir.op import Integer, Op
from fuser.backend.nvptx.ir.uses import uses
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.access_layout import repeat_of

PURE = (
    Integer, ops.Address, ops.Full, ops.IndexTile, ops.Splat, ops.Map, ops.Relabel, ops.ReadTable,
)  # fmt: skip
"""Ops that compute an index or a condition, of nothing but numbers."""


def makers_of(body: Iterable[Op]) -> dict[object, Op]:
    """By what it defines, or allocates, each op."""
    found: dict[object, Op] = {}
    for op in body:
        slots = (op.slot,) if isinstance(op, ops.Alloc) else ()
        found |= dict.fromkeys((*op.results, *op.names, *slots), op)
    return found


def take(
    op: Op, makers: dict[object, Op], moved: dict[Op, None], kinds: tuple[type[Op], ...] = PURE
) -> bool:
    """Add an op to those that move, with all that it is made of, if that is of some kinds (indices
    and conditions by default) and slots, or moves already. makers: of what may move at all."""
    found: dict[Op, None] = {op: None}
    todo = [op]
    while todo:
        for item in read_by(todo.pop()):
            maker = makers.get(item)
            if maker is None or maker in moved or maker in found:
                continue
            if not isinstance(maker, (*kinds, ops.Alloc)):
                return False
            found[maker] = None
            todo.append(maker)
    moved.update(found)
    return True


def movable(
    loop: ops.For, room: int, wanted: Callable[[ops.Load], bool], *, chained: bool
) -> tuple[list[ops.Load], dict[Op, None]]:
    """Loads of a loop that depend on its variable alone and can be done in another iteration, in so
    many registers per thread; and with what they are made of. chained: also from places that are
    among them."""
    makers, moved = makers_of(loop.body.ops), dict[Op, None]()
    others = {*loop.scalars[1:], *loop.params}
    loads: list[ops.Load] = []
    for op in loop.body.ops if step_of(loop) else ():
        if not isinstance(op, ops.Load) or not op.constant or op.where is not None:
            continue
        size = words_of(op.tile, op)
        found = {item: None for item in moved if chained or not isinstance(item, ops.Load)}
        if size > room or not wanted(op) or not take(op, makers, found):
            continue
        if any(others & read_by(item) for item in found):
            continue
        room -= size
        moved |= found
        loads.append(op)
    return loads, moved


def read_by(op: Op) -> set[object]:
    """What an op reads, those inside of it included."""
    inner = (op, *(other for block in op.blocks() for other in block.walk()))
    return {item for each in inner for item in uses(each)}


def used(body: Sequence[Op]) -> list[Op]:
    """Without the integers that nothing reads any more."""
    read: set[object] = set()
    kept: list[Op] = []
    for op in reversed(body):
        if not isinstance(op, Integer | ops.Address) or read.intersection(op.names):
            kept.append(op)
            read |= read_by(op)
    return kept[::-1]


def words_of(tile: Tile, load: ops.Load | None = None) -> int:
    """Registers that a thread has of a tile. load: that it comes from: neighbours that are one
    number in memory have one."""
    regs = tile.layout.regs
    count = len(regs)
    if load is not None:
        access = load.at.access
        runs = [repeat_of(access, axis) for axis in range(len(access.shape))]
        count = len({tuple(a // run for a, run in zip(at, runs, strict=True)) for at in regs})
    return -(-count * tile.dtype.bytes // 4)


__all__ = ["PURE", "makers_of", "movable", "read_by", "take", "used", "words_of"]
