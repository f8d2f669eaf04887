"""Atomics with results.

They acquire and release at the scope of the GPU. What the block stored before is complete when one
of its threads publishes it: a barrier before, where something is pending. Threads that repeat an
element have it done by one of them, and read the result from shared memory.
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import repeats, row_major
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.errors import LoweringError
from fuser.tilegen import ops


def lower_atomic(low: Builder, op: ops.Atomic) -> None:
    """Emit an atomic; its result is bound if anybody looks at it."""
    access, dtype = low.assignment.accesses[op], op.value.dtype
    plain = op.fn in ("load", "store")
    if dtype.kind == "bool" or (dtype.bits < 16 and not plain):
        raise LoweringError(
            f"an atomic {op.fn} of {dtype} has no lowering for NVIDIA GPUs",
            hint="16, 32 and 64 bits can be exchanged as one",
        )
    layout = low.known_layout(op.result) or low.plain_layout(access.shape, [access])
    value = low.tile(op.value, layout)
    compare = None if op.compare is None else low.tile(op.compare, layout)
    at = low.place(access, layout)
    used = low.hazards.observes(op)
    found = low.new(dtype, access.shape, layout, op.result.name)
    low.do(gpu.Atomic(
        fn=op.fn, at=at, value=value, compare=compare, system=op.system,
        ordered=plain or low.hazards.observed, results=(found,) if used else (),
    ))  # fmt: skip
    if not used:
        return
    if repeats(layout):
        found = shown_to_all(low, found)
    low.set(op.result, found)


def shown_to_all(low: Recording, tile: Tile) -> Tile:
    """What one of the threads that repeat an element holds, in all of them."""
    slot = low.shared.allocate(row_major(tile.layout.shape, tile.dtype.bytes)[0])
    low.do(gpu.WriteParts(slot=slot, values=(tile,), bits=(), once=True))
    made = low.new(tile.dtype, tile.shape, tile.layout)
    low.do(gpu.ReadParts(slot=slot, parts=(0,), count=1, results=(made,)))
    low.shared.free(slot)
    return made
