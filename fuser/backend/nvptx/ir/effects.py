"""What an op does to shared and to global memory, as far as other threads may meet it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, Place, SharedTile, Slot, Tile
from fuser.backend.nvptx.ir.warp_transpose import warp_transpose_in
from fuser.backend.nvptx.layouts.layout import Layout


@dataclass(frozen=True)
class Effect:
    """A read of a slot, or a write. stage, bytes: which part of the slot; None: any. own: each
    thread, or warp, touches what is its alone. late: it is under way until a wait."""

    slot: Slot
    writes: bool
    stage: Operand | None = None
    bytes: int = 0
    own: bool = False
    late: bool = False


def effects(op: Op) -> tuple[Effect, ...]:
    """What an op, without those inside of it, does to shared memory: none for what barriers with
    phases order, the boxes of the copy engine and parts that other blocks send."""
    rule = _RULES.get(type(op))
    return rule(op) if rule is not None else ()


def _reads(op: Any) -> tuple[Effect, ...]:
    return (Effect(op.slot, False),)


def _writes(op: Any) -> tuple[Effect, ...]:
    return (Effect(op.slot, True),)


def _turned(op: Any) -> tuple[Effect, ...]:
    return (Effect(op.slot, True, own=True),)


def _of(tile: SharedTile | Tile, writes: bool = False, late: bool = False) -> Iterator[Effect]:
    """Of a tile, if it is in shared memory."""
    if isinstance(tile, SharedTile):
        yield Effect(tile.slot, writes, tile.stage, tile.bytes, late=late)


def _operands(op: ops.Mma | ops.MmaTf32) -> tuple[Effect, ...]:
    return (*_of(op.a), *_of(op.b))


def _issued(op: ops.Wgmma) -> tuple[Effect, ...]:
    return (*_of(op.a, late=True), *_of(op.b, late=True))


def _own(op: Any) -> tuple[Effect, ...]:
    return (Effect(op.slot, True, own=True),)


def _tensor_mma(op: ops.TensorMma) -> tuple[Effect, ...]:
    """All threads have done what they do in tensor memory before it, and have waited for the groups
    before: a barrier of phases knows two of them. What it does there, they do not meet before a
    wait."""
    left = _of(op.a, late=True) if op.a is not None else ()
    return (Effect(op.slot, False, late=True), *left, *_of(op.b, late=True))


_RULES: dict[type[Op], Callable[[Any], tuple[Effect, ...]]] = {
    **dict.fromkeys((
        ops.ReadShared, ops.ReadDense, ops.GatherShared, ops.ReadWindow, ops.ReadParts,
        ops.FoldBefore, ops.ReadBlocks, ops.AddPartials, ops.TensorAddress, ops.TensorFree,
    ), _reads),
    **dict.fromkeys((
        ops.WriteShared, ops.WriteDense, ops.WriteWindow, ops.WriteSlice, ops.WriteParts,
        ops.WritePartials, ops.TensorAlloc,
    ), _writes),
    **dict.fromkeys((ops.StoreLines, ops.TurnLines), _turned),
    **dict.fromkeys((ops.TensorLoad, ops.TensorStore, ops.TensorWait), _own),
    ops.TensorMma: _tensor_mma,
    ops.ReadOwn: lambda op: (Effect(op.slot, False, own=True),),
    ops.CopyOwn: lambda op: (Effect(op.slot, True, own=True, late=True),),
    ops.SendParts: lambda op: () if op.barrier else _writes(op),
    ops.ReadTile: lambda op: (*_of(op.source),),
    ops.WriteTile: lambda op: (*_of(op.target, True),),
    ops.CopyAsync: lambda op: (*_of(op.target, True, late=True),),
    ops.Mma: _operands,
    ops.MmaTf32: _operands,
    ops.FmaDot: lambda op: (Effect(op.a, False), Effect(op.b, False)),
    ops.Wgmma: _issued,
    ops.SplitRight: lambda op: (*_of(op.source), *_of(op.big, True), *_of(op.small, True)),
    ops.WgmmaSplit: lambda op: (*_of(op.a), *_of(op.big, late=True), *_of(op.small, late=True)),
}  # fmt: skip

BY_PHASES = (
    ops.Alloc, ops.Free, ops.Address, ops.ExpectParts, ops.SendParts, ops.Fetch, ops.TensorCommit,
)  # fmt: skip
"""Ops that name a slot and do nothing to it that a barrier of the block would order."""


@dataclass(frozen=True)
class Touch:
    """Elements of global memory that an op reads or writes. layout: of the threads that do. fn: of
    an atomic whose result nobody sees, and whose order does not matter."""

    at: Place
    writes: bool
    layout: Layout | None = None
    fn: str = ""


ANY_ORDER = ("add", "max", "min", "and", "or", "xor")


_TOUCHING = {
    ops.Load, ops.LoadLines, ops.CopyAsync, ops.CopyOwn, ops.Store, ops.StoreLines, ops.AtomicAdd,
    ops.Atomic,
}  # fmt: skip


def touched(op: Op) -> Touch | None:
    """What an op, without those inside of it, does to global memory."""
    if type(op) not in _TOUCHING:
        return None
    match op:
        case ops.Load() | ops.LoadLines():
            return Touch(op.at, False, op.tile.layout)
        case ops.CopyAsync() | ops.CopyOwn():
            return Touch(op.at, False)
        case ops.Store():
            return Touch(op.at, True, op.value.layout)
        case ops.StoreLines():
            transpose = warp_transpose_in(op.value.layout, op.width, op.vector)
            return Touch(op.at, True, transpose.memory_layout if transpose else None)
        case ops.AtomicAdd():
            return Touch(op.at, True, op.value.layout, "add")
        case ops.Atomic():
            fn = op.fn if op.fn in ANY_ORDER and not op.results else ""
            return Touch(op.at, True, op.value.layout, fn)
    return None
