"""Tensor maps of a launch, as LLVM IR: the driver encodes them on the stack of the call.

That takes it about 50 ns a map; nothing is kept from one launch to the next, so threads share
nothing. `fuser.runtime.device_code.tensor_map` is the same in Python.
"""

from __future__ import annotations

from fuser.backend.function import Module
from fuser.backend.text import Reg, integer
from fuser.runtime.native_words import (
    MAP_NUMBERS,
    MAP_WORDS,
    MAPS_AT,
    Door,
    Map,
    Writer,
)

MAP_BYTES = 128
"""Of a CUtensorMap; its address is a multiple of 64."""
PROMOTION = 2
"""CU_TENSOR_MAP_L2_PROMOTION_L2_128B"""


def write_maps(module: Module) -> None:
    """door, buffers, numbers, memory of the maps -> whether the driver has encoded all of them."""
    f = Writer(module, "encode_maps", "i1", *["ptr"] * 4)
    door, buffers, numbers, maps = f.args
    table = f.word(door, Door.MAP_TABLE, "ptr")
    functions = [f.word(door, word, "ptr") for word in (Door.ENCODE_TILED, Door.ENCODE_WALK)]

    def one(i: Reg, _: list[Reg]) -> list[Reg]:
        row = f.gep(table, f.mul(i, 8 * MAP_WORDS))
        to = f.gep(maps, f.mul(i, MAP_BYTES))
        first = f.gep(numbers, f.add(f.mul(i, 8 * MAP_NUMBERS), 8 * MAPS_AT))

        def short(word: Map) -> Reg:
            return f.convert("trunc", f.word(row, word), "i32")

        rank = f.word(row, Map.RANK)
        strides = f.gep(first, rank, "i64")
        offset = f.load("i64", f.gep(first, f.sub(f.mul(rank, 2), 1), "i64"), 8)
        start = f.load("i64", f.gep(buffers, f.word(row, Map.BUFFER), "i64"), 8)
        start = f.convert("inttoptr", f.binary("add", start, offset), "ptr")
        where = (to, short(Map.TYPE), f.convert("trunc", rank, "i32"), start, first, strides)
        steps = f.word(row, Map.STEPS, "ptr")
        zero = integer(0, "i32")
        how = (steps, zero, short(Map.SWIZZLE), integer(PROMOTION, "i32"), zero)

        def tiled() -> list[Reg]:
            return [f.through("i32", functions[0], *where, f.word(row, Map.BOX, "ptr"), *how)]

        def walk() -> list[Reg]:
            corners = [f.word(row, word, "ptr") for word in (Map.LOWER, Map.UPPER)]
            box = [short(word) for word in (Map.COLUMNS, Map.ROWS)]
            return [f.through("i32", functions[1], *where, *corners, *box, *how)]

        walks = f.icmp("ne", f.word(row, Map.WALKS), 0)
        (failed,) = f.when(walks, walk, tiled)
        f.need(f.icmp("eq", failed, 0))
        return []

    f.loop(integer(0), f.word(door, Door.MAPS), 1, [], one)
    f.finish(integer(1, "i1"))


def place_maps(f: Writer, maps: Reg, count: Reg, to: Reg) -> None:
    """The addresses of the maps, as parameters of a launch."""

    def one(i: Reg, _: list[Reg]) -> list[Reg]:
        f.store(f.gep(maps, f.mul(i, MAP_BYTES)), f.gep(to, i, "ptr"), 8)
        return []

    f.loop(integer(0), count, 1, [], one)
