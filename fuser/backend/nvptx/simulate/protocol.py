"""The order of accesses without the numbers: a verifier for programs of any size.

`verify_protocol` runs the warps of a cluster as the simulator does, with its barriers, phases,
copies and vector clocks, but no data: tiles have no elements, memory no bytes, and of long
pipelines the middle is left out. It needs no arrays, and takes a second where the simulator would
take a day. What it finds:

- a wait on a barrier that has not the arrivals or bytes that it counts, or not that phase: nothing
  can go on, or more arrive than are counted;
- a read or an overwrite of shared memory that a copy, another warp or a matmul in flight may still
  write or read: no chain of barriers and waits lies between them;
- a result of a matmul that is used before the wait that gives it.

Branches on loaded numbers are all taken, or none is: `guess`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Place, SharedTile, Tile
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.simulate import (
    control,
    copies,
    own,
    run,
    shared,
    tensor_memory,
    warp_transpose,
)
from fuser.backend.nvptx.simulate.clocks import Array, Clock, Shadow, SimulationError
from fuser.backend.nvptx.simulate.memory import nothing
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp, bytes_at
from fuser.dtypes import DType
from fuser.errors import FuserError, VerifyError
from fuser.graph.sizes import size_hint

RING_ITERATIONS, WHILE_ITERATIONS, PROGRAMS = 18, 12, 5
"""Iterations that are run at either end of a long pipeline, of rings that the copy engine fills (16
stages or fewer); those of a loop whose end depends on data; programs of a block."""
_PIPED = (ops.MbarrierWait, ops.WaitCopies)


def verify_protocol(program: Program, *, first: int = 0, guess: int = 0) -> None:
    """Raises VerifyError, which names the op, for what may race in shared memory or wait for ever.

    first: the number of a cluster of the launch, whose blocks are run. guess: what scalars are
    taken to be that come from memory.
    """
    try:
        _Cluster(program, first * program.cluster, guess).run()
    except SimulationError as error:
        raise VerifyError(error.what, where=error.where) from None


class _Cluster(run.Cluster):
    def __init__(self, program: Program, first: int, guess: int) -> None:
        super().__init__(program, {}, first, 0, True)
        self.rules = RULES
        self.guess = guess
        self.shortened = shortened(program)
        self.shared = [_Order(len(memory.data)) for memory in self.shared]


def _cluster(warp: Warp) -> _Cluster:
    assert isinstance(warp.machine, _Cluster)
    return warp.machine


class _Order(Shadow):
    """Shared memory without its bytes. Warps that write one place by one op write the same."""

    def write(self, at: Array, values: Array, clock: Clock, what: str) -> None:
        op = what.partition(" ")[0]
        numbers = [n for n in np.unique(self._writer[at]) if n >= 0]
        same = [n for n in numbers if self._writes[n][2].partition(" ")[0] == op]
        others = at[~np.isin(self._writer[at], same)]
        self.claim(others, clock, what)
        self.after_reads(at, clock, what)
        self._own(at, clock, what)


# tiles --------------------------------------------------------------------------------------------


def _blank(tile: Tile) -> Array:
    """A tile of no numbers, which takes no room."""
    return np.broadcast_to(np.zeros((), tile.dtype.numpy), (32, len(tile.layout.regs)))


def blank(warp: Warp, op: Op) -> None:
    """Results without elements; of scalars of unknown value what is guessed."""
    for content in op.contents():
        if isinstance(content, Place):
            warp.touch(content.access.view.buffer)
        elif isinstance(content, Tile):
            _used(warp, content)
    for name in op.names:
        warp.scalars[name] = np.full(32, _cluster(warp).guess, np.int64)
    for made in op.results:
        found = _blank(made)
        if not made.shape and not made.dtype.is_float:
            found = np.full(found.shape, _cluster(warp).guess, made.dtype.numpy)
        warp.tiles[made] = found


def _used(warp: Warp, tile: Tile) -> None:
    if tile in warp.tiles.in_flight:
        raise SimulationError(f"{tile.name or 'a tile'} is used before the wait that gives it")


def computed(rule: Rule) -> Rule:
    """A rule whose scalars are computed, where they are known."""

    def scalar(warp: Warp, op: Op) -> Steps | None:
        if all(not made.shape for made in op.results):
            try:
                return rule(warp, op)
            except (FuserError, KeyError):
                pass
        blank(warp, op)
        return None

    return scalar


# copies -------------------------------------------------------------------------------------------


def copy_async(warp: Warp, op: ops.CopyAsync) -> None:
    place, allocated = copies.swizzled_places(warp, op.target, op.layout)
    keep = allocated & warp.active[:, None] & warp.alone(op.layout)[:, None]
    if op.settled is None:
        warp.touch(op.at.access.view.buffer)
    copies.issue(warp, op, place[keep], np.zeros(int(keep.sum()), op.target.dtype.numpy))


def copy_own(warp: Warp, op: ops.CopyOwn) -> None:
    warp.touch(op.at.access.view.buffer)
    place = own.places(warp, op, op.strip).reshape(-1)
    copies.issue(warp, op, place, np.zeros(place.size, op.at.access.view.dtype.numpy))


def read_own(warp: Warp, op: ops.ReadOwn) -> None:
    place = own.places(warp, op, op.tile.layout)
    warp.tiles[op.tile] = warp.read(op, place, op.tile.dtype.numpy)


def fetch(warp: Warp, op: ops.Fetch) -> None:
    map = copies.map_of(warp, op)
    warp.touch(warp.machine.program.buffers[map.argument])
    rows = min(op.step, op.rows) if op.im2col else map.box[1]
    zeros = np.zeros((rows, map.box[0]))

    def receive(start: list[int]) -> Array:
        return zeros

    copies.fetch_boxes(warp, op, receive)


def through(warp: Warp, op: ops.StoreLines | ops.TurnLines) -> None:
    blank(warp, op)
    warp_transpose.through(
        warp, op, op.slot, (op.value if isinstance(op, ops.StoreLines) else op.tile).layout
    )


# matmuls ------------------------------------------------------------------------------------------


def _read(warp: Warp, op: Op, tile: SharedTile, rows: Array, columns: Array, issued: bool) -> None:
    inside = (rows < tile.shape[0])[:, None] & (columns < tile.shape[1])[None, :]
    at = warp.tile_addresses(tile, rows[:, None], columns[None, :])[inside]
    clock = warp.unit if issued else warp.clock
    memory = warp.machine.shared[warp.block]
    memory.read(bytes_at(at, tile.dtype.bytes), clock, warp.did(op), by_unit=issued)


def _operands(
    warp: Warp, op: ops.Mma | ops.MmaTf32 | ops.Wgmma, made: Layout, issued: bool
) -> None:
    at = warp.coordinates(made)
    depth = np.arange(op.k)
    grid = op.grid
    if grid.warps_k > 1:
        group = (warp.number - warp.base) // (grid.warps_m * grid.warps_n)
        depth = depth[depth // grid.k_block % grid.warps_k == group]
    rows, columns = (np.unique(at[:, :, axis]) for axis in (0, 1))
    for x, along, across in ((op.a, rows, depth), (op.b, depth, columns)):
        if isinstance(x, SharedTile):
            _read(warp, op, x, along, across, issued)
        else:
            _used(warp, x)


def mma(warp: Warp, op: ops.Mma | ops.MmaTf32) -> None:
    _operands(warp, op, op.tile.layout, False)
    _used(warp, op.acc)
    warp.tiles[op.tile] = _blank(op.tile)


def wgmma(warp: Warp, op: ops.Wgmma) -> None:
    warp.unit.learn(warp.clock.known)
    _operands(warp, op, op.tile.layout, True)
    warp.tiles[op.tile] = _blank(op.tile)
    warp.tiles.in_flight[op.tile] = len(warp.groups)


def tensor_mma(warp: Warp, op: ops.TensorMma) -> None:
    """A matmul that a thread of the first warp issues; its sums in tensor memory are no tile."""
    tensor_memory.order_mma(warp, op)
    for tile in (op.a, op.b):
        if tile is not None and not warp.number:
            _whole(warp, op, tile, True)


def tensor_load(warp: Warp, op: ops.TensorLoad) -> None:
    tensor_memory.order_load(warp, op)
    warp.tiles[op.tile] = _blank(op.tile)


def tensor_store(warp: Warp, op: ops.TensorStore) -> None:
    _used(warp, op.x)
    tensor_memory.order_store(warp, op)


def _whole(warp: Warp, op: Op, tile: SharedTile, issued: bool) -> None:
    rows, columns = map(np.arange, tile.shape)
    _read(warp, op, tile, rows, columns, issued)


def split_right(warp: Warp, op: ops.SplitRight) -> None:
    """All threads share the elements: who writes which makes no difference after a barrier."""
    _whole(warp, op, op.source, False)
    memory = warp.machine.shared[warp.block]
    for tile in (op.big, op.small):
        rows, columns = map(np.arange, tile.shape)
        at = warp.tile_addresses(tile, rows[:, None], columns[None, :])
        at = bytes_at(at, tile.dtype.bytes)
        memory.write(at, np.zeros(at.size, np.uint8), warp.clock, warp.did(op))


def wgmma_split(warp: Warp, op: ops.WgmmaSplit) -> None:
    """A left operand is read by the threads; the sums of the last step are in flight."""
    _whole(warp, op, op.a, False)
    warp.unit.learn(warp.clock.known)
    for tile in (op.big, op.small):
        _whole(warp, op, tile, True)
    warp.tiles[op.tile] = _blank(op.tile)
    warp.tiles.in_flight[op.tile] = len(warp.groups)
    warp.groups.append(warp.unit.release())


def fma_dot(warp: Warp, op: ops.FmaDot) -> None:
    at, depth = warp.coordinates(op.tile.layout), np.arange(op.k)
    dtype: DType = op.dtype
    for slot, steps, line, axis in ((op.a, op.a_steps, 0, 0), (op.b, op.b_steps, 1, 1)):
        places = np.unique(at[:, :, line])[:, None] * steps[axis] + depth * steps[1 - axis]
        place = np.asarray(warp.place(slot, places))
        memory = warp.machine.shared[warp.block]
        memory.read(bytes_at(place, dtype.bytes), warp.clock, warp.did(op))
    warp.tiles[op.tile] = _blank(op.tile)


def add_partials(warp: Warp, op: ops.AddPartials) -> None:
    at = warp.slot_addresses(op.slot, op.acc.layout, op.steps)
    for block in range(op.cluster) if op.cluster > 1 else (warp.block,):
        for offset in op.offsets:
            warp.read(op, at + offset, op.acc.dtype.numpy, block=block)
    warp.tiles[op.tile] = _blank(op.tile)


# loops --------------------------------------------------------------------------------------------


def shortened(program: Program) -> tuple[set[Op], int]:
    """Loops of which the middle is left out, and how many iterations are run at either end, more
    than a ring has stages: loops of a pipeline, where a producer's and its consumers' are of the
    same range; of others each iteration may be another one."""
    found: list[ops.For] = []
    for op in program.body.walk():
        inside = op.body.ops if isinstance(op, ops.For) else []
        if isinstance(op, ops.For) and any(isinstance(o, _PIPED) for o in inside):
            found.append(op)
    fed = [op for op in found if any(isinstance(o, ops.MbarrierWait) for o in op.body.ops)]
    ranges = {(op.stop, op.firsts[0]) for op in fed}
    # a consumer group counts the stages of the others' programs without running these
    if len(ranges) > 1 or program.group != 0 or any(isinstance(op.stop, str) for op in fed):
        found = [op for op in found if op not in fed]
    copies = [o.pending for op in found for o in op.body.ops if isinstance(o, ops.WaitCopies)]
    return set(found), max([RING_ITERATIONS, *(2 * pending + 4 for pending in copies)])


def for_(warp: Warp, op: ops.For) -> Steps:
    """The first iterations and the last ones."""
    start, stop = warp.number_of(op.firsts[0]), warp.number_of(op.stop)
    short, iterations = _cluster(warp).shortened
    step: list[int] = []

    def leap(variable: int) -> int:
        step.append(variable - start)  # of the first iteration
        by = step[0]
        if op not in short or by <= 0:
            return variable
        end = variable + (stop - 1 - variable) // by * by - (iterations - 1) * by
        return end if start + iterations * by <= variable < end else variable

    yield from control.for_with(warp, op, leap)


def while_(warp: Warp, op: ops.While) -> Steps:
    """Some programs of a block, told by their number, so that all roles leave at the same one; some
    turns where it is data that ends a loop."""
    left = [WHILE_ITERATIONS]
    counted = all(
        isinstance(inner, Integer | ops.ReadTable | ops.Condition) for inner in op.head.ops
    )
    blocks = math.prod(map(size_hint, warp.machine.program.launch))

    def more() -> bool:
        if counted:
            return warp.number_of(op.scalars[0]) < PROGRAMS * blocks
        left[0] -= 1
        return left[0] >= 0

    yield from control.while_while(warp, op, more)


_DATA: dict[type[Op], Callable[..., Any]] = dict.fromkeys(run.RULES, blank)
_KEPT = (
    *shared.RULES, *control.RULES, ops.WgmmaFence, ops.WgmmaCommit, ops.WgmmaWait, ops.CommitCopies,
    ops.WaitCopies, ops.FenceAsync, ops.PrefetchMap, ops.WriteTile, ops.ReadTile, ops.WritePartials,
    ops.FoldBefore, ops.GatherShared, ops.WriteWindow, ops.ReadWindow, ops.WriteSlice, ops.Fence,
    ops.AwaitPrevious, ops.Keep, ops.TensorAlloc, ops.TensorAddress, ops.TensorFree,
    ops.TensorCommit, ops.TensorWait,
)  # fmt: skip
_SCALARS = (
    ops.Full, ops.IndexTile, ops.Splat, ops.Unsplat, ops.Map, ops.Cast, ops.Multiply, ops.Relabel,
)  # fmt: skip
RULES: dict[type[Op], Rule] = {
    **_DATA,
    **{kind: run.RULES[kind] for kind in _KEPT},
    **{kind: computed(run.RULES[kind]) for kind in _SCALARS},
    **dict.fromkeys((ops.Parameter, ops.AddSums, ops.LeaveSums), blank),
    ops.CopyAsync: copy_async,
    ops.CopyOwn: copy_own,
    ops.ReadOwn: read_own,
    ops.Fetch: fetch,
    ops.StoreLines: through,
    ops.TurnLines: through,
    ops.Mma: mma,
    ops.MmaTf32: mma,
    ops.Wgmma: wgmma,
    ops.TensorMma: tensor_mma,
    ops.TensorLoad: tensor_load,
    ops.TensorStore: tensor_store,
    ops.SplitRight: split_right,
    ops.WgmmaSplit: wgmma_split,
    ops.FmaDot: fma_dot,
    ops.AddPartials: add_partials,
    ops.For: for_,
    ops.While: while_,
    ops.PrefetchMap: nothing,
}
