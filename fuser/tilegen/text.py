"""Tile programs as text: one op a line, results left, types right, ONNX nodes in a comment.

    kernel @scale grid(8) {
      buffer x: input f32[1000]
      buffer y: output f32[1000]
      view &x0: x[1000] strides(1)
      view &y1: y[1000] strides(1)

      %pid1 = program_id {axis = 0} : index
      %x2 = load &x0, [%pid1*128 + #0] : tile<128xf32>    # /scale/Mul
      store &y1, [%pid1*128 + #0], %x2                    # /scale/Mul
    }

Everything is derived from the fields of an op (core/text.py); `shape` and `dtype`, which the type
repeats, are left out. docs/tile-ir.md holds the grammar.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fuser.tilegen import facts, ops
from fuser.tilegen.core.forms import Form
from fuser.tilegen.core.records import Field
from fuser.tilegen.core.text import Printer, fact_text, fresh, name_text, settings
from fuser.tilegen.index import Index, show, show_dim
from fuser.tilegen.ir import Block, Kernel, Op, View
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import UNBOUNDED, Value

FROM_TYPE = ("shape", "dtype")
"""Attributes that repeat the type of the result."""
KERNEL = Form("kernel @{name:name} grid({grid:integers})(?fast fast?)(?row_order row_order?)")
VIEW = Form(
    "{name:view_name}: {buffer:known_buffer}[{shape:extents}] strides({strides:integers})"
    "(?offset offset({offset:integer})?)(?settled settled({settled:integers})?)"
)


def print_kernel(kernel: Kernel) -> str:
    """The text of a kernel; parse_kernel reads it back. Clashing value names are made unique."""
    printer = _Printer(kernel, own_names(kernel), kernel.views, marked=True)
    return printer.text(kernel.name, kernel.schedule)


def print_op(kernel: Kernel, op: Op) -> str:
    """The first line of one op, as print_kernel prints it: for error messages."""
    return next(_Printer(kernel, own_names(kernel), kernel.views).op(op))


def canonical_text(kernel: Kernel) -> str:
    """The text without origins and with every name a number: equal for equal programs.

    It holds all that decides the generated code, so that it is the key of the kernel cache.
    """
    every = (content for op in kernel.walk() for content in op.contents())
    views = list(dict.fromkeys(content for content in every if isinstance(content, View)))
    names: dict[object, str] = {}
    for word, items in ("b", kernel.buffers), ("v", views), ("", _all_values(kernel)):
        names |= {item: f"{word}{number}" for number, item in enumerate(items)}
    schedule = dataclasses.replace(kernel.schedule, reason="")
    return _Printer(kernel, names, views).text("kernel", schedule)


def renumber(kernel: Kernel) -> None:
    """Number the values in order of definition, keeping the word before the number: %x3, %acc4.
    Scalars of the launch keep their names, by which it gives them."""
    for number, value in enumerate(_definitions(kernel.body)):
        value.name = f"{value.name.rstrip('0123456789_.') or 'v'}{number}"


def _definitions(block: Block) -> Iterator[Value]:
    """Every value in the order in which the text defines it: results before the nested block."""
    for op in block.ops:
        yield from op.results
        for inner in op.blocks():
            yield from inner.params
            yield from _definitions(inner)


def _all_values(kernel: Kernel) -> Iterator[Value]:
    yield from kernel.scalars
    yield from _definitions(kernel.body)


def own_names(kernel: Kernel) -> dict[object, str]:
    """The names of buffers, views and values as print_kernel prints them, without `&` and `%`."""
    names: dict[object, str] = {buffer: name_text(buffer.name) for buffer in kernel.buffers}
    for group in (kernel.views, _all_values(kernel)):
        taken: set[str] = set()
        for item in group:
            names[item] = fresh(re.sub(r"[^\w.]", "_", item.name), taken)
    return names


class _Printer(Printer):
    """marked: with the nodes of the model that ops come from."""

    def __init__(
        self,
        kernel: Kernel,
        names: Mapping[object, str],
        views: Sequence[View],
        marked: bool = False,
    ) -> None:
        self.kernel, self.names, self.views, self.marked = kernel, names, views, marked
        self.ranks = {value: rank for rank, value in enumerate(_all_values(kernel))}

    def text(self, name: str, schedule: Schedule) -> str:
        first = KERNEL.show({**vars(self.kernel), "name": name_text(name)}, self)
        return self.framed(first, self.declared(schedule), self.block(self.kernel.body, "  "))

    def declared(self, schedule: Schedule) -> Iterator[str]:
        """A line for each thing that stands before the ops."""
        default = vars(Schedule())
        changed = {name: item for name, item in vars(schedule).items() if item != default[name]}
        if changed:
            yield f"schedule({', '.join(settings(changed))})"
        for buffer in self.kernel.buffers:
            yield self.buffer(buffer, self.names[buffer])
        for view in self.views:
            yield self.view(view)
        for value in self.kernel.scalars:
            yield f"scalar {self.value(value)}: {_type_text(value, facts.UNKNOWN)}"

    def view(self, view: View) -> str:
        buffer = self.names.get(view.buffer, name_text(view.buffer.name))
        content = {**vars(view), "name": self.names[view], "buffer": buffer}
        return f"view {VIEW.show(content, self)}"

    def view_name(self, name: str) -> str:
        return f"&{name}"

    def extents(self, shape: Iterable[int]) -> str:
        bare = (
            "inf" if isinstance(dim, int) and dim >= UNBOUNDED else show_dim(dim) for dim in shape
        )
        return ", ".join(bare)

    def origins(self, op: Op) -> Sequence[str]:
        return self.kernel.origin_of(op) if self.marked else ()

    def made(self, op: Op) -> Iterable[str]:
        return map(self.value, op.results)

    def types(self, op: Op) -> Iterable[str]:
        known = facts.infer(op, self.kernel.grid) if op.results else facts.UNKNOWN
        return (_type_text(value, known) for value in op.results)

    def is_told(self, info: Field, content: Any, op: Op) -> bool:
        name = info.name
        return name in FROM_TYPE and bool(op.results) and getattr(op.result, name) == content

    def params(self, op: Op, block: Block) -> Iterator[str]:
        for position, value in enumerate(block.params):
            known = facts.UNKNOWN
            if isinstance(op, ops.For) and position == 0:
                known = facts.infer_variable(op.start, op.stop, op.step)
            yield f"{self.value(value)}: {_type_text(value, known)}"

    def own(self, content: Any, info: Field | None, op: Op) -> str | None:
        match content:
            case Value():
                return self.value(content)
            case View():
                return f"&{self.names.get(content, content.name)}"
            case Index():
                return self.index(content)
            case tuple() if info is not None and info.kind == "indices":
                return f"[{', '.join(map(self.index, content))}]"
            case tuple() if info is not None and info.kind == "values":
                return f"({', '.join(map(self.value, content))})"
        return None

    def value(self, value: Value) -> str:
        return f"%{self.names.get(value, value.name)}"

    def index(self, expression: Index) -> str:
        return show(expression, self.value, lambda value: self.ranks.get(value, -1))


def _type_text(value: Value, known: facts.Fact) -> str:
    """The type, and the facts that parsing would not infer again."""
    text = str(value.type)
    return text + fact_text(facts.fact_of(value), known) if value.dtype.is_integer else text
