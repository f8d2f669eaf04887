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

Everything is derived from the fields of an op (fuser/tilegen/core/text.py); blocks have the names
of their fields. @2 is a slot, `@2<f16 128x64 inner 1>[%t5]` a tile in it. `:=` is an integer
(integers.py). What nothing in the text defines is `given`. parse.py reads it back.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence

from fuser.backend.nvptx.ir.integers import text_of
from fuser.backend.nvptx.ir.layout_text import layout_text
from fuser.backend.nvptx.ir.names import Named, Names
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.uses import NAME, carried, defines, uses
from fuser.backend.nvptx.ir.values import Place, Scope, SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.dtypes import DType
from fuser.graph.dims import DimExpr
from fuser.tilegen.core.forms import Form
from fuser.tilegen.core.records import Field
from fuser.tilegen.core.text import Printer, fact_text, ints_text, name_text, settings
from fuser.tilegen.index import Index, show, show_dim
from fuser.tilegen.ir import Buffer

PROGRAM = Form(
    "gpu @{name:name} {arch:name} warps({warps:integer}) threads({threads:integer})"
    " launch({launch:integers})(?cluster cluster({cluster:integer})?)"
    "(?resident resident({resident:integer})?)(?fast fast?)"
)
SLOT = Form(
    "@{number:integer}: {bytes:integer} bytes align {align:integer} at {offset:integer}"
    "(?early early?)(?copies copies {copies:integer}?)"
)
TYPE = Form("{dtype:dtype}[{shape:dims}] {layout:known_layout}")
SHARED = Form("<{dtype:dtype} {shape:dims} inner {inner:integer}>(?stage[{stage:scalar}]?)")
PLACE = Form(
    "[{linear:later}] of {shape:place_dims}(?order along ({order:integers}) by {width:integer}?)"
    "(?ragged ragged {ragged:integer}?)"
    "(?bounds where ({bounds:tests})?)(?mask mask {mask:mask}?)(?long long?)"
    "(?long_bounds long_bounds?)"
)


def print_program(program: Program) -> str:
    """The text of a program; parse_program reads it back. Clashing names are made unique."""
    return _Printer(program).text()


def print_op(program: Program, op: Op) -> str:
    """The first line of one op, as print_program prints it: for messages."""
    return next(_Printer(program).op(op)).strip()


class _Printer(Printer):
    labels = True
    gap = "    "
    later = scalar = staticmethod(str)

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
        content = {**vars(program), "name": name_text(program.name)}
        for name in ("cluster", "resident"):
            content[name] = content[name] if content[name] > 1 else 0
        first = PROGRAM.show(content, self)
        return self.framed(first, self.declared(), self.ops())

    def declared(self) -> Iterator[str]:
        """A line for each thing that stands before the ops."""
        program = self.program
        for buffer in program.buffers:
            yield self.buffer(buffer, self.names.of(buffer))
        for item in program.tensor_maps:
            yield f"map {self.content(item)}"
        for table, numbers in program.tables.items():
            yield f"table {json.dumps(table)} ({ints_text(numbers)})"
        for slot in program.slots:
            copies = 0 if slot.copies == 1 else slot.copies
            yield f"slot {SLOT.show({**vars(slot), 'copies': copies}, self)}"
        for (layout, _), name in self.layouts.items():
            yield f"layout {name} = {layout_text(layout)}"
        for given in self.names.given:
            yield f"given {self.param(given)}"

    def ops(self) -> Iterator[str]:
        if self.program.head.ops:
            yield from ("  head {", *self.block(self.program.head, "    "), "  }")
        yield from self.block(self.program.body, "  ")

    def param(self, item: Named) -> str:
        if isinstance(item, Tile):
            return f"{self.names.of(item)}: {self.type(item)}"
        return self.known(item)

    def known(self, name: str) -> str:
        return name + fact_text(self.names.fact(name))

    def type(self, tile: Tile) -> str:
        return TYPE.show(vars(tile), self) + fact_text(self.names.fact(tile))

    def known_layout(self, layout: Layout) -> str:
        return self.layouts[layout, layout.shape]

    def dims(self, shape: Coordinates) -> str:
        return "x".join(map(str, shape))

    def place_dims(self, shape: Coordinates) -> str:
        return self.dims(shape) or "one"

    def mask(self, tile: Tile) -> str:
        return self.names.of(tile)

    def tests(self, tests: Iterable[tuple[str, int]]) -> str:
        return ", ".join(f"{at} < {show_dim(size)}" for at, size in tests)

    # ops ----------------------------------------------------------------------------------------

    def header(self, op: Op) -> str:
        if isinstance(op, Integer):
            text = text_of(op.fn, op.type, op.operands, op.to)
            return f"{self.known(op.names[0])} := {text}"
        return super().header(op)

    def origins(self, op: Op) -> Sequence[str]:
        return () if isinstance(op, Integer) else op.origin

    def made(self, op: Op) -> Iterable[str]:
        return (*map(self.names.of, op.results), *map(self.known, op.names))

    def types(self, op: Op) -> Iterable[str]:
        return map(self.type, op.results)

    def params(self, op: Op, block: Block) -> Iterable[str]:
        first = block is op.blocks()[0]
        return map(self.param, (*block.params, *(carried(op) if first else ())))

    def own(self, content: object, info: Field | None, op: Op | None) -> str | None:
        match content:
            case Tile() | Buffer():
                return self.names.of(content)
            case Slot():
                return f"@{content.number}"
            case SharedTile():
                return f"@{content.slot.number}{SHARED.show(vars(content), self)}"
            case Layout():
                return self.known_layout(content)
            case Place():
                return self.place(content)
            case Index():
                return f"[{self.index(content, getattr(op, 'scope', Scope()))}]"
            case DimExpr():
                return show_dim(content)  # type: ignore[arg-type]
            case str() if NAME.fullmatch(content):
                return content
            case _ if dataclasses.is_dataclass(content) and not isinstance(content, type | DType):
                fields = {i.name: getattr(content, i.name) for i in dataclasses.fields(content)}
                listed = ", ".join(settings(fields, lambda item: self.own(item, info, op)))
                return f"{type(content).__name__}{{{listed}}}"
        return None

    def place(self, at: Place) -> str:
        access = at.access
        content = {
            **vars(access), **vars(at), "linear": self.index(access.linear, at.scope),
            "bounds": [(self.index(test, at.scope), size) for test, size in access.bounds],
        }  # fmt: skip
        return f"&{self.names.of(access.view.buffer)}{PLACE.show(content, self)}"

    def index(self, expression: Index, scope: Scope) -> str:
        return show(
            self.names.canonical(expression, scope), lambda value: value.name, self.names.rank
        )
