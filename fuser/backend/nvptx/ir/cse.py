"""Compute once what several ops compute alike of the same tiles: changes of layout, and what masks
and indices are made of.

    %i = index [#0] : i32[64] #l0                   %i = index [#0] : i32[64] #l0
    %a = convert_layout %x : f32[64] #l0            %a = convert_layout %x : f32[64] #l0
    where %more body {                              where %more body {
      %j = index [#0] : i32[64] #l0                   store &y[...], %a
      %b = convert_layout %x : f32[64] #l0          }
      store &y[...], %b
    }

What a block has computed is there in the blocks inside of it, and not after it.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Hashable
from typing import Any

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import inside
from fuser.backend.nvptx.ir.uses import uses
from fuser.backend.nvptx.ir.values import Scope, Tile

_PURE = (
    ops.ConvertLayout, ops.Full, ops.IndexTile, ops.Splat, ops.Map, ops.Cast, ops.Bitcast,
    ops.Relabel,
)  # fmt: skip
"""Ops whose results follow from their fields alone."""


def merge_common(program: Program) -> None:
    """Merge the ops of a program that give equal tiles."""
    _merge(program.body, ChainMap(), {})


def _merge(block: Block, outer: ChainMap[Hashable, Op], known: dict[Tile, Tile]) -> None:
    """outer: by key, ops before the block. known: what tiles have become."""
    found, kept = outer.new_child(), list[Op]()
    for op in block.ops:
        if known and any(item in known for item in uses(op)):
            for item in dataclasses.fields(op):
                if item.type != "Block":
                    setattr(op, item.name, inside(getattr(op, item.name), known))
        if isinstance(op, _PURE):
            first = found.setdefault(_key(op), op)
            if first is not op:
                first.origin = tuple(dict.fromkeys(first.origin + op.origin))
                known[op.tile] = first.tile
                continue
        kept.append(op)
        for inner in op.blocks():
            _merge(inner, found, known)
    block.ops[:] = kept


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
