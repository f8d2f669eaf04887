"""Ops again, of other operands: what passes copy and change code with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.values import Operand, Place, Scope, SharedTile, Slot, Tile

Known = Mapping[Any, Tile | Operand]
"""What tiles and names of scalars become."""


def replaced(op: Op, known: Known) -> Op:
    """The same op of other tiles and scalars, in its blocks too."""
    contents = {
        item.name: inside(getattr(op, item.name), known)
        for item in dataclasses.fields(op)
        if item.name != "origin"
    }
    return dataclasses.replace(op, **contents)


def cloned(body: Iterable[Op], suffix: str, known: Known) -> list[Op]:
    """Ops again, of other tiles and scalars. What they define gets names of its own."""
    found = dict(known)
    made: list[Op] = []
    for op in body:
        for inner in (op, *(inner for block in op.blocks() for inner in block.walk())):
            found |= {name: name + suffix for name in inner.names}
            found |= {
                tile: dataclasses.replace(tile, name=tile.name + suffix) for tile in inner.results
            }
        made.append(replaced(op, found))
    return made


def at_stages(op: Op, stages: Mapping[Slot, Operand]) -> Op:
    """The op, where it reads tiles of some slots at other stages: so many bytes into them."""
    for inner in (op, *(inner for block in op.blocks() for inner in block.walk())):
        inner.change(
            lambda content: (
                content.at_stage(stages[content.slot])
                if isinstance(content, SharedTile) and content.slot in stages
                else content
            )
        )
    return op


def inside(content: Any, known: Known) -> Any:
    """What a field holds, with other tiles and scalars."""
    match content:
        case Tile():
            return known.get(content, content)
        case str():
            return known.get(content, content)
        case tuple() | list():
            return type(content)(inside(item, known) for item in content)
        case SharedTile():
            return content.at_stage(inside(content.stage, known))
        case Scope():
            return Scope(
                {value: inside(bound, known) for value, bound in content.scalars.items()},
                {key: inside(tile, known) for key, tile in content.tiles.items()},
            )
        case Place():
            return dataclasses.replace(
                content, scope=inside(content.scope, known), mask=inside(content.mask, known)
            )
        case Block():
            return Block(inside(content.params, known), [replaced(op, known) for op in content.ops])
    return content
