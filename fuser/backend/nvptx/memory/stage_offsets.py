"""Whether two stages of a ring are different ones: the integers that say where they lie are
evaluated for every stage that the ring's loop goes through."""

from __future__ import annotations

from collections.abc import Mapping

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.integers import evaluate
from fuser.backend.nvptx.ir.op import Integer
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Operand

MAX_STAGES = 64


class StageOffsets:
    """The offsets of stages in a program, as functions of a scalar that a loop carries."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._integers: dict[str, Integer] = {}
        self._carried: dict[str, tuple[Operand, Operand]] = {}
        self._known: dict[tuple[Operand, Operand, int], bool] = {}

    def _note(self) -> None:
        """What integers are made of; few programs ask."""
        for op in self._program.walk():
            if isinstance(op, Integer):
                self._integers[op.names[0]] = op
            elif isinstance(op, ops.For):
                end = op.body.ops[-1] if op.body.ops else None
                if isinstance(end, ops.Yield):
                    pairs = zip(op.firsts, end.scalars, strict=True)
                    self._carried.update(zip(op.scalars, pairs, strict=True))

    def apart(self, a: Operand, b: Operand, size: int) -> bool:
        """Whether `size` bytes at two offsets, of one iteration, are certain not to meet."""
        key = (a, b, size)
        if key not in self._known:
            self._known[key] = self._apart(*key)
        return self._known[key]

    def _apart(self, a: Operand, b: Operand, size: int) -> bool:
        if isinstance(a, int) and isinstance(b, int):
            return abs(a - b) >= size
        if not self._integers:
            self._note()
        leaves = self._leaves(a) | self._leaves(b)
        if len(leaves) != 1:
            return False
        (name,) = leaves
        try:
            found = self._values(name)
            pairs = [(self._value(a, {name: v}), self._value(b, {name: v})) for v in found]
        except ValueError:
            return False
        return bool(pairs) and all(abs(x - y) >= size for x, y in pairs)

    def _leaves(self, of: Operand) -> set[str]:
        """The scalars that an operand is made of, back to those that no integer op gives."""
        found: set[str] = set()
        todo, seen = [of], {of}
        while todo:
            name = todo.pop()
            if not isinstance(name, str):
                continue
            if name not in self._integers:
                found.add(name)
                continue
            inner = set(self._integers[name].operands) - seen
            seen |= inner
            todo += inner
        return found

    def _values(self, name: str) -> list[int]:
        """What a carried scalar is in turn. Raises ValueError where that is not known."""
        first, after = self._carried.get(name, ("", ""))
        found: list[int] = []
        if not isinstance(first, int):
            raise ValueError(name)
        value = first
        while value not in found:
            if len(found) == MAX_STAGES:
                raise ValueError(name)
            found.append(value)
            value = self._value(after, {name: value})
        return found

    def _value(self, of: Operand, given: Mapping[str, int]) -> int:
        if isinstance(of, int):
            return of
        if of in given:
            return given[of]
        op = self._integers.get(of)
        if op is None:
            raise ValueError(of)
        operands = [self._value(item, given) for item in op.operands]
        return int(evaluate(op.fn, op.type, operands, op.to))
