"""Read a program of the GPU IR from its text (text.py writes it)."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fuser.backend.module import TensorMap
from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.ir import integers, ops
from fuser.backend.nvptx.ir.layout_text import offsets_of
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import PLACE, PROGRAM, SHARED, SLOT, TYPE
from fuser.backend.nvptx.ir.values import Operand, Place, Scope, SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.tilegen.core.parse import Made, Parser
from fuser.tilegen.core.reader import Later, Token
from fuser.tilegen.core.records import Field, fields_of
from fuser.tilegen.facts import UNKNOWN, Fact, set_fact
from fuser.tilegen.index import Index, Lookup, Scalar
from fuser.tilegen.ir import Buffer, View
from fuser.tilegen.value import INDEX, TileType, Value

Typed = tuple[TileType, Fact | None, Layout]
"""The type of a tile, and what is stated of it."""


_RECORDS: dict[str, type[Any]] = {
    name: kind
    for name, kind in {**vars(ops), TensorMap.__name__: TensorMap}.items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
OPS: dict[str, type[Op]] = {
    kind.opcode: kind for kind in _RECORDS.values() if issubclass(kind, Op) and kind.opcode
}
"""Every class of ops by its opcode."""


def parse_program(text: str) -> Program:
    """The program that the text describes; it is not verified. Raises ParseError with the line."""
    return _Parser(text).program()


class _Parser(Parser):
    kinds, new_block, tile = OPS, Block, Tile
    labels = True

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.slots: dict[int, Slot] = {}
        self.layouts: dict[str, Layout] = {}
        self.bindings: dict[Value, Tile | str] = {}

    def program(self) -> Program:
        program = Program(**PROGRAM.read(self), buffers=[], body=Block())
        if len(program.launch) != 3:
            raise self.error("a launch has three extents", self.last)
        self.expect("{")
        self.declarations(
            {
                "map": lambda: program.tensor_maps.append(self.literal()),
                "table": lambda: program.tables.update([(self.name(), self.coordinates())]),
                "slot": self.slot,
                "layout": self.layout,
                "given": self.given,
            }
        )
        if self.has("head"):
            self.expect("{")
            self.block(program.head)
        self.body(program.body)
        program.buffers.extend(self.buffers.values())
        program.slots.extend(self.slots.values())
        return program

    # declarations -------------------------------------------------------------------------------

    def slot(self) -> None:
        slot = Slot(**SLOT.read(self))
        self.slots[slot.number] = slot

    def layout(self) -> None:
        name = self.expect_kind("layout").text
        self.expect("=")
        shape = self.dims()
        at = functools.partial(self.coordinates, len(shape))
        self.expect("regs")
        runs, listed, start = [], [], (0,) * len(shape)
        while self.next.kind == "int" or self.next.text == "(":
            if self.next.kind == "int":
                count = self.integer()
                self.expect("*")
                runs.append((count, at()))
            else:
                listed.append(at())
        if self.has("from"):
            start = at()
        regs = tuple(listed or offsets_of(start, runs))
        self.expect("lanes")
        lanes = self.basis(at)
        self.expect("warps")
        self.layouts[name] = Layout(shape, regs, lanes, self.basis(at))

    def place_dims(self) -> Coordinates:
        return () if self.has("one") else self.dims()

    def basis(self, at: Callable[[], Coordinates]) -> tuple[Coordinates, ...]:
        found = []
        while self.next.text == "(":
            found.append(at())
        return tuple(found)

    def coordinates(self, rank: int | None = None) -> Coordinates:
        found: Coordinates = self.sequence("(", ")", self.integer)
        if rank is not None and len(found) != rank:
            raise self.error(f"expected {rank} coordinates, found {len(found)}", self.last)
        return found

    def dims(self) -> Coordinates:
        if self.next.kind not in ("dims", "int"):
            return ()
        return tuple(map(int, self.take().text.split("x")))

    # values -------------------------------------------------------------------------------------

    def type(self) -> Typed:
        given = TYPE.read(self)
        return TileType(given["dtype"], given["shape"]), self.stated(), given["layout"]

    def made_tile(self, name: str, type: Typed) -> Tile:
        made, stated, layout = type
        tile = Tile(made.dtype, made.shape, layout, name=name)
        self.value(name, made, tile, stated)
        return tile

    def known_layout(self) -> Layout:
        name = self.expect_kind("layout").text
        return self.known(self.layouts, name, f"there is no layout {name}")

    def given(self) -> object:
        name = self.expect_kind("value").text
        is_tile = self.has(":")
        return (
            self.made_tile(name, self.type())
            if is_tile
            else self.integer_named(name, self.stated())
        )

    def integer_named(self, name: str, fact: Fact | None) -> str:
        self.value(name, TileType(INDEX), name, fact)
        return name

    def value(self, name: str, type: TileType, bound: Tile | str, fact: Fact | None) -> None:
        value = Value(type, name.removeprefix("%"))
        set_fact(value, fact or UNKNOWN)
        self.values[value.name] = value
        self.bindings[value] = bound

    # ops ----------------------------------------------------------------------------------------

    def short(self, made: Made) -> Op | None:
        """An integer: `%s3 := add i32 %x, 4`."""
        if not self.has(":="):
            return None
        fn = self.expect_kind("word")
        if fn.text not in integers.FUNCTIONS:
            raise self.error(f"there is no integer operation {fn.text!r}", fn)
        if self.next.line != fn.line or not re.fullmatch(r"i\d+", self.next.text):
            raise self.error(f"{fn.text} is followed by a type, then its operands", fn)
        operands: list[Operand] = []
        type, to = self.take().text, ""
        while self.next.line == fn.line and self.next.text not in ("to", "}"):
            if operands:
                self.expect(",")
            operands.append(self.scalar())
        if self.has("to"):
            to = self.expect_kind("word").text
        name = self.integer_named(made[0].text, made[1])
        return Integer(fn=fn.text, type=type, operands=tuple(operands), to=to, names=(name,))

    def scalar(self) -> Operand:
        return self.take().text if self.next.kind == "value" else self.integer()

    def fill(self, content: dict[str, Any], infos: Mapping[str, Field], types: list[Any]) -> None:
        scope = self.scope(content.values())
        for name, info in infos.items():
            if info.kind in ("scope", "carried"):
                content[name] = scope if info.kind == "scope" else ()

    def define(self, op: Op, made: list[Made], types: list[Any], start: Token) -> None:
        if len(types) > len(made):
            raise self.error(f"{len(made)} results and {len(types)} types", start)
        tiles = zip(made, types, strict=False)
        op.give(
            [self.made_tile(token.text, type) for (token, _), type in tiles],
            tuple(self.integer_named(token.text, fact) for token, fact in made[len(types) :]),
        )

    def param(self, op: Op, block: Block) -> object:
        return self.given()

    def params(self, op: Op, block: Block) -> None:
        super().params(op, block)
        if any(info.kind == "carried" for info in fields_of(type(op))):
            vars(op)["scalars"] = tuple(p for p in block.params if isinstance(p, str))
            vars(op)["params"] = tuple(p for p in block.params if isinstance(p, Tile))
            block.params.clear()

    # what fields hold ---------------------------------------------------------------------------

    def literal(self) -> Any:
        token = self.next
        own: dict[str, Callable[[], Any]] = {
            "layout": self.known_layout, "@": self.shared,
            "[": self.expression,
        }  # fmt: skip
        read = own.get(token.text if token.kind == "mark" else token.kind)
        if read is not None:
            return read()
        if token.kind == "word" and token.text in _RECORDS:
            self.take()
            fields = dict(self.sequence("{", "}", self.setting))
            try:
                return _RECORDS[token.text](**fields)
            except TypeError:
                raise self.error(f"these are not the fields of {token.text}", token) from None
        return super().literal()

    def value_of(self, value: Value) -> Tile | str:
        return self.bindings[value]

    def expression(self) -> Later:
        self.expect("[")
        found = self.later()
        self.expect("]")
        return found

    def shared(self) -> Slot | SharedTile:
        self.expect("@")
        number = self.integer()
        slot = self.known(self.slots, number, f"there is no slot @{number}")
        return SharedTile(slot=slot, **SHARED.read(self)) if self.next.text == "<" else slot

    def view_of(self, token: Token) -> Place | Buffer:
        """A place in global memory, or a buffer alone."""
        buffer = self.buffer_of(token.text[1:])
        if self.next.text != "[":
            return buffer
        given = {
            "bounds": (),
            "order": (),
            "width": 1,
            "ragged": 0,
            "mask": None,
            **PLACE.read(self),
        }
        flags = {name: name in given for name in ("long", "long_bounds")}
        shape = given["shape"]
        at, tests = self.built((given["linear"], given["bounds"]), shape)
        view = View(buffer.name, buffer, (buffer.size,), (1,))
        access = Access(
            view, shape, at, tests, given["order"], given["width"], ragged=given["ragged"]
        )
        return Place(access, self.scope([at, *(test for test, _ in tests)]), given["mask"], **flags)

    def tests(self) -> tuple[tuple[Later, int], ...]:
        return self.items(self.bounded)

    def bounded(self) -> tuple[Later, int]:
        test = self.later()
        self.expect("<")
        return test, self.integer()

    def mask(self) -> Tile:
        found = self.value_of(self.use())
        if not isinstance(found, Tile):
            raise self.error(f"{found} is not a tile", self.last)
        return found

    def scope(self, contents: Iterable[Any]) -> Scope:
        """What the values of the index expressions among some contents are."""
        scalars: dict[Value, Tile | str | int] = {}
        tiles: dict[tuple[Value, tuple[int, ...]], Tile] = {}
        for at in (item for item in contents if isinstance(item, Index)):
            for atom in at.leaves():
                if isinstance(atom, Scalar):
                    scalars[atom.value] = self.bindings[atom.value]
                elif isinstance(atom, Lookup):
                    tile = self.bindings[atom.value]
                    if not isinstance(tile, Tile):
                        raise self.error(f"{tile} is not a tile", self.last)
                    tiles[atom.value, atom.axes] = tile
        return Scope(scalars, tiles)
