"""What values of the Tile IR are at the place that is being recorded.

    with low.bindings.region():     # a block: conversions made in it end with it
        low.block(op.body)

A conversion belongs to what a value was bound to: it is gone when the value is bound again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layouts.assignment import DotPlan
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.tilegen.value import Value

Entry = TypeVar("Entry")
Operands = dict[tuple[Value, str, DotPlan], SharedTile | Tile]


class Bindings(Generic[Entry]):
    """values: what each value is. operands: of dots that were prepared before their loop."""

    def __init__(self) -> None:
        self.values: dict[Value, Entry] = {}
        self.operands: Operands = {}
        self._converted: dict[tuple[Value, Layout], tuple[Entry, Tile]] = {}
        self._layouts: Mapping[Value, Layout] = {}

    # conversions --------------------------------------------------------------------------------

    def converted(self, value: Value, layout: Layout) -> Tile | None:
        """What a value is in another layout, if it was converted here."""
        found = self._converted.get((value, layout))
        return found[1] if found is not None and found[0] is self.values[value] else None

    def convert(self, value: Value, layout: Layout, tile: Tile) -> Tile:
        """Note what a value is in another layout."""
        self._converted[value, layout] = self.values[value], tile
        return tile

    def layout(self, value: Value) -> Layout | None:
        """The layout that a value has in this strip, where it is not that of the assignment."""
        return self._layouts.get(value)

    # scopes -------------------------------------------------------------------------------------

    @contextmanager
    def region(self) -> Iterator[None]:
        """A block: conversions and operands that are made in it are not there after it."""
        converted, operands = dict(self._converted), dict(self.operands)
        yield
        self._converted, self.operands = converted, operands

    @contextmanager
    def apart(self, kept: Iterable[Value] = ()) -> Iterator[None]:
        """Code of other threads, in which nothing is bound yet but what is kept."""
        values, converted = self.values, self._converted
        self.values, self._converted = {value: values[value] for value in kept}, {}
        yield
        self.values, self._converted = values, converted

    def restart(self) -> None:
        """Another program: nothing is bound yet."""
        self.values, self.operands, self._converted = {}, {}, {}

    @contextmanager
    def strips(self) -> Iterator[Strips[Entry]]:
        """Code that is recorded once a strip: what is bound in it is not there after it."""
        saved = Strips(self, dict(self.values))
        converted, layouts = dict(self._converted), self._layouts
        yield saved
        self.values, self._converted, self._layouts = saved.values, converted, layouts

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
        """Begin a strip: what is bound is what was before the first, converted to nothing."""
        self._bindings.values, self._bindings._converted = dict(self.values), {}
