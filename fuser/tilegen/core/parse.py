"""Read ops and blocks of either IR from text, by the fields of their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any

from fuser.errors import VerifyError
from fuser.tilegen.core.reader import Later, Reader, Token
from fuser.tilegen.core.records import SILENT, Field, blocks_of, fields_of, misfit
from fuser.tilegen.facts import Fact

Made = tuple[Token, Fact | None]
"""A name left of `=`, with what is stated of it there."""
NAMED = ("fn", "attribute", "optional")
"""Kinds of fields that are no operands by their place."""


class Parser(Reader):
    """Ops of an IR that says how its types are written and what its values are.

    kinds: the classes of ops by opcode. new_block: makes an empty block. tile: the class of values
    whose axes index expressions name. labels: whether the first block of an op is named, as the
    others are. type: reads the type of a result: (type, what is stated of it, ...). define: gives
    an op its results, by the names left of `=` and the types. param: reads what a block is given.
    """

    kinds: Mapping[str, type[Any]]
    new_block: type[Any]
    tile: type[Any]
    labels = False
    type: Callable[[], Any]
    define: Callable[[Any, list[Made], list[Any], Token], None]
    param: Callable[[Any, Any], Any]

    def short(self, made: Made) -> Any:
        """An op with a form of its own, after the name that it gives; None where there is none."""
        return None

    def fill(self, content: dict[str, Any], infos: Mapping[str, Field], types: list[Any]) -> None:
        """Add what text does not give of an op."""

    def declarations(self, own: Mapping[str, Callable[[], object]]) -> None:
        """What stands before the ops, each by its first word."""
        known: dict[str, Callable[[], object]] = {
            "sizes": lambda: self.sequence("(", ")", self.setting),
            "moving": lambda: self.sequence("(", ")", self.literal),
            "buffer": self.buffer,
            **own,
        }
        while self.next.kind == "word" and self.next.text in known:
            known[self.take().text]()

    def body(self, block: Any) -> None:
        """The ops of a program, to the end of the text."""
        self.block(block)
        if self.next.kind != "end":
            raise self.error(f"expected the end, found {self.next.text!r}")

    def block(self, block: Any) -> None:
        """Ops up to and with the closing brace."""
        while not self.has("}"):
            block.ops.append(self.op())

    def op(self) -> Any:
        made: list[Made] = []
        while self.next.kind == "value":
            made.append((self.take(), self.stated()))
            if (short := self.short(made[-1])) is not None:
                return short
            self.expect("=" if self.next.text != "," else ",")
        start = self.expect_kind("word")
        opcode, _, fn = start.text.partition(".")
        if opcode not in self.kinds:
            raise self.error(f"there is no op {opcode!r}", start)
        kind = self.kinds[opcode]
        infos = {info.name: info for info in fields_of(kind)}
        blocks = blocks_of(kind)
        content: dict[str, Any] = {"fn": fn} if fn else {}
        self.operands(kind, infos, content)
        # where the first block has no name, a brace may open it
        ahead = self.tokens[self.position + 1 : self.position + 3]
        if self.sees("{") and (
            self.labels or not blocks or (ahead[0].kind == "word" and ahead[-1].text == "=")
        ):
            content |= dict(self.sequence("{", "}", self.setting))
        types: list[Any] = []
        while self.has("," if types else ":"):
            types.append(self.type())
        try:
            op = self.assemble(kind, infos, content, types)
            self.define(op, made, types, start)
        except VerifyError as error:
            raise self.error(error.what, start) from None
        op.origin = self.origin()
        for name in blocks:
            if self.labels or name != blocks[0]:
                self.expect(name)
            inner = getattr(op, name)
            if self.next.text == "(":
                self.params(op, inner)
            self.expect("{")
            op.origin = op.origin or self.origin()
            self.block(inner)
        return op

    def operands(self, kind: Any, infos: Mapping[str, Field], content: dict[str, Any]) -> None:
        reads: dict[str, Callable[[], Any]] = {
            "index": self.later,
            "indices": lambda: self.sequence("[", "]", self.later),
            "buffers": lambda: self.sequence("(", ")", self.known_buffer),
        }
        for number, info in enumerate(i for i in infos.values() if i.kind not in (*NAMED, *SILENT)):
            if number:
                self.expect(",")
            start = self.next
            found = reads.get(info.kind, self.literal)()
            if info.kind not in reads and not isinstance(found, Later):
                if wrong := misfit(kind, info, found):
                    raise self.error(wrong, start)
            content[info.name] = found
        optional = [name for name, info in infos.items() if info.kind == "optional"]
        while optional and self.has(","):
            name = self.expect_kind("word")
            if name.text not in optional:
                raise self.error(f"{kind.opcode} has no {name.text}", name)
            content[name.text] = self.use()

    def params(self, op: Any, block: Any) -> None:
        self.sequence("(", ")", lambda: block.params.append(self.param(op, block)))

    def assemble(
        self, kind: Any, infos: Mapping[str, Field], content: dict[str, Any], types: list[Any]
    ) -> Any:
        """The op, with its index expressions built and what text does not give."""
        if unknown := set(content) - set(infos):
            raise VerifyError(f"{kind.opcode} has no {', '.join(sorted(unknown))}")
        shapes = (item.shape for item in content.values() if isinstance(item, self.tile))
        shape = types[0][0].shape if types else next(shapes, ())
        content = {name: self.built(item, shape) for name, item in content.items()}
        self.fill(content, infos, types)
        for name, info in infos.items():
            if info.kind == "block":
                content[name] = self.new_block()
            elif name not in content and info.default is MISSING:
                raise VerifyError(f"{kind.opcode} needs {name}")
            elif info.annotation == "DType" and isinstance(content.get(name), str):
                content[name] = self.dtype_of(content[name])
            elif name in content and info.kind in NAMED:
                if wrong := misfit(kind, info, content[name]):
                    raise VerifyError(wrong)
        return kind(**content)
