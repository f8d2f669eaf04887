"""GPU IR as text: one op a line, results left, types right, layouts named once.

    gpu @scale sm_90a warps(4) threads(128) launch(8, 1, 1) {
      buffer x_0: input f32[1000]
      layout #l0 = 128 regs lanes (1) (2) (4) (8) (16) warps (32) (64)

      head {
        %tid := tid.x i32
      }
      %t0 in [0, 7] := ctaid.x i32
      %x0 = load &x_0[%t0*128 + #0] of 128 along (0) by 1 where (%t0*128 + #0 < 1000) : f32[128] #l0
      %x1 = multiply %x0 {number = 2.0} : f32[128] #l0    # /scale/Mul
    }

Everything is derived from the fields of an op: what it reads in order, then attributes in braces
(those equal to their default are left out), then blocks by the names of their fields. `fn` follows
the opcode. @2 is a slot, `@2<f16 128x64 inner 1>[%t5]` a tile in it. `:=` is an integer
(integers.py). What nothing in the text defines is `given`. parse.py reads it back.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping

from fuser.backend.nvptx.ir.integers import text_of
from fuser.backend.nvptx.ir.layout_text import layout_text
from fuser.backend.nvptx.ir.names import Names
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.syntax import FieldInfo, fields_of
from fuser.backend.nvptx.ir.uses import NAME, carried, defines, uses
from fuser.backend.nvptx.ir.values import Place, Scope, SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.graph import dims
from fuser.graph.dims import DimExpr
from fuser.graph.sizes import Sizes, same
from fuser.tilegen.facts import UNKNOWN, Fact
from fuser.tilegen.index import Index, show, show_dim
from fuser.tilegen.ir import Buffer
from fuser.tilegen.syntax import literal, name_text
from fuser.tilegen.text import origin_text
from fuser.tilegen.value import UNBOUNDED


def print_program(program: Program) -> str:
    """The text of a program; parse_program reads it back. Clashing names are made unique."""
    return _Printer(program).text()


def print_op(program: Program, op: Op) -> str:
    """The first line of one op, as print_program prints it: for messages."""
    return next(_Printer(program).op(op)).strip()


class _Printer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = Names(program)
        self.layouts: dict[tuple[Layout, Coordinates], str] = {}
        for op in program.walk():
            for item in (*uses(op), *defines(op)):
                layout = item.layout if isinstance(item, Tile) else item
                if isinstance(layout, Layout):
                    self.layouts.setdefault((layout, layout.shape), f"#l{len(self.layouts)}")

    def text(self) -> str:
        program = self.program
        settings = {"warps": program.warps, "threads": program.threads}
        words = [f"gpu @{name_text(program.name)} {program.arch}"]
        words += [f"{name}({value})" for name, value in settings.items()]
        words.append(f"launch({', '.join(map(show_dim, program.launch))})")
        if program.cluster > 1:
            words.append(f"cluster({program.cluster})")
        if program.resident > 1:
            words.append(f"resident({program.resident})")
        if program.fast:
            words.append("fast")
        lines = [f"{' '.join(words)} {{"]
        lines += [f"  {self.buffer(buffer)}" for buffer in program.buffers]
        lines += [f"  map {self.content(item)}" for item in program.tensor_maps]
        for table, numbers in program.tables.items():
            lines.append(f"  table {json.dumps(table)} ({', '.join(map(str, numbers))})")
        lines += [f"  {slot_text(slot)}" for slot in program.slots]
        lines += [f"  layout {name} = {layout_text(key[0])}" for key, name in self.layouts.items()]
        lines += [f"  given {self.given(item)}" for item in self.names.given]
        lines.append("")
        if program.head.ops:
            lines += ["  head {", *self.block(program.head, "    "), "  }"]
        lines += self.block(program.body, "  ")
        if (sizes := dims.active()) is not None and any("`" in line for line in lines):
            examples = ", ".join(f"{json.dumps(n)} = {s}" for n, s in sizes.examples.items())
            lines.insert(1, f"  sizes({examples})")
            if isinstance(sizes, Sizes) and sizes.moving:
                lines.insert(2, f"  moving({', '.join(map(json.dumps, sorted(sizes.moving)))})")
        return "\n".join((*lines, "}")) + "\n"

    def buffer(self, buffer: Buffer) -> str:
        text = f"buffer {self.names.of(buffer)}: {buffer.role} {buffer.dtype}"
        text += f"[{show_dim(buffer.size)}]"
        if buffer.open:
            text += f" open align({buffer.align})"
        return text + (f" alias({buffer.alias})" if buffer.alias else "")

    def given(self, item: Tile | str) -> str:
        return self.param(item)

    def param(self, item: Tile | str) -> str:
        if isinstance(item, Tile):
            return f"{self.names.of(item)}: {self.type(item)}"
        return item + fact_text(self.names.fact(item))

    def type(self, tile: Tile) -> str:
        shape = "x".join(map(str, tile.shape))
        text = f"{tile.dtype}[{shape}] {self.layout(tile.layout)}"
        return text + fact_text(self.names.fact(tile))

    def layout(self, layout: Layout) -> str:
        return self.layouts[layout, layout.shape]

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for op in block.ops:
            for line in self.op(op):
                yield indent + line

    def op(self, op: Op) -> Iterator[str]:
        """The lines of an op: its own, then those of its blocks."""
        if isinstance(op, Integer):
            name, text = op.names[0], text_of(op.fn, op.type, op.operands, op.to)
            yield f"{name}{fact_text(self.names.fact(name))} := {text}"
            return
        comment = f"    # {', '.join(map(origin_text, op.origin))}" if op.origin else ""
        line, blocks = self.header(op), list(nested(op))
        for position, (name, block) in enumerate(blocks):
            found = (*block.params, *(() if position else carried(op)))
            params = f" ({', '.join(map(self.param, found))})" if found else ""
            start = "}" if position else line
            yield f"{start} {name}{params} {{{'' if position else comment}"
            yield from self.block(block, "  ")
        yield "}" if blocks else line + comment

    def header(self, op: Op) -> str:
        word, operands, attributes = op.opcode, [], []
        for info in fields_of(type(op)):
            content = getattr(op, info.name)
            if info.kind == "fn":
                word += f".{content}"
            elif info.kind == "operand":
                operands.append(self.content(content, op))
            elif info.kind == "attribute" and not is_default(info, content):
                attributes.append(f"{info.name} = {self.content(content, op)}")
        made = [self.names.of(tile) for tile in op.results]
        made += [name + fact_text(self.names.fact(name)) for name in op.names]
        line = f"{', '.join(made)} = {word}" if made else word
        if operands:
            line += f" {', '.join(operands)}"
        if attributes:
            line += f" {{{', '.join(attributes)}}}"
        if op.results:
            line += f" : {', '.join(map(self.type, op.results))}"
        return line

    def content(self, content: object, op: Op | None = None) -> str:
        """What a field holds."""
        match content:
            case Tile() | Buffer():
                return self.names.of(content)
            case Slot():
                return f"@{content.number}"
            case SharedTile():
                shape = "x".join(map(str, content.shape))
                text = f"@{content.slot.number}<{content.dtype} {shape} inner {content.inner}>"
                return text if content.stage == 0 else f"{text}[{self.content(content.stage)}]"
            case Layout():
                return self.layout(content)
            case Place():
                return self.place(content)
            case Index():
                return f"[{self.index(content, scope_of(op))}]"
            case DimExpr():
                return f"`{content}`"
            case str() if NAME.fullmatch(content):
                return content
            case tuple() | list():
                inner = ", ".join(self.content(item, op) for item in content)
                return f"({inner},)" if len(content) == 1 else f"({inner})"
            case Mapping():
                pairs = (f"{name_text(str(k))} = {self.content(v, op)}" for k, v in content.items())
                return "{" + ", ".join(pairs) + "}"
            case _ if dataclasses.is_dataclass(content) and not isinstance(content, type):
                if type(content).__name__ == "DType":
                    return literal(content)
                pairs = (
                    f"{item.name} = {self.content(getattr(content, item.name), op)}"
                    for item in dataclasses.fields(content)
                )
                return f"{type(content).__name__}{{{', '.join(pairs)}}}"
        return literal(content)

    def place(self, at: Place) -> str:
        access = at.access
        words = [
            f"&{self.names.of(access.view.buffer)}[{self.index(access.linear, at.scope)}]",
            f"of {'x'.join(map(str, access.shape)) or 'one'}",
        ]
        if access.order:
            words += [f"along ({', '.join(map(str, access.order))})", f"by {access.width}"]
        if access.bounds:
            tests = [f"{self.index(i, at.scope)} < {show_dim(size)}" for i, size in access.bounds]
            words.append(f"where ({', '.join(tests)})")
        if at.mask is not None:
            words.append(f"mask {self.names.of(at.mask)}")
        words += [name for name in ("long", "long_bounds") if getattr(at, name)]
        return " ".join(words)

    def index(self, expression: Index, scope: Scope) -> str:
        return show(
            self.names.canonical(expression, scope), lambda value: value.name, self.names.rank
        )


def nested(op: Op) -> Iterator[tuple[str, Block]]:
    """The blocks of an op, by the names of the fields."""
    for info in fields_of(type(op)):
        if info.kind == "block":
            content = getattr(op, info.name)
            for block in content if isinstance(content, tuple | list) else (content,):
                if block is not None:
                    yield info.name, block


def scope_of(op: Op | None) -> Scope:
    """What the scalars in index expressions of an op are."""
    found = getattr(op, "scope", None)
    return found if isinstance(found, Scope) else Scope()


def is_default(info: FieldInfo, content: object) -> bool:
    """Whether text leaves an attribute out."""
    return type(content) is type(info.default) and content == info.default


def slot_text(slot: Slot) -> str:
    """The declaration of a slot."""
    text = f"slot @{slot.number}: {slot.bytes} bytes align {slot.align} at {slot.offset}"
    text += " early" if slot.early else ""
    return text + (f" copies {slot.copies}" if slot.copies != 1 else "")


def fact_text(fact: Fact) -> str:
    """` in [0, 96] by 32`, or nothing."""
    if all(map(same, fact, UNKNOWN)):
        return ""
    low = "-inf" if isinstance(fact[0], int) and fact[0] <= -UNBOUNDED else show_dim(fact[0])
    high = "inf" if isinstance(fact[1], int) and fact[1] >= UNBOUNDED else show_dim(fact[1])
    by = f" by {show_dim(fact[2])}" if not same(fact[2], 1) else ""
    return f" in [{low}, {high}]{by}"
