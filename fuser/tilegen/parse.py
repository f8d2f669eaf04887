"""Read a tile program from its text (text.py writes it, docs/tile-ir.md holds the grammar).

Index expressions are rebuilt through index.py, so that they come out in canonical form; ranges and
divisors of integer values are inferred as the builder infers them, unless the text states them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fuser.graph.sizes import Sizes
from fuser.tilegen import facts, ops
from fuser.tilegen.core.parse import Made, Parser
from fuser.tilegen.core.reader import Token
from fuser.tilegen.core.records import Field
from fuser.tilegen.ir import Block, Kernel, Op, View
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.text import FROM_TYPE, KERNEL, VIEW
from fuser.tilegen.value import TileType, Value

_TILE = re.compile(r"tile<((?:\d+x)+)(\w+)>")


def parse_kernel(text: str) -> Kernel:
    """The kernel that the text describes; it is not verified. Raises ParseError with the line."""
    return _Parser(text).kernel()


def sizes_of(text: str) -> Sizes | None:
    """The example sizes that a kernel's text states, with which it must be parsed and compiled."""
    sizes, moving = _line(text, "sizes"), _line(text, "moving")
    if sizes is None:
        return None
    names = moving.sequence("(", ")", moving.literal) if moving is not None else ()
    return Sizes(dict(sizes.sequence("(", ")", sizes.setting)), names)


def _line(text: str, word: str) -> _Parser | None:
    """What follows the first word of a line, if there is such a line."""
    found = re.search(rf"^  {word}(\(.*\))$", text, re.MULTILINE)
    return None if found is None else _Parser(found[1])


class _Parser(Parser):
    kinds, new_block, tile = ops.OPS, Block, Value

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.views: dict[str, View] = {}
        self.grid: tuple[int, ...] = ()
        self.settings = Schedule()
        self.scalars: list[Value] = []

    # header -------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        given = KERNEL.read(self)
        self.grid = given["grid"]
        self.expect("{")
        self.declarations({"schedule": self.schedule, "view": self.view, "scalar": self.scalar})
        body = Block()
        self.body(body)
        return Kernel(
            **given, buffers=list(self.buffers.values()), views=list(self.views.values()),
            body=body, schedule=self.settings, scalars=self.scalars,
        )  # fmt: skip

    def schedule(self) -> None:
        start = self.last
        try:
            self.settings = Schedule(**dict(self.sequence("(", ")", self.setting)))
        except TypeError:
            raise self.error("a schedule has no such setting", start) from None

    def scalar(self) -> None:
        token = self.expect_kind("value")
        self.expect(":")
        self.scalars.append(self.value(token, *self.type()))

    def view(self) -> None:
        view = View(**VIEW.read(self))
        settled = view.settled
        if settled and (len(settled) != 2 or settled[0] not in range(len(view.shape))):
            raise self.error("settled has a dim of the view and a count", self.last)
        if view.name in self.views:
            raise self.error(f"view &{view.name} is declared twice", self.last)
        self.views[view.name] = view

    def view_name(self) -> str:
        return self.expect_kind("view").text[1:]

    def extents(self) -> tuple[int, ...]:
        return self.items(self.bound)

    # values -------------------------------------------------------------------------------------

    def type(self) -> tuple[TileType, facts.Fact | None]:
        """A type and the facts stated after it: `index in [0, 96] by 32`."""
        token = self.expect_kind("type", "word")
        shape: tuple[int, ...] = ()
        name = token.text
        if token.kind == "type":
            match = _TILE.fullmatch(token.text)
            if match is None:
                raise self.error(f"{token.text} is not a tile type", token)
            shape, name = tuple(map(int, match[1].split("x")[:-1])), match[2]
        return TileType(self.dtype_of(name), shape), self.stated()

    def value(self, token: Token, type: TileType, fact: facts.Fact | None) -> Value:
        name = token.text[1:]
        if name in self.values:
            raise self.error(f"{token.text} is defined twice", token)
        value = Value(type, name)
        if fact is not None:
            facts.set_fact(value, fact)
        self.values[name] = value
        return value

    def param(self, op: Op, block: Block) -> Value:
        token = self.expect_kind("value")
        self.expect(":")
        type, stated = self.type()
        if stated is None and isinstance(op, ops.For) and not block.params:
            stated = facts.infer_variable(op.start, op.stop, op.step)
        return self.value(token, type, stated)

    # ops ----------------------------------------------------------------------------------------

    def view_of(self, token: Token) -> View:
        return self.known(self.views, token.text[1:], f"there is no view {token.text}")

    def fill(self, content: dict[str, Any], infos: Mapping[str, Field], types: list[Any]) -> None:
        for name in FROM_TYPE:
            if types and name in infos:
                content.setdefault(name, getattr(types[0][0], name))

    def define(self, op: Op, made: list[Made], types: list[Any], start: Token) -> None:
        if len(types) != len(made):
            raise self.error(f"{len(made)} results and {len(types)} types", start)
        if any(fact is not None for _, fact in made):
            raise self.error("what is stated of a result follows its type", start)
        pairs = zip(made, types, strict=True)
        op.results = tuple(self.value(token, *type) for (token, _), type in pairs)
        known = facts.infer(op, self.grid)
        for value, (_, stated) in zip(op.results, types, strict=True):
            if stated is None:
                facts.set_fact(value, known)

    def origin(self) -> tuple[tuple[str, ...], ...]:  # type: ignore[override]
        """The names of an op's line, as one."""
        names = super().origin()
        return (names,) if names else ()
