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

Everything is derived from the fields of an op: operands in order, then attributes in braces (those
equal to their default are left out, and so are `shape` and `dtype`, which the type repeats), then
nested blocks. `fn` follows the opcode: map.add, reduce.max. docs/tile-ir.md holds the grammar.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuser.graph import dims
from fuser.graph.sizes import Sizes, same
from fuser.tilegen import facts, ops
from fuser.tilegen.index import Index, show, show_dim
from fuser.tilegen.ir import Block, Buffer, Kernel, Op, View
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.syntax import FROM_TYPE, WORD, fields_of, is_default, literal, name_text
from fuser.tilegen.value import UNBOUNDED, Value


def print_kernel(kernel: Kernel) -> str:
    """The text of a kernel; parse_kernel reads it back. Clashing value names are made unique."""
    printer = _Printer(kernel, own_names(kernel), kernel.views)
    return printer.text(kernel.name, kernel.schedule, origins=True)


def print_op(kernel: Kernel, op: Op) -> str:
    """The first line of one op, as print_kernel prints it: for error messages."""
    return next(_Printer(kernel, own_names(kernel), kernel.views).op(op, origins=False))


def canonical_text(kernel: Kernel) -> str:
    """The text without origins and with every name a number: equal for equal programs.

    It holds all that decides the generated code, so that it is the key of the kernel cache.
    """
    views = list(dict.fromkeys(c for op in kernel.walk() for _, c in op.fields() if _is_view(c)))
    names: dict[object, str] = {}
    for number, buffer in enumerate(kernel.buffers):
        names[buffer] = f"b{number}"
    for number, view in enumerate(views):
        names[view] = f"v{number}"
    for number, value in enumerate(_all_values(kernel)):
        names[value] = str(number)
    schedule = dataclasses.replace(kernel.schedule, reason="")
    return _Printer(kernel, names, views).text("kernel", schedule, origins=False)


def renumber(kernel: Kernel) -> None:
    """Number the values in order of definition, keeping the word before the number: %x3, %acc4.
    Scalars of the launch keep their names, by which it gives them."""
    for number, value in enumerate(_definitions(kernel.body)):
        value.name = f"{value.name.rstrip('0123456789_.') or 'v'}{number}"


def _is_view(content: object) -> bool:
    return isinstance(content, View)


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
            name = base = re.sub(r"[^\w.]", "_", item.name)
            tries = 1
            while name in taken:
                name, tries = f"{base}_{tries}", tries + 1
            taken.add(name)
            names[item] = name
    return names


class _Printer:
    def __init__(self, kernel: Kernel, names: Mapping[object, str], views: Sequence[View]) -> None:
        self.kernel, self.names, self.views = kernel, names, views
        self.ranks = {value: rank for rank, value in enumerate(_all_values(kernel))}

    def text(self, name: str, schedule: Schedule, origins: bool) -> str:
        grid = ", ".join(map(show_dim, self.kernel.grid))
        fast = " fast" if self.kernel.fast else ""
        lines = [f"kernel @{name_text(name)} grid({grid}){fast} {{"]
        default = Schedule()
        settings = [
            f"{item.name} = {literal(getattr(schedule, item.name))}"
            for item in dataclasses.fields(Schedule)
            if getattr(schedule, item.name) != getattr(default, item.name)
        ]
        if settings:
            lines.append(f"  schedule({', '.join(settings)})")
        lines += [f"  {self.buffer(buffer)}" for buffer in self.kernel.buffers]
        lines += [f"  {self.view(view)}" for view in self.views]
        for value in self.kernel.scalars:
            lines.append(f"  scalar {self.value(value)}: {_type_text(value, facts.UNKNOWN)}")
        lines.append("")
        lines += self.block(self.kernel.body, "  ", origins)
        if (sizes := dims.active()) is not None and any("`" in line for line in lines):
            examples = ", ".join(f"{json.dumps(n)} = {s}" for n, s in sizes.examples.items())
            lines.insert(1, f"  sizes({examples})")
            if isinstance(sizes, Sizes) and sizes.moving:
                lines.insert(2, f"  moving({', '.join(map(json.dumps, sorted(sizes.moving)))})")
        return "\n".join((*lines, "}")) + "\n"

    def buffer(self, buffer: Buffer) -> str:
        size = show_dim(buffer.size)
        text = f"buffer {self.names[buffer]}: {buffer.role} {buffer.dtype}[{size}]"
        if buffer.open:
            text += f" open align({buffer.align})"
        return text + (f" alias({buffer.alias})" if buffer.alias else "")

    def view(self, view: View) -> str:
        shape = ", ".join(map(_extent_text, view.shape))
        strides = ", ".join(map(show_dim, view.strides))
        buffer = self.names.get(view.buffer, name_text(view.buffer.name))
        text = f"view &{self.names[view]}: {buffer}[{shape}] strides({strides})"
        text += f" offset({show_dim(view.offset)})" if view.offset else ""
        settled = ", ".join(map(show_dim, view.settled or ()))
        return text + (f" settled({settled})" if settled else "")

    def block(self, block: Block, indent: str, origins: bool) -> Iterator[str]:
        for op in block.ops:
            for line in self.op(op, origins):
                yield indent + line

    def op(self, op: Op, origins: bool) -> Iterator[str]:
        """The lines of an op: its own, then those of its blocks."""
        line = self.header(op)
        names = self.kernel.origin_of(op) if origins else ()
        comment = f"  # {', '.join(map(origin_text, names))}" if names else ""
        nested = [(info.name, getattr(op, info.name)) for info in fields_of(type(op))
                  if info.kind == "block"]  # fmt: skip
        if not nested:
            yield line + comment
            return
        for position, (name, block) in enumerate(nested):
            params = f" ({', '.join(self.params(op, block))})" if block.params else ""
            yield f"}} {name}{params} {{" if position else f"{line}{params} {{{comment}"
            yield from self.block(block, "  ", origins)
        yield "}"

    def header(self, op: Op) -> str:
        word, operands, attributes = op.opcode, [], []
        for info in fields_of(type(op)):
            content = getattr(op, info.name)
            if info.name == "fn":
                word += f".{content}"
            elif info.kind == "attribute":
                if not is_default(info, content) and not _repeats_type(op, info.name, content):
                    attributes.append(f"{info.name} = {literal(content)}")
            elif info.kind == "optional":
                if content is not None:
                    operands.append(f"{info.name} {self.value(content)}")
            elif info.kind == "indices":
                operands.append(f"[{', '.join(map(self.index, content))}]")
            elif info.kind != "block":
                operands.append(self.operand(content))
        line = f"{', '.join(self.value(value) for value in op.results)} = " if op.results else ""
        line += word
        if operands:
            # map.add(%a, %b), but: index (#0 + 1) // 2
            called = fields_of(type(op))[-1].kind == "values" and len(operands) == 1
            line += ("" if called else " ") + ", ".join(operands)
        if attributes:
            line += f" {{{', '.join(attributes)}}}"
        if op.results:
            known = facts.infer(op, self.kernel.grid)
            line += " : " + ", ".join(_type_text(value, known) for value in op.results)
        return line

    def params(self, op: Op, block: Block) -> Iterator[str]:
        for position, value in enumerate(block.params):
            known = facts.UNKNOWN
            if isinstance(op, ops.For) and position == 0:
                known = facts.infer_variable(op.start, op.stop, op.step)
            yield f"{self.value(value)}: {_type_text(value, known)}"

    def operand(self, content: Any) -> str:
        match content:
            case Value():
                return self.value(content)
            case View():
                return f"&{self.names.get(content, content.name)}"
            case Index():
                return self.index(content)
            case _:
                return f"({', '.join(map(self.value, content))})"

    def value(self, value: Value) -> str:
        return f"%{self.names.get(value, value.name)}"

    def index(self, expression: Index) -> str:
        return show(expression, self.value, lambda value: self.ranks.get(value, -1))


def _extent_text(dim: int) -> str:
    return "inf" if isinstance(dim, int) and dim >= UNBOUNDED else show_dim(dim)


def _repeats_type(op: Op, name: str, content: Any) -> bool:
    return name in FROM_TYPE and bool(op.results) and getattr(op.result, name) == content


def _type_text(value: Value, known: facts.Fact) -> str:
    """The type, and the facts that parsing would not infer again."""
    text = str(value.type)
    stated = facts.fact_of(value)
    if value.dtype.is_integer and not all(map(same, stated, known)):
        low = "-inf" if value.low <= -UNBOUNDED else show_dim(value.low)
        high = "inf" if value.high >= UNBOUNDED else show_dim(value.high)
        text += f" in [{low}, {high}]"
        if value.multiple != 1:
            text += f" by {value.multiple}"
    return text


def origin_text(name: str) -> str:
    plain = re.fullmatch(r'[^\s,"][^\n,]*', name) and name == name.strip() and WORD
    return name if plain else json.dumps(name)
