"""What every op of the GPU IR is: a record whose fields say what it reads; and blocks of ops."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from fuser.backend.nvptx.ir.values import Operand, SharedTile, Slot, Tile
from fuser.tilegen.core.records import BlockBase, OpBase

_OPERANDS = {
    "Tile", "tuple", "str", "Slot", "SharedTile", "Operand", "Place", "Index", "Layout",
}  # fmt: skip
"""Words in the annotation of a field that says what an op works on."""


class Block(BlockBase["Tile | str", "Op"]):
    """Ops in order. params: what a loop hands to its body, in the order of its carried values."""


@dataclass(eq=False, kw_only=True)
class Op(OpBase[Block]):
    """Base of all ops. results: tiles; names: of scalars that it gives. origin: ONNX nodes."""

    results: tuple[Tile, ...] = ()
    names: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()

    @classmethod
    def kind_of(cls, name: str, annotation: str, default: Any) -> str:
        """`carried` are the values that blocks are given; `scope` is what others refer to."""
        nests = "Block" in cls.__annotations__.values()
        if nests and name in ("scalars", "params"):
            return "carried"
        if name == "fn":
            return "fn"
        if annotation == "Scope":
            return "scope"
        if annotation == "tuple[Buffer, ...]":
            return "buffers"
        words = set(re.findall(r"\w+", annotation))
        return "operand" if default is MISSING and words <= _OPERANDS else "attribute"

    @property
    def tile(self) -> Tile:
        """The only tile that it gives."""
        (result,) = self.results
        return result

    def give(self, results: Iterable[Tile], names: tuple[str, ...] = ()) -> None:
        """Let it give these tiles and scalars, and no others."""
        self.results, self.names = tuple(results), names

    def come_from(self, origin: tuple[str, ...]) -> None:
        """Let it come from more ONNX nodes."""
        self.origin = tuple(dict.fromkeys(self.origin + origin))

    def change(self, changed: Callable[[Any], Any]) -> None:
        """Let its fields hold what is made of what they hold, blocks excepted."""
        for item in fields(self):
            if item.type != "Block":
                setattr(self, item.name, changed(getattr(self, item.name)))

    def slots(self) -> Iterator[Slot]:
        """The slots of shared memory that it names."""
        for content in self.contents():
            if isinstance(content, Slot):
                yield content
            elif isinstance(content, SharedTile):
                yield content.slot


@dataclass(eq=False, kw_only=True)
class Integer(Op):
    """An integer or condition made of others: `add i32 %a, 4`. fn: of the table in integers.py;
    type: of its operands; to: the type that a conversion gives."""

    opcode: ClassVar[str] = "integer"
    fn: str
    type: str = "i32"
    operands: tuple[Operand, ...] = ()
    to: str = ""
