"""Read text token by token: names, literals, buffers and index expressions, as both IRs have them.

An index expression is read in two steps: where it stands it is passed over (`later`), and read
(`built`) once the tile is known whose axes it names.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, get_args

from fuser.dtypes import BY_NAME, DType
from fuser.errors import ParseError
from fuser.graph.dims import as_int, parse
from fuser.graph.sizes import is_symbolic
from fuser.tilegen.core.forms import BUFFER
from fuser.tilegen.facts import Fact
from fuser.tilegen.index import Index, axis, index, lookup, maximum, minimum, scalar
from fuser.tilegen.ir import Buffer, Role
from fuser.tilegen.value import INDEX, UNBOUNDED, Value

K = TypeVar("K")
V = TypeVar("V")
DTYPES: dict[str, DType] = {**BY_NAME, INDEX.name: INDEX}

ROLES: dict[str, Role] = {name: name for name in get_args(Role)}
TOKEN = re.compile(
    r"""[ \t\r]*(?:
     (?P<type>tile<[^>\n]*>)
    |(?P<word>[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<value>%[\w.]+)
    |(?P<mark>//|:=|[@(){}\[\]<>=,:*+%-])
    |(?P<dims>\d+(?:x\d+)+)
    |(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>\d+)
    |(?P<line>\n)
    |(?P<layout>\#l\d+)
    |(?P<axis>\#\d+)
    |(?P<comment>\#[^\n]*)
    |(?P<view>&[\w.]+)
    |(?P<dim>`[^`\n]*`)
    |(?P<string>"(?:\\.|[^"\\\n])*")
    |(?P<wrong>[^ \t\r]))""",
    re.VERBOSE,
)
STEPS: dict[str, Callable[[Index, int], Index]] = {
    "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")
STOPS, ENDS = frozenset((":", "<", "{", "}", "the end")), frozenset((",", ")", "]"))
"""What is never in an index expression, and what is not in one but in brackets."""


class Token(NamedTuple):
    kind: str
    text: str
    line: int


class Later(NamedTuple):
    """An index expression that waits for the shape of its tile: its tokens, from one to another."""

    start: int
    end: int


class Reader:
    """Tokens of a text, and what has been declared so far. shape: of the tile whose axes index
    expressions name."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.comments: dict[int, str] = {}
        self.tokens = list(self.split(text))
        self.position = 0
        self.last = self.tokens[0]
        self.shape: tuple[int, ...] = ()
        self.buffers: dict[str, Buffer] = {}
        self.values: dict[str, Value] = {}

    # tokens -------------------------------------------------------------------------------------

    def split(self, text: str) -> Iterator[Token]:
        line = 1
        for match in TOKEN.finditer(text):
            kind = str(match.lastgroup)
            if kind == "line":
                line += 1
            elif kind == "comment":
                self.comments[line] = match[kind]
            elif kind == "wrong":
                raise ParseError(f"unexpected character {match[kind]!r}", where=f"line {line}")
            else:
                yield Token(kind, match[kind], line)
        yield Token("end", "the end", line)

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    def take(self) -> Token:
        self.last = self.tokens[self.position]
        self.position += 1
        return self.last

    def error(self, what: str, token: Token | None = None) -> ParseError:
        number = (token or self.next).line
        line = self.lines[number - 1].strip() if number <= len(self.lines) else ""
        return ParseError(what, where=f"line {number}: {line}")

    def sees(self, text: str) -> bool:
        token = self.tokens[self.position]
        return token.text == text and token.kind in ("mark", "word")

    def has(self, text: str) -> bool:
        """Take the token if it is `text`."""
        token = self.tokens[self.position]
        if token.text != text or token.kind not in ("mark", "word"):
            return False
        self.last = token
        self.position += 1
        return True

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

    def integers(self) -> tuple[int, ...]:
        """Numbers up to a closing bracket."""
        return self.items(self.integer)

    def items(self, item: Callable[[], Any]) -> tuple[Any, ...]:
        """What stands up to a closing bracket, with commas between."""
        found: list[Any] = []
        while not found or self.has(","):
            if self.next.text in CLOSING:
                break
            found.append(item())
        return tuple(found)

    def sequence(self, opening: str, closing: str, item: Callable[[], Any]) -> tuple[Any, ...]:
        self.expect(opening)
        found = self.items(item)
        self.expect(closing)
        return found

    def origin(self) -> tuple[str, ...]:
        """The names in a comment that stands on the line of the last token."""
        comment = self.comments.get(self.last.line, "#")
        found = re.findall(r'"(?:\\.|[^"\\])*"|[^\s,"][^,]*', comment[1:])
        return tuple(json.loads(n) if n.startswith('"') else n.strip() for n in found)

    view_of: Callable[[Token], Any]
    """What a name with & is."""

    def value_of(self, value: Value) -> Any:
        """What the IR has in the place of a value."""
        return value

    def setting(self) -> tuple[str, Any]:
        name = self.name()
        self.expect("=")
        return name, self.literal()

    def literal(self) -> Any:
        token = self.next
        if token.kind == "mark":
            if token.text == "(":
                return self.sequence("(", ")", self.literal)
            if token.text == "{":
                return dict(self.sequence("{", "}", self.setting))
        if token.kind == "value":
            return self.value_of(self.use())
        if token.kind == "view":
            return self.view_of(self.take())
        if token.kind == "dim":
            return self.integer()
        sign = -1 if self.has("-") else 1
        token = self.take()
        if token.kind == "int":
            return sign * int(token.text)
        if token.kind == "float" or token.text in ("inf", "nan"):
            return sign * float(token.text)
        if token.kind == "string" and sign > 0:
            return json.loads(token.text)
        if token.kind == "word" and sign > 0:
            return {"none": None, "true": True, "false": False}.get(token.text, token.text)
        raise self.error(f"expected a value, found {token.text!r}", token)

    # what both IRs declare ----------------------------------------------------------------------

    def dtype(self) -> DType:
        return self.dtype_of(self.expect_kind("word").text)

    def dtype_of(self, name: str) -> DType:
        return self.known(DTYPES, name, f"there is no element type {name!r}")

    def known(self, table: Mapping[K, V], key: K, otherwise: str) -> V:
        """What a table has for what the last token names; otherwise: what an error says."""
        if key not in table:
            raise self.error(otherwise, self.last)
        return table[key]

    def role(self) -> Role:
        name = self.expect_kind("word").text
        return self.known(ROLES, name, f"{name!r} is not a role of a buffer")

    def buffer(self) -> None:
        buffer = Buffer(**BUFFER.read(self))
        if buffer.name in self.buffers:
            raise self.error(f"buffer {buffer.name} is declared twice", self.last)
        self.buffers[buffer.name] = buffer

    def known_buffer(self) -> Buffer:
        return self.buffer_of(self.name())

    def buffer_of(self, name: str) -> Buffer:
        return self.known(self.buffers, name, f"there is no buffer {name}")

    def use(self) -> Value:
        name = self.expect_kind("value").text
        return self.known(self.values, name[1:], f"{name} is not defined")

    def stated(self) -> Fact | None:
        """The facts that follow an integer: `in [0, 96] by 32`."""
        if not self.has("in"):
            return None
        ends = self.sequence("[", "]", self.bound)
        if len(ends) != 2:
            raise self.error(f"expected a least and a greatest value, found {len(ends)}", self.last)
        return ends[0], ends[1], self.integer() if self.has("by") else 1

    def bound(self) -> int:
        """A number, or `inf`."""
        sign = -1 if self.has("-") else 1
        found = UNBOUNDED if self.has("inf") else self.integer()
        return found if is_symbolic(found) else max(-UNBOUNDED, min(UNBOUNDED, sign * found))

    # index expressions --------------------------------------------------------------------------

    def later(self) -> Later:
        """Pass over an index expression."""
        start, depth, line = self.position, 0, self.next.line
        while (token := self.next).text not in STOPS:
            if not depth and (token.text in ENDS or token.line != line):
                break
            depth += (token.text in OPENING) - (token.text in CLOSING)
            self.take()
        return Later(start, self.position)

    def built(self, item: Any, shape: tuple[int, ...]) -> Any:
        """What was read, with the index expressions in it over a tile of a shape."""
        if isinstance(item, Later):
            position, self.position, self.shape = self.position, item.start, shape
            found = self.sum()
            if self.position != item.end:
                raise self.error(f"expected the end of an expression, found {self.next.text!r}")
            self.position = position
            return found
        return tuple(self.built(i, shape) for i in item) if isinstance(item, tuple) else item

    def sum(self) -> Index:
        total = self.product() * -1 if self.has("-") else self.product()
        while self.next.text in ("+", "-") and self.next.kind == "mark":
            total = total + (self.product() if self.take().text == "+" else self.product() * -1)
        return total

    def product(self) -> Index:
        result = self.factor()
        while self.next.kind == "mark" and self.next.text in ("*", "//", "%"):
            mark = self.take().text
            number = self.integer()
            if mark != "*" and number <= 0:
                raise self.error("a divisor must be positive", self.last)
            result = STEPS[mark](result, number)
        return result

    def factor(self) -> Index:
        token = self.next
        if token.kind in ("int", "dim"):
            return index(self.integer())
        if token.kind == "value":
            value = self.use()
            if self.next.text != "[":
                return scalar(value)
            return lookup(value, self.sequence("[", "]", self.axis))
        if token.kind == "axis":
            found = self.axis()
            if found >= len(self.shape):
                raise self.error(f"{token.text} in a tile of shape {self.shape}", token)
            return axis(found, self.shape[found])
        self.take()
        if token.text in ("min", "max"):
            items = self.sequence("(", ")", self.sum)
            return (minimum if token.text == "min" else maximum)(*items)
        if token.text == "(":
            inner = self.sum()
            self.expect(")")
            return inner
        raise self.error(f"expected an index expression, found {token.text!r}", token)

    def axis(self) -> int:
        return int(self.expect_kind("axis").text[1:])
