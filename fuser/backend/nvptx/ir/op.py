"""What every op of the GPU IR is: a record whose fields say what it reads; and blocks of ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import ClassVar

from fuser.backend.nvptx.ir.values import Place, SharedTile, Slot, Tile


@dataclass(eq=False)
class Block:
    """Ops in order. params: what a loop hands to its body, in the order of its carried values."""

    params: list[Tile | str] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def walk(self) -> Iterator[Op]:
        """Every op, outer before inner."""
        for op in self.ops:
            yield op
            for block in op.blocks():
                yield from block.walk()


@dataclass(eq=False, kw_only=True)
class Op:
    """Base of all ops. results: tiles; names: of scalars that it gives. origin: ONNX nodes."""

    opcode: ClassVar[str] = ""
    results: tuple[Tile, ...] = ()
    names: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()

    @property
    def tile(self) -> Tile:
        """The only tile that it gives."""
        (result,) = self.results
        return result

    def blocks(self) -> tuple[Block, ...]:
        return tuple(c for c in self.contents() if isinstance(c, Block))

    def contents(self) -> Iterator[object]:
        """What its fields hold, tuples taken apart."""
        for item in fields(self):
            if item.name not in ("results", "names", "origin"):
                content = getattr(self, item.name)
                if isinstance(content, tuple | list):
                    yield from content
                else:
                    yield content

    def tiles(self) -> Iterator[Tile]:
        """The tiles in registers that it reads."""
        for content in self.contents():
            if isinstance(content, Tile):
                yield content
            elif isinstance(content, Place):
                if content.mask is not None:
                    yield content.mask
                for bound in content.scope.scalars.values():
                    if isinstance(bound, Tile):
                        yield bound
                yield from content.scope.tiles.values()

    def slots(self) -> Iterator[Slot]:
        """The slots of shared memory that it names."""
        for content in self.contents():
            if isinstance(content, Slot):
                yield content
            elif isinstance(content, SharedTile):
                yield content.slot


@dataclass(eq=False, kw_only=True)
class Integer(Op):
    """An integer or condition made of others, as LLVM spells it: `add i32 %a, 4`."""

    opcode: ClassVar[str] = "integer"
    text: str
