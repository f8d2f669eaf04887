"""Bindings of values while a kernel is recorded: what ends with a scope, and what with a value."""

from __future__ import annotations

from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Layout, blocked
from fuser.backend.nvptx.lowering.bindings import Bindings
from fuser.dtypes import f32
from fuser.tilegen.value import TileType, Value

ROWS, COLUMNS = (blocked((8, 32), 1, order, 1) for order in ((0, 1), (1, 0)))
X = Value(TileType(f32, (8, 32)), "x")


def tile(name: str, layout: Layout = ROWS) -> Tile:
    return Tile(f32, (8, 32), layout, name=name)


def bound() -> Bindings[Tile]:
    bindings: Bindings[Tile] = Bindings()
    bindings.values[X] = tile("%x")
    return bindings


def test_a_conversion_ends_with_its_region() -> None:
    bindings = bound()
    outer = bindings.convert(X, COLUMNS, tile("%outer", COLUMNS))
    with bindings.region():
        assert bindings.converted(X, COLUMNS) is outer
        bindings.convert(X, ROWS, tile("%inner"))
        assert bindings.converted(X, ROWS) is not None
    assert bindings.converted(X, COLUMNS) is outer
    assert bindings.converted(X, ROWS) is None


def test_a_conversion_ends_when_its_value_is_bound_again() -> None:
    bindings = bound()
    bindings.convert(X, COLUMNS, tile("%before", COLUMNS))
    bindings.values[X] = tile("%again")
    assert bindings.converted(X, COLUMNS) is None


def test_other_threads_begin_with_nothing() -> None:
    bindings = bound()
    mine = bindings.values[X]
    bindings.convert(X, COLUMNS, tile("%c", COLUMNS))
    with bindings.apart():
        assert not bindings.values
        bindings.values[X] = tile("%theirs")
        assert bindings.converted(X, COLUMNS) is None
    assert bindings.values[X] is mine and bindings.converted(X, COLUMNS) is not None


def test_strips_have_layouts_and_values_of_their_own() -> None:
    bindings = bound()
    mine = bindings.values[X]
    with bindings.strips() as strips:
        for number in range(2):
            strips.begin()
            assert bindings.values[X] is mine and bindings.converted(X, COLUMNS) is None
            bindings.lay_out({X: COLUMNS})
            bindings.values[X] = tile(f"%strip{number}", COLUMNS)
            bindings.convert(X, COLUMNS, bindings.values[X])
            assert bindings.layout(X) == COLUMNS
    assert bindings.values[X] is mine and bindings.layout(X) is None
    with bindings.laid_out({X: COLUMNS}):
        assert bindings.layout(X) == COLUMNS
    assert bindings.layout(X) is None
