"""Ops on registers alone: constants, indices, elementwise maps, casts, tiles in other layouts."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fuser.backend.nvptx.emit import elementwise
from fuser.backend.nvptx.emit.assembly import assembled
from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.elementwise import LOG2_E, apply, cast_registers
from fuser.backend.nvptx.emit.halves import (
    bitcast_halves,
    has_packed,
    map_packed,
    note_shift,
    shortened,
)
from fuser.backend.nvptx.emit.values import literal
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import flattened, vectors
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Coordinates
from fuser.dtypes import BY_NAME
from fuser.tilegen.value import INDEX

_SCALED = {
    "one_plus_tanh": elementwise.one_plus_tanh,
    "short_tanh": elementwise.fast_tanh,
    "capped": elementwise.capped,
    "rough_tanh": elementwise.rough_tanh,
    "one_plus_erf": elementwise.one_plus_erf,
    "gelu": elementwise.gelu,
    "short_exp": elementwise.fast_exp,
    "short_reciprocal": elementwise.fast_reciprocal,
}


def full(code: Code, op: ops.Full) -> None:
    """A literal for every register."""
    made = op.tile
    made.assign([literal(op.value, made.dtype)] * len(made.layout.regs))


def undefined(code: Code, op: ops.Undefined) -> None:
    """Poison."""
    op.tile.assign(["poison"] * len(op.tile.layout.regs))


def splat(code: Code, op: ops.Splat) -> None:
    """The scalar itself."""
    op.tile.assign([str(op.value)])


def unsplat(code: Code, op: ops.Unsplat) -> None:
    """A conversion, or none."""
    reg, bits = op.x.regs[0], 64 if op.x.dtype is INDEX else op.x.dtype.bits
    wanted = 64 if op.long else 32
    verb = "trunc" if bits > wanted else "sext" if op.x.dtype.kind == "int" else "zext"
    verb = "bitcast" if bits == wanted else verb
    code.emitter.define(op.names[0], f"{verb} {op.x.type} {reg} to i{wanted}")


def parameter(code: Code, op: ops.Parameter) -> None:
    """At the head: by whoever needs it first."""
    e, dtype = code.emitter, op.tile.dtype
    reg, bits = f"%scalar.{op.number}", 8 if dtype.kind == "bool" else dtype.bits
    if bits < 64:
        reg = e.hoisted(f"trunc i64 {reg} to i{bits}")
    if dtype.kind == "bool":
        reg = e.hoisted(f"icmp ne i8 {reg}, 0")
    elif dtype.is_float:
        reg = e.hoisted(f"bitcast i{bits} {reg} to {dtype.llvm}")
    op.tile.assign([reg])


def any_other(code: Code, op: ops.AnyOther) -> None:
    """A comparison for each register that differs, and a vote."""
    e, by = code.emitter, literal(op.value, op.x.dtype)
    flags = [e.value(f"fcmp une {op.x.type} {x}, {by}") for x in dict.fromkeys(op.x.regs)]
    changed = functools.reduce(lambda a, b: e.value(f"or i1 {a}, {b}"), flags)
    e.define(op.names[0], f"call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 {changed})")


def index(code: Code, op: ops.IndexTile) -> None:
    """One number a register."""
    made, e = op.tile, code.emitter
    bits = 64 if made.dtype is INDEX else made.dtype.bits
    own = 64 if op.long else 32
    indexer = code.indexer(made.layout, op.scope, op.long)
    made.assign(())
    for offset in made.layout.regs:
        total = e.total(indexer.evaluate(op.expression, offset), f"i{own}")
        if isinstance(total, int):
            made.regs.append(literal(total, made.dtype) if op.long else str(total))
            continue
        if bits != own:
            verb = "sext" if bits > own else "trunc"
            total = e.value(f"{verb} i{own} {total} to {made.type}")
        made.regs.append(str(total))


def map_(code: Code, op: ops.Map) -> None:
    """One result a register, or one for each vector of elements that are alike."""
    made, kind = op.tile, op.args[-1].dtype
    args = list(zip(*(tile.regs for tile in op.args), strict=True))
    first = list(range(len(made.layout.regs)))
    if op.alike is not None:
        for _, members in vectors(made.layout, *op.alike):
            for member in members:
                first[member] = members[0]
    if op.alike is None and has_packed(code.emitter, op.fn, kind):
        made.assign(map_packed(code.emitter, op.fn, kind, args))
        return
    found = {at: apply(code.emitter, op.fn, kind, list(args[at])) for at in dict.fromkeys(first)}
    made.assign(found[at] for at in first)
    if op.fn == "shift_right" and kind.bits == 32:
        for reg, (word, by) in zip(made.regs, args, strict=True):
            note_shift(code.emitter, reg, word, by)


def assembly(code: Code, op: ops.Assembly) -> None:
    """A call of the user's instructions for each pack of registers, of which results are taken."""
    args = [(tile.dtype, tile.regs) for tile in op.args]
    kinds = [BY_NAME[name] for name in op.kinds]
    found = assembled(code.emitter, op.text, op.constraints, args, kinds, op.which, op.pack)
    op.tile.assign(found)


def scaled_map(code: Code, op: ops.ScaledMap) -> None:
    """One result a register."""
    op.tile.assign(_SCALED[op.fn](code.emitter, x, op.scale) for x in op.x.regs)


def multiply(code: Code, op: ops.Multiply) -> None:
    """One product a register."""
    contracted = op.contract and code.emitter.fast
    by, verb = literal(op.number, op.x.dtype), "fmul contract" if contracted else "fmul"
    op.tile.assign(code.emitter.value(f"{verb} {op.x.type} {x}, {by}") for x in op.x.regs)


def exp_difference(code: Code, op: ops.ExpDifference) -> None:
    """exp2 of one multiply-add a register."""
    op.tile.assign(
        elementwise.exponential_of_difference(code.emitter, op.x.regs, op.y.regs, LOG2_E * op.scale)
    )


def share(code: Code, op: ops.Share) -> None:
    """A product a register; a reciprocal for each that differs."""
    e, name = code.emitter, "@llvm.nvvm.rcp.approx.ftz.f"
    sums = op.total.regs
    inverse = {x: e.value(f"call float {name}(float {x})") for x in dict.fromkeys(sums)}
    op.tile.assign(
        e.value(f"fmul float {x}, {inverse[y]}") for x, y in zip(op.x.regs, sums, strict=True)
    )


def cast(code: Code, op: ops.Cast) -> None:
    """Conversions, in pairs where an instruction makes two."""
    source, target = op.x.dtype, op.tile.dtype
    if source.is_integer and target.is_integer and (source.bits, target.bits) == (32, 16):
        op.tile.assign(shortened(code.emitter, op.x.regs, target))
        return
    op.tile.assign(cast_registers(code.emitter, op.x.regs, source, target))


def bitcast(code: Code, op: ops.Bitcast) -> None:
    """The same registers under another type."""
    source, target = op.x.type, op.tile.type
    if op.x.dtype.bits == 16 and source != target:
        op.tile.assign(bitcast_halves(code.emitter, op.x.regs, op.x.dtype, op.tile.dtype))
        return
    op.tile.assign(
        x if source == target else code.emitter.value(f"bitcast {source} {x} to {target}")
        for x in op.x.regs
    )


def relabel(code: Code, op: ops.Relabel) -> None:
    """Registers by other numbers: no code."""
    x, made = op.x, op.tile
    source, wanted = x.layout, made.layout
    if op.flat:
        source, wanted = flattened(source, x.shape), flattened(wanted, made.shape)
    axes = tuple(range(wanted.rank)) if op.axes is None else op.axes
    if op.axes is not None and not op.flat:
        ones = [a < 0 or dim == 1 for a, dim in zip(axes, source.shape, strict=True)]

        def at(offset: Coordinates) -> Coordinates:
            return tuple(0 if one else offset[a] for a, one in zip(axes, ones, strict=True))
    else:

        def at(offset: Coordinates) -> Coordinates:
            return offset

    made.assign(x.regs[source.register_of[at(offset)]] for offset in wanted.regs)


def fill_edge(code: Code, op: ops.FillEdge) -> None:
    """A selection for each register that may lie past the edge."""
    fill = literal(op.value, op.x.dtype)
    op.tile.assign(filled(code, op.x, op.axes, fill))


def filled(code: Code, x: Tile, axes: tuple[int, ...], fill: str) -> list[str]:
    """Registers with `fill` where an element lies past the tile's edge along `axes`."""
    layout = x.layout
    if all(layout.shape[a] == x.shape[a] for a in axes):
        return x.regs
    indexer = code.indexer(layout)
    limits = tuple(x.shape[a] if a in axes else layout.shape[a] for a in range(len(x.shape)))
    regs = []
    for offset, reg in zip(layout.regs, x.regs, strict=True):
        condition = indexer.inside(limits, offset)
        if condition is None:
            regs.append(reg)
        elif condition == 0:
            regs.append(fill)
        else:
            text = f"select i1 {condition}, {x.type} {reg}, {x.type} {fill}"
            regs.append(code.emitter.value(text))
    return regs


RULES: dict[type[Op], Callable[..., None]] = {
    ops.Full: full,
    ops.Splat: splat,
    ops.Unsplat: unsplat,
    ops.Parameter: parameter,
    ops.Undefined: undefined,
    ops.AnyOther: any_other,
    ops.IndexTile: index,
    ops.Map: map_,
    ops.Assembly: assembly,
    ops.ScaledMap: scaled_map,
    ops.Multiply: multiply,
    ops.ExpDifference: exp_difference,
    ops.Share: share,
    ops.Cast: cast,
    ops.Bitcast: bitcast,
    ops.Relabel: relabel,
    ops.FillEdge: fill_edge,
}
