"""Read a tile program from its text (text.py writes it, docs/tile-ir.md holds the grammar).

Index expressions are rebuilt through index.py, so that they come out in canonical form; ranges and
divisors of integer values are inferred as the builder infers them, unless the text states them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from typing import Any

from fuser.errors import ParseError, VerifyError
from fuser.graph.dims import as_int, parse
from fuser.graph.sizes import Sizes, is_symbolic, same
from fuser.tilegen import facts, ops
from fuser.tilegen.index import (
    Index,
    axis,
    floordiv,
    index,
    lookup,
    maximum,
    minimum,
    modulo,
    scalar,
)
from fuser.tilegen.ir import Block, Buffer, Kernel, Op, View
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.syntax import DTYPES, FROM_TYPE, FieldInfo, fields_of
from fuser.tilegen.value import UNBOUNDED, TileType, Value

Expression = Callable[[tuple[int, ...]], Index]
"""An index expression that still waits for the tile shape, which gives its axes their extents."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)
    |(?P<line>\n)
    |(?P<axis>\#\d+)
    |(?P<comment>\#[^\n]*)
    |(?P<type>tile<[^>\n]*>)
    |(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>\d+)
    |(?P<value>%[\w.]+)
    |(?P<view>&[\w.]+)
    |(?P<dim>`[^`\n]*`)
    |(?P<string>"(?:\\.|[^"\\\n])*")
    |(?P<word>[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<mark>//|[@(){}\[\]=,:*+%-])""",
    re.VERBOSE,
)
_TILE = re.compile(r"tile<((?:\d+x)+)(\w+)>")


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


def parse_kernel(text: str) -> Kernel:
    """The kernel that the text describes; it is not verified. Raises ParseError with the line."""
    return _Parser(text).kernel()


_SIZES = re.compile(r"^  sizes\((.*)\)$", re.MULTILINE)


def sizes_of(text: str) -> Sizes | None:
    """The example sizes that a kernel's text states, with which it must be parsed and compiled."""
    line = _SIZES.search(text)
    if line is None:
        return None
    parser = _Parser(f"({line[1]})")
    return Sizes(dict(parser.sequence("(", ")", parser.setting)))


def _tokens(text: str) -> Iterator[Token]:
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"unexpected character {text[position]!r}", where=f"line {line}")
        kind = str(match.lastgroup)
        if kind == "line":
            line += 1
        elif kind != "space":
            yield Token(kind, match.group(), line)
        position = match.end()
    yield Token("end", "the end", line)


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.tokens = list(_tokens(text))
        self.position = 0
        self.last = self.tokens[0]
        self.buffers: dict[str, Buffer] = {}
        self.views: dict[str, View] = {}
        self.values: dict[str, Value] = {}
        self.grid: tuple[int, ...] = ()

    # tokens -------------------------------------------------------------------------------------

    def skip_comments(self) -> None:
        while self.tokens[self.position].kind == "comment":
            self.position += 1

    @property
    def next(self) -> Token:
        """The next token that is no comment; a comment stays for `origin` until it is passed."""
        position = self.position
        while self.tokens[position].kind == "comment":
            position += 1
        return self.tokens[position]

    def take(self) -> Token:
        self.skip_comments()
        self.last = self.tokens[self.position]
        self.position += 1
        return self.last

    def error(self, what: str, token: Token | None = None) -> ParseError:
        token = token or self.next
        line = self.lines[token.line - 1].strip() if token.line <= len(self.lines) else ""
        return ParseError(what, where=f"line {token.line}: {line}")

    def has(self, text: str) -> bool:
        """Take the token if it is `text`."""
        if self.next.text == text and self.next.kind in ("mark", "word"):
            self.take()
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.has(text):
            raise self.error(f"expected {text!r}, found {self.next.text!r}")

    def expect_kind(self, *kinds: str) -> Token:
        if self.next.kind not in kinds:
            raise self.error(f"expected a {' or '.join(kinds)}, found {self.next.text!r}")
        return self.take()

    def name(self) -> str:
        token = self.expect_kind("word", "string")
        return json.loads(token.text) if token.kind == "string" else token.text

    def integer(self) -> int:
        """A number; a symbolic dim stands for one while a Sizes is active."""
        if self.next.kind == "dim":
            return as_int(parse(self.take().text.strip("`")))
        sign = -1 if self.has("-") else 1
        return sign * int(self.expect_kind("int").text)

    def integers(self, opening: str, closing: str) -> tuple[int, ...]:
        return tuple(self.sequence(opening, closing, self.integer))

    def extent(self) -> int:
        return UNBOUNDED if self.has("inf") else self.integer()

    def sequence(self, opening: str, closing: str, item: Callable[[], Any]) -> list[Any]:
        self.expect(opening)
        items: list[Any] = []
        while not self.has(closing):
            items.append(item())
            if not self.has(","):
                self.expect(closing)
                break
        return items

    def origin(self) -> tuple[str, ...]:
        """The names in a comment that stands on the line of the last token."""
        token = self.tokens[self.position]
        if token.kind != "comment" or token.line != self.last.line:
            return ()
        found = re.findall(r'"(?:\\.|[^"\\])*"|[^\s,"][^,]*', token.text[1:])
        return tuple(json.loads(n) if n.startswith('"') else n.strip() for n in found)

    # header -------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        self.expect("kernel")
        self.expect("@")
        name = self.name()
        self.expect("grid")
        self.grid = self.integers("(", ")")
        self.expect("{")
        schedule = Schedule()
        scalars: list[Value] = []
        while True:
            if self.has("sizes"):
                self.sequence("(", ")", self.setting)  # what `sizes_of` reads
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
        return Kernel(name, buffers, views, self.grid, body, schedule, scalars)

    def schedule(self) -> Schedule:
        start = self.last
        settings = dict(self.sequence("(", ")", self.setting))
        try:
            return Schedule(**settings)
        except TypeError:
            raise self.error("a schedule has no such setting", start) from None

    def setting(self) -> tuple[str, Any]:
        name = self.name()
        self.expect("=")
        return name, self.literal()

    def literal(self) -> Any:
        token = self.next
        if token.text == "(" and token.kind == "mark":
            return tuple(self.sequence("(", ")", self.literal))
        if token.text == "[" and token.kind == "mark":
            return self.sequence("[", "]", self.literal)
        if token.text == "{" and token.kind == "mark":
            return dict(self.sequence("{", "}", self.setting))
        if token.kind == "dim":
            return self.integer()
        negative = self.has("-")
        token = self.take()
        if token.kind == "int":
            return -int(token.text) if negative else int(token.text)
        if token.kind == "float" or token.text in ("inf", "nan"):
            return -float(token.text) if negative else float(token.text)
        if token.kind == "string" and not negative:
            return json.loads(token.text)
        if token.kind == "word" and not negative:
            return {"none": None, "true": True, "false": False}.get(token.text, token.text)
        raise self.error(f"expected a value, found {token.text!r}", token)

    def buffer(self) -> None:
        name = self.name()
        self.expect(":")
        role = self.expect_kind("word")
        if role.text not in ("input", "output", "constant", "workspace"):
            raise self.error(f"{role.text!r} is not a role of a buffer", role)
        dtype = self.expect_kind("word")
        if dtype.text not in DTYPES:
            raise self.error(f"there is no element type {dtype.text!r}", dtype)
        (size,) = self.integers("[", "]")
        if name in self.buffers:
            raise self.error(f"buffer {name} is declared twice", role)
        buffer = Buffer(name, DTYPES[dtype.text], size, role.text)  # type: ignore[arg-type]
        if self.has("open"):
            self.expect("align")
            buffer.open, (buffer.align,) = True, self.integers("(", ")")
        if self.has("alias"):
            (buffer.alias,) = self.integers("(", ")")
        self.buffers[name] = buffer

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
        name = token.text[1:]
        if name in self.views:
            raise self.error(f"view {token.text} is declared twice", token)
        self.views[name] = View(name, self.buffers[buffer], shape, strides, offset)

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
        if not self.has("in"):
            return type, None
        low, high = self.sequence("[", "]", self.literal)
        by = self.integer() if self.has("by") else 1
        low, high = (
            end if is_symbolic(end) else max(-UNBOUNDED, min(UNBOUNDED, end)) for end in (low, high)
        )
        return type, (as_int(low), as_int(high), by)

    def define(self, token: Token, type: TileType, fact: facts.Fact | None) -> Value:
        name = token.text[1:]
        if name in self.values:
            raise self.error(f"{token.text} is defined twice", token)
        value = Value(type, name)
        if fact is not None:
            facts.set_fact(value, fact)
        self.values[name] = value
        return value

    def use(self) -> Value:
        token = self.expect_kind("value")
        if token.text[1:] not in self.values:
            raise self.error(f"{token.text} is not defined", token)
        return self.values[token.text[1:]]

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
        op.origin = self.origin()
        for position, info in enumerate(i for i in infos if i.kind == "block"):
            if position:
                self.expect(info.name)
            inner: Block = getattr(op, info.name)
            self.params(op, inner)
            self.expect("{")
            op.origin = op.origin or self.origin()
            self.block(inner)

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

    # index expressions --------------------------------------------------------------------------

    def sum(self) -> Expression:
        negative = self.has("-")
        total = _scaled(self.product(), -1) if negative else self.product()
        while self.next.text in ("+", "-") and self.next.kind == "mark":
            sign = 1 if self.take().text == "+" else -1
            total = _added(total, _scaled(self.product(), sign))
        return total

    def product(self) -> Expression:
        result = self.factor()
        while self.next.kind == "mark" and self.next.text in ("*", "//", "%"):
            mark = self.take().text
            number = self.integer()
            if mark == "*":
                result = _scaled(result, number)
            elif number <= 0:
                raise self.error("a divisor must be positive", self.last)
            else:
                result = _divided(result, number, floordiv if mark == "//" else modulo)
        return result

    def factor(self) -> Expression:
        if self.next.kind == "dim":
            dim = self.integer()
            return lambda shape: index(dim)
        token = self.take()
        if token.kind == "int":
            return lambda shape: index(int(token.text))
        if token.kind == "axis":
            return self.axis(token)
        if token.kind == "value":
            self.position -= 1
            value = self.use()
            if self.next.text != "[":
                return lambda shape: scalar(value)
            axes = self.sequence("[", "]", lambda: int(self.expect_kind("axis").text[1:]))
            return lambda shape: lookup(value, axes)
        if token.text in ("min", "max"):
            items = self.sequence("(", ")", self.sum)
            pick = minimum if token.text == "min" else maximum
            return lambda shape: pick(*(item(shape) for item in items))
        if token.text == "(":
            inner = self.sum()
            self.expect(")")
            return inner
        raise self.error(f"expected an index expression, found {token.text!r}", token)

    def axis(self, token: Token) -> Expression:
        number = int(token.text[1:])

        def build(shape: tuple[int, ...]) -> Index:
            if number >= len(shape):
                raise self.error(f"{token.text} in a tile of shape {shape}", token)
            return axis(number, shape[number])

        return build


def _scaled(term: Expression, factor: int) -> Expression:
    return term if same(factor, 1) else lambda shape: term(shape) * factor


def _added(a: Expression, b: Expression) -> Expression:
    return lambda shape: a(shape) + b(shape)


def _divided(base: Expression, divisor: int, divide: Callable[[Index, int], Index]) -> Expression:
    return lambda shape: divide(base(shape), divisor)
