"""What values of the Tile IR are at the place that is being recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from fuser.backend.nvptx.ir.op import Block
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layouts.assignment import DotPlan
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.tilegen.value import Value

Entry = TypeVar("Entry")
Operand = SharedTile | Tile


class Bindings(dict[Value, Entry], Generic[Entry]):
    """What each value is."""

    def __init__(self, open: list[Block]) -> None:
        """open: the blocks that are being filled."""
        super().__init__()
        self._open = open
        self._operands: dict[tuple[Entry, str, DotPlan], tuple[Block, Operand]] = {}
        self._layouts: Mapping[Value, Layout] = {}

    def prepare(self, entry: Entry, role: str, plan: DotPlan, operand: Operand) -> None:
        """Note what dots read as an operand, in the block that is being filled and those inside of
        it. entry: what the operand was made of."""
        self._operands[entry, role, plan] = self._open[-1], operand

    def prepared(self, entry: Entry, role: str, plan: DotPlan) -> Operand | None:
        """The operand that was prepared of an entry, if it is there."""
        block, operand = self._operands.get((entry, role, plan), (None, None))
        return operand if block in self._open else None

    def layout(self, value: Value) -> Layout | None:
        """The layout that a value has in this strip, where it is not that of the assignment."""
        return self._layouts.get(value)

    # scopes -------------------------------------------------------------------------------------

    @contextmanager
    def apart(self, kept: Iterable[Value] = ()) -> Iterator[None]:
        """Code of other threads, in which nothing is bound yet but what is kept."""
        before = dict(self)
        self.restart(kept)
        yield
        self.become(before)

    def restart(self, kept: Iterable[Value] = ()) -> None:
        """Another program: nothing is bound yet but what is kept."""
        self.become({value: self[value] for value in kept})

    def become(self, values: Mapping[Value, Entry]) -> None:
        """Bind these values and no others."""
        self.clear()
        self.update(values)

    @contextmanager
    def strips(self) -> Iterator[Strips[Entry]]:
        """Code that is recorded once a strip: what is bound in it is not there after it."""
        saved, layouts = Strips(self, dict(self)), self._layouts
        yield saved
        self.become(saved.values)
        self._layouts = layouts

    @contextmanager
    def laid_out(self, layouts: Mapping[Value, Layout]) -> Iterator[None]:
        """Some values have other layouts meanwhile."""
        before = self._layouts
        self.lay_out(layouts)
        yield
        self._layouts = before

    def lay_out(self, layouts: Mapping[Value, Layout]) -> None:
        """Some values have other layouts from here on, to the end of the strips."""
        self._layouts = {**self._layouts, **layouts}


class Strips(Generic[Entry]):
    """values: what was bound before the first strip."""

    def __init__(self, bindings: Bindings[Entry], values: dict[Value, Entry]) -> None:
        self._bindings, self.values = bindings, values

    def begin(self) -> None:
        """Begin a strip: what is bound is what was before the first."""
        self._bindings.become(self.values)
