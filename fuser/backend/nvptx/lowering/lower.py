"""Walk a kernel and record it: `Lowering` puts the mechanisms together."""

from __future__ import annotations

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import in_registers
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layouts.assign import assign
from fuser.backend.nvptx.layouts.convert import convert
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.builder import Attempt, Builder
from fuser.backend.nvptx.lowering.masks import can_remake, remake
from fuser.backend.nvptx.lowering.op_rules import RULES
from fuser.backend.nvptx.lowering.recording import Flexible
from fuser.backend.nvptx.memory.operand_staging import land_copies, read
from fuser.backend.nvptx.pipeline import Facts
from fuser.backend.nvptx.prefetch import launch_overlap_plan as launch
from fuser.backend.nvptx.schedule import consumer_warps, producer_warp, warp_specialization_plan
from fuser.backend.nvptx.tile_scheduler.persistent_plan import plan_scheduler
from fuser.backend.nvptx.tile_scheduler.raster import ProgramOrder, growing_axes
from fuser.backend.nvptx.tile_scheduler.tile_loop import consume, each_tile
from fuser.backend.nvptx.tiling.occupancy import resident_blocks
from fuser.backend.nvptx.tiling.resident_rows import plan_resident_rows
from fuser.backend.nvptx.tiling.sliced_tiles import room
from fuser.backend.nvptx.tiling.strip_mined_epilogue import plan_epilogue
from fuser.backend.nvptx.tiling.strip_mining import StripMining, record_strips
from fuser.base.target import Target
from fuser.errors import LoweringError
from fuser.tilegen.ir import Kernel, Op
from fuser.tilegen.value import INDEX, Value


class Lowering(Builder):
    """One kernel being recorded."""

    def __init__(self, kernel: Kernel, target: Target, attempt: Attempt) -> None:
        order = ProgramOrder(
            kernel.grid, kernel.schedule.group, growing_axes(kernel), attempt.blocks,
            attempt.multicast_shape,
        )  # fmt: skip
        assignment = assign(kernel, target, attempt.blocks, staging=not attempt.frugal)
        super().__init__(kernel, target, assignment, order, attempt)
        self._strips: StripMining | None = None
        for number, value in enumerate(kernel.scalars):
            self.env[value] = self._scalar_parameter(value, number)

    @property
    def threads(self) -> int:
        """Threads of a block, a producer warp included."""
        warps = self.warps * self.producer.consumer_groups
        return 32 * (warps + (producer_warp.producer_warps(warps) if self.producer.streams else 0))

    def run(self) -> None:
        """Record the whole kernel."""
        warp_specialization_plan.plan_streams(self, self.attempt.stages)
        if not self.producer.streams:
            self.multicast.require_streams()
            if any(plan.kind == "wide" for plan in self.assignment.dots.values()):
                blocks = self.cluster.blocks
                self.assignment = assign(self.kernel, self.target, blocks, tf32x3=False)
            plan_scheduler(self)
        if self.scheduler.blocks:
            self.order.persist(self.scheduler.blocks)
        if self.producer.streams:
            producer_warp.split_roles(self)
        else:
            self.cluster.begin()
            each_tile(self, 1, lambda: consume(self))
            self.cluster.finish()

    def recorded(self) -> Program:
        """The program as it was recorded, before any pass."""
        self.decisions.add(self._overlap)
        return Program(
            self.kernel.name, self.target.arch, self.warps, self.threads, self.order.launch,
            list(self.kernel.buffers), self._recorder.body, self._recorder.head, self.shared.slots,
            self.order.cluster, self.needs.tensor_maps, len(self.kernel.scalars),
            self.cluster.blocks, self.shared.group, self.needs.workspace_bytes,
            resident_blocks(self, self._strips), tables=self.needs.tables, fast=self.kernel.fast,
        )  # fmt: skip

    def facts(self) -> Facts:
        """What the passes over the program are told."""
        return Facts(
            units=self.target.units, overlap=self.follows_early,
            early_bytes=launch.early(self.kernel), shared_bytes=self.target.shared_bytes,
            async_copies=self.target.async_copies,
            window=room(self) if self.attempt.frugal else 0,
        )  # fmt: skip

    def _scalar_parameter(self, value: Value, number: int) -> Tile:
        """A number of the launch."""
        made = self.new(value.dtype, (), self.assignment.scalar_layout, value.name)
        return self.add(gpu.Parameter(number=number, results=(made,)))

    @property
    def _overlap(self) -> Decision:
        return launch.overlap(self.kernel, self.target, self.assignment, self.caller)

    @property
    def follows_early(self) -> bool:
        return self._overlap.applied

    def program(self) -> None:
        """Record one program, strip by strip where that fits."""
        self._strips = None if self.caller else plan_resident_rows(self)
        if self._strips is None and not (self.caller and self.hazards.any):
            self._strips = plan_epilogue(self)
        if self._strips is None:
            self.block(self.kernel.body)
        else:
            record_strips(self, self._strips)

    def op(self, op: Op) -> None:
        rule = RULES.get(type(op))
        if rule is None:
            raise LoweringError(f"{op.opcode} has no lowering for NVIDIA GPUs")
        with self._recorder.of(self.kernel.origin_of(op)):
            rule(self, op)

    # values -------------------------------------------------------------------------------------

    def tile(self, value: Value, layout: Layout | None = None) -> Tile:
        """A value in registers, in its own layout or the given one."""
        entry = self.env[value]
        if isinstance(entry, str | int):
            known = isinstance(entry, int)
            long = entry if known else self.scalars.resize("sext", entry, "i32", "i64")
            made = self.new(INDEX, (), self.assignment.scalar_layout, value.name)
            entry = self.add(gpu.Splat(value=long, results=(made,)))
        if isinstance(entry, SharedTile) and layout is not None:
            return self._from_shared(value, entry, layout)
        if isinstance(entry, Tile):
            return entry if layout is None else self._in_layout(value, entry, layout)
        if isinstance(entry, Flexible):
            if layout is None:
                layout = self.layout(value)
            return self.materialise(entry, layout)
        raise LoweringError(f"{value!r} is not a tile in registers")

    def _in_layout(self, value: Value, entry: Tile, layout: Layout) -> Tile:
        made_again = self.caller and not in_registers(entry.layout, layout)
        if made_again and can_remake(value, self.assignment.makers, self.env.__contains__):
            return remake(self, value, layout, {})
        return convert(self, entry, layout)

    def _from_shared(self, value: Value, entry: SharedTile, layout: Layout) -> Tile:
        """A staged load in registers, for the one cast that may read it; what the producer fetches
        is given back at once."""
        arrived = consumer_warps.before_read(self, value)
        if not arrived:
            land_copies(self)
        found = read(self, entry, layout)
        if arrived:
            consumer_warps.after_read(self, *arrived)
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

    def set(self, value: Value, tile: Tile) -> None:
        """Bind a result, converted to its assigned layout."""
        layout = self.known_layout(value) or tile.layout
        self.env[value] = convert(self, tile, layout)
