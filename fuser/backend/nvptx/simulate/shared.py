"""Slots of shared memory, barriers, and what the blocks of a cluster tell each other."""

from __future__ import annotations

import functools

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import offset_of, row_major
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.integers import first_block_bit
from fuser.backend.nvptx.simulate.barriers import Mbarrier
from fuser.backend.nvptx.simulate.clocks import Array, Clock
from fuser.backend.nvptx.simulate.memory import nothing
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp, as_bytes, bytes_at


def free(warp: Warp, op: ops.Free) -> None:
    """Barriers in the slot are none any more."""
    first = op.slot.offset
    for block, at in list(warp.machine.mbarriers):
        if block == warp.block and first <= at < first + op.slot.size:
            del warp.machine.mbarriers[block, at]


def barrier(warp: Warp, op: ops.Barrier) -> Steps:
    meeting = warp.machine.meetings[warp.block]
    if op.threads:
        meeting = warp.machine.meeting(warp.block, 1 + warp.number_of(op.team), op.threads)
    yield meeting.arrive(warp.clock.release())
    warp.clock.learn(meeting.given)


def named_barrier(warp: Warp, op: ops.NamedBarrier) -> Steps:
    meeting = warp.machine.meeting(warp.block, warp.number_of(op.number), op.threads)
    ready = meeting.arrive(warp.clock.release())
    if op.kind == "sync":
        yield ready
        warp.clock.learn(meeting.given)


def write_shared(warp: Warp, op: ops.WriteShared) -> None:
    warp.write(op, warp.slot_addresses(op.slot, op.x.layout, op.steps), warp.tiles[op.x])


def read_shared(warp: Warp, op: ops.ReadShared) -> None:
    made = op.tile
    at = warp.slot_addresses(op.slot, made.layout, op.steps)
    warp.tiles[made] = warp.read(op, at, made.dtype.numpy)


def write_dense(warp: Warp, op: ops.WriteDense) -> None:
    at = warp.slot_addresses(op.slot, op.x.layout, op.steps)
    warp.write(op, at, warp.tiles[op.x], warp.inside(op.x.layout, op.x.shape))


def read_dense(warp: Warp, op: ops.ReadDense) -> None:
    made = op.tile
    steps = row_major(made.shape, made.dtype.bytes)[1]
    at = warp.slot_addresses(op.slot, made.layout, steps)
    where = warp.inside(made.layout, made.shape)
    warp.tiles[made] = warp.read(op, at, made.dtype.numpy, where)


def _parts(layout: Layout, item: int, count: int) -> tuple[int, list[int]]:
    return row_major(layout.shape, item * count)


def write_parts(warp: Warp, op: ops.WriteParts) -> None:
    layout, dtype = op.values[0].layout, op.values[0].dtype
    size, steps = _parts(layout, dtype.bytes, len(op.values))
    bits = [0] * len(layout.bits)
    for position, bit in enumerate(op.bits):
        bits += [0] * (6 + bit - len(bits))
        bits[5 + bit] = size << position
    at = warp.slot_addresses(op.slot, layout, steps) + warp.thread_offset(bits)[:, None]
    where: Array | bool = True
    if op.once:
        where = warp.alone(layout)[:, None]
    elif op.where is not None:
        where = warp.scalar(op.where).astype(bool)[:, None]
    for number, value in enumerate(op.values):
        warp.write(op, at + number * dtype.bytes, warp.tiles[value], where)


def read_parts(warp: Warp, op: ops.ReadParts) -> None:
    layout, dtype = op.results[0].layout, op.results[0].dtype
    size, steps = _parts(layout, dtype.bytes, op.count)
    at = warp.slot_addresses(op.slot, layout, steps)
    for number, tile in enumerate(op.results):
        part, which = op.parts[number // op.count], number % op.count
        place = at + which * dtype.bytes + part * size
        warp.tiles[tile] = warp.read(op, place, dtype.numpy)


# clusters -----------------------------------------------------------------------------------------


def cluster_arrive(warp: Warp, op: ops.ClusterArrive) -> None:
    told = warp.fenced if op.relaxed else warp.clock.release()
    warp.pending.append(warp.machine.cluster_meeting.arrive(dict(told)))


def cluster_wait(warp: Warp, op: ops.ClusterWait) -> Steps:
    yield warp.pending.pop()
    warp.clock.learn(warp.machine.cluster_meeting.given)


def send_parts(warp: Warp, op: ops.SendParts) -> None:
    program, machine = warp.machine.program, warp.machine
    layout, dtype = op.values[0].layout, op.values[0].dtype
    inside = first_block_bit(program.warps, program.cluster)
    free_bits = [bit for bit in range(inside) if not any(layout.bits[bit])]
    bits = program.cluster.bit_length() - 1
    target, rest = [0] * inside, [0] * inside
    for position, bit in enumerate(free_bits):
        (target if position < bits else rest)[bit] = 1 << position
    block, alone = warp.thread_offset(target), warp.thread_offset(rest) == 0
    size, steps = _parts(layout, dtype.bytes, len(op.values))
    thread = warp.thread_offset([offset_of(basis, tuple(steps)) for basis in layout.bits[:inside]])
    regs = np.array([offset_of(at, tuple(steps)) for at in layout.regs], np.int64)
    at = np.asarray(warp.place(op.slot, thread[:, None] + regs + warp.block * size))
    for there in range(program.cluster):
        lanes = alone & (block == there) & warp.active
        for which, value in enumerate(op.values):
            data, place = warp.tiles[value][lanes], at[lanes] + which * dtype.bytes
            where = bytes_at(place, dtype.bytes)
            if op.barrier is None:
                machine.shared[there].write(where, as_bytes(data), warp.clock, warp.did(op))
            elif data.size:
                done = _known(warp, op, op.barrier.offset, there)
                fly(warp, op, there, where, as_bytes(data), done)


def read_blocks(warp: Warp, op: ops.ReadBlocks) -> None:
    for there, made in enumerate(op.results):
        at = warp.slot_addresses(op.slot, made.layout, op.steps)
        warp.tiles[made] = warp.read(op, at, made.dtype.numpy, block=there)


def fly(warp: Warp, op: Op, block: int, at: Array, data: Array, done: Mbarrier) -> None:
    """Bytes that are written by and by, and complete on a barrier."""
    clock = Clock(warp.machine.agent(), warp.clock.release())
    memory = warp.machine.shared[block]
    memory.engines.add(clock.agent)
    memory.claim(at, clock, warp.did(op))

    def arrive() -> None:
        memory.write(at, data, clock, warp.did(op))
        done.complete(len(at), clock.release())

    warp.machine.flights.append(arrive)


def expect_at_head(warp: Warp, op: ops.ExpectParts) -> None:
    """What the first thread of a block does before all else."""
    if warp.number == 0:
        at = op.barrier.offset
        warp.machine.shared[warp.block].claim(np.arange(at, at + 8), warp.clock, warp.did(op))
        warp.machine.mbarriers[warp.block, at] = made = Mbarrier(1, 1)
        made.expect(op.bytes)
        made.arrive(1, {})
        warp.fence()


# barriers with phases -----------------------------------------------------------------------------


def address(warp: Warp, op: ops.Address) -> None:
    warp.scalars[op.names[0]] = np.asarray(
        warp.place(op.slot, warp.scalar(op.offset)), dtype=np.int64
    )


def mbarrier_init(warp: Warp, op: ops.MbarrierInit) -> None:
    at = warp.number_of(op.barrier)
    place = np.arange(at, at + 8)
    warp.machine.shared[warp.block].claim(place, warp.clock, warp.did(op))
    warp.machine.mbarriers[warp.block, at] = Mbarrier(op.count, op.count)


def init_fence(warp: Warp, op: ops.MbarrierInitFence) -> None:
    warp.fence()


def _known(warp: Warp, op: Op, barrier: Operand, block: int | None = None) -> Mbarrier:
    """A barrier that was surely made before."""
    at = warp.number_of(barrier)
    there = warp.block if block is None else block
    memory = warp.machine.shared[there]
    memory.after_writes(np.arange(at, at + 8), warp.clock, warp.did(op), "uses")
    return warp.machine.mbarrier(there, at)


def mbarrier_wait(warp: Warp, op: ops.MbarrierWait) -> Steps:
    found, parity = _known(warp, op, op.barrier), warp.number_of(op.parity)
    yield functools.partial(found.has_ended, parity)
    warp.clock.learn(found.given)


def mbarrier_expect(warp: Warp, op: ops.MbarrierExpect) -> None:
    found = _known(warp, op, op.barrier)
    found.expect(warp.number_of(op.bytes))
    found.arrive(int(warp.active.sum()), warp.clock.release())


def mbarrier_arrive(warp: Warp, op: ops.MbarrierArrive) -> None:
    lanes = warp.active & (warp.scalar(op.condition) != 0)
    blocks = warp.scalar(warp.block if op.block is None else op.block)
    told = warp.clock.release()
    for block in np.unique(blocks[lanes]):
        found = _known(warp, op, op.barrier, int(block))
        found.arrive(int((lanes & (blocks == block)).sum()), told)


RULES: dict[type[Op], Rule] = {
    ops.Alloc: nothing,
    ops.Free: free,
    ops.Barrier: barrier,
    ops.NamedBarrier: named_barrier,
    ops.WarpSync: nothing,
    ops.WriteShared: write_shared,
    ops.ReadShared: read_shared,
    ops.WriteDense: write_dense,
    ops.ReadDense: read_dense,
    ops.WriteParts: write_parts,
    ops.ReadParts: read_parts,
    ops.Reread: nothing,
    ops.ClusterArrive: cluster_arrive,
    ops.ClusterWait: cluster_wait,
    ops.SendParts: send_parts,
    ops.ReadBlocks: read_blocks,
    ops.ExpectParts: nothing,
    ops.Address: address,
    ops.MbarrierInit: mbarrier_init,
    ops.MbarrierInitFence: init_fence,
    ops.MbarrierWait: mbarrier_wait,
    ops.MbarrierExpect: mbarrier_expect,
    ops.MbarrierArrive: mbarrier_arrive,
}
