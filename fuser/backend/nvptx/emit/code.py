"""What the rules of ops write to: a function, and where things are that ops name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.backend.nvptx.ir.values import Operand, Scope, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.indexing import Indexer
from fuser.base.target import Target
from fuser.tilegen.index import Lookup
from fuser.tilegen.ir import Buffer
from fuser.tilegen.value import INDEX, Value


class Writes(Protocol):
    """Anything that has the function that is being written."""

    @property
    def emitter(self) -> Emitter: ...


@dataclass
class TensorState:
    """What a kernel knows of its tensor memory. address: where its columns begin; committed,
    waited: pointers to how many groups of matmuls were."""

    address: str
    committed: str
    waited: str


class Code:
    """The code of one kernel. names: of the parameters of buffers. ready: pointers to use instead,
    once the previous kernel has ended. warps: that compute a program in a block; blocks: of the
    cluster that shares a program. clustered: whether blocks are launched in clusters. group: the
    number of the warp group that has slots of its own."""

    def __init__(
        self, emitter: Emitter, target: Target, names: Mapping[Buffer, str], warps: int,
        blocks: int, clustered: bool, group: Operand = 0,
    ) -> None:  # fmt: skip
        self.emitter, self.target, self.names = emitter, target, names
        self.warps, self.blocks, self.group, self.clustered = warps, blocks, group, clustered
        self.ready: dict[Buffer, str] = {}
        self.addresses: dict[str, str] = {}
        """In shared memory, by the names of scalars."""
        self.tensor_memory: dict[Slot, TensorState] = {}
        """By the slots that stand for it."""

    def pointer(self, buffer: Buffer) -> str:
        """The start of a buffer."""
        return self.ready.get(buffer, f"%{self.names[buffer]}")

    def place(self, slot: Slot, offset: Operand = 0) -> str:
        """A pointer `offset` bytes into a slot."""
        e = self.emitter
        if slot.copies > 1:
            offset = e.plus(e.times(self.group, slot.pitch), offset)
        base = f"getelementptr (i8, ptr addrspace(3) @shared_memory, i32 {slot.offset})"
        if offset == 0:
            return base
        return e.value(f"getelementptr i8, ptr addrspace(3) {base}, i32 {offset}")

    @staticmethod
    def register_text(name: str) -> str:
        """What reads a special register anew."""
        return f'call i32 asm sideeffect "mov.u32 $0, %{name};", "=r"()'

    def read_register(self, name: str) -> str:
        """A special register, read anew."""
        return self.emitter.value(self.register_text(name))

    # index expressions --------------------------------------------------------------------------

    def indexer(self, layout: Layout, scope: Scope | None = None, long: bool = False) -> Indexer:
        """What computes index expressions at the registers of a layout, in 32 or 64 bits."""
        found = scope if scope is not None else Scope()

        def scalar(value: Value) -> Operand:
            bound = found.scalars[value]
            if isinstance(bound, Tile):
                return self.widened(bound, long)
            if long and isinstance(bound, str):
                return self.emitter.value(f"sext i32 {bound} to i64")
            return bound

        def lookup(atom: Lookup, layout: Layout, offset: Coordinates) -> str:
            tile = found.tiles[atom.value, atom.axes]
            at = tuple(
                0 if dim == 1 else offset[axis]
                for axis, dim in zip(atom.axes, atom.value.shape, strict=True)
            )
            return self.widened(tile, long, tile.layout.register_of[at])

        return Indexer(self.emitter, layout, scalar, lookup, "i64" if long else "i32")

    def widened(self, tile: Tile, long: bool, number: int = 0) -> str:
        """An integer of a tile as 32 or 64 bits."""
        reg, bits, wanted = tile.regs[number], tile.dtype.bits, 64 if long else 32
        if bits == wanted or (long and tile.dtype is INDEX):
            return reg
        if bits > wanted:
            return self.emitter.value(f"trunc {tile.type} {reg} to i32")
        extend = "sext" if tile.dtype.kind == "int" else "zext"
        return self.emitter.value(f"{extend} {tile.type} {reg} to i{wanted}")


def shared_offset(code: Writes, pointer: str, offset: int) -> str:
    """A shared pointer plus constant bytes."""
    if offset == 0:
        return pointer
    return code.emitter.value(f"getelementptr i8, ptr addrspace(3) {pointer}, i32 {offset}")
