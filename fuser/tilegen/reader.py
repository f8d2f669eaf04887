"""Read text token by token: names, literals, buffers and index expressions, as the Tile IR and the
IRs of back ends have them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fuser.errors import ParseError
from fuser.graph.dims import as_int, parse
from fuser.graph.sizes import is_symbolic, same
from fuser.tilegen.facts import Fact
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
from fuser.tilegen.ir import Buffer
from fuser.tilegen.syntax import DTYPES
from fuser.tilegen.value import UNBOUNDED, Value

Expression = Callable[[tuple[int, ...]], Index]
"""An index expression that still waits for the tile shape, which gives its axes their extents."""

TOKEN = re.compile(
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


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


def tokens_of(text: str, pattern: re.Pattern[str] = TOKEN) -> Iterator[Token]:
    position, line = 0, 1
    while position < len(text):
        match = pattern.match(text, position)
        if match is None:
            raise ParseError(f"unexpected character {text[position]!r}", where=f"line {line}")
        kind = str(match.lastgroup)
        if kind == "line":
            line += 1
        elif kind != "space":
            yield Token(kind, match.group(), line)
        position = match.end()
    yield Token("end", "the end", line)


class Reader:
    """Tokens of a text, and what has been declared so far. pattern: of tokens, whose groups are
    their kinds."""

    pattern = TOKEN

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.tokens = list(tokens_of(text, self.pattern))
        self.position = 0
        self.last = self.tokens[0]
        self.buffers: dict[str, Buffer] = {}
        self.values: dict[str, Value] = {}

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

    def use(self) -> Value:
        token = self.expect_kind("value")
        if token.text[1:] not in self.values:
            raise self.error(f"{token.text} is not defined", token)
        return self.values[token.text[1:]]

    def stated(self) -> Fact | None:
        """The facts that follow an integer: `in [0, 96] by 32`."""
        if not self.has("in"):
            return None
        low, high = self.sequence("[", "]", self.literal)
        by = self.integer() if self.has("by") else 1
        low, high = (
            end if is_symbolic(end) else max(-UNBOUNDED, min(UNBOUNDED, end)) for end in (low, high)
        )
        return as_int(low), as_int(high), by

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
