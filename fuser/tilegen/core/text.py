"""Programs of both IRs as text: one op a line, results left, types right.

Everything is derived from the fields of an op: `fn` follows the opcode, then come the operands in
order, attributes in braces (those equal to their default are left out), and nested blocks. An IR
says how its values and their types are written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fuser.dtypes import DType
from fuser.errors import VerifyError
from fuser.graph import dims
from fuser.graph.sizes import Sizes, same
from fuser.tilegen.core.forms import BUFFER
from fuser.tilegen.core.records import SILENT, BlockBase, Field, blocks_of, fields_of
from fuser.tilegen.facts import UNKNOWN, Fact
from fuser.tilegen.index import show_dim
from fuser.tilegen.ir import Buffer
from fuser.tilegen.value import UNBOUNDED

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
RESERVED = frozenset(("none", "true", "false", "inf", "nan"))


def name_text(name: str) -> str:
    """A name as it is, or quoted if it is not a plain word."""
    return name if WORD.fullmatch(name) else json.dumps(name)


def fresh(base: str, taken: set[str]) -> str:
    """A name like `base` that is not taken; it is from now on."""
    name, tries = base, 1
    while name in taken:
        name, tries = f"{base}_{tries}", tries + 1
    taken.add(name)
    return name


def origin_text(names: Iterable[str]) -> str:
    """The nodes of the model that an op comes from, as its comment has them."""
    return ", ".join(
        name if re.fullmatch(r'[^\s,"][^\n,]*', name) and name == name.strip() else json.dumps(name)
        for name in names
    )


def ints_text(numbers: Iterable[int]) -> str:
    """Numbers, some of which may be symbolic, with commas."""
    return ", ".join(map(show_dim, numbers))


def fact_text(fact: Fact, known: Fact = UNKNOWN) -> str:
    """` in [0, 96] by 32`, or nothing if that is known."""
    if all(map(same, fact, known)):
        return ""
    low, high, by = fact
    least = "-inf" if isinstance(low, int) and low <= -UNBOUNDED else show_dim(low)
    most = "inf" if isinstance(high, int) and high >= UNBOUNDED else show_dim(high)
    return f" in [{least}, {most}]" + ("" if same(by, 1) else f" by {show_dim(by)}")


def literal(content: Any, own: Callable[[Any], str | None] = lambda content: None) -> str:
    """An attribute as text. own: the text of what only one IR has, or None.

    Raises VerifyError for what text cannot hold."""
    if (text := own(content)) is not None:
        return text
    if isinstance(content, np.generic):
        content = content.item()
    match content:
        case None:
            return "none"
        case bool():
            return "true" if content else "false"
        case int():
            return str(content)
        case float():
            return repr(content) if math.isfinite(content) else str(content)
        case DType():
            return content.name
        case str():
            plain = WORD.fullmatch(content) and content not in RESERVED
            return content if plain else json.dumps(content)
        case tuple() | list():
            inner = ", ".join([literal(item, own) for item in content])
            return f"({inner},)" if len(content) == 1 else f"({inner})"
        case Mapping():
            return "{" + ", ".join(sorted(settings(content, own))) + "}"
    raise VerifyError(f"{content!r} cannot be an attribute of a program")


def settings(
    content: Mapping[Any, Any], own: Callable[[Any], str | None] = lambda content: None
) -> list[str]:
    """`name = literal` for each item."""
    return [f"{name_text(str(key))} = {literal(item, own)}" for key, item in content.items()]


def is_default(info: Field, content: Any) -> bool:
    """Whether the content is the default, which text leaves out; 0 and 0.0 differ."""
    if isinstance(content, np.generic):
        content = content.item()
    return type(content) is type(info.default) and repr(content) == repr(info.default)


class Printer:
    """Lines of programs, of an IR that says what its values and their types are called.

    made, types: of the results of an op. params: what a block of it is given. origins: nodes of the
    model that it comes from. own: the text of what only this IR has, in a field of an op. labels:
    whether the first block of an op is named, as the others are. gap: before a comment.
    """

    made: Callable[[Any], Iterable[str]]
    types: Callable[[Any], Iterable[str]]
    params: Callable[[Any, Any], Iterable[str]]
    origins: Callable[[Any], Sequence[str]]
    own: Callable[[Any, Field | None, Any], str | None]
    labels = False
    gap = "  "
    # the kinds of fields in forms
    integer, integers = staticmethod(show_dim), staticmethod(ints_text)
    name = dtype = role = known_buffer = staticmethod(str)

    def is_told(self, info: Field, content: Any, op: Any) -> bool:
        """Whether the type of the result tells an attribute."""
        return False

    def framed(self, first: str, declared: Iterable[str], ops: Iterable[str]) -> str:
        """A whole program, with the sizes in force if it names any."""
        lines = [f"{first} {{", *(f"  {line}" for line in declared), "", *ops]
        if (sizes := dims.active()) is not None and any("`" in line for line in lines):
            examples = ", ".join(f"{json.dumps(n)} = {s}" for n, s in sizes.examples.items())
            lines.insert(1, f"  sizes({examples})")
            if isinstance(sizes, Sizes) and sizes.moving:
                lines.insert(2, f"  moving({', '.join(map(json.dumps, sorted(sizes.moving)))})")
        return "\n".join((*lines, "}")) + "\n"

    def buffer(self, buffer: Buffer, name: str) -> str:
        return f"buffer {BUFFER.show({**vars(buffer), 'name': name}, self)}"

    def block(self, block: BlockBase[Any, Any], indent: str) -> Iterator[str]:
        for op in block.ops:
            for line in self.op(op):
                yield indent + line

    def op(self, op: Any) -> Iterator[str]:
        """The lines of an op: its own, then those of its blocks."""
        line, names = self.header(op), self.origins(op)
        comment = f"{self.gap}# {origin_text(names)}" if names else ""
        blocks = blocks_of(type(op))
        for name in blocks:
            block, is_first = getattr(op, name), name == blocks[0]
            params = ", ".join(self.params(op, block))
            label = "" if is_first and not self.labels else f" {name}"
            given = f" ({params})" if params else ""
            yield f"{line if is_first else '}'}{label}{given} {{{comment if is_first else ''}"
            yield from self.block(block, "  ")
        yield "}" if blocks else line + comment

    def header(self, op: Any) -> str:
        """The line of an op, up to the blocks."""
        word, operands, attributes = op.opcode, [], []
        infos = fields_of(type(op))
        for info in infos:
            content = getattr(op, info.name)
            if info.kind == "fn":
                word += f".{content}"
            elif info.kind == "attribute":
                if not is_default(info, content) and not self.is_told(info, content, op):
                    attributes.append(f"{info.name} = {self.content(content, info, op)}")
            elif info.kind == "optional":
                if content is not None:
                    operands.append(f"{info.name} {self.content(content, info, op)}")
            elif info.kind not in SILENT:
                operands.append(self.content(content, info, op))
        line = f"{made} = {word}" if (made := ", ".join(self.made(op))) else word
        if operands:
            # map.add(%a, %b), but: index (#0 + 1) // 2
            called = infos[-1].kind == "values" and len(operands) == 1
            line += ("" if called else " ") + ", ".join(operands)
        if attributes:
            line += f" {{{', '.join(attributes)}}}"
        return line + (f" : {types}" if (types := ", ".join(self.types(op))) else "")

    def content(self, content: Any, info: Field | None = None, op: Any = None) -> str:
        """What a field holds."""
        text = self.own(content, info, op)
        return literal(content, lambda item: self.own(item, info, op)) if text is None else text
