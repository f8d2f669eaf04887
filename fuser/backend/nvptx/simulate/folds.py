"""Folds, and what lanes tell each other."""

from __future__ import annotations

import functools

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.layouts.layout import Coordinates
from fuser.backend.nvptx.simulate.clocks import Array
from fuser.backend.nvptx.simulate.data import evaluate
from fuser.backend.nvptx.simulate.warp import Rule, Warp
from fuser.dtypes import DType

_MAPS = {"sum": "add", "prod": "mul"}
_OF_BOOLS = {
    "add": "logical_or", "max": "logical_or", "fmax": "logical_or", "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
}  # fmt: skip


def combine(fn: str, dtype: DType, a: Array, b: Array) -> Array:
    """One step of a fold."""
    name = _MAPS.get(fn, fn)
    if dtype.kind == "bool":
        name = _OF_BOOLS.get(name, "logical_and")
    return evaluate(name, [a, b])


def fold_registers(warp: Warp, op: ops.FoldRegisters) -> None:
    x, axis = op.x, op.axis
    shape = [x.shape[a] if a == axis else n for a, n in enumerate(x.layout.shape)]
    inside = warp.inside(x.layout, shape)
    places: dict[Coordinates, list[int]] = {at: [] for at in op.tile.layout.regs}
    for number, at in enumerate(x.layout.regs):
        places[(*at[:axis], *at[axis + 1 :])].append(number)
    found, empty = warp.tiles[x], identity(op.fn, x.dtype)
    parts = []
    for numbers in places.values():
        some = np.where(inside[:, numbers], found[:, numbers], empty)
        columns = [some[:, i] for i in range(len(numbers))]
        parts.append(functools.reduce(functools.partial(combine, op.fn, x.dtype), columns))
    made = np.stack(parts, 1)
    if op.before is not None:
        made = combine(op.fn, x.dtype, warp.tiles[op.before], made)
    warp.tiles[op.tile] = made


def identity(fn: str, dtype: DType) -> Array:
    """The element that a fold starts from."""
    if fn in ("fmax", "fmin") and dtype.is_float:
        return np.asarray(np.nan, dtype.numpy)
    if fn == "bitwise_and":
        return np.asarray(dtype.kind == "bool" or -1).astype(dtype.numpy)
    name = fn[-3:] if fn in ("fmax", "fmin") else fn
    least = {"prod": 1, "max": dtype.lowest, "min": dtype.highest}
    return np.asarray(least.get(name, 0)).astype(dtype.numpy)


def fold_lanes(warp: Warp, op: ops.FoldLanes) -> None:
    found = warp.tiles[op.x]
    for step in op.steps:
        found = combine(op.fn, op.x.dtype, found, found[np.arange(32) ^ step])
    warp.tiles[op.tile] = found


def fold_parts(warp: Warp, op: ops.FoldParts) -> None:
    parts = [warp.tiles[part] for part in op.parts]
    dtype = op.parts[0].dtype
    warp.tiles[op.tile] = functools.reduce(functools.partial(combine, op.fn, dtype), parts)


def shuffle(warp: Warp, op: ops.Shuffle) -> None:
    lanes, amount = np.arange(32), op.amount
    source = {"bfly": lanes ^ amount, "up": lanes - amount, "down": lanes + amount}[op.kind]
    source = np.where((source < 0) | (source > 31), lanes, source)
    warp.tiles[op.tile] = warp.tiles[op.x][source]


RULES: dict[type[Op], Rule] = {
    ops.FoldRegisters: fold_registers,
    ops.FoldLanes: fold_lanes,
    ops.FoldParts: fold_parts,
    ops.Shuffle: shuffle,
}
