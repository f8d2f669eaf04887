"""Tiles in registers: constants, indices, maps, casts, other layouts."""

from __future__ import annotations

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import flattened
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.layouts.layout import Coordinates
from fuser.backend.nvptx.simulate.clocks import Array, SimulationError
from fuser.backend.nvptx.simulate.warp import Rule, Warp
from fuser.graph.ops.registry import primitive


def full(warp: Warp, op: ops.Full) -> None:
    made = op.tile
    warp.tiles[made] = np.full((32, len(made.layout.regs)), op.value, made.dtype.numpy)


def undefined(warp: Warp, op: ops.Undefined) -> None:
    """What shows if somebody looks at it."""
    made = op.tile
    worst = np.nan if made.dtype.is_float else made.dtype.highest
    warp.tiles[made] = np.full((32, len(made.layout.regs)), worst, made.dtype.numpy)


def index(warp: Warp, op: ops.IndexTile) -> None:
    found = warp.index(op.expression, op.tile.layout, op.scope)
    warp.tiles[op.tile] = found.astype(op.tile.dtype.numpy)


def evaluate(fn: str, args: list[Array]) -> Array:
    """A primitive on arrays."""
    (found,) = primitive(fn).evaluate(args, {})
    return np.asarray(found)


def map_(warp: Warp, op: ops.Map) -> None:
    for arg in op.args:
        if arg.layout != op.tile.layout:
            raise SimulationError("a map of tiles of different layouts")
    warp.tiles[op.tile] = evaluate(op.fn, [warp.tiles[arg] for arg in op.args])


def scaled_map(warp: Warp, op: ops.ScaledMap) -> None:
    x = warp.tiles[op.x] * np.float32(op.scale)
    if op.fn == "short_exp":
        found = np.exp(x)
    elif op.fn == "short_reciprocal":
        found = evaluate("reciprocal", [x])
    elif op.fn == "one_plus_erf":
        found = 1 + evaluate("erf", [x])
    elif op.fn == "gelu":
        found = warp.tiles[op.x] / 2 * (1 + evaluate("erf", [x]))
    else:
        found = np.tanh(x) + (1 if op.fn == "one_plus_tanh" else 0)
    warp.tiles[op.tile] = found.astype(op.tile.dtype.numpy)


def multiply(warp: Warp, op: ops.Multiply) -> None:
    dtype = op.tile.dtype.numpy
    warp.tiles[op.tile] = warp.tiles[op.x] * np.asarray(op.number, dtype)


def exp_difference(warp: Warp, op: ops.ExpDifference) -> None:
    x, y = warp.tiles[op.x], warp.tiles[op.y]
    warp.tiles[op.tile] = np.exp(x * np.float32(op.scale) - y)


def share(warp: Warp, op: ops.Share) -> None:
    warp.tiles[op.tile] = warp.tiles[op.x] / warp.tiles[op.total]


def cast(warp: Warp, op: ops.Cast) -> None:
    (found,) = primitive("cast").evaluate([warp.tiles[op.x]], {"dtype": op.tile.dtype})
    warp.tiles[op.tile] = np.asarray(found)


def bitcast(warp: Warp, op: ops.Bitcast) -> None:
    warp.tiles[op.tile] = np.ascontiguousarray(warp.tiles[op.x]).view(op.tile.dtype.numpy)


def relabel(warp: Warp, op: ops.Relabel) -> None:
    x, made = op.x, op.tile
    source, wanted = x.layout, made.layout
    if op.flat:
        source, wanted = flattened(source, x.shape), flattened(wanted, made.shape)
    axes = op.axes if op.axes is not None and not op.flat else tuple(range(wanted.rank))
    ones = [
        a < 0 or (op.axes is not None and d == 1) for a, d in zip(axes, source.shape, strict=True)
    ]

    def place(offset: Coordinates) -> int:
        at = tuple(0 if one else offset[a] for a, one in zip(axes, ones, strict=True))
        if at not in source.register_of:
            raise SimulationError("relabel: a thread does not have what it needs")
        return source.register_of[at]

    mine, theirs = warp.coordinates(source), warp.coordinates(wanted)
    numbers = [place(offset) for offset in wanted.regs]
    inside = warp.inside(made.layout, made.shape)
    for position, (axis, one) in enumerate(zip(axes, ones, strict=True)):
        if not one:
            wrong = mine[:, numbers, position] != theirs[:, :, axis]
            if (wrong & inside).any():
                raise SimulationError("relabel: a thread does not have what it needs")
    warp.tiles[made] = warp.tiles[x][:, numbers]


def fill_edge(warp: Warp, op: ops.FillEdge) -> None:
    shape = [op.x.shape[a] if a in op.axes else n for a, n in enumerate(op.x.layout.shape)]
    found, fill = warp.tiles[op.x], np.asarray(op.value, op.x.dtype.numpy)
    warp.tiles[op.tile] = np.where(warp.inside(op.x.layout, shape), found, fill)


def splat(warp: Warp, op: ops.Splat) -> None:
    value = warp.scalar(op.value)[:, None].astype(op.tile.dtype.numpy)
    warp.tiles[op.tile] = np.repeat(value, len(op.tile.layout.regs), 1)


def parameter(warp: Warp, op: ops.Parameter) -> None:
    made, numbers = op.tile, warp.machine.numbers
    if op.number >= len(numbers):
        raise SimulationError(f"the launch gives no number {op.number}")
    value = np.asarray(numbers[op.number]).astype(made.dtype.numpy)
    warp.tiles[made] = np.full((32, len(made.layout.regs)), value)


def unsplat(warp: Warp, op: ops.Unsplat) -> None:
    warp.scalars[op.names[0]] = warp.scalar(op.x)


def keep(warp: Warp, op: ops.Keep) -> None:
    """No number changes."""


def any_other(warp: Warp, op: ops.AnyOther) -> None:
    found = bool((warp.tiles[op.x] != op.value).any())
    warp.scalars[op.names[0]] = np.full(32, found, np.int64)


RULES: dict[type[Op], Rule] = {
    ops.Full: full,
    ops.Undefined: undefined,
    ops.IndexTile: index,
    ops.Splat: splat,
    ops.Parameter: parameter,
    ops.Unsplat: unsplat,
    ops.Keep: keep,
    ops.AnyOther: any_other,
    ops.Map: map_,
    ops.ScaledMap: scaled_map,
    ops.Multiply: multiply,
    ops.ExpDifference: exp_difference,
    ops.Share: share,
    ops.Cast: cast,
    ops.Bitcast: bitcast,
    ops.Relabel: relabel,
    ops.FillEdge: fill_edge,
}
