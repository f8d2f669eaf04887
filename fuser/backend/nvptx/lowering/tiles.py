"""Tiles made of others of one type and layout."""

from __future__ import annotations

import math

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.dtypes import BY_NAME


def new_like(low: Recording, like: Tile) -> Tile:
    """A tile that an op is to give, of the type of another."""
    return low.new(like.dtype, like.shape, like.layout)


def full_like(low: Recording, like: Tile, value: float) -> Tile:
    """A tile of one number."""
    return low.add(gpu.Full(value=value, results=(new_like(low, like),)))


def map_of(low: Recording, fn: str, *args: Tile) -> Tile:
    """fn of the elements of tiles; of the type of the last."""
    return low.add(gpu.Map(fn=fn, args=args, results=(new_like(low, args[-1]),)))


def finite(low: Recording, top: Tile) -> Tile:
    """Maxima to sum around: 0 where there is nothing but -inf, so far."""
    made = low.new(BY_NAME["bool"], top.shape, top.layout)
    nothing = low.add(gpu.Map(fn="eq", args=(top, full_like(low, top, -math.inf)), results=(made,)))
    return map_of(low, "select", nothing, full_like(low, top, 0.0), top)
