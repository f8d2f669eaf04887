"""The ops of the GPU IR, one record each. What each means is said here, and as running code in
simulate.py; emit/ has the code of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.values import Operand, Place, Scope, SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Layout, WarpGrid
from fuser.backend.nvptx.layouts.tensor_grid import TensorGrid
from fuser.dtypes import DType
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Buffer

ScaledFn = Literal[
    "one_plus_tanh",
    "short_tanh",
    "capped",
    "rough_tanh",
    "short_exp",
    "one_plus_erf",
    "gelu",
    "short_reciprocal",
]


@dataclass(eq=False, kw_only=True)
class Scheduled(Op):
    """An op that a loop may have for another iteration (schedule/expand_loops.py). stage: so many
    iterations after its own it is done; less than 0: before it. order: in the steady loop it comes
    after so many ops of the body."""

    stage: int = 0
    order: int = 0

    def schedule(self, stage: int = 0, order: int = 0) -> None:
        """Have it for another iteration, or for its own."""
        self.stage, self.order = stage, order


# tiles in registers -------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Full(Op):
    """Every element is `value`."""

    opcode: ClassVar[str] = "full"
    value: float | int | bool


@dataclass(eq=False, kw_only=True)
class IndexTile(Op):
    """The values of an index expression over the tile's coordinates. long: computed in 64 bits."""

    opcode: ClassVar[str] = "index"
    expression: Index
    scope: Scope
    long: bool = False


@dataclass(eq=False, kw_only=True)
class Undefined(Op):
    """Elements that nobody may look at: of sums that the first matmul ignores."""

    opcode: ClassVar[str] = "undefined"


@dataclass(eq=False, kw_only=True)
class Splat(Op):
    """A scalar as a tile without axes."""

    opcode: ClassVar[str] = "splat"
    value: Operand


@dataclass(eq=False, kw_only=True)
class Unsplat(Op):
    """The element of an integer tile without axes: a scalar. long: of 64 bits, else of 32."""

    opcode: ClassVar[str] = "unsplat"
    x: Tile
    long: bool = False


@dataclass(eq=False, kw_only=True)
class Parameter(Op):
    """A number of the launch, in the low bits of its 64: a tile without axes."""

    opcode: ClassVar[str] = "parameter"
    number: int


@dataclass(eq=False, kw_only=True)
class AnyOther(Op):
    """Whether some lane of the warp has an element of x that is another number than `value`: a
    scalar."""

    opcode: ClassVar[str] = "any_other"
    x: Tile
    value: float


@dataclass(eq=False, kw_only=True)
class Map(Op):
    """fn of the elements of tiles of one layout. alike: (axis, width) of vectors whose elements all
    have one result, which is computed once for each."""

    opcode: ClassVar[str] = "map"
    fn: str
    args: tuple[Tile, ...]
    alike: tuple[int, int] | None = None


@dataclass(eq=False, kw_only=True)
class Assembly(Map):
    """The user's instructions, on `pack` registers at a time: see the Tile IR's `assembly`."""

    opcode: ClassVar[str] = "assembly"
    fn: str = "assembly"
    text: str
    constraints: str
    pack: int
    kinds: tuple[str, ...]
    which: int


@dataclass(eq=False, kw_only=True)
class ScaledMap(Op):
    """fn(x * scale), in a form of less accuracy or range than `map` has (elementwise.py)."""

    opcode: ClassVar[str] = "scaled_map"
    fn: ScaledFn
    x: Tile
    scale: float = 1.0


@dataclass(eq=False, kw_only=True)
class Multiply(Op):
    """x * number. contract: it may be rounded with a sum that follows."""

    opcode: ClassVar[str] = "multiply"
    x: Tile
    number: float
    contract: bool = False


@dataclass(eq=False, kw_only=True)
class ExpDifference(Op):
    """exp(x * scale - y) where registers of y repeat, whose multiples are computed once."""

    opcode: ClassVar[str] = "exp_difference"
    x: Tile
    y: Tile
    scale: float = 1.0


@dataclass(eq=False, kw_only=True)
class Share(Op):
    """x / total as x * (1 / total), by an approximate reciprocal once for each register of total
    that differs; total is a normal number from 1 on."""

    opcode: ClassVar[str] = "share"
    x: Tile
    total: Tile


@dataclass(eq=False, kw_only=True)
class Cast(Op):
    """The same numbers as another dtype: that of the result."""

    opcode: ClassVar[str] = "cast"
    x: Tile


@dataclass(eq=False, kw_only=True)
class Bitcast(Op):
    """The same bits as another dtype: that of the result."""

    opcode: ClassVar[str] = "bitcast"
    x: Tile


@dataclass(eq=False, kw_only=True)
class Relabel(Op):
    """The same elements in another layout in which every thread has what it needs of its own.
    axes: where the axes of x are in the result, -1 for one of extent 1 that it does not have; None:
    where they were. Axes of extent 1 repeat (a broadcast). flat: both are in the order of
    their elements (a reshape)."""

    opcode: ClassVar[str] = "relabel"
    x: Tile
    axes: tuple[int, ...] | None = None
    flat: bool = False


@dataclass(eq=False, kw_only=True)
class ConvertLayout(Op):
    """The same elements in another layout, in registers or through shared memory: a pass decides
    (layouts/expand_conversions.py), after which there are none. flat: under another shape, in the
    order of their elements (a reshape)."""

    opcode: ClassVar[str] = "convert_layout"
    x: Tile
    flat: bool = False


@dataclass(eq=False, kw_only=True)
class FillEdge(Op):
    """x with `value` past the edge of the tile along some axes."""

    opcode: ClassVar[str] = "fill_edge"
    x: Tile
    axes: tuple[int, ...]
    value: float | int | bool = 0


@dataclass(eq=False, kw_only=True)
class Keep(Op):
    """A use of x, without code: what was loaded is asked for here, not where it is used."""

    opcode: ClassVar[str] = "keep"
    x: Tile


# folds --------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class FoldRegisters(Op):
    """What each thread's elements of x come to along an axis, those past the edge left out. before:
    the fold of other elements of the same rows, with which it is folded."""

    opcode: ClassVar[str] = "fold_registers"
    fn: str
    x: Tile
    axis: int
    before: Tile | None = None


@dataclass(eq=False, kw_only=True)
class FoldLanes(Op):
    """What the lanes whose numbers differ in some bits have, folded: steps are the values of these
    bits. both: both lanes of a step go on with the result, which has the same bits in both."""

    opcode: ClassVar[str] = "fold_lanes"
    fn: str
    x: Tile
    steps: tuple[int, ...]
    both: bool = True


@dataclass(eq=False, kw_only=True)
class FoldParts(Op):
    """Tiles of one layout folded, as a tree in their order."""

    opcode: ClassVar[str] = "fold_parts"
    fn: str
    parts: tuple[Tile, ...]


@dataclass(eq=False, kw_only=True)
class Shuffle(Op):
    """The elements of the lane whose number differs by `amount` (butterfly), or is less or greater
    by it (up, down; the lane's own where there is none)."""

    opcode: ClassVar[str] = "shuffle"
    kind: Literal["bfly", "up", "down"]
    x: Tile
    amount: int


# scans --------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ScanRegisters(Op):
    """(the running fold of each thread's elements of x along an axis, what all of them come to),
    those past the edge left out. reverse: from the end of the axis."""

    opcode: ClassVar[str] = "scan_registers"
    fn: str
    x: Tile
    axis: int
    reverse: bool = False


@dataclass(eq=False, kw_only=True)
class ScanLanes(Op):
    """Of what the lanes have whose numbers differ in some bits: (the fold of this lane's and all
    before it, the fold of those before). steps: the values of the bits, the lowest of a lane's
    number. reverse: later ones come first."""

    opcode: ClassVar[str] = "scan_lanes"
    fn: str
    x: Tile
    steps: tuple[int, ...]
    reverse: bool = False


@dataclass(eq=False, kw_only=True)
class FoldBefore(Op):
    """The fold of the parts that `write_parts` left of the warps before, by the bits of the
    warp's number that say the part. reverse: later ones come first."""

    opcode: ClassVar[str] = "fold_before"
    slot: Slot
    fn: str
    bits: tuple[int, ...]
    reverse: bool = False


# global memory ------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Load(Scheduled):
    """Elements in vectors, `pad` where they may not be touched. constant: nothing writes to them
    while the kernel runs. volatile: others may. once: of threads that repeat an element one reads
    it. words: pairs of 16 bits stay one register until they are used. where: in which threads
    elements may be touched at all."""

    opcode: ClassVar[str] = "load"
    at: Place
    pad: float | int | None = None
    constant: bool = False
    volatile: bool = False
    once: bool = False
    words: bool = False
    where: Operand | None = None

    def guard(self, condition: Operand | None) -> None:
        """Touch memory only where a condition holds, or everywhere."""
        self.where = condition


@dataclass(eq=False, kw_only=True)
class Store(Op):
    """Write elements in vectors, those left out that may not be touched. once: of threads that
    repeat an element one writes it."""

    opcode: ClassVar[str] = "store"
    at: Place
    value: Tile
    once: bool = False


@dataclass(eq=False, kw_only=True)
class AtomicAdd(Op):
    """Add elements to memory, each by one of the threads that repeat it. first_block: those of the
    first block of a cluster."""

    opcode: ClassVar[str] = "atomic_add"
    at: Place
    value: Tile
    first_block: bool = False


@dataclass(eq=False, kw_only=True)
class Atomic(Op):
    """Put fn of what is in memory and an element there, each by one of the threads that repeat it:
    add, max, min, and, or, xor, exchange, store, or compare_exchange with `compare`; load leaves it
    as it is. The result, if there is one, is what was there before, in the thread that did it;
    elsewhere, and where memory may not be touched, 0. ordered: it acquires and releases (a load
    acquires, a store releases) at the scope of the GPU, or of the system."""

    opcode: ClassVar[str] = "atomic"
    fn: str
    at: Place
    value: Tile
    compare: Tile | None = None
    ordered: bool = False
    system: bool = False


@dataclass(eq=False, kw_only=True)
class Fence(Op):
    """What this thread reads from here on is no older than what it has read before."""

    opcode: ClassVar[str] = "fence"


# shared memory ------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Alloc(Op):
    """From here on a slot of shared memory is somebody's."""

    opcode: ClassVar[str] = "alloc"
    slot: Slot


@dataclass(eq=False, kw_only=True)
class Free(Op):
    """A slot's bytes may be another's from here on."""

    opcode: ClassVar[str] = "free"
    slot: Slot


@dataclass(eq=False, kw_only=True)
class Barrier(Op):
    """All computing threads of the program wait for each other. threads: how many, where the block
    has others; team: the number of their consumer group, where several have a program each."""

    opcode: ClassVar[str] = "barrier"
    threads: int = 0
    team: Operand = 0


@dataclass(eq=False, kw_only=True)
class WarpSync(Scheduled):
    """The lanes of each warp wait for each other."""

    opcode: ClassVar[str] = "warp_sync"


@dataclass(eq=False, kw_only=True)
class NamedBarrier(Op):
    """Wait at a barrier with a number until so many threads have come, or only tell it."""

    opcode: ClassVar[str] = "named_barrier"
    kind: Literal["sync", "arrive"]
    number: Operand
    threads: int


@dataclass(eq=False, kw_only=True)
class WriteShared(Op):
    """Write a tile to a slot, its elements `steps` bytes apart along each axis, in vectors along
    `axis`. Elements past the edge are written as well."""

    opcode: ClassVar[str] = "write_shared"
    slot: Slot
    x: Tile
    steps: tuple[int, ...]
    axis: int


@dataclass(eq=False, kw_only=True)
class ReadShared(Op):
    """Read a tile that lies as `write_shared` leaves one."""

    opcode: ClassVar[str] = "read_shared"
    slot: Slot
    steps: tuple[int, ...]
    axis: int


@dataclass(eq=False, kw_only=True)
class WriteDense(Op):
    """Write the elements of a tile, and none past its edges, one by one, `steps` bytes apart."""

    opcode: ClassVar[str] = "write_dense"
    slot: Slot
    x: Tile
    steps: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class ReadDense(Op):
    """Read a tile whose elements lie in order, any number past its edges."""

    opcode: ClassVar[str] = "read_dense"
    slot: Slot


@dataclass(eq=False, kw_only=True)
class GatherShared(Op):
    """Read elements of a tile that lies in a slot, its elements `steps` bytes apart along each
    axis: those at the coordinates of the result, but at what `at` says along `axis`."""

    opcode: ClassVar[str] = "gather_shared"
    slot: Slot
    at: Tile
    axis: int
    steps: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class WriteWindow(Op):
    """Write those elements of a tile that are among `count` from `first` on in row-major order. The
    slot has room for one more, which gets any of the others."""

    opcode: ClassVar[str] = "write_window"
    slot: Slot
    x: Tile
    first: int
    count: int


@dataclass(eq=False, kw_only=True)
class ReadWindow(Op):
    """Read those elements of a tile that `write_window` wrote, maybe of another shape; the others
    are those of `before`, or any."""

    opcode: ClassVar[str] = "read_window"
    slot: Slot
    first: int
    count: int
    before: Tile | None = None


@dataclass(eq=False, kw_only=True)
class WriteSlice(Op):
    """Write the `count` elements from `start` on along an axis, in row-major order, and none past
    the edges of the tile."""

    opcode: ClassVar[str] = "write_slice"
    slot: Slot
    x: Tile
    axis: int
    start: int
    count: int


@dataclass(eq=False, kw_only=True)
class WriteParts(Op):
    """Every warp writes its elements of some tiles of one layout, side by side, as the part that
    `bits` of its number say. where: in which threads, instead of all; once: of threads that repeat
    an element one writes it."""

    opcode: ClassVar[str] = "write_parts"
    slot: Slot
    values: tuple[Tile, ...]
    bits: tuple[int, ...]
    where: Operand | None = None
    once: bool = False


@dataclass(eq=False, kw_only=True)
class ReadParts(Op):
    """Read what some warps wrote as parts, `count` tiles each, in the order of `parts`."""

    opcode: ClassVar[str] = "read_parts"
    slot: Slot
    parts: tuple[int, ...]
    count: int


@dataclass(eq=False, kw_only=True)
class Reread(Op):
    """What was read from memory before may be another now: it is read again."""

    opcode: ClassVar[str] = "reread"


# through a buffer of the warp ---------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class StoreLines(Op):
    """Write a tile of 16-bit elements in accumulator layout, as `store` does, but by vectors that
    run along whole lines of memory: each warp turns strips of 16 rows and `width` columns over in
    its own part of the slot, and knows of no other warp. at: at the layout of these vectors
    (`warp_transpose_in`), of `vector` elements each."""

    opcode: ClassVar[str] = "store_lines"
    at: Place
    value: Tile
    slot: Slot
    width: int
    vector: int


@dataclass(eq=False, kw_only=True)
class LoadLines(Op):
    """Read the vectors that `turn_lines` wants, `pad` where they may not be touched: a tile that
    nothing else reads, in the layout of these vectors. constant: as in `load`."""

    opcode: ClassVar[str] = "load_lines"
    at: Place
    vector: int
    pad: float | int | None = None
    constant: bool = False


@dataclass(eq=False, kw_only=True)
class TurnLines(Op):
    """A tile that `load_lines` gave in an accumulator layout, by strips as in `store_lines`."""

    opcode: ClassVar[str] = "turn_lines"
    x: Tile
    slot: Slot
    width: int
    vector: int


# blocks of a cluster ------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ClusterArrive(Op):
    """What this block wrote can be read by every block of the cluster after its next
    `cluster_wait`; relaxed: only that the block runs is told."""

    opcode: ClassVar[str] = "cluster_arrive"
    relaxed: bool = False


@dataclass(eq=False, kw_only=True)
class ClusterWait(Op):
    """Wait until all threads of the cluster have arrived."""

    opcode: ClassVar[str] = "cluster_wait"


@dataclass(eq=False, kw_only=True)
class SendParts(Op):
    """Write tiles of one layout as this block's part into a slot of every block of the cluster,
    each by one of the threads that repeat its elements. barrier: where the stores complete as
    transactions; without one they are as other stores."""

    opcode: ClassVar[str] = "send_parts"
    slot: Slot
    values: tuple[Tile, ...]
    barrier: Slot | None = None


@dataclass(eq=False, kw_only=True)
class ReadBlocks(Op):
    """Read what every block of the cluster has in its slot, as `write_shared` leaves it: a tile for
    each, in order."""

    opcode: ClassVar[str] = "read_blocks"
    slot: Slot
    steps: tuple[int, ...]
    axis: int


@dataclass(eq=False, kw_only=True)
class ExpectParts(Op):
    """At the head of the kernel: make a barrier whose phase ends when so many bytes have come."""

    opcode: ClassVar[str] = "expect_parts"
    barrier: Slot
    bytes: int


# barriers that know phases ------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Address(Op):
    """The address `offset` bytes into a slot, a scalar: of a barrier."""

    opcode: ClassVar[str] = "address"
    slot: Slot
    offset: Operand = 0


@dataclass(eq=False, kw_only=True)
class MbarrierInit(Op):
    """Make a barrier whose phases are complete after `count` arrivals."""

    opcode: ClassVar[str] = "mbarrier_init"
    barrier: str
    count: int


@dataclass(eq=False, kw_only=True)
class MbarrierInitFence(Op):
    """Barriers made so far may be used by other blocks and the copy engine."""

    opcode: ClassVar[str] = "mbarrier_init_fence"


@dataclass(eq=False, kw_only=True)
class MbarrierWait(Op):
    """Wait until the phase of the given parity is complete. Parity 1 is, of a fresh barrier."""

    opcode: ClassVar[str] = "mbarrier_wait"
    barrier: str
    parity: Operand


@dataclass(eq=False, kw_only=True)
class MbarrierExpect(Op):
    """Arrive on a barrier, whose phase is complete when so many bytes have come as well."""

    opcode: ClassVar[str] = "mbarrier_expect"
    barrier: str
    bytes: Operand


@dataclass(eq=False, kw_only=True)
class MbarrierArrive(Scheduled):
    """Arrive on a barrier in the threads where the condition holds. block: on that of this block of
    the cluster, without telling it what was written."""

    opcode: ClassVar[str] = "mbarrier_arrive"
    barrier: str
    condition: Operand
    block: Operand | None = None


# matrix units -------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class PackFragments(Op):
    """Neighbouring elements of 8 or 16 bits as words, as matrix units take a left operand from
    registers: the result has a word where its first element was."""

    opcode: ClassVar[str] = "pack_fragments"
    x: Tile


@dataclass(eq=False, kw_only=True)
class Mma(Op):
    """acc + a @ b over `k` columns of a, by mma.sync of a row of `UNITS`. a: in shared memory, or
    fragments of 8 or 16-bit elements. b: in shared memory, or fragments of 16 bits where the grid
    has a run. Groups of warps that share k take its steps in turn. whole: an instruction takes 32
    bytes of k and 16 rows; otherwise 16 bytes, and 8 rows of 8 bits."""

    opcode: ClassVar[str] = "mma"
    unit: str
    grid: WarpGrid
    k: int
    a: SharedTile | Tile
    b: SharedTile | Tile
    acc: Tile
    whole: bool = True


@dataclass(eq=False, kw_only=True)
class MmaTf32(Op):
    """acc + a @ b of float32 operands, by mma.sync of tf32. split: both operands are taken as
    x = big + small, and the sum has big * big + big * small + small * big."""

    opcode: ClassVar[str] = "mma_tf32"
    grid: WarpGrid
    k: int
    a: SharedTile | Tile
    b: SharedTile
    acc: Tile
    split: bool = True


@dataclass(eq=False, kw_only=True)
class FmaDot(Op):
    """acc + a @ b of any dtype, a multiply-add at a time in a loop over k. Operands lie in slots,
    their elements so many bytes apart along each axis."""

    opcode: ClassVar[str] = "fma_dot"
    dtype: DType
    k: int
    a: Slot
    a_steps: tuple[int, ...]
    b: Slot
    b_steps: tuple[int, ...]
    acc: Tile


@dataclass(eq=False, kw_only=True)
class Accumulate(Op):
    """acc + x: what matmuls came to that started afresh, because their unit truncates its sums. No
    earlier product is rounded with the sum."""

    opcode: ClassVar[str] = "accumulate"
    acc: Tile
    x: Tile


@dataclass(eq=False, kw_only=True)
class WritePartials(Op):
    """Write partial sums to a slot, elements `steps` bytes apart along each axis. parts: for every
    bit of the thread number how many bytes further the part of those threads lies where it is set,
    which tell the groups of warps apart that shared k."""

    opcode: ClassVar[str] = "write_partials"
    slot: Slot
    x: Tile
    steps: tuple[int, int]
    parts: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class AddPartials(Op):
    """acc plus partial sums, in the order of `offsets`, where in the slot they begin, and of the
    blocks of the cluster: so many have such a slot."""

    opcode: ClassVar[str] = "add_partials"
    slot: Slot
    acc: Tile
    steps: tuple[int, int]
    offsets: tuple[int, ...]
    cluster: int = 1


@dataclass(eq=False, kw_only=True)
class WgmmaFence(Op):
    """Registers that were written so far may be read by the matmuls that follow."""

    opcode: ClassVar[str] = "wgmma_fence"


@dataclass(eq=False, kw_only=True)
class Wgmma(Op):
    """Issue acc + a @ b over `k` columns of a, by a row of `UNITS`. a: in shared memory, or words
    of fragments. Without acc, the sums start at zero; keeps: a condition without which they do. The
    result is in flight until a `wgmma_wait` has it."""

    opcode: ClassVar[str] = "wgmma"
    unit: str
    grid: WarpGrid
    k: int
    a: SharedTile | Tile
    b: SharedTile
    acc: Tile | None = None
    keeps: Operand = 1

    def keep_where(self, condition: Operand) -> None:
        """Let the sums start at zero without a condition."""
        self.keeps = condition


@dataclass(eq=False, kw_only=True)
class WgmmaCommit(Op):
    """The matmuls issued so far are a group, which waits count."""

    opcode: ClassVar[str] = "wgmma_commit"


@dataclass(eq=False, kw_only=True)
class WgmmaWait(Scheduled):
    """Wait until at most `pending` groups are in flight. The results are the tiles after it: what
    was in flight, and what has to stay as it is until then. Without any, sums may be anywhere."""

    opcode: ClassVar[str] = "wgmma_wait"
    values: tuple[Tile, ...] = ()
    pending: int = 0

    def leave(self, pending: int) -> None:
        """Leave so many groups in flight."""
        self.pending = pending


@dataclass(eq=False, kw_only=True)
class SplitRight(Op):
    """Write a float32 right operand [k, n] as two of tf32, big and small, k innermost and in the
    order that `wgmma_split` has it."""

    opcode: ClassVar[str] = "split_right"
    source: SharedTile
    big: SharedTile
    small: SharedTile


@dataclass(eq=False, kw_only=True)
class WgmmaSplit(Op):
    """Issue a @ b of float32 operands as matmuls of tf32: small * big + big * small + big * big. a
    is split in registers, a step of k while the matmuls of the step before run; b lies as
    `split_right` leaves it. The last step's are in flight until a `wgmma_wait` has them."""

    opcode: ClassVar[str] = "wgmma_split"
    grid: WarpGrid
    k: int
    a: SharedTile
    big: SharedTile
    small: SharedTile


# tensor memory ------------------------------------------------------------------------------------
#
# 128 lanes by 512 columns of 32 bits, beside shared memory. The slot that these ops name stands for
# what a block has of it: it holds the address, and the barriers at which matmuls end. Element
# (r, c) of a tile lies in lane r % 128; each 128 rows follow the columns of those before.


@dataclass(eq=False, kw_only=True)
class TensorAlloc(Op):
    """The first warp allocates columns of tensor memory, and writes to the slot where they begin.
    It waits while other blocks have them."""

    opcode: ClassVar[str] = "tensor_alloc"
    slot: Slot
    columns: int


@dataclass(eq=False, kw_only=True)
class TensorAddress(Op):
    """Read where the columns begin: before all else that names the slot."""

    opcode: ClassVar[str] = "tensor_address"
    slot: Slot


@dataclass(eq=False, kw_only=True)
class TensorFree(Op):
    """The first warp gives the columns back. No block ends without it."""

    opcode: ClassVar[str] = "tensor_free"
    slot: Slot
    columns: int


@dataclass(eq=False, kw_only=True)
class TensorMma(Op):
    """One thread issues sums + a @ b over `k` columns of a, for the whole block (tcgen05.mma).
    sums: the column where they begin, which are replaced; keeps: a condition without which they
    start at zero. a: in shared memory, or None: words in tensor memory, from column `left` on. What
    comes of it is there after a commit, and a wait for that."""

    opcode: ClassVar[str] = "tensor_mma"
    slot: Slot
    unit: str
    grid: TensorGrid
    k: int
    b: SharedTile
    a: SharedTile | None = None
    left: int = 0
    sums: int = 0
    keeps: Operand = 1


@dataclass(eq=False, kw_only=True)
class TensorCommit(Op):
    """The matmuls issued so far are a group, which waits count: they end at the next barrier of the
    slot, which follow each other in turn."""

    opcode: ClassVar[str] = "tensor_commit"
    slot: Slot


@dataclass(eq=False, kw_only=True)
class TensorWait(Op):
    """Wait until at most `pending` groups of matmuls are in flight."""

    opcode: ClassVar[str] = "tensor_wait"
    slot: Slot
    pending: int = 0


@dataclass(eq=False, kw_only=True)
class TensorLoad(Op):
    """Read a tile from tensor memory, which begins at a column (tcgen05.ld and its wait). A warp
    reaches the lanes from 32 * (its number % 4) on."""

    opcode: ClassVar[str] = "tensor_load"
    slot: Slot
    column: int = 0


@dataclass(eq=False, kw_only=True)
class TensorStore(Op):
    """Write a tile to tensor memory, each element by one of the warps that repeat it. pack: so many
    neighbours along a row are one word, and in one element of x."""

    opcode: ClassVar[str] = "tensor_store"
    slot: Slot
    x: Tile
    column: int = 0
    pack: int = 1


TENSOR_BARRIERS = 2
"""Maximum groups of matmuls in flight whose sums lie in tensor memory."""
TENSOR_SLOT = 8 * (1 + TENSOR_BARRIERS)
"""Bytes of such a slot: the address, then the barriers."""


# asynchronous copies ------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Fetch(Op):
    """The copy engine (TMA) copies boxes of a tensor map into a shared tile, one after the other:
    `across` along the columns, and rows `step` at a time up to `rows`; they complete as bytes on a
    barrier. start: coordinates of the first, the columns' first. offsets: of an im2col walk, added
    to the positions of the dims with a bounding box. to: a bit for each block of the cluster that
    gets it, at the same place and barrier; None: this one. edge: the map whose box has the rows of
    the tensor's last tile alone, in the place of the other where `beyond` holds. It is issued by
    one thread."""

    opcode: ClassVar[str] = "fetch"
    map: str
    into: SharedTile
    barrier: str
    start: tuple[Operand, ...]
    across: int
    rows: int
    step: int
    offsets: tuple[Operand, ...] = ()
    im2col: bool = False
    to: Operand | None = None
    edge: str = ""
    beyond: Operand = 0


@dataclass(eq=False, kw_only=True)
class PrefetchMap(Op):
    """Bring a tensor map near, before it is used."""

    opcode: ClassVar[str] = "prefetch_map"
    map: str


@dataclass(eq=False, kw_only=True)
class WriteTile(Op):
    """Write a tile into a swizzled one that is at least as large, and nothing past its edge."""

    opcode: ClassVar[str] = "write_tile"
    target: SharedTile
    x: Tile


@dataclass(eq=False, kw_only=True)
class ReadTile(Op):
    """Read a swizzled tile."""

    opcode: ClassVar[str] = "read_tile"
    source: SharedTile


@dataclass(eq=False, kw_only=True)
class CopyAsync(Scheduled):
    """Issue copies of elements of global memory into a swizzled tile, zeros where they may not be
    touched. layout: which thread copies which vectors. settled: a condition under which all of them
    were there before the run, so that they need no wait for the previous kernel. fill: whether the
    zeros are wanted; else nothing is written there."""

    opcode: ClassVar[str] = "copy_async"
    at: Place
    target: SharedTile
    layout: Layout
    settled: str | None = None
    fill: bool = True


@dataclass(eq=False, kw_only=True)
class CommitCopies(Scheduled):
    """The copies issued so far are a group, which waits count."""

    opcode: ClassVar[str] = "commit_copies"


@dataclass(eq=False, kw_only=True)
class WaitCopies(Op):
    """Wait until at most `pending` groups of this thread's copies are in flight."""

    opcode: ClassVar[str] = "wait_copies"
    pending: int = 0

    def leave(self, pending: int) -> None:
        """Leave so many groups in flight."""
        self.pending = pending


@dataclass(eq=False, kw_only=True)
class FenceAsync(Op):
    """What this thread has written to shared memory is seen by wgmma and TMA."""

    opcode: ClassVar[str] = "fence_async"


@dataclass(eq=False, kw_only=True)
class CopyOwn(Scheduled):
    """Issue copies of a strip of a tile into a slot, zeros where it is out of bounds, each vector
    by the thread that reads it. whole: the layout of the tile, which says where in the slot a
    vector lies; threads: of the block, whose vectors lie side by side."""

    opcode: ClassVar[str] = "copy_own"
    slot: Slot
    at: Place
    strip: Layout
    whole: Layout
    threads: int


@dataclass(eq=False, kw_only=True)
class ReadOwn(Op):
    """Read a strip that lies as `copy_own` leaves it, `pad` where it is out of bounds."""

    opcode: ClassVar[str] = "read_own"
    slot: Slot
    at: Place
    whole: Layout
    threads: int
    pad: float | int | None = None


# control flow -------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Yield(Op):
    """What a block ends with: what it hands to the next iteration, or to what follows a branch."""

    opcode: ClassVar[str] = "yield"
    scalars: tuple[Operand, ...] = ()
    values: tuple[Tile, ...] = ()


@dataclass(eq=False, kw_only=True)
class Condition(Op):
    """The end of a loop's head: whether there is another iteration."""

    opcode: ClassVar[str] = "condition"
    value: Operand | Tile


@dataclass(eq=False, kw_only=True)
class For(Op):
    """A loop while its first scalar, the variable, is less than `stop`. params: what a body finds,
    scalars first; firsts, inits: of the first iteration; the body yields those of the next one.
    certain: there is an iteration. results: the carried tiles after the loop. The scalars that the
    last iteration was given (with `certain`: that it yields) may be used there by their names. How
    the iterations overlap (schedule/expand_loops.py) its ops say (`Scheduled`), and: stages: of the
    ring that copies go around; unroll: iterations that are one in the end; in_flight: groups of
    matmuls that may be under way when an iteration ends (schedule/wgmma_waits.py). Of a ring that a
    producer fills the second scalar is the stage; goes_on: it fills it again after the loop."""

    opcode: ClassVar[str] = "for"
    stop: Operand
    scalars: tuple[str, ...]
    firsts: tuple[Operand, ...]
    params: tuple[Tile, ...]
    inits: tuple[Tile, ...]
    body: Block
    certain: bool = False
    stages: int = 1
    unroll: int = 1
    in_flight: int = 0
    goes_on: bool = False

    @property
    def end(self) -> Yield:
        """What its body ends with."""
        last = self.body.ops[-1]
        assert isinstance(last, Yield)
        return last

    def carry(
        self,
        params: Iterable[Tile],
        inits: Iterable[Tile],
        ends: Iterable[Tile],
        results: Iterable[Tile],
    ) -> None:
        """Let it carry more tiles."""
        end = self.end
        self.params += tuple(params)
        self.inits += tuple(inits)
        end.values += tuple(ends)
        self.results += tuple(results)

    def carry_scalar(self, name: str, first: Operand, following: Operand) -> None:
        """Let it carry another scalar."""
        end = self.end
        self.scalars += (name,)
        self.firsts += (first,)
        end.scalars += (following,)

    def overlap(
        self,
        *,
        stages: int | None = None,
        unroll: int | None = None,
        in_flight: int | None = None,
        goes_on: bool | None = None,
    ) -> None:
        """Say anew how its iterations overlap."""
        self.stages = self.stages if stages is None else stages
        self.unroll = self.unroll if unroll is None else unroll
        self.in_flight = self.in_flight if in_flight is None else in_flight
        self.goes_on = self.goes_on if goes_on is None else goes_on

    def keep(self, kept: Sequence[int]) -> None:
        """Let it carry these of its tiles only, by their places."""
        end = self.end
        self.params = tuple(self.params[at] for at in kept)
        self.inits = tuple(self.inits[at] for at in kept)
        end.values = tuple(end.values[at] for at in kept)
        self.results = tuple(self.results[at] for at in kept)

    def start(self, firsts: tuple[Operand, ...], inits: tuple[Tile, ...]) -> None:
        """Let its first iteration find these scalars and tiles."""
        self.firsts, self.inits = firsts, inits


@dataclass(eq=False, kw_only=True)
class While(Op):
    """A loop whose head says whether there is another iteration. The scalars that the last head was
    given may be used after the loop by their names. types: of the scalars, i32 or i64."""

    opcode: ClassVar[str] = "while"
    scalars: tuple[str, ...]
    types: tuple[str, ...]
    firsts: tuple[Operand, ...]
    params: tuple[Tile, ...]
    inits: tuple[Tile, ...]
    head: Block
    body: Block


@dataclass(eq=False, kw_only=True)
class If(Op):
    """A branch that all threads take alike. names, results: scalars and tiles that both blocks
    yield."""

    opcode: ClassVar[str] = "if"
    condition: Operand | Tile
    then: Block
    other: Block


@dataclass(eq=False, kw_only=True)
class Where(Op):
    """The body in the threads where a condition holds."""

    opcode: ClassVar[str] = "where"
    condition: Operand
    body: Block


@dataclass(eq=False, kw_only=True)
class WarpRoles(Op):
    """Warps of two kinds: those from thread number `threads` on produce, the others consume.
    `producer` is run by one elected thread of the first of them. registers: of a thread of (the
    producer, the consumers), where warps hand them over. warps: of the producer."""

    opcode: ClassVar[str] = "warp_roles"
    threads: int
    warps: int
    registers: tuple[int, int] | None
    producer: Block
    consumer: Block


@dataclass(eq=False, kw_only=True)
class Seam(Op):
    """No code is moved from one side of it to the other: ptxas would else begin with the arithmetic
    of all strips at once, and spill."""

    opcode: ClassVar[str] = "seam"


@dataclass(eq=False, kw_only=True)
class AwaitPrevious(Op):
    """Wait until the kernel before this one has ended: what is read of these buffers is read after
    it. trigger: let the next kernel be launched first."""

    opcode: ClassVar[str] = "await_previous"
    buffers: tuple[Buffer, ...]
    trigger: bool = True


@dataclass(eq=False, kw_only=True)
class LaunchDependents(Op):
    """Let the next kernel be launched: it may start once all blocks of this one got here."""

    opcode: ClassVar[str] = "launch_dependents"


@dataclass(eq=False, kw_only=True)
class ReadTable(Op):
    """A number of a constant table of the kernel: a scalar."""

    opcode: ClassVar[str] = "read_table"
    table: str
    at: Operand


@dataclass(eq=False, kw_only=True)
class ReadRegister(Op):
    """A number that the hardware knows, read anew: a scalar. What is made of it and kept would take
    registers from sums."""

    opcode: ClassVar[str] = "read_register"
    register: str


@dataclass(eq=False, kw_only=True)
class Opaque(Op):
    """A number that the compiler must not know: a scalar."""

    opcode: ClassVar[str] = "opaque"
    value: int


# stream-k -----------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class LeaveSums(Op):
    """Leave tiles in the workspace as part `part` of program `program`, and raise the warp's flag.
    parts: of a program; neighbours: blocks of a multicast cluster; teams: consumer groups."""

    opcode: ClassVar[str] = "leave_sums"
    values: tuple[Tile, ...]
    program: Operand
    part: Operand
    parts: int
    neighbours: int = 1
    teams: int = 1


@dataclass(eq=False, kw_only=True)
class AddSums(Op):
    """Wait for the flag of a part, add what was left there, and lower the flag."""

    opcode: ClassVar[str] = "add_sums"
    values: tuple[Tile, ...]
    program: Operand
    part: Operand
    parts: int
    neighbours: int = 1
    teams: int = 1
