"""Tile programs to LLVM IR for CPUs: loop nests around lazily evaluated tile values.

Work starts from what a kernel leaves (stores) and from values that live somewhere
(analysis/placement.py); everything else is evaluated at the points where these want it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.backend.cpu.loops.loop_nest import Nests
from fuser.backend.cpu.lowering.emitter import Condition
from fuser.backend.cpu.memory.storage import NOWHERE, Filling, Local, Place, Point
from fuser.backend.function import Function, Module
from fuser.backend.text import Reg
from fuser.base.target import Target
from fuser.errors import LoweringError
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Block, Buffer, Op
from fuser.tilegen.value import Value


@dataclass(frozen=True)
class Rules:
    """The code of each op (rules.py). values: computes the result of an op whose value lives
    somewhere, and gives what is in place then. effects: emits what an op of a block is run for, and
    gives the ops of the block that it emitted with it."""

    values: Mapping[type[Op], Callable[[Lowering, Any], Mapping[Value, Place]]]
    effects: Mapping[type[Op], Callable[[Lowering, Any, Block], Iterable[Op] | None]]


class Lowering(Nests):
    """Lowers the body of one kernel into one LLVM function (one program of the grid)."""

    def __init__(
        self, rules: Rules, module: Module, function: Function, target: Target, facts: Facts,
        buffers: dict[Buffer, Reg],
    ) -> None:  # fmt: skip
        super().__init__(module, function, target, facts, buffers)
        self.rules = rules

    def require(self, value: Value) -> None:
        """Compute, here, whatever the inline tree of `value` reads and that lives somewhere:
        reductions first, which write what they read of it on their way."""
        wanted = [
            (current, self.known.producers.get(current))
            for current in walks.reachable([value], self._inline_operands)
            if not self.computed(current) and self.known.kind(current) != "inline"
        ]
        for current, op in sorted(wanted, key=lambda item: not isinstance(item[1], ops.Reduce)):
            if self.computed(current):
                continue
            assert op is not None
            rule = self.rules.values.get(type(op))
            if rule is None:
                raise LoweringError(f"{current!r} of {op.opcode} is wanted before it was computed")
            self.places.update(rule(self, op))

    def _inline_operands(self, value: Value) -> Sequence[Value]:
        """What an inline value is evaluated from."""
        if self.computed(value):
            return ()
        op = self.known.producers.get(value)
        if op is None:
            raise LoweringError(f"{value!r} has no definition here")
        return op.operands() if self.known.kind(value) == "inline" else ()

    def require_indices(self, op: ops.WRITES) -> None:
        for index in op.indices:
            for value in index.values():
                if value not in self.scalars:
                    self.require(value)

    def store_at(self, op: ops.Store, coords: Point, lanes: int, local: Local = NOWHERE) -> None:
        given = None if op.mask is None else self.at(op.mask, coords, local)
        self.put(op, coords, self.at(op.value, coords, local), lanes, given)

    def put(
        self, op: ops.Store, coords: Point, reg: Reg, lanes: int, given: Reg | None = None
    ) -> None:
        """Store a computed value at a point, where `given`, the mask there, holds."""
        if given is not None and given.literal is not None:
            if not given.literal:
                return
            given = None
        address, conditions = self.place_of(op, coords)
        base = self.buffers[op.view.buffer]
        self.write(base, op.view.dtype, address, reg, lanes, conditions, given)

    def place_of(self, op: ops.WRITES, coords: Point) -> tuple[Index, list[Condition]]:
        """Where an op writes at a point, in its buffer, and the bounds not known to hold."""
        expressions = [self.resolve(index, coords) for index in op.indices]
        address = Index(op.view.offset)
        for expression, stride in zip(expressions, op.view.strides, strict=True):
            address = address + expression * stride
        return address, self.open_conditions(expressions, op.view.shape)

    def gather_through(self, value: Value) -> dict[Value, Filling]:
        """Prepare a nest over the whole of `value`: whatever it reads is computed now, but for the
        kept values in its tree that are to be written on the way. These are given."""

        def simple(current: Value) -> bool:
            op = self.known.producers.get(current)
            known = self.known.kind(current) in ("inline", "memory")
            if any(
                isinstance(u, ops.Gather) and u.x is current
                for u in self.known.users.get(current, ())
            ):
                return False  # read at other places than the nest's, before it gets there
            return known and isinstance(op, kernel_facts.ELEMENTWISE | ops.Load)

        def operands(current: Value) -> Sequence[Value]:
            op = self.known.producers.get(current)
            if isinstance(op, kernel_facts.ELEMENTWISE) and simple(current):
                return () if self.computed(current) else op.operands()
            return ()

        def met() -> list[Value]:
            seen: dict[Value, None] = {}
            for current in walks.post_order(value, operands, seen):
                seen[current] = None
            return [current for current in seen if not self.computed(current)]

        # Nests of what is computed now may write values on their way, too. They come first: only
        # what is left after them is begun here.
        for current in met():
            if not simple(current):
                self.require(current)
            elif isinstance(load := self.known.producers[current], ops.Load):
                for operand in load.operands():
                    self.require(operand)
        kept = [current for current in met() if self.known.kind(current) == "memory"]
        return {current: Filling(self.allocate(current)) for current in kept}

    def block(self, block: Block) -> None:
        """Lower a block's effects in order; the values they read are computed on demand."""
        done: set[Op] = set()
        for op in block.ops:
            if op in done:
                continue
            rule = self.rules.effects.get(type(op))
            if rule is not None:
                done.update(rule(self, op, block) or ())
            elif op.has_effect and not isinstance(op, ops.Yield):
                raise LoweringError(f"the CPU back end has no {op.opcode}")
