"""Read a program of the GPU IR from its text (text.py writes it)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any

from fuser.backend.module import TensorMap
from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.ir import integers
from fuser.backend.nvptx.ir.layout_text import offsets_of
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.syntax import fields_of, ops_by_code, records
from fuser.backend.nvptx.ir.values import Operand, Place, Scope, SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.dtypes import DType
from fuser.tilegen.facts import UNKNOWN, Fact, set_fact
from fuser.tilegen.index import Index, Lookup, Scalar
from fuser.tilegen.ir import View
from fuser.tilegen.reader import TOKEN, Expression, Reader, Token
from fuser.tilegen.syntax import DTYPES
from fuser.tilegen.value import INDEX, TileType, Value


def parse_program(text: str) -> Program:
    """The program that the text describes; it is not verified. Raises ParseError with the line."""
    return _Parser(text).program()


@dataclass(frozen=True)
class _Unshaped:
    """An index expression that waits for the shape of the op's tile."""

    build: Expression


class _Parser(Reader):
    pattern = re.compile(
        r"""(?P<code>:=[^\n]*)|(?P<layout>\#l\d+)|(?P<dims>\d+(?:x\d+)+)|(?P<angle>[<>])|"""
        + TOKEN.pattern,
        re.VERBOSE,
    )

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.slots: dict[int, Slot] = {}
        self.layouts: dict[str, Layout] = {}
        self.bound: dict[Value, Tile | str] = {}

    def program(self) -> Program:
        self.expect("gpu")
        self.expect("@")
        program = Program(self.name(), self.name(), 0, 0, (1, 1, 1), [], Block())
        while not self.has("{"):
            self.setting_of(program)
        while self.declaration(program):
            pass
        if self.has("head"):
            self.expect("{")
            self.block(program.head)
        self.block(program.body)
        if self.next.kind != "end":
            raise self.error(f"expected the end, found {self.next.text!r}")
        program.buffers, program.slots = list(self.buffers.values()), list(self.slots.values())
        program.shared_bytes = max((s.offset + s.size for s in program.slots), default=0)
        return program

    def setting_of(self, program: Program) -> None:
        token = self.expect_kind("word")
        if token.text == "fast":
            program.fast = True
            return
        numbers = self.integers("(", ")")
        if token.text == "launch" and len(numbers) == 3:
            program.launch = (numbers[0], numbers[1], numbers[2])
        elif token.text in ("warps", "threads", "cluster", "resident"):
            setattr(program, token.text, numbers[0])
        else:
            raise self.error(f"a program has no {token.text}", token)

    # declarations -------------------------------------------------------------------------------

    def declaration(self, program: Program) -> bool:
        if self.has("sizes"):
            self.sequence("(", ")", self.setting)
        elif self.has("moving"):
            self.sequence("(", ")", self.literal)
        elif self.has("buffer"):
            self.buffer()
        elif self.next.text == "map" and self.tokens[self.position + 1].text == TensorMap.__name__:
            self.take()
            program.tensor_maps.append(self.content())
        elif self.has("table"):
            name = self.literal()
            program.tables[name] = tuple(self.integers("(", ")"))
        elif self.has("slot"):
            self.slot()
        elif self.has("layout"):
            self.layout()
        elif self.has("given"):
            self.param()
        else:
            return False
        return True

    def slot(self) -> None:
        self.expect("@")
        number = self.integer()
        self.expect(":")
        size = self.integer()
        self.expect("bytes")
        self.expect("align")
        slot = Slot(number, size, self.integer())
        self.expect("at")
        slot.offset = self.integer()
        slot.early = self.has("early")
        slot.copies = self.integer() if self.has("copies") else 1
        self.slots[number] = slot

    def layout(self) -> None:
        name = self.expect_kind("layout").text
        self.expect("=")
        shape = self.shape()
        self.expect("regs")
        runs, listed, start = [], [], (0,) * len(shape)
        while self.next.kind == "int" or self.next.text == "(":
            if self.next.kind == "int":
                count = self.integer()
                self.expect("*")
                runs.append((count, self.coordinates()))
            else:
                listed.append(self.coordinates())
        if self.has("from"):
            start = self.coordinates()
        regs = tuple(listed or offsets_of(start, runs))
        self.expect("lanes")
        lanes = self.basis()
        self.expect("warps")
        self.layouts[name] = Layout(shape, regs, lanes, self.basis())

    def basis(self) -> tuple[Coordinates, ...]:
        found = []
        while self.next.text == "(":
            found.append(self.coordinates())
        return tuple(found)

    def coordinates(self) -> Coordinates:
        return self.integers("(", ")")

    def shape(self) -> Coordinates:
        if self.next.kind not in ("dims", "int"):
            return ()
        return tuple(map(int, self.take().text.split("x")))

    # values -------------------------------------------------------------------------------------

    def dtype(self) -> DType:
        token = self.expect_kind("word")
        if token.text not in DTYPES:
            raise self.error(f"there is no element type {token.text!r}", token)
        return DTYPES[token.text]

    def tile(self, name: str) -> Tile:
        """A tile by its type: `f32[128x64] #l2`."""
        dtype = self.dtype()
        self.expect("[")
        shape = self.shape()
        self.expect("]")
        tile = Tile(dtype, shape, self.known_layout(), name=name)
        self.define(name, TileType(dtype, shape), tile, self.stated())
        return tile

    def known_layout(self) -> Layout:
        token = self.expect_kind("layout")
        if token.text not in self.layouts:
            raise self.error(f"there is no layout {token.text}", token)
        return self.layouts[token.text]

    def param(self) -> Tile | str:
        name = self.expect_kind("value").text
        if self.has(":"):
            return self.tile(name)
        return self.scalar(name, self.stated())

    def scalar(self, name: str, fact: Fact | None) -> str:
        self.define(name, TileType(INDEX), name, fact)
        return name

    def define(self, name: str, type: TileType, bound: Tile | str, fact: Fact | None) -> None:
        value = Value(type, name.removeprefix("%"))
        set_fact(value, fact or UNKNOWN)
        self.values[value.name] = value
        self.bound[value] = bound

    # ops ----------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Ops up to and with the closing brace."""
        while not self.has("}"):
            block.ops.append(self.op())

    def op(self) -> Op:
        made: list[tuple[str, Fact | None]] = []
        while self.next.kind == "value":
            made.append((self.take().text, self.stated()))
            if self.next.kind == "code":
                fn, type, operands, to = self.integer_op(self.take())
                name = self.scalar(*made[0])
                return Integer(fn=fn, type=type, operands=operands, to=to, names=(name,))
            self.expect("=" if self.next.text != "," else ",")
        start = self.expect_kind("word")
        opcode, _, fn = start.text.partition(".")
        kind = ops_by_code().get(opcode)
        if kind is None:
            raise self.error(f"there is no op {opcode!r}", start)
        content = self.fields(kind, {"fn": fn} if fn else {})
        results = self.results(made)
        names = [self.scalar(*pair) for pair in made[len(results) :]]
        content = self.assemble(kind, content, results, start)
        op = kind(**content, results=tuple(results), names=tuple(names), origin=self.origin())
        self.blocks(op)
        return op

    def integer_op(self, code: Token) -> tuple[str, str, tuple[Operand, ...], str]:
        text, _, _ = code.text.removeprefix(":=").partition("#")
        try:
            return integers.read(text.strip())
        except ValueError as error:
            raise self.error(str(error), code) from None

    def fields(self, kind: type[Op], content: dict[str, Any]) -> dict[str, Any]:
        for number, info in enumerate(i for i in fields_of(kind) if i.kind == "operand"):
            if number:
                self.expect(",")
            content[info.name] = self.content()
        if self.next.text == "{":
            content |= dict(self.sequence("{", "}", self.pair))
        return content

    def pair(self) -> tuple[str, Any]:
        name = self.name()
        self.expect("=")
        return name, self.content()

    def results(self, made: list[tuple[str, Fact | None]]) -> list[Tile]:
        if not self.has(":"):
            return []
        found = [self.tile(made[0][0])]
        while self.has(","):
            found.append(self.tile(made[len(found)][0]))
        return found

    def assemble(
        self, kind: type[Op], content: dict[str, Any], results: list[Tile], start: Token
    ) -> dict[str, Any]:
        """What an op is made with: expressions built, with their scope; words as element types."""
        tiles = (*results, *(c for c in content.values() if isinstance(c, Tile)))
        shape = tiles[0].shape if tiles else ()
        infos = {info.name: info for info in fields_of(kind)}
        if unknown := set(content) - set(infos):
            raise self.error(f"{kind.opcode} has no {', '.join(sorted(unknown))}", start)
        for name, item in content.items():
            content[name] = self.built(item, shape)
            if infos[name].annotation.startswith("DType"):
                content[name] = DTYPES[item]
            elif "list" in infos[name].annotation:
                content[name] = list(content[name])
        for info in infos.values():
            if info.kind == "scope":
                content[info.name] = self.scope(list(content.values()))
            elif info.kind == "carried":
                content[info.name] = ()
            elif info.kind == "block":
                many = info.annotation.startswith("tuple")
                content[info.name] = () if many else None if info.default is None else Block()
            elif info.name not in content and info.default is MISSING:
                raise self.error(f"{kind.opcode} needs {info.name}", start)
        return content

    def built(self, item: Any, shape: Coordinates) -> Any:
        if isinstance(item, _Unshaped):
            return item.build(shape)
        return tuple(self.built(i, shape) for i in item) if isinstance(item, tuple) else item

    def blocks(self, op: Op) -> None:
        """The blocks that follow the line of an op, by the names of its fields."""
        infos = {info.name: info for info in fields_of(type(op)) if info.kind == "block"}
        more = self.next.kind == "word" and self.next.text in infos
        while more:
            name = self.take().text
            inner = Block()
            if self.next.text == "(":
                self.params(op, inner)
            self.expect("{")
            op.origin = op.origin or self.origin()
            if infos[name].annotation.startswith("tuple"):
                setattr(op, name, (*getattr(op, name), inner))
            else:
                setattr(op, name, inner)
            self.block(inner)
            more = self.next.kind == "word" and self.next.text in infos
            more = more and self.next.line == self.last.line

    def params(self, op: Op, block: Block) -> None:
        """What a block finds: of the op, or of the block."""
        found = self.sequence("(", ")", self.param)
        if any(info.kind == "carried" for info in fields_of(type(op))):
            vars(op)["scalars"] = tuple(p for p in found if isinstance(p, str))
            vars(op)["params"] = tuple(p for p in found if isinstance(p, Tile))
        else:
            block.params = found

    # what fields hold ---------------------------------------------------------------------------

    def content(self) -> Any:
        token = self.next
        readers: dict[str, Callable[[], Any]] = {
            "value": self.named, "layout": self.known_layout, "view": self.access,
        }  # fmt: skip
        if token.kind in readers:
            return readers[token.kind]()
        if token.kind == "mark":
            marks: dict[str, Callable[[], Any]] = {
                "@": self.shared, "[": self.expression,
                "(": lambda: tuple(self.sequence("(", ")", self.content)),
                "{": lambda: dict(self.sequence("{", "}", self.pair)),
            }  # fmt: skip
            if token.text in marks:
                return marks[token.text]()
        if token.kind == "word" and token.text in records():
            self.take()
            return records()[token.text](**dict(self.sequence("{", "}", self.pair)))
        return self.literal()

    def named(self) -> Tile | str:
        return self.bound[self.use()]

    def named_tile(self) -> Tile:
        tile = self.named()
        if not isinstance(tile, Tile):
            raise self.error(f"{tile} is not a tile", self.last)
        return tile

    def expression(self) -> _Unshaped:
        self.expect("[")
        build = self.sum()
        self.expect("]")
        return _Unshaped(build)

    def shared(self) -> Slot | SharedTile:
        self.expect("@")
        number = self.integer()
        if number not in self.slots:
            raise self.error(f"there is no slot @{number}", self.last)
        slot = self.slots[number]
        if self.next.text != "<":
            return slot
        self.take()
        dtype, shape = self.dtype(), self.shape()
        self.expect("inner")
        inner = self.integer()
        self.take()
        stage: str | int = 0
        if self.has("["):
            stage = self.content()
            self.expect("]")
        return SharedTile(dtype, shape, inner, slot, stage)

    def access(self) -> Any:
        """A place in global memory, or a buffer alone."""
        token = self.take()
        if token.text[1:] not in self.buffers:
            raise self.error(f"there is no buffer {token.text[1:]}", token)
        buffer = self.buffers[token.text[1:]]
        if self.next.text != "[":
            return buffer
        linear = self.expression()
        self.expect("of")
        shape = () if self.has("one") else self.shape()
        order: tuple[int, ...] = ()
        width, bounds = 1, []
        if self.has("along"):
            order = self.integers("(", ")")
            self.expect("by")
            width = self.integer()
        if self.has("where"):
            bounds = self.sequence("(", ")", self.bounded)
        mask = self.named_tile() if self.has("mask") else None
        flags = {name: self.has(name) for name in ("long", "long_bounds")}
        at = linear.build(shape)
        tests = tuple((build(shape), size) for build, size in bounds)
        view = View(buffer.name, buffer, (buffer.size,), (1,))
        scope = self.scope([at, *(test for test, _ in tests)])
        return Place(Access(view, shape, at, tests, order, width), scope, mask, **flags)

    def bounded(self) -> tuple[Expression, int]:
        build = self.sum()
        self.expect("<")
        return build, self.integer()

    def has(self, text: str) -> bool:
        if self.next.kind == "angle" and self.next.text == text:
            self.take()
            return True
        return super().has(text)

    def scope(self, contents: list[Any]) -> Scope:
        """What the values of the index expressions among some contents are."""
        scalars: dict[Value, Tile | str | int] = {}
        tiles: dict[tuple[Value, tuple[int, ...]], Tile] = {}
        for at in (item for item in contents if isinstance(item, Index)):
            for atom in at.leaves():
                if isinstance(atom, Scalar):
                    scalars[atom.value] = self.bound[atom.value]
                elif isinstance(atom, Lookup):
                    tile = self.bound[atom.value]
                    if not isinstance(tile, Tile):
                        raise self.error(f"{tile} is not a tile", self.last)
                    tiles[atom.value, atom.axes] = tile
        return Scope(scalars, tiles)
