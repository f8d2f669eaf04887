"""One rule an op: what computes a value that lives somewhere, what emits an effect of a block."""

from __future__ import annotations

from fuser.backend.cpu.dots import dot, packing
from fuser.backend.cpu.lowering import control, reduce
from fuser.backend.cpu.lowering.lower import Lowering, Rules
from fuser.backend.cpu.memory import atomics, stores
from fuser.backend.cpu.memory.storage import One, Place, zeros
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Op
from fuser.tilegen.value import Value


def _materialise(low: Lowering, op: Op) -> dict[Value, Place]:
    """Write a tile to a place in scratch, element by element, or packed for a dot unit."""
    value = op.result
    for operand in op.operands():
        low.require(operand)
    place = low.allocate(value)
    packed = low.known.packed.get(value)
    if packed is None:
        low.fill(value, place)
    else:
        packing.fill_packed(low, packed, place)
    return {value: place}


def _load(low: Lowering, op: ops.Load) -> dict[Value, Place]:
    if low.known.kind(op.result) != "scalar":
        return _materialise(low, op)
    for operand in op.operands():
        low.require(operand)
    return {op.result: One(low.evaluate(op, zeros(op.result)))}


def _held_load(low: Lowering, op: ops.Load, block: Block) -> None:
    """A load that must happen where it stands, because its memory changes."""
    if op in low.known.held and low.known.users.get(op.result):
        low.require(op.result)


RULES = Rules(
    values={
        ops.Reduce: reduce.lower_reduce,
        ops.Scan: reduce.lower_scan,
        ops.Dot: dot.lower_dot,
        ops.Load: _load,
        **dict.fromkeys((ops.Map, ops.Cast, ops.Bitcast, ops.Full, ops.IndexTile), _materialise),
        **dict.fromkeys((ops.Broadcast, ops.Reshape, ops.Permute, ops.Gather), _materialise),
    },
    effects={
        ops.Store: stores.lower_store,
        ops.Load: _held_load,
        ops.AtomicAdd: lambda low, op, block: atomics.lower_atomic(low, op),
        ops.Atomic: lambda low, op, block: atomics.lower_atomic(low, op),
        ops.For: lambda low, op, block: control.lower_for(low, op),
        ops.While: lambda low, op, block: control.lower_while(low, op),
        ops.If: lambda low, op, block: control.lower_if(low, op),
    },
)
