"""What an op reads, out of whatever its fields hold."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.values import Place, Scope, SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Layout

NAME = re.compile(r"%[A-Za-z_][\w.]*")

Use = Tile | Slot | Layout | str
"""A tile, a slot, a layout, or the name of a scalar."""


def uses(op: Op) -> Iterator[Use]:
    """What the fields of an op name, blocks left out: in order, with repetition."""
    if isinstance(op, Integer):
        yield from (item for item in op.operands if isinstance(item, str))
        return
    given = carried(op)
    for content in op.contents():
        if content not in given:
            yield from _inside(content)


def carried(op: Op) -> tuple[Tile | str, ...]:
    """What an op with blocks hands to them: scalars, then tiles."""
    if not op.blocks():
        return ()
    return (*getattr(op, "scalars", ()), *getattr(op, "params", ()))


def defines(op: Op) -> tuple[Tile | str, ...]:
    """What has a value from an op on: its results, and what its blocks find."""
    return (*op.results, *op.names, *carried(op), *(p for b in op.blocks() for p in b.params))


def scalars_of(op: Op) -> Iterator[str]:
    """The names of scalars that an op reads."""
    return (item for item in uses(op) if isinstance(item, str))


def _inside(content: object) -> Iterator[Use]:
    match content:
        case Block():
            return
        case Tile() | Slot() | Layout():
            yield content
        case str():
            if NAME.fullmatch(content):
                yield content
        case SharedTile():
            yield content.slot
            yield from _inside(content.stage)
        case Place():
            yield from _inside(content.scope)
            if content.mask is not None:
                yield content.mask
        case Scope():
            for bound in content.scalars.values():
                yield from _inside(bound)
            yield from content.tiles.values()
        case tuple() | list():
            for item in content:
                yield from _inside(item)
        case _ if dataclasses.is_dataclass(content) and not isinstance(content, type):
            for field in dataclasses.fields(content):
                yield from _inside(getattr(content, field.name))
