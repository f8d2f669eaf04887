"""Walk a kernel and emit it: `Lowering` holds what each value is by now, op_rules.py the rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fuser.backend.module import TensorMap
from fuser.backend.nvptx import consumer, persistent, roles, stream_plan
from fuser.backend.nvptx.access import Access
from fuser.backend.nvptx.access_layout import choose_blocked, operand_layout
from fuser.backend.nvptx.assign import assign
from fuser.backend.nvptx.assignment import Assignment, DotPlan, of_caller
from fuser.backend.nvptx.cluster import Cluster
from fuser.backend.nvptx.convert import convert
from fuser.backend.nvptx.emit import RULES as CODE
from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.stream_k import WORKSPACE
from fuser.backend.nvptx.emitter import Emitter
from fuser.backend.nvptx.epilogue import emit_epilogue, find_epilogue
from fuser.backend.nvptx.hazards import Hazards, Touch
from fuser.backend.nvptx.held import Held, emit_held, plan_held
from fuser.backend.nvptx.index_values import Entry, Flexible, IndexValues
from fuser.backend.nvptx.indexing import is_sum
from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import in_registers
from fuser.backend.nvptx.ir.values import Operand, Place, Scope, SharedTile, Slot, Tile
from fuser.backend.nvptx.layout import Coordinates, Layout, scalar_layout
from fuser.backend.nvptx.masks import can_remake, remake
from fuser.backend.nvptx.multicast import Neighbours
from fuser.backend.nvptx.op_rules import RULES
from fuser.backend.nvptx.order import ProgramOrder, growing_axes
from fuser.backend.nvptx.recorder import Recorder, Region, Scalars
from fuser.backend.nvptx.row_tails import find_row_tail
from fuser.backend.nvptx.shared import SharedMemory
from fuser.backend.nvptx.shares import Shares, plan_shares
from fuser.backend.nvptx.slices import move_in_parts
from fuser.backend.nvptx.stage import land_copies, read
from fuser.backend.nvptx.stream import Channel, Stream
from fuser.backend.text import SYMBOLIC
from fuser.dtypes import DType
from fuser.errors import LoweringError
from fuser.graph.sizes import size_hint
from fuser.target import Target
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Lookup, Scalar
from fuser.tilegen.ir import Block, Buffer, Kernel, Op
from fuser.tilegen.value import INDEX, Value

SMALL = 16 << 20
"""Bytes that a kernel touches in a few microseconds, of which its start and end are a part."""
DEFERRED = False
OVERLAP = True
"""Whether kernels start under the end of the one before; `schedule.extra["overlap"]` overrides."""


def _word(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def _parameter_type(buffer: Buffer) -> str:
    alone = "" if buffer.alias else " noalias"
    align = max(buffer.align, buffer.dtype.bytes) if buffer.open else 16
    return f"ptr addrspace(1){alone} align {align}"


class Lowering(IndexValues):
    """One kernel being lowered: the function, the assignment, and what each value is by now."""

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        stages: int | None = None,
        blocks: int = 1,
        neighbours: tuple[int, int] = (1, 1),
        frugal: bool = False,
    ) -> None:
        """stages: instead of the schedule's, where those do not fit. blocks: of a cluster that
        shares a program. neighbours: programs whose blocks are a cluster (multicast.py).
        frugal: with little shared memory, however slow (slices.py)."""
        self.kernel = kernel
        self.target = target
        self.frugal = frugal
        self.scratch: list[Slot] = []  # of the dot that is emitted
        self.assignment: Assignment = assign(kernel, target, blocks, staging=not frugal)
        self.caller = of_caller(kernel)
        self.hazards = Hazards(kernel, self.caller)
        self.written = {buffer for buffer in kernel.buffers if self.hazards.is_written(buffer)}
        self.notes: list[str] = []
        self.names = {
            buffer: f"{_word(buffer.name)}_{number}" for number, buffer in enumerate(kernel.buffers)
        }
        params = [(_parameter_type(buffer), self.names[buffer]) for buffer in kernel.buffers]
        self.entry = _word(kernel.name)
        self.recorder = Recorder()
        self.emitter: Any = (
            Scalars(self.recorder) if DEFERRED else Emitter(self.entry, params, "#0", self.recorder)
        )
        if DEFERRED:
            self.emitter.params = params
        self.shared = SharedMemory(self.emitter, self.do, self.hazards.barrier)
        self.order = ProgramOrder(
            kernel.grid, kernel.schedule.group, growing_axes(kernel), blocks, neighbours
        )
        if not DEFERRED:
            self.code = Code(
                self.emitter, target, self.names, self.warps, blocks, self.order.cluster > 1
            )
        self.cluster = Cluster(self, blocks)
        self.neighbours = Neighbours(self, neighbours)
        self.env: dict[Value, Entry] = {}
        self.converted: dict[tuple[Value, Layout], Tile] = {}
        self.operands: dict[tuple[Value, str, DotPlan], SharedTile | Tile] = {}
        self.piped: set[ops.Load] = set()
        self.direct: set[ops.Load] = set()  # loads that go straight to the layout of their value
        self.copies_pending = False
        self.deferred: set[ops.Dot] = set()
        self.tensor_maps: list[TensorMap] = []
        self.streams: dict[ops.For, Stream] = {}
        self.teams = 1
        self.warp_buffers: Slot | None = None
        self.turns: Slot | None = None
        self.turn = ""
        self.number = self.visit = ""
        self.resident: dict[ops.Load, Channel] = {}
        self.stages = kernel.schedule.stages if stages is None else stages
        self.held: Held | None = None
        self.shares: Shares | None = None
        self.workspace_bytes = 0
        self.variables: dict[str, str] = {}  # of the module: name and definition
        for number, value in enumerate(kernel.scalars):
            self.env[value] = self._scalar_parameter(value, number)

    @property
    def warps(self) -> int:
        """Warps of a block that compute, of each ping-pong warp group if there are several."""
        return self.assignment.warps

    @property
    def threads(self) -> int:
        """Threads of a block, a producer warp included."""
        warps = self.warps * self.teams
        return 32 * (warps + (roles.producer_warps(warps) if self.streams else 0))

    def add(self, op: ir.Op) -> Tile:
        """Record an op that gives a tile, and write its code; the tile."""
        self.do(op)
        return op.tile

    def do(self, op: ir.Op) -> None:
        """Record an op, and write its code."""
        self.recorder.add(op)
        if not DEFERRED:
            with self.recorder.code():
                CODE[type(op)](self.code, op)

    def scalar_of(self, op: ir.Op) -> str:
        """Record an op that gives a scalar; its name, which it gets here."""
        op.names = (self.emitter.name_of(),)
        self.do(op)
        return op.names[0]

    def region(self, op: ir.Op) -> Region:
        """Begin an op with blocks, at its first block."""
        steps = (b for b in op.blocks()) if DEFERRED else CODE[type(op)](self.code, op)
        return Region(self.recorder, op, steps)

    @contextmanager
    def where(self, condition: Operand) -> Iterator[None]:
        """What is recorded meanwhile is done in the threads where a condition holds."""
        region = self.region(gpu.Where(condition=condition, body=ir.Block()))
        yield
        region.following()

    def like(self, tile: Tile) -> Tile:
        """A tile to be given, of a type that there is already."""
        return self.new(tile.dtype, tile.shape, tile.layout)

    def new(self, dtype: DType, shape: Coordinates, layout: Layout, hint: str = "x") -> Tile:
        """A tile that an op is to give."""
        return Tile(dtype, shape, layout, name=self.recorder.name(hint))

    def run(self) -> None:
        """Emit the whole kernel."""
        self.streams = stream_plan.plan_streams(self, self.stages)
        if not self.streams:
            self.neighbours.need_streams()
        if not self.streams and any(p.kind == "wide" for p in self.assignment.dots.values()):
            self.assignment = assign(self.kernel, self.target, self.cluster.blocks, wide=False)
        if self.streams:
            roles.split_roles(self)
        else:
            self.shares = plan_shares(self)
            self.await_previous()
            self.cluster.begin()
            if self.shares is not None:
                persistent.without_roles(self)
            else:
                self.program()
            self.cluster.finish()
        if self.workspace_bytes:
            place = len(self.kernel.buffers)
            self.emitter.params.insert(place, ("ptr addrspace(1) noalias align 16", WORKSPACE))
        if DEFERRED:
            return
        table = SYMBOLIC.get()
        self.emitter.finish(len(table) if table else 0, len(self.kernel.scalars))

    def _scalar_parameter(self, value: Value, number: int) -> Tile:
        """A number of the launch."""
        made = self.new(value.dtype, (), self.scalar_layout, value.name)
        return self.add(gpu.Parameter(number=number, results=(made,)))

    @property
    def follows_early(self) -> bool:
        """Whether the kernel may be launched while the one before it still runs (PDL). What moves
        much memory takes long anyway; long rows and large tiles have no registers for the pointers
        that go through the wait."""
        if self.caller:
            return False  # what ran before wrote where nobody knows
        dots = self.assignment.dots.values()
        sums = sum(len(plan.accumulator.regs) for plan in dots)
        moved = sum(size_hint(b.size) * b.dtype.bytes for b in self.kernel.buffers)
        large = moved > SMALL or sums >= 96 or (self.warps >= 16 and not dots)
        large = large or any(plan.kind == "wide" for plan in dots)
        wanted = self.kernel.schedule.extra.get("overlap", OVERLAP and not large)
        return self.target.sm >= 90 and bool(wanted)

    def await_previous(self) -> None:
        """Let the next kernel be launched, and wait until the one before this has ended.

        Every program of every kernel waits, so that what is complete is complete for all that
        follow. The pointers to data go through the wait: no load can be moved before it. Constants
        do not change and need no wait.
        """
        if not self.follows_early:
            return
        data = tuple(buffer for buffer in self.kernel.buffers if buffer.role != "constant")
        self.do(gpu.AwaitPrevious(buffers=data))

    def program(self) -> None:
        """Emit one program, what follows the last loop in strips where that fits."""
        self.held = None if self.caller else plan_held(self)
        if self.held is not None:
            emit_held(self, self.held)
            return
        tail = None
        if not (self.caller and self.hazards.any):
            tail = find_epilogue(self) or find_row_tail(self)
        later = {*tail.once, *tail.ops} if tail is not None else set()
        for op in self.kernel.body.ops:
            if not isinstance(op, ops.Yield) and op not in later:
                self.op(op)
        if tail is not None:
            emit_epilogue(self, tail)

    def block(self, block: Block) -> None:
        for op in block.ops:
            if not isinstance(op, ops.Yield):
                self.op(op)

    def op(self, op: Op) -> None:
        rule = RULES.get(type(op))
        if rule is None:
            raise LoweringError(f"{op.opcode} has no lowering for NVIDIA GPUs")
        with self.recorder.of(self.kernel.origin_of(op)):
            rule(self, op)

    # memory -------------------------------------------------------------------------------------

    def before_load(self, op: Touch, layout: Layout | None) -> None:
        """Wait for stores of other threads that a load may meet. layout: in which it is done."""
        if self.hazards.read(op, layout):
            self.shared.barrier()
            self.hazards.read(op, layout)

    def before_store(self, op: Touch, layout: Layout | None) -> None:
        """Wait for loads and stores of other threads that a store may meet."""
        if self.hazards.write(op, layout):
            self.shared.barrier()
            self.hazards.write(op, layout)

    # values -------------------------------------------------------------------------------------

    def is_constant(self, buffer: Buffer) -> bool:
        """Whether nothing writes the buffer while this kernel runs: the one before it may, where
        this one is there before its end."""
        return buffer not in self.written and (buffer.role == "constant" or not self.follows_early)

    @property
    def workspace(self) -> str:
        """Memory of `workspace_bytes` that the kernel has for itself."""
        return f"%{WORKSPACE}"

    def pointer(self, buffer: Buffer) -> str:
        return self.code.pointer(buffer)

    def layout(self, value: Value) -> Layout:
        """The layout that the assignment gives a value."""
        if not value.shape and value not in self.assignment.layouts:
            return self.scalar_layout
        return self.assignment.layouts[value]

    def tile(self, value: Value, layout: Layout | None = None) -> Tile:
        """A value in registers, in its own layout or the given one."""
        entry = self.env[value]
        if isinstance(entry, str | int):
            known = isinstance(entry, int)
            long = entry if known else self.emitter.value(f"sext i32 {entry} to i64")
            made = self.new(INDEX, (), self.scalar_layout, value.name)
            entry = self.add(gpu.Splat(value=long, results=(made,)))
        if isinstance(entry, SharedTile) and layout is not None:
            key = (value, layout)
            if key not in self.converted:
                self.converted[key] = self._from_shared(value, entry, layout)
            return self.converted[key]
        if isinstance(entry, Tile):
            if layout is None or entry.layout == layout:
                return entry
            key = (value, layout)
            if key not in self.converted:
                made_again = self.caller and not in_registers(entry.layout, layout)
                if made_again and can_remake(value, self.assignment.makers, self.env.__contains__):
                    self.converted[key] = remake(self, value, layout, {})
                else:
                    self.converted[key] = convert(self, entry, layout)
            return self.converted[key]
        if isinstance(entry, Flexible):
            if layout is None:
                layout = self.layout(value)
            return self.materialise(entry, layout)
        raise LoweringError(f"{value!r} is not a tile in registers")

    def _from_shared(self, value: Value, entry: SharedTile, layout: Layout) -> Tile:
        """A staged load in registers; what the producer brings is given back at once."""
        brought = consumer.before_read(self, value)
        if not brought:
            land_copies(self)
            self.shared.before_read()
        found = read(self, entry, layout)
        if brought:
            consumer.after_read(self, *brought)
        return found

    def masked(self, mask: Value, layout: Layout) -> Tile:
        """A mask in the layout of the access that it guards, which may be any."""
        makers = self.assignment.makers
        entry = self.env.get(mask)
        if isinstance(entry, Tile) and in_registers(entry.layout, layout):
            return self.tile(mask, layout)
        if can_remake(mask, makers, self.env.__contains__):
            return remake(self, mask, layout, {})
        return self.tile(mask, layout)

    def as_it_is(self, value: Value) -> Tile:
        """A tile in the layout that it has; what has none gets a plain one."""
        made = isinstance(self.env[value], Tile)
        return self.tile(value, None if made else self.plain_layout(value.shape))

    def in_parts(self, tile: Tile, shape: Coordinates, layout: Layout) -> Tile:
        """A tile under another shape and in another layout, with little shared memory."""
        return move_in_parts(self, tile, shape, layout)

    def bits_as(self, tile: Tile, dtype: DType) -> Tile:
        """The same bits as another dtype."""
        made = self.new(dtype, tile.shape, tile.layout)
        return self.add(gpu.Bitcast(x=tile, results=(made,)))

    def materialise(self, op: Flexible, layout: Layout) -> Tile:
        """A constant or a tile of indices, in whatever layout is wanted."""
        dtype = op.result.dtype
        made = self.new(dtype, op.shape, layout, op.result.name)
        if isinstance(op, ops.Full):
            return self.add(gpu.Full(value=op.value, results=(made,)))
        bits = 64 if dtype is INDEX else dtype.bits
        long = self.is_long(op.expression) and (bits == 64 or not is_sum(op.expression))
        scope = self.scope(layout, op.expression)
        return self.add(
            gpu.IndexTile(expression=op.expression, scope=scope, long=long, results=(made,))
        )

    def scope(self, layout: Layout, *expressions: Index) -> Scope:
        """What the values of some index expressions are, for the registers of a layout."""
        scalars: dict[Value, Operand | Tile] = {}
        tiles: dict[tuple[Value, tuple[int, ...]], Tile] = {}
        for atom in dict.fromkeys(leaf for at in expressions for leaf in at.leaves()):
            if isinstance(atom, Lookup):
                wanted = operand_layout(layout, atom.axes, atom.value.shape)
                tiles[atom.value, atom.axes] = self.tile(atom.value, wanted)
            elif isinstance(atom, Scalar):
                scalars[atom.value] = self.bound(atom.value)
        return Scope(scalars, tiles)

    def place(self, access: Access, layout: Layout) -> Place:
        """What an access touches, at the registers of a layout."""
        mask = self.masked(access.mask, layout) if access.mask is not None else None
        scope = self.scope(layout, access.linear, *(at for at, _ in access.bounds))
        long = any(self.is_long(at) for at, _ in access.bounds)
        return Place(access, scope, mask, self.is_long(access.linear), long)

    @property
    def scalar_layout(self) -> Layout:
        return scalar_layout(self.assignment.certain_spread)

    def plain_layout(self, shape: Coordinates, accesses: Sequence[Access] = ()) -> Layout:
        """A layout for a tile that nothing but the given accesses decides about."""
        if not shape:
            return self.scalar_layout
        return choose_blocked(shape, list(accesses), set(), self.assignment.certain_spread)

    def set(self, value: Value, tile: Tile) -> None:
        """Bind a result, converted to its assigned layout."""
        layout = self.assignment.layouts.get(value, tile.layout)
        self.env[value] = convert(self, tile, layout)
