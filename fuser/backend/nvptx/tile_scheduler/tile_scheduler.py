"""The loop of a persistent block over its tiles: programs, or work units of stream-k."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.schedule.producer_ring import Ring


def tile_loop(
    low: Builder,
    consumer_groups: int,
    first: Operand,
    starts: list[Ring],
    is_valid: Callable[[str], str],
    emit: Callable[[str], tuple[Operand, list[Ring]]],
) -> None:
    """Emit the loop. first: the number it begins at; starts: (stage, phase) of every stream's ring
    there. is_valid: emits the condition under which a number is a tile. emit: emits the tile, and
    gives the number that follows and the rings then; of two consumer groups, after the other's
    tile.
    """
    e = low.scalars
    streams = list(low.producer.streams.values())
    # a fresh barrier counts as complete for parity 1: warp group 0 begins at once
    order_phase = e.compute("sub", 1, low.shared.group) if consumer_groups > 1 else ""
    number = e.name_of()
    rings = [(e.name_of(), e.name_of()) for _ in streams]
    for stream, ring in zip(streams, rings, strict=True):
        stream.turn(ring)
    low.producer.begin_program(number, e.name_of(), e.name_of())
    carried: list[tuple[str, Operand]] = [(number, first)]
    if low.producer.resident:
        carried.append((low.producer.resident_phase, 0))
    if consumer_groups > 1:
        carried.append((low.producer.order_phase, order_phase))
    for ring, start in zip(rings, starts, strict=True):
        carried += zip(ring, start, strict=True)
    names, firsts = zip(*carried, strict=True)
    region = low.region(gpu.While(
        scalars=names, types=("i32",) * len(names), firsts=firsts, params=(), inits=(),
        head=ir.Block(), body=ir.Block(),
    ))  # fmt: skip
    low.do(gpu.Condition(value=is_valid(number)))
    region.following()
    following, ends = emit(number)
    after: list[Operand] = [following]
    if low.producer.resident:
        after.append(e.compute("xor", low.producer.resident_phase, 1))
    if consumer_groups > 1:
        after.append(e.compute("xor", low.producer.order_phase, 1))
    for end in ends:
        after += end
    low.do(gpu.Yield(scalars=tuple(after)))
    region.following()
    for stream, ring in zip(streams, rings, strict=True):
        stream.turn(ring)
