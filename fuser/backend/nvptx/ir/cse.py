"""Compute once what several ops compute alike of the same tiles: changes of layout, and what masks
and indices are made of. Of a loop, before it: changes of layout of what it finds.

    %m = map.lt (%i, %n) : bool[64] #l0             %m = map.lt (%i, %n) : bool[64] #l0
    store &y[...] mask %m, %x                       store &y[...] mask %m, %x
    for ... body {                                  %a = convert_layout %x : f32[64] #l1
      %k = map.lt (%i, %n) : bool[64] #l0           for ... body {
      %a = convert_layout %x : f32[64] #l1            store &z[...] mask %m, %a
      store &z[...] mask %k, %a                     }
    }

What a block has computed is there in the blocks inside of it, and not after it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable
from typing import Any

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import inside
from fuser.backend.nvptx.ir.uses import carried, uses
from fuser.backend.nvptx.ir.values import Scope, Tile

_PURE = (
    ops.ConvertLayout, ops.Full, ops.IndexTile, ops.Splat, ops.Map, ops.Cast, ops.Bitcast,
    ops.Relabel,
)  # fmt: skip
"""Ops whose results follow from their fields alone."""


def merge_common(program: Program) -> None:
    """Merge the ops of a program that give equal tiles."""
    _Merge(program.body, {}).run()


class _Merge:
    """One block. known: what tiles have become. around: the block that has this one. own: of a
    block of a loop, what an iteration has of its own; None: it is of no loop."""

    def __init__(
        self, block: Block, known: dict[Tile, Tile], around: _Merge | None = None,
        own: set[Tile | str] | None = None,
    ) -> None:  # fmt: skip
        self.block, self.known, self.around, self.own = block, known, around, own
        self.found: ChainMap[Hashable, Op] = around.found.new_child() if around else ChainMap()
        self.kept: list[Op] = []

    def run(self) -> None:
        for op in self.block.ops:
            self.replace_operands(op)
            if not isinstance(op, _PURE):
                own = {*carried(op)} if isinstance(op, ops.For | ops.While) else None
                for inner in op.blocks():
                    _Merge(inner, self.known, self, own).run()
                self.keep(op)
            elif (first := self.found.get(key := _key(op))) is None:
                self.keep(op, key)
            else:
                first.come_from(op.origin)
                self.known[op.tile] = first.tile
        self.block.ops[:] = self.kept

    def replace_operands(self, op: Op) -> None:
        if self.known and any(item in self.known for item in uses(op)):
            op.change(lambda content: inside(content, self.known))

    def keep(self, op: Op, key: Hashable = None) -> None:
        """Keep an op here, or before the loop. key: by which it is found."""
        if self.own is not None and self.around is not None:
            if isinstance(op, ops.ConvertLayout) and op.x not in self.own:
                self.around.keep(op, key)
                return
            self.own.update(op.results)
        if key is not None:
            self.found[key] = op
        self.kept.append(op)


def _key(op: Op) -> Hashable:
    made = op.tile
    return (op.opcode, made.dtype, made.shape, made.layout, *map(_part, op.contents()))


def _part(content: Any) -> Hashable:
    match content:
        case Scope():
            return (*content.scalars.items(), *content.tiles.items())
        case float() | int():
            return repr(content)  # 0 and 0.0, True and 1 differ
    return content  # type: ignore[no-any-return]


__all__ = ["merge_common"]
