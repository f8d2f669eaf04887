"""What the CPU back end decided for a kernel, as records and as text: `fuser dump --stage cpu`.

    kernel @attention, x86-64-v3, vectors of 8 words
    scratch 49408 bytes
    values
      %acc5  f32[32x128]  memory, 16384 bytes, axes (1, 0)
      %r8    f32[32]      memory, 128 bytes
    dots
      %acc5  %x2 %x3  register tile of 4 x 2 vectors along rows
    nests
      reduce  %v7   32x128  vectors of 8 along axis 0
      store   %v17  32x64   vectors of 8 along axis 1, 4 an iteration

Values that are not listed are evaluated where they are wanted: a nest names what it stores, keeps
or folds, and computes all that this is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.backend.cpu.dots.records import DotPlan
from fuser.tilegen.ir import Op
from fuser.tilegen.text import own_names
from fuser.tilegen.value import Value

Task = Literal["store", "keep", "copy", "reduce", "scan", "atomic"]
"""What a nest is for: stores; a tile in scratch, computed or copied; folds; updates."""
MOST_NAMES = 4
"""Values of a nest that are named; of more, their number."""


@dataclass
class Nest:
    """One loop nest. values: what it evaluates. axis: the vectorised one; -1: none. form: loops
    around vectors; a register tile without loops; or squares of vectors transposed in registers.
    interleaved: vectors that are computed side by side. unrolled: groups of them an iteration.
    ends: whether the axis is run through as a whole, up to an edge and after it with masks, or
    between limits that stores set."""

    task: Task
    values: tuple[Value, ...]
    shape: tuple[int, ...]
    axis: int
    width: int
    form: Literal["loops", "unrolled", "squares"] = "loops"
    interleaved: int = 1
    unrolled: int = 1
    ends: Literal["whole", "edge", "limits"] = "whole"


def print_decisions(facts: Facts, nests: Sequence[Nest], scratch: int) -> str:
    """The text of all decisions. scratch: bytes that a thread needs."""
    names = {value: f"%{name}" for value, name in own_names(facts.kernel).items()}
    printer = _Printer(facts, names)
    parts = {
        "values": [printer.value(value) for value in printer.placed()],
        "dots": [printer.dot(op, plan) for op, plan in facts.dots.items()],
        "nests": [printer.nest(nest) for nest in nests],
    }
    target = facts.target
    lines = [
        f"kernel @{facts.kernel.name}, {target.arch}, vectors of {target.lanes(32)} words",
        f"scratch {scratch} bytes",
    ]
    for title, rows in parts.items():
        if rows:
            lines.append(title)
            lines += _columns(rows)
    return "\n".join(lines) + "\n"


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows of words, all columns but the last of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        words = [word.ljust(width) for word, width in zip(row, widths, strict=True)]
        yield f"  {'  '.join(words)}".rstrip()


class _Printer:
    def __init__(self, facts: Facts, names: dict[object, str]) -> None:
        self.facts, self.names = facts, names

    def name(self, value: Value) -> str:
        """Copies that the lowering makes are no values of the kernel's text."""
        return self.names.get(value, f"%{value.name}")

    def placed(self) -> list[Value]:
        """Values that live somewhere, in the order of the kernel."""
        found = [value for value in self.names if isinstance(value, Value)]
        found += [value for value in self.facts.kinds if value not in self.names]
        return [value for value in found if self.facts.kind(value) != "inline"]

    def value(self, value: Value) -> tuple[str, ...]:
        facts, kind = self.facts, self.facts.kind(value)
        shape = f"{value.dtype.name}[{'x'.join(map(str, value.shape))}]"
        if kind != "memory":
            spilled = " then memory: what follows is long" if value in facts.spilled else ""
            return self.name(value), shape, f"{kind}{spilled}"
        room = facts.room(value)
        words = [f"memory, {prod(room) * value.dtype.bytes} bytes"]
        if (order := facts.order(value)) != tuple(range(value.type.rank)):
            words.append(f"axes {order}")
        if room != value.shape:
            words.append(f"padded to {'x'.join(map(str, room))}")
        packed = facts.packed.get(value)
        if packed is not None and packed.unit is not None:
            form = "an image for its windows" if packed.window else "rows"
            words.append(f"{'panels' if packed.right else form} for {packed.unit.name}")
        return self.name(value), shape, ", ".join(words)

    def dot(self, op: Op, plan: DotPlan) -> tuple[str, ...]:
        if plan.unit is not None:
            how = f"by {plan.unit.name}"
        elif plan.along_k:
            how = "vectors along k, squares of sums turned"
        else:
            along = "columns" if plan.vector_axis == 1 else "rows"
            vectors = f"{plan.vectors} vector{'s' if plan.vectors > 1 else ''}"
            how = f"register tile of {plan.rows} x {vectors} along {along}"
            how += f", {plan.steps} steps of k an iteration" if plan.steps > 1 else ""
        return self.name(op.results[0]), f"{self.name(plan.a.value)} {self.name(plan.b.value)}", how

    def nest(self, nest: Nest) -> tuple[str, ...]:
        more = f" +{len(nest.values) - MOST_NAMES}" if len(nest.values) > MOST_NAMES else ""
        values = " ".join(map(self.name, nest.values[:MOST_NAMES])) + more
        shape = "x".join(map(str, nest.shape)) or "1"
        if nest.form == "unrolled":
            return nest.task, values, shape, "register tile, no loops"
        if nest.form == "squares":
            return nest.task, values, shape, f"squares of {nest.width} transposed in registers"
        if nest.axis < 0:
            return nest.task, values, shape, "element by element"
        words = [f"vectors of {nest.width} along axis {nest.axis}"]
        if nest.interleaved > 1:
            words.append(f"{nest.interleaved} interleaved")
        if nest.unrolled > 1:
            words.append(f"{nest.unrolled} an iteration")
        if nest.ends != "whole":
            words.append("masks after the edge" if nest.ends == "edge" else "within limits")
        return nest.task, values, shape, ", ".join(words)
