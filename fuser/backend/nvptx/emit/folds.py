"""Folds: of registers, of lanes, of the parts that warps leave in shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.elementwise import apply
from fuser.backend.nvptx.emit.registers import filled
from fuser.backend.nvptx.emit.values import literal
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.layouts.layout import Coordinates
from fuser.dtypes import DType

Combine = Callable[[str, str], str]
_PRIMITIVE = {"sum": "add", "prod": "mul"}
"""The maps of those folds that have another name."""


def identity(fn: str, dtype: DType) -> str:
    """The element that a fold starts from."""
    if fn in ("fmax", "fmin") and dtype.is_float:
        return literal(math.nan, dtype)  # which any number replaces
    if fn == "bitwise_and":
        return literal(True if dtype.kind == "bool" else -1, dtype)
    name = fn[-3:] if fn in ("fmax", "fmin") else fn
    value = {
        "sum": 0, "prod": 1, "max": dtype.lowest, "min": dtype.highest, "bitwise_or": 0,
        "bitwise_xor": 0,
    }[name]  # fmt: skip
    return literal(value, dtype)


def combiner(code: Code, fn: str, dtype: DType, lanes: bool = False) -> Combine:
    """Emit one step of a fold. lanes: between two that both go on with the result, which must have
    the same bits in both: no earlier product may be rounded with the sum, as each lane would do
    so with its own."""
    if lanes and fn == "sum" and dtype.is_float and dtype.compute is dtype:
        return lambda a, b: code.emitter.value(f"fadd {dtype.llvm} {a}, {b}")
    name = _PRIMITIVE.get(fn, fn)
    if dtype.kind == "bool":
        name = {"add": "logical_or", "max": "logical_or", "fmax": "logical_or",
                "bitwise_or": "logical_or", "bitwise_xor": "logical_xor"}.get(
            name, "logical_and"
        )  # fmt: skip
    return lambda a, b: apply(code.emitter, name, dtype, [a, b])


def tree(items: list[str], combine: Combine) -> str:
    """Items folded in pairs, in their order."""
    while len(items) > 1:
        items = [
            combine(items[i], items[i + 1]) if i + 1 < len(items) else items[i]
            for i in range(0, len(items), 2)
        ]
    return items[0]


def fold_registers(code: Code, op: ops.FoldRegisters) -> None:
    """A tree for each row."""
    x, axis = op.x, op.axis
    combine = combiner(code, op.fn, x.dtype)
    regs = filled(code, x, (axis,), identity(op.fn, x.dtype))
    parts: dict[Coordinates, list[str]] = {offset: [] for offset in op.tile.layout.regs}
    for offset, reg in zip(x.layout.regs, regs, strict=True):
        parts[(*offset[:axis], *offset[axis + 1 :])].append(reg)
    folded = [tree(items, combine) for items in parts.values()]
    if op.before is not None:
        folded = [combine(a, b) for a, b in zip(op.before.regs, folded, strict=True)]
    op.tile.assign(folded)


def fold_lanes(code: Code, op: ops.FoldLanes) -> None:
    """A shuffle and a step of the fold for each bit of the lane's number."""
    combine, regs = combiner(code, op.fn, op.x.dtype, lanes=op.both), op.x.regs
    for step in op.steps:
        regs = [combine(x, shuffled(code, x, op.x.dtype, "bfly", step)) for x in regs]
    op.tile.assign(regs)


def fold_parts(code: Code, op: ops.FoldParts) -> None:
    """A tree for each register."""
    combine = combiner(code, op.fn, op.parts[0].dtype)
    columns = zip(*(part.regs for part in op.parts), strict=True)
    op.tile.assign(tree(list(column), combine) for column in columns)


def shuffle(code: Code, op: ops.Shuffle) -> None:
    """One shuffle a word."""
    op.tile.assign(shuffled(code, x, op.x.dtype, op.kind, op.amount) for x in op.x.regs)


def shuffled(code: Code, name: str, dtype: DType, kind: str, amount: int) -> str:
    """A register of another lane."""
    emitter, type = code.emitter, dtype.llvm
    bits = 1 if dtype.kind == "bool" else dtype.bits
    clamp = 0 if kind == "up" else 31

    def move(word: str) -> str:
        return emitter.value(
            f"call i32 @llvm.nvvm.shfl.sync.{kind}.i32(i32 -1, i32 {word}, i32 {amount}, "
            f"i32 {clamp})"
        )

    if bits == 64:
        pair = emitter.value(f"bitcast {type} {name} to <2 x i32>")
        words = [emitter.value(f"extractelement <2 x i32> {pair}, i32 {i}") for i in range(2)]
        moved = "poison"
        for i, word in enumerate(words):
            moved = emitter.value(f"insertelement <2 x i32> {moved}, i32 {move(word)}, i32 {i}")
        return emitter.value(f"bitcast <2 x i32> {moved} to {type}")
    if bits == 32:
        word = name if type == "i32" else emitter.value(f"bitcast {type} {name} to i32")
        word = move(word)
        return word if type == "i32" else emitter.value(f"bitcast i32 {word} to {type}")
    short = name
    if dtype.is_float:
        short = emitter.value(f"bitcast {type} {name} to i{bits}")
    word = move(emitter.value(f"zext i{bits} {short} to i32"))
    short = emitter.value(f"trunc i32 {word} to i{bits}")
    return emitter.value(f"bitcast i{bits} {short} to {type}") if dtype.is_float else short


RULES: dict[type[Op], Callable[..., None]] = {
    ops.FoldRegisters: fold_registers,
    ops.FoldLanes: fold_lanes,
    ops.FoldParts: fold_parts,
    ops.Shuffle: shuffle,
}
