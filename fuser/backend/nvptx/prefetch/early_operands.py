"""Ask for what an epilogue reads before the loop that precedes it: it travels under the loop.

    await_previous (a, r)                       await_previous (a, r)
    %s = for 768 ...                            %r = load_lines &r[...]
    %r = load_lines &r[...]                     keep %r
    %t = turn_lines %r                          %s = for 768 ...
    %y = map.add (%s, %t)                       %t = turn_lines %r
                                                %y = map.add (%s, %t)

A residual that is asked for after the last product is waited for by the whole block: some 0.6 us
of the L2. Constants went further up already (early_constants.py).
"""

from __future__ import annotations

from math import prod

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.effects import touched
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.prefetch.code_motion import makers_of, take, words_of
from fuser.graph.sizes import size_hint

MOST, OTHERS = 32, 96
"""Registers of a thread for what is loaded early, and those of a loop beside what it carries."""
FILE, LARGEST = 65536, 255
"""Registers of a multiprocessor, and of a thread at most."""


def request_operands(program: Program, units: int) -> Decision | None:
    """Move loads of an epilogue before its loop, and say how many; None where it has none, or
    where more blocks than `units`, the multiprocessors, hide each other's waits."""
    if prod(map(size_hint, program.launch)) > units:
        return None
    roles = next((op for op in program.body.ops if isinstance(op, ops.WarpRoles)), None)
    if roles is not None and roles.registers is not None:
        return None  # the consumers' are counted out
    block = program.body if roles is None else roles.consumer
    at = _last_loop(block)
    if at is None:
        return None
    room = min(LARGEST, FILE // (program.threads * max(1, program.resident))) - OTHERS
    moved, loads = _movable(block, at, room)
    if not loads:
        return None
    kept = [ops.Keep(x=tile) for tile in loads]
    block.ops[:] = [
        *block.ops[:at], *(op for op in block.ops[at:] if op in moved), *kept,
        *(op for op in block.ops[at:] if op not in moved),
    ]  # fmt: skip
    return Decision("operands of the epilogue requested early", True, f"{len(loads)} loads")


def _last_loop(block: Block) -> int | None:
    """The place of a loop after which the block has straight code alone."""
    places = [place for place, op in enumerate(block.ops) if op.blocks()]
    if not places or not isinstance(block.ops[places[-1]], ops.For):
        return None
    return places[-1]


def _movable(block: Block, at: int, room: int) -> tuple[dict[Op, None], list[Tile]]:
    """What moves before the loop at a place, and what it loads: nothing that the kernel may
    have written by then. room: registers of that and what the loop carries."""
    loop, after = block.ops[at], block.ops[at + 1 :]
    assert isinstance(loop, ops.For)
    inside = [op for inner in loop.blocks() for op in inner.walk()]
    if any(_writes(op) or isinstance(op, ops.MmaTf32 | ops.WgmmaSplit) for op in inside):
        return {}, []  # float32 in two parts leaves no registers
    makers, moved = makers_of(after), dict[Op, None]()
    loads: list[Tile] = []
    loaded = {op.tile: op for op in block.ops[:at] if isinstance(op, ops.Load)}
    room = min(MOST, room - sum(words_of(tile, loaded.get(tile)) for tile in loop.inits))
    for op in after:
        if _writes(op):
            break
        if not isinstance(op, ops.Load | ops.LoadLines):
            continue
        if isinstance(op, ops.Load) and op.volatile:
            continue
        size = words_of(op.tile)
        if size <= room and take(op, makers, moved):
            room -= size
            loads.append(op.tile)
    return moved, loads


def _writes(op: Op) -> bool:
    touch = touched(op)
    return touch is not None and touch.writes


__all__ = ["request_operands"]
