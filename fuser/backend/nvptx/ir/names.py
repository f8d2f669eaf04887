"""What tiles and scalars of a program are called in text, and what is known of its integers.

Two values of the Tile IR may be one scalar here: text knows the scalar, with what holds for all.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.uses import defines, uses
from fuser.backend.nvptx.ir.values import Place, Scope, Tile
from fuser.graph.sizes import divisor, is_symbolic, same
from fuser.tilegen.core.text import fresh, name_text
from fuser.tilegen.facts import UNKNOWN, Fact, fact_of, set_fact
from fuser.tilegen.index import Atom, Index, Lookup, Scalar, lookup, scalar
from fuser.tilegen.ir import Buffer
from fuser.tilegen.value import INDEX, UNBOUNDED, TileType, Value

Named = Tile | str
"""A tile, or the name of a scalar."""


class Names:
    """given: what is read before anything in the text defines it, in order."""

    def __init__(self, program: Program) -> None:
        self.given: dict[Named, None] = {}
        self._made: dict[Named, None] = {}
        self._facts: dict[Named, Fact] = {}
        self._names: dict[Tile | Buffer, str] = {}
        self._visit(program.head)
        self._visit(program.body)
        every = list(dict.fromkeys((*self.given, *self._made)))
        taken = {item for item in every if isinstance(item, str)}
        for tile in (item for item in every if isinstance(item, Tile)):
            base = "%" + re.sub(r"[^\w.]", "_", tile.name.removeprefix("%") or "x")
            self._names[tile] = fresh(base, taken)
        words: set[str] = set()
        for buffer in program.buffers:
            self._names[buffer] = name_text(fresh(buffer.name, words))
        self._values: dict[Named, Value] = {}
        for item in every:
            dtype, shape = (item.dtype, item.shape) if isinstance(item, Tile) else (INDEX, ())
            value = Value(TileType(dtype, shape), self.of(item))
            set_fact(value, self.fact(item))
            self._values[item] = value
        self._ranks = {value: number for number, value in enumerate(self._values.values())}

    def of(self, item: Named | Buffer) -> str:
        """What text calls it."""
        return item if isinstance(item, str) else self._names[item]

    def fact(self, item: Named) -> Fact:
        """What is known of the values of a scalar or an integer tile."""
        return self._facts.get(item, UNKNOWN)

    def rank(self, value: Value) -> int:
        """Index expressions print their terms in the order of definitions."""
        return self._ranks.get(value, -1)

    def canonical(self, expression: Index, scope: Scope) -> Index:
        """An expression over the scalars and tiles of the program."""

        def leaf(atom: Atom) -> Index | None:
            if isinstance(atom, Scalar) and atom.value in scope.scalars:
                bound = scope.scalars[atom.value]
                known = isinstance(bound, Tile | str)
                return scalar(self._values[bound]) if known else Index(bound)  # type: ignore[arg-type, index]
            if isinstance(atom, Lookup) and (atom.value, atom.axes) in scope.tiles:
                return lookup(self._values[scope.tiles[atom.value, atom.axes]], atom.axes)
            return None

        return expression.replace(leaf)

    def _visit(self, block: Block) -> None:
        for op in block.ops:
            for item in uses(op):
                if isinstance(item, Tile | str) and item not in self._made:
                    self.given.setdefault(item)
            for scope in _scopes(op):
                self._note(scope)
            self._made.update(dict.fromkeys(defines(op)))
            for inner in op.blocks():
                self._visit(inner)

    def _note(self, scope: Scope) -> None:
        pairs: Iterator[tuple[Value, object]] = itertools.chain(
            scope.scalars.items(), ((value, tile) for (value, _), tile in scope.tiles.items())
        )
        for value, bound in pairs:
            if isinstance(bound, Tile | str):
                fact = fact_of(value)
                before = self._facts.get(bound)
                self._facts[bound] = fact if before is None else _either(before, fact)


def _scopes(op: Op) -> Iterator[Scope]:
    for content in op.contents():
        if isinstance(content, Place):
            yield content.scope
        elif isinstance(content, Scope):
            yield content


def _either(a: Fact, b: Fact) -> Fact:
    """What holds of values for which one of two facts does."""
    low = a[0] if same(a[0], b[0]) else -UNBOUNDED
    high = a[1] if same(a[1], b[1]) else UNBOUNDED
    if not is_symbolic(a[0], b[0]):
        low = min(a[0], b[0])
    if not is_symbolic(a[1], b[1]):
        high = max(a[1], b[1])
    return low, high, abs(divisor(a[2], b[2])) or 1
