"""What passes that move ops ask of them."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Integer, Op
from fuser.backend.nvptx.ir.uses import uses
from fuser.backend.nvptx.ir.values import Slot

PURE = (
    Integer, ops.Address, ops.Full, ops.IndexTile, ops.Splat, ops.Map, ops.Relabel, ops.ReadTable,
)  # fmt: skip
"""Ops that compute an index or a condition, of nothing but numbers."""


def with_makers(wanted: Sequence[Op], among: Sequence[Op]) -> list[Op] | None:
    """Ops and what they are made of, in the order of `among`; None where that is more than indices,
    conditions, and slots."""
    makers: dict[object, Op] = {}
    for op in among:
        slots = (op.slot,) if isinstance(op, ops.Alloc) else ()
        makers |= dict.fromkeys((*op.results, *op.names, *slots), op)
    found = dict.fromkeys(wanted)
    todo = list(wanted)
    while todo:
        op = todo.pop()
        for item in read_by(op):
            maker = makers.get(item)
            if maker is None or maker in found:
                continue
            if not isinstance(maker, (*PURE, ops.Alloc)):
                return None
            found[maker] = None
            todo.append(maker)
    return [op for op in among if op in found]


def read_by(op: Op) -> set[object]:
    """What an op reads, those inside of it included, and the slots that it names."""
    inner = [op, *(other for block in op.blocks() for other in block.walk())]
    found: set[object] = {item for each in inner for item in uses(each)}
    slots: set[Slot] = {slot for each in inner for slot in each.slots()}
    return found | slots


def used(body: Sequence[Op]) -> list[Op]:
    """Without the integers that nothing reads any more."""
    read: set[object] = set()
    kept: list[Op] = []
    for op in reversed(body):
        if not isinstance(op, Integer | ops.Address) or read.intersection(op.names):
            kept.append(op)
            read |= read_by(op)
    return kept[::-1]


__all__ = ["PURE", "read_by", "used", "with_makers"]
