"""Loops, branches and warp roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.backend.nvptx.simulate.clocks import SimulationError
from fuser.backend.nvptx.simulate.memory import nothing
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp


def _bind(
    warp: Warp, names: Sequence[str], scalars: Sequence[Operand],
    made: Sequence[Tile], tiles: Sequence[Tile],
) -> None:  # fmt: skip
    """Give values new names, all at once."""
    numbers = [warp.scalar(scalar) for scalar in scalars]
    arrays = [(warp.tiles.even_in_flight(t), warp.tiles.in_flight.get(t)) for t in tiles]
    warp.scalars.update(zip(names, numbers, strict=True))
    for tile, (array, group) in zip(made, arrays, strict=True):
        warp.tiles[tile] = array
        if group is not None:
            warp.tiles.in_flight[tile] = group


def _end(block: Block) -> ops.Yield:
    last = block.ops[-1]
    assert isinstance(last, ops.Yield)
    return last


def for_(warp: Warp, op: ops.For) -> Steps:
    yield from for_with(warp, op, lambda variable: variable)


def for_with(warp: Warp, op: ops.For, leap: Callable[[int], int]) -> Steps:
    """A loop whose variable goes on where `leap` says, from where it would."""

    def more(variable: int) -> bool:
        return variable < warp.number_of(op.stop)

    _bind(warp, op.scalars, op.firsts, op.params, op.inits)
    end = _end(op.body)
    again = more(warp.number_of(op.scalars[0])) or op.certain
    while again:
        yield from warp.run(op.body)
        if isinstance(end.scalars[0], str):
            following = leap(warp.number_of(end.scalars[0]))
            warp.scalars[end.scalars[0]] = np.full(32, following, np.int64)
        last = op.certain and not more(warp.number_of(end.scalars[0]))
        if last:  # the scalars of the last iteration keep their names
            _bind(warp, (), (), op.params, end.values)
            break
        _bind(warp, op.scalars, end.scalars, op.params, end.values)
        again = op.certain or more(warp.number_of(op.scalars[0]))
        yield lambda: True
    _bind(warp, (), (), op.results, op.params)


def while_(warp: Warp, op: ops.While) -> Steps:
    yield from while_while(warp, op, lambda: True)


def while_while(warp: Warp, op: ops.While, more: Callable[[], bool]) -> Steps:
    """A loop that ends where `more` says so, if its head does not before."""
    _bind(warp, op.scalars, op.firsts, op.params, op.inits)
    test = op.head.ops[-1]
    assert isinstance(test, ops.Condition)
    while True:
        yield from warp.run(op.head)
        if not warp.number_of(test.value) or not more():
            break
        yield from warp.run(op.body)
        end = _end(op.body)
        _bind(warp, op.scalars, end.scalars, op.params, end.values)
    _bind(warp, (), (), op.results, op.params)


def if_(warp: Warp, op: ops.If) -> Steps:
    block = op.then if warp.number_of(op.condition) else op.other
    yield from warp.run(block)
    end = _end(block)
    _bind(warp, op.names, end.scalars, op.results, end.values)


def where(warp: Warp, op: ops.Where) -> Steps:
    active = warp.active & (warp.scalar(op.condition) != 0)
    if active.any():
        with warp.lanes(active):
            yield from warp.run(op.body)


def warp_roles(warp: Warp, op: ops.WarpRoles) -> Steps:
    first, machine = op.threads // 32, warp.machine
    if warp.number == first:
        with warp.lanes(np.arange(32) == int(machine.rng.integers(32))):
            yield from warp.run(op.producer)
    elif warp.number < first:
        warp.join(warp.number // machine.program.warps * machine.program.warps)
        yield from warp.run(op.consumer)


def opaque(warp: Warp, op: ops.Opaque) -> None:
    warp.scalars[op.names[0]] = warp.scalar(op.value)


def read_register(warp: Warp, op: ops.ReadRegister) -> None:
    warp.scalars[op.names[0]] = warp.machine.register(warp.block, warp.number, op.register)


def read_table(warp: Warp, op: ops.ReadTable) -> None:
    numbers, at = warp.machine.program.tables[op.table], warp.scalar(op.at)
    if warp.active.any() and not 0 <= at[warp.active].min() <= at[warp.active].max() < len(numbers):
        raise SimulationError(f"a number beyond the table {op.table}")
    warp.scalars[op.names[0]] = np.array(numbers)[at.clip(0, len(numbers) - 1)]


RULES: dict[type[Op], Rule] = {
    ops.Yield: nothing,
    ops.Condition: nothing,
    ops.For: for_,
    ops.While: while_,
    ops.If: if_,
    ops.Where: where,
    ops.WarpRoles: warp_roles,
    ops.Seam: nothing,
    ops.Opaque: opaque,
    ops.ReadRegister: read_register,
    ops.ReadTable: read_table,
}
