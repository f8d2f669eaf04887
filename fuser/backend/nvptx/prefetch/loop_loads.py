"""Loads of a loop that can be done an iteration ahead: what depends on its number alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.loops import step_of
from fuser.backend.nvptx.ir.op import Integer, Op
from fuser.backend.nvptx.ir.rewrite import cloned
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.prefetch.code_motion import makers_of, read_by, take, words_of


@dataclass
class Movable:
    """Loads of a loop. each: they and what they are made of."""

    loop: ops.For
    loads: list[ops.Load]
    each: list[Op]

    def cloned(self, first: Operand, later: Operand, suffix: str = "") -> tuple[list[Op], list[Op]]:
        """The same for two values of the loop's variable: before the loop, and in it."""
        variable = self.loop.scalars[0]
        before = cloned(self.each, f"{suffix}.first", {variable: first})
        return before, cloned(self.each, f"{suffix}.next", {variable: later})


class NextIteration:
    """Integers at the head of a body. more: whether there is another iteration. at: the variable
    there, or here if there is none."""

    def __init__(self, loop: ops.For) -> None:
        variable = loop.scalars[0]
        following, self.more, self.at = (f"{variable}.{w}" for w in ("following", "more", "ahead"))
        self.ops: list[Op] = [
            Integer(fn="add", operands=(variable, step_of(loop)), names=(following,)),
            Integer(fn="slt", operands=(following, loop.stop), names=(self.more,)),
            Integer(fn="select", operands=(self.more, following, variable), names=(self.at,)),
        ]


def movable(
    loop: ops.For, room: int, wanted: Callable[[ops.Load], bool], *, chained: bool
) -> Movable:
    """What can be loaded ahead, in so many registers per thread. chained: also from places that
    are loaded ahead."""
    makers, moved = makers_of(loop.body.ops), dict[Op, None]()
    others = {*loop.scalars[1:], *loop.params}
    loads: list[ops.Load] = []
    for op in loop.body.ops if step_of(loop) else ():
        if not isinstance(op, ops.Load) or not op.constant or op.where is not None:
            continue
        size = words_of(op.tile, op)
        found = {item: None for item in moved if chained or not isinstance(item, ops.Load)}
        if size > room or not wanted(op) or not take(op, makers, found):
            continue
        if any(others & read_by(item) for item in found):
            continue
        room -= size
        moved |= found
        loads.append(op)
    return Movable(loop, loads, [op for op in loop.body.ops if op in moved])


def carry(
    loop: ops.For, loads: Sequence[ops.Load], before: Iterable[Op], ahead: Iterable[Op]
) -> None:
    """Let the loop carry what is loaded before it and ahead in it."""
    loop.carry(
        (op.tile for op in loads),
        (op.tile for op in loads_of(before)),
        (op.tile for op in loads_of(ahead)),
        (dataclasses.replace(op.tile, name=f"{op.tile.name}.last") for op in loads),
    )


def loads_of(body: Iterable[Op]) -> Iterator[ops.Load]:
    """The loads among ops."""
    return (op for op in body if isinstance(op, ops.Load))
