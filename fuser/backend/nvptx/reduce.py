"""Reductions of a distributed tile: registers, then lanes by shuffles, then warps through shared
memory, then the blocks of a cluster. The order is fixed by the layout, so equal inputs give equal
bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuser.backend.nvptx.cluster import NeedsOneBlock
from fuser.backend.nvptx.convert import offset_of, row_major, shared_offset
from fuser.backend.nvptx.elementwise import apply
from fuser.backend.nvptx.exchange import Parts
from fuser.backend.nvptx.layout import Coordinates, Layout
from fuser.backend.nvptx.memory import from_memory, to_memory
from fuser.backend.nvptx.values import Tile, literal, memory_type
from fuser.dtypes import DType

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

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


def combiner(low: Lowering, fn: str, dtype: DType, lanes: bool = False) -> Combine:
    """Emit one step of a fold. lanes: between two that both go on with the result, which must have
    the same bits in both: no product in front may be rounded with the sum, as each lane would do
    so with its own."""
    if lanes and fn == "sum" and dtype.is_float and dtype.compute is dtype:
        return lambda a, b: low.emitter.value(f"fadd {dtype.llvm} {a}, {b}")
    name = _PRIMITIVE.get(fn, fn)
    if dtype.kind == "bool":
        name = {"add": "logical_or", "max": "logical_or", "fmax": "logical_or",
                "bitwise_or": "logical_or", "bitwise_xor": "logical_xor"}.get(
            name, "logical_and"
        )  # fmt: skip
    return lambda a, b: apply(low.emitter, name, dtype, [a, b])


def mask_edge(low: Lowering, tile: Tile, axes: tuple[int, ...], fill: str) -> list[str]:
    """Registers with `fill` where an element lies past the tile's edge along `axes`."""
    layout = tile.layout
    if all(layout.shape[a] == tile.shape[a] for a in axes):
        return tile.regs
    indexer = low.indexer(layout)
    limits = tuple(tile.shape[a] if a in axes else layout.shape[a] for a in range(len(tile.shape)))
    regs = []
    for offset, reg in zip(layout.regs, tile.regs, strict=True):
        condition = indexer.inside(limits, offset)
        if condition is None:
            regs.append(reg)
        elif condition == 0:
            regs.append(fill)
        else:
            regs.append(
                low.emitter.value(f"select i1 {condition}, {tile.type} {reg}, {tile.type} {fill}")
            )
    return regs


@dataclass
class Partial:
    """A fold of some axis of a tile under way: what each thread has of the result, in `layout`."""

    fn: str
    dtype: DType
    axis: int
    of: Layout
    layout: Layout
    shape: Coordinates
    regs: list[str]


def reduce_tile(low: Lowering, fn: str, tile: Tile, axis: int) -> Tile:
    """Fold an axis away; the result's layout is the tile's without that axis."""
    return fold_threads(low, fold_registers(low, fn, tile, axis))


def fold_registers(
    low: Lowering, fn: str, tile: Tile, axis: int, before: Partial | None = None
) -> Partial:
    """Fold the registers of each thread. before: of other registers of the same tile."""
    layout, dtype = tile.layout, tile.dtype
    combine = combiner(low, fn, dtype)
    regs = mask_edge(low, tile, (axis,), identity(fn, dtype))
    result = layout.reduced(axis)
    parts: dict[Coordinates, list[str]] = {offset: [] for offset in result.regs}
    for offset, reg in zip(layout.regs, regs, strict=True):
        parts[(*offset[:axis], *offset[axis + 1 :])].append(reg)
    folded = [tree(items, combine) for items in parts.values()]
    if before is not None:
        folded = [combine(a, b) for a, b in zip(before.regs, folded, strict=True)]
    shape = (*tile.shape[:axis], *tile.shape[axis + 1 :])
    return Partial(fn, dtype, axis, layout, result, shape, folded)


def fold_threads(low: Lowering, part: Partial) -> Tile:
    """Fold what the threads have: lanes, warps, the blocks of a cluster."""
    axis, dtype, folded = part.axis, part.dtype, part.regs
    combine, both = combiner(low, part.fn, dtype), combiner(low, part.fn, dtype, lanes=True)
    for bit, basis in enumerate(part.of.lanes):
        if basis[axis]:
            folded = [both(x, shuffle(low, x, dtype, 1 << bit)) for x in folded]
    bits = [bit for bit, basis in enumerate(part.of.warps) if basis[axis]]
    inside, blocks = low.cluster.split(bits)
    for gather, which in ((parts_of_warps, inside), (parts_of_blocks, blocks)):
        if which:
            parts = gather(low, [folded], dtype, part.layout, which)
            folded = [tree(list(x), combine) for x in zip(*(p[0] for p in parts), strict=True)]
    return Tile(dtype, part.shape, part.layout, folded)


def tree(items: list[str], combine: Combine) -> str:
    while len(items) > 1:
        items = [
            combine(items[i], items[i + 1]) if i + 1 < len(items) else items[i]
            for i in range(0, len(items), 2)
        ]
    return items[0]


def shuffle(low: Lowering, name: str, dtype: DType, mask: int) -> str:
    """The value that the lane whose number differs by `mask` holds."""
    return _exchange(low, name, dtype, f"bfly.i32(i32 -1, i32 {{}}, i32 {mask}, i32 31)")


def shuffle_up(low: Lowering, name: str, dtype: DType, distance: int) -> str:
    """The value of the lane `distance` below; its own where there is none."""
    return _exchange(low, name, dtype, f"up.i32(i32 -1, i32 {{}}, i32 {distance}, i32 0)")


def shuffle_down(low: Lowering, name: str, dtype: DType, distance: int) -> str:
    """The value of the lane `distance` above; its own where there is none."""
    return _exchange(low, name, dtype, f"down.i32(i32 -1, i32 {{}}, i32 {distance}, i32 31)")


def _exchange(low: Lowering, name: str, dtype: DType, call: str) -> str:
    emitter, type = low.emitter, dtype.llvm
    bits = 1 if dtype.kind == "bool" else dtype.bits

    def move(word: str) -> str:
        return emitter.value("call i32 @llvm.nvvm.shfl.sync." + call.format(word))

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


def parts_of_warps(
    low: Lowering, values: list[list[str]], dtype: DType, layout: Layout, bits: list[int]
) -> Parts:
    """What the warps that differ in `bits` of the warp number have of some tiles of one layout."""
    emitter, type = low.emitter, memory_type(dtype)
    size, steps = row_major(layout.shape, dtype.bytes * len(values))
    # part p of the partial results lies p * size bytes into the slot
    place = [offset_of(basis, steps) for basis in layout.bits]
    part = [0] * len(place)
    for position, bit in enumerate(bits):
        part[5 + bit] = size << position
    slot = low.shared.allocate(size << len(bits))
    low.shared.before_write()
    mine = emitter.plus(emitter.thread_part(place), emitter.thread_part(part))
    base = low.shared.pointer(slot, mine)
    offsets = [
        [offset_of(at, steps) + which * dtype.bytes for at in layout.regs]
        for which in range(len(values))
    ]
    for places, regs in zip(offsets, values, strict=True):
        for offset, reg in zip(places, regs, strict=True):
            pointer = shared_offset(low, base, offset)
            value = to_memory(low, reg, dtype)
            emitter.do(f"store {type} {value}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
    low.shared.before_read()
    base = low.shared.pointer(slot, emitter.thread_part(place))

    def read(at: int) -> str:
        pointer = shared_offset(low, base, at)
        name = emitter.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
        return from_memory(low, name, dtype)

    found = []
    for number in range(1 << len(bits)):
        warp = sum(1 << bit for i, bit in enumerate(bits) if number >> i & 1)
        if warp < low.warps:  # twelve warps have four bits
            found.append([[read(at + number * size) for at in places] for places in offsets])
    low.shared.free(slot)
    return found


def parts_of_blocks(
    low: Lowering, values: list[list[str]], dtype: DType, layout: Layout, bits: list[int]
) -> Parts:
    """What the blocks that differ in `bits` of their number have of some tiles of one layout."""
    if len(bits) < low.cluster.bits:
        raise NeedsOneBlock("a reduction over some of the blocks")
    return low.cluster.exchange(values, dtype, layout)
