"""Where the operands of dots lie in memory, as pointers: for units, and for prefetches."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.dots.operand_plan import PANEL
from fuser.backend.cpu.dots.records import OperandPlan
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Memory
from fuser.backend.text import Reg
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value


@dataclass(frozen=True)
class Source:
    """Memory that a tile of two axes is loaded from, at indices that are not looked up."""

    low: Lowering
    load: ops.Load

    @property
    def bytes(self) -> int:
        """Of an element."""
        return self.load.view.dtype.bytes

    def at(self, row: Index | int = 0, column: Index | int = 0) -> Index:
        """Elements from the start of the buffer to that of a point."""
        point = (Index(0) + row, Index(0) + column)
        return self.low.resolve(kernel_facts.address_of(self.low.known, self.load, point), ())

    def pointer(self, address: Index) -> Reg:
        view = self.load.view
        return self.low.f.gep(
            self.low.buffers[view.buffer], self.low.index(address), view.dtype.llvm
        )


def source_of(low: Lowering, value: Value) -> Source | None:
    """Where a value is loaded from, perhaps cast on the way: weights may be stored narrow."""
    op = low.known.producers.get(value)
    while isinstance(op, ops.Cast) and low.known.kind(op.result) == "inline":
        op = low.known.producers.get(op.x)
    if not isinstance(op, ops.Load) or any(map(kernel_facts.lookups, op.indices)):
        return None
    return Source(low, op)


def start_of(low: Lowering, plan: OperandPlan, position: Index) -> Reg:
    """Where a unit reads row (panel) `position` of an operand from, at k = 0."""
    f, type = low.f, plan.value.dtype.llvm
    if plan.source is not None:
        place = low.places[plan.value]
        assert isinstance(place, Memory)
        base, address = place.pointer, position * plan.step
    else:
        load = low.known.producers[plan.value]
        assert isinstance(load, ops.Load)
        base = low.buffers[load.view.buffer]
        other = position * PANEL if plan.right else position
        address = Source(low, load).at(*plan.point(Index(0), other))
    constant = address.constant
    return f.gep(f.gep(base, low.index(address - constant), type), constant, type)
