"""The builder that the mechanisms of this folder record with: a recording, and what they tell each
other of the kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuser.backend.module import TensorMap
from fuser.backend.nvptx.analysis.decisions import Decisions
from fuser.backend.nvptx.cluster.cluster import Cluster
from fuser.backend.nvptx.cluster.multicast import MulticastCluster
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.layouts.assignment import Assignment
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.schedule.producer_ring import Channel, Stream
from fuser.backend.nvptx.tile_scheduler.raster import ProgramOrder
from fuser.backend.nvptx.tile_scheduler.tile_scheduler import TileScheduler
from fuser.base.target import Target
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Buffer, Kernel, Op
from fuser.tilegen.value import Value


@dataclass
class ProducerState:
    """State of a kernel with a producer warp. streams: the loops that it feeds. resident: what it
    fetches once a program. consumer_groups: warp groups with a program each; order_barriers: those
    at which they alternate, order_phase: the parity that they wait for. Of a persistent kernel:
    program_number, and resident_phase, the parity of what is resident. counters: of each loop
    around streams, which of its carried values the producer computes, too. ping_pong: the consumers
    take turns at the tensor cores by now."""

    streams: dict[ops.For, Stream] = field(default_factory=dict)
    counters: dict[ops.For, tuple[int, ...]] = field(default_factory=dict)
    resident: dict[ops.Load, Channel] = field(default_factory=dict)
    consumer_groups: int = 1
    ping_pong: bool = False
    order_barriers: Slot | None = None
    order_phase: str = ""
    program_number: str = ""
    resident_phase: str = ""

    def feed(self, streams: dict[ops.For, Stream]) -> None:
        """Let the producer feed these loops."""
        self.streams = streams

    def divide(self, consumer_groups: int) -> None:
        """Let so many warp groups have a program each."""
        self.consumer_groups = consumer_groups

    def alternate(self, barriers: Slot) -> None:
        """Let the consumer groups alternate at barriers, one each."""
        self.order_barriers = barriers

    def begin_program(self, number: str, order_phase: str, resident_phase: str) -> None:
        """Let a program be known by names."""
        self.program_number = number
        self.order_phase, self.resident_phase = order_phase, resident_phase

    def begin_ping_pong(self) -> None:
        """Note that the consumers take turns from here on."""
        self.ping_pong = True


@dataclass
class Needs:
    """What a launch takes beside the buffers, and what the user is told. flags: by name, how
    many words of 0 the module has; tables: constant numbers, by name."""

    tensor_maps: list[TensorMap] = field(default_factory=list)
    workspace_bytes: int = 0
    flags: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def use_workspace(self, size: int) -> None:
        """Let a launch have so many bytes of global memory for itself."""
        self.workspace_bytes = size


@dataclass
class Copies:
    """Loads on their way through shared memory. piped: those that a loop copies; direct: that go
    straight to the layout of their value. pending: copies that were issued outside of a pipeline
    have not been waited for."""

    piped: set[ops.Load] = field(default_factory=set)
    direct: set[ops.Load] = field(default_factory=set)
    pending: bool = False

    def await_later(self, pending: bool = True) -> None:
        """Note whether such copies are pending."""
        self.pending = pending


@dataclass(frozen=True)
class Attempt:
    """How a kernel is lowered this time. stages: of a ring, at most. blocks: of a cluster that
    shares a program; multicast_shape: programs whose blocks are a cluster (cluster/multicast.py).
    frugal: with little shared memory, however slow (tiling/sliced_tiles.py)."""

    stages: int
    blocks: int = 1
    multicast_shape: tuple[int, int] = (1, 1)
    frugal: bool = False


class Builder(Recording):
    """A kernel that is recorded, mechanism by mechanism."""

    def __init__(
        self, kernel: Kernel, target: Target, assignment: Assignment, order: ProgramOrder,
        attempt: Attempt,
    ) -> None:  # fmt: skip
        super().__init__(kernel, target, assignment)
        self.order, self.attempt = order, attempt
        self.cluster = Cluster(self, attempt.blocks)
        self.multicast = MulticastCluster(self, attempt.multicast_shape)
        self.producer = ProducerState()
        self.needs = Needs()
        self.decisions = Decisions()
        self.scheduler = TileScheduler()
        self.copies = Copies()

    def use_scheduler(self, scheduler: TileScheduler) -> None:
        """Let a tile scheduler choose the tiles of a block."""
        self.scheduler = scheduler

    @property
    def threads(self) -> int:
        """Threads of a block, a producer warp included."""
        raise NotImplementedError

    def op(self, op: Op) -> None:
        """Record what an op of the Tile IR is."""
        raise NotImplementedError

    def block(self, block: Block) -> None:
        """Record the ops of a block."""
        for op in block.ops:
            if not isinstance(op, ops.Yield):
                self.op(op)

    def program(self) -> None:
        """Record one program of the grid."""
        raise NotImplementedError

    @property
    def follows_early(self) -> bool:
        """Whether the kernel may be launched while the one before it still runs (PDL)."""
        raise NotImplementedError

    def is_constant(self, buffer: Buffer) -> bool:
        """Whether nothing writes the buffer while this kernel runs: the one before it may, where
        this one is there before its end."""
        quiet = buffer.role == "constant" or not self.follows_early
        return quiet and not self.hazards.is_written(buffer)

    def set(self, value: Value, tile: Tile) -> None:
        """Bind a result, converted to its assigned layout."""
        raise NotImplementedError

    def as_it_is(self, value: Value) -> Tile:
        """A tile in the layout that it has; what has none gets a plain one."""
        made = isinstance(self.env[value], Tile)
        return self.tile(value, None if made else self.plain_layout(value.shape))
