"""Bindings of values while a kernel is recorded: what ends with a block, and what with a strip."""

from __future__ import annotations

from fuser.backend.nvptx.ir.op import Block
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.assignment import DotPlan
from fuser.backend.nvptx.layouts.layout import Layout, blocked
from fuser.backend.nvptx.lowering.bindings import Bindings
from fuser.dtypes import f32
from fuser.tilegen.value import TileType, Value

ROWS, COLUMNS = (blocked((8, 32), 1, order, 1) for order in ((0, 1), (1, 0)))
X = Value(TileType(f32, (8, 32)), "x")
PLAN = DotPlan("mma", None, ROWS, ROWS)


def tile(name: str, layout: Layout = ROWS) -> Tile:
    return Tile(f32, (8, 32), layout, name=name)


def bound(open: list[Block]) -> Bindings[Tile]:
    bindings: Bindings[Tile] = Bindings(open)
    bindings[X] = tile("%x")
    return bindings


def test_a_prepared_operand_is_there_inside_its_block_and_not_after_it() -> None:
    open = [Block(), Block()]
    bindings = bound(open)
    x, operand = bindings[X], tile("%operand", COLUMNS)
    bindings.prepare(x, "a", PLAN, operand)
    open.append(Block())
    assert bindings.prepared(x, "a", PLAN) is operand
    assert bindings.prepared(x, "b", PLAN) is None
    del open[1:]
    open.append(Block())  # the other branch
    assert bindings.prepared(x, "a", PLAN) is None


def test_a_prepared_operand_is_not_that_of_what_is_bound_later() -> None:
    bindings = bound([Block()])
    bindings.prepare(bindings[X], "a", PLAN, tile("%before", COLUMNS))
    bindings[X] = tile("%again")
    assert bindings.prepared(bindings[X], "a", PLAN) is None


def test_other_threads_begin_with_nothing() -> None:
    bindings = bound([Block()])
    mine = bindings[X]
    with bindings.apart():
        assert not bindings
        bindings[X] = tile("%theirs")
    assert bindings[X] is mine
    with bindings.apart([X]):
        assert bindings[X] is mine


def test_strips_have_layouts_and_values_of_their_own() -> None:
    bindings = bound([Block()])
    mine = bindings[X]
    with bindings.strips() as strips:
        for number in range(2):
            strips.begin()
            assert bindings[X] is mine
            bindings.lay_out({X: COLUMNS})
            bindings[X] = tile(f"%strip{number}", COLUMNS)
            assert bindings.layout(X) == COLUMNS
    assert bindings[X] is mine and bindings.layout(X) is None
    with bindings.laid_out({X: COLUMNS}):
        assert bindings.layout(X) == COLUMNS
    assert bindings.layout(X) is None
