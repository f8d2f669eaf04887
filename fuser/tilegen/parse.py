"""Read a tile program from its text (text.py writes it, docs/tile-ir.md holds the grammar).

Index expressions are rebuilt through index.py, so that they come out in canonical form; ranges and
divisors of integer values are inferred as the builder infers them, unless the text states them.
"""

from __future__ import annotations

import re
from dataclasses import MISSING
from typing import Any

from fuser.errors import VerifyError
from fuser.graph.sizes import Sizes
from fuser.tilegen import facts, ops
from fuser.tilegen.ir import Block, Kernel, Op, View
from fuser.tilegen.reader import Reader, Token
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.syntax import DTYPES, FROM_TYPE, FieldInfo, fields_of
from fuser.tilegen.value import TileType, Value

_TILE = re.compile(r"tile<((?:\d+x)+)(\w+)>")


def parse_kernel(text: str) -> Kernel:
    """The kernel that the text describes; it is not verified. Raises ParseError with the line."""
    return _Parser(text).kernel()


_SIZES = re.compile(r"^  sizes\((.*)\)$", re.MULTILINE)
_MOVING = re.compile(r"^  moving\((.*)\)$", re.MULTILINE)


def sizes_of(text: str) -> Sizes | None:
    """The example sizes that a kernel's text states, with which it must be parsed and compiled."""
    line = _SIZES.search(text)
    if line is None:
        return None
    parser = _Parser(f"({line[1]})")
    examples = dict(parser.sequence("(", ")", parser.setting))
    moving = _MOVING.search(text)
    if moving is None:
        return Sizes(examples)
    parser = _Parser(f"({moving[1]})")
    return Sizes(examples, parser.sequence("(", ")", parser.literal))


class _Parser(Reader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.views: dict[str, View] = {}
        self.grid: tuple[int, ...] = ()

    # header -------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        self.expect("kernel")
        self.expect("@")
        name = self.name()
        self.expect("grid")
        self.grid = self.integers("(", ")")
        fast = bool(self.has("fast"))
        self.expect("{")
        schedule = Schedule()
        scalars: list[Value] = []
        while True:
            if self.has("sizes"):
                self.sequence("(", ")", self.setting)  # what `sizes_of` reads
            elif self.has("moving"):
                self.sequence("(", ")", self.literal)
            elif self.has("schedule"):
                schedule = self.schedule()
            elif self.has("buffer"):
                self.buffer()
            elif self.has("view"):
                self.view()
            elif self.has("scalar"):
                token = self.expect_kind("value")
                self.expect(":")
                type, stated = self.typed()
                scalars.append(self.define(token, type, stated))
            else:
                break
        body = Block()
        self.block(body)
        if self.next.kind != "end":
            raise self.error(f"expected the end, found {self.next.text!r}")
        buffers, views = list(self.buffers.values()), list(self.views.values())
        return Kernel(name, buffers, views, self.grid, body, schedule, scalars, fast=fast)

    def schedule(self) -> Schedule:
        start = self.last
        settings = dict(self.sequence("(", ")", self.setting))
        try:
            return Schedule(**settings)
        except TypeError:
            raise self.error("a schedule has no such setting", start) from None

    def view(self) -> None:
        token = self.expect_kind("view")
        self.expect(":")
        buffer = self.name()
        if buffer not in self.buffers:
            raise self.error(f"there is no buffer {buffer}", token)
        shape = tuple(self.sequence("[", "]", self.extent))
        self.expect("strides")
        strides = self.integers("(", ")")
        offset = self.integers("(", ")")[0] if self.has("offset") else 0
        settled = self.integers("(", ")") if self.has("settled") else ()
        if settled and (len(settled) != 2 or settled[0] not in range(len(shape))):
            raise self.error("settled has a dim of the view and a count", token)
        name = token.text[1:]
        if name in self.views:
            raise self.error(f"view {token.text} is declared twice", token)
        self.views[name] = View(
            name, self.buffers[buffer], shape, strides, offset,
            (settled[0], settled[1]) if settled else None,
        )  # fmt: skip

    # types --------------------------------------------------------------------------------------

    def tile_type(self) -> TileType:
        token = self.expect_kind("type", "word")
        shape: tuple[int, ...] = ()
        name = token.text
        if token.kind == "type":
            match = _TILE.fullmatch(token.text)
            if match is None:
                raise self.error(f"{token.text} is not a tile type", token)
            shape, name = tuple(map(int, match[1].split("x")[:-1])), match[2]
        if name not in DTYPES:
            raise self.error(f"there is no element type {name!r}", token)
        return TileType(DTYPES[name], shape)

    def typed(self) -> tuple[TileType, facts.Fact | None]:
        """A type and the facts stated after it: `index in [0, 96] by 32`."""
        type = self.tile_type()
        return type, self.stated()

    def define(self, token: Token, type: TileType, fact: facts.Fact | None) -> Value:
        name = token.text[1:]
        if name in self.values:
            raise self.error(f"{token.text} is defined twice", token)
        value = Value(type, name)
        if fact is not None:
            facts.set_fact(value, fact)
        self.values[name] = value
        return value

    # ops ----------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Ops up to and with the closing brace."""
        while not self.has("}"):
            self.op(block)

    def op(self, block: Block) -> None:
        names: list[Token] = []
        while self.next.kind == "value":
            names.append(self.take())
            self.expect("=" if self.next.text != "," else ",")
        start = self.expect_kind("word")
        opcode, _, fn = start.text.partition(".")
        kind = ops.OPS.get(opcode)
        if kind is None:
            raise self.error(f"there is no op {opcode!r}", start)
        infos = fields_of(kind)
        content: dict[str, Any] = {"fn": fn} if fn else {}
        self.operands(
            [i for i in infos if i.kind not in ("attribute", "block", "optional")], content
        )
        while any(i.kind == "optional" for i in infos) and self.has(","):
            name = self.expect_kind("word")
            if all(i.name != name.text or i.kind != "optional" for i in infos):
                raise self.error(f"{opcode} has no {name.text}", name)
            content[name.text] = self.use()
        if self.next.text == "{" and self.is_attributes():
            content |= dict(self.sequence("{", "}", self.setting))
        types: list[tuple[TileType, facts.Fact | None]] = []
        if self.has(":"):
            types.append(self.typed())
            while self.has(","):
                types.append(self.typed())
        if len(types) != len(names):
            raise self.error(f"{len(names)} results and {len(types)} types", start)
        results = tuple(self.define(name, *type) for name, type in zip(names, types, strict=True))
        shape = types[0][0].shape if types else ()
        if not types and isinstance(content.get("value"), Value):
            shape = content["value"].shape
        try:
            op = self.assemble(kind, content, shape, types)
        except VerifyError as error:
            raise self.error(error.what, start) from None
        op.results = results
        known = facts.infer(op, self.grid)
        for value, (_, stated) in zip(results, types, strict=True):
            if stated is None:
                facts.set_fact(value, known)
        block.ops.append(op)
        op.origin = self.origins()
        for position, info in enumerate(i for i in infos if i.kind == "block"):
            if position:
                self.expect(info.name)
            inner: Block = getattr(op, info.name)
            self.params(op, inner)
            self.expect("{")
            op.origin = op.origin or self.origins()
            self.block(inner)

    def origins(self) -> tuple[tuple[str, ...], ...]:
        """Of an op: the names of its line, as one."""
        names = self.origin()
        return (names,) if names else ()

    def is_attributes(self) -> bool:
        """Whether the brace opens attributes and not a block: `name =` follows."""
        ahead = self.tokens[self.position + 1 : self.position + 3]
        return len(ahead) == 2 and ahead[0].kind == "word" and ahead[1].text == "="

    def operands(self, infos: list[FieldInfo], content: dict[str, Any]) -> None:
        for position, info in enumerate(infos):
            if position:
                self.expect(",")
            if info.kind == "value":
                content[info.name] = self.use()
            elif info.kind == "values":
                content[info.name] = tuple(self.sequence("(", ")", self.use))
            elif info.kind == "index":
                content[info.name] = self.sum()
            elif info.kind == "indices":
                content[info.name] = tuple(self.sequence("[", "]", self.sum))
            else:
                token = self.expect_kind("view")
                if token.text[1:] not in self.views:
                    raise self.error(f"there is no view {token.text}", token)
                content[info.name] = self.views[token.text[1:]]

    def assemble(
        self,
        kind: type[Op],
        content: dict[str, Any],
        shape: tuple[int, ...],
        types: list[tuple[TileType, facts.Fact | None]],
    ) -> Op:
        for info in fields_of(kind):
            if info.kind == "block":
                content[info.name] = Block()
            elif info.kind == "index":
                content[info.name] = content[info.name](shape)
            elif info.kind == "indices":
                content[info.name] = tuple(build(shape) for build in content[info.name])
            elif info.name in FROM_TYPE and info.name not in content and types:
                content[info.name] = getattr(types[0][0], info.name)
            elif info.annotation == "DType" and isinstance(content.get(info.name), str):
                content[info.name] = DTYPES.get(content[info.name])
            elif info.name not in content and info.default is MISSING:
                raise VerifyError(f"{kind.opcode} needs {info.name}")
        unknown = set(content) - {info.name for info in fields_of(kind)}
        if unknown:
            raise VerifyError(f"{kind.opcode} has no {', '.join(sorted(unknown))}")
        return kind(**content)

    def params(self, op: Op, block: Block) -> None:
        if self.next.text != "(":
            return

        def param() -> None:
            token = self.expect_kind("value")
            self.expect(":")
            type, stated = self.typed()
            if stated is None and isinstance(op, ops.For) and not block.params:
                stated = facts.infer_variable(op.start, op.stop, op.step)
            block.params.append(self.define(token, type, stated))

        self.sequence("(", ")", param)
