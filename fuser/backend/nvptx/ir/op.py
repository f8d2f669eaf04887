"""What every op of the GPU IR is: a record whose fields say what it reads; and blocks of ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import ClassVar

from fuser.backend.nvptx.ir.values import Operand, Place, SharedTile, Slot, Tile


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
        return tuple(getattr(self, name) for name in _names_of(type(self))[1])

    def contents(self) -> Iterator[object]:
        """What its fields hold, tuples taken apart."""
        for name in _names_of(type(self))[0]:
            content = getattr(self, name)
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


_NAMES: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}


def _names_of(kind: type[Op]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the own fields of a class of ops, and of those that are blocks: asking a dataclass
    takes longer than all else that walks over programs do."""
    if kind not in _NAMES:
        own = [item for item in fields(kind) if item.name not in ("results", "names", "origin")]
        _NAMES[kind] = (
            tuple(item.name for item in own),
            tuple(item.name for item in own if item.type == "Block"),
        )
    return _NAMES[kind]


@dataclass(eq=False, kw_only=True)
class Integer(Op):
    """An integer or condition made of others: `add i32 %a, 4`. fn: of the table in integers.py;
    type: of its operands; to: the type that a conversion gives."""

    opcode: ClassVar[str] = "integer"
    fn: str
    type: str = "i32"
    operands: tuple[Operand, ...] = ()
    to: str = ""
