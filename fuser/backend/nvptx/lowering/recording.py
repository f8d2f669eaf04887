"""What records a kernel in the GPU IR: what is known of it, what each value is, and integers.

Index scalars and expressions are in 32 bits, or in 64 where a caller's kernel may need them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.analysis.hazards import Hazards
from fuser.backend.nvptx.analysis.index_ranges import all_fit, fits, range_of
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.values import Operand, Place, Scope, SharedTile, Tile
from fuser.backend.nvptx.layouts.access_layout import choose_blocked, operand_layout
from fuser.backend.nvptx.layouts.assignment import Assignment, of_caller
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.bindings import Bindings
from fuser.backend.nvptx.lowering.indexing import Indexer, is_sum
from fuser.backend.nvptx.lowering.integers import INT32, first_block_bit
from fuser.backend.nvptx.lowering.recorder import Recorder, Region, Scalars
from fuser.backend.nvptx.memory.shared_slots import SharedMemory
from fuser.base.target import Target
from fuser.dtypes import DType
from fuser.errors import LoweringError
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Lookup, Scalar
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import INDEX, Value

Flexible = ops.Full | ops.IndexTile
"""What has no layout: it is made in the one that is wanted."""
Entry = Tile | SharedTile | Flexible | Operand
"""What a value of the Tile IR is."""


class Recording:
    """A kernel that is recorded. env: what each value is by now."""

    def __init__(self, kernel: Kernel, target: Target, assignment: Assignment) -> None:
        self.kernel, self.target, self.assignment = kernel, target, assignment
        self.caller = of_caller(kernel)
        self.hazards = Hazards(kernel, self.caller)
        self._recorder = Recorder()
        block_bits = first_block_bit(assignment.warps, assignment.cluster)
        self.scalars = Scalars(self._recorder, block_bits=block_bits)
        self.shared = SharedMemory(self.do)
        self.env: Bindings[Entry] = Bindings(self._recorder.open)

    @property
    def warps(self) -> int:
        """Warps of a block that compute, of each ping-pong warp group if there are several."""
        return self.assignment.warps

    # ops ----------------------------------------------------------------------------------------

    def add(self, op: Op) -> Tile:
        """Record an op that gives a tile; the tile."""
        self.do(op)
        return op.tile

    def do(self, op: Op) -> None:
        """Record an op."""
        self._recorder.add(op)

    def scalar_of(self, op: Op) -> str:
        """Record an op that gives a scalar; its name, which it gets here."""
        op.give((), (self.scalars.name_of(),))
        self.do(op)
        return op.names[0]

    def region(self, op: Op) -> Region:
        """Begin an op with blocks, at its first block."""
        return Region(self._recorder, op)

    @contextmanager
    def where(self, condition: Operand) -> Iterator[None]:
        """What is recorded meanwhile is done in the threads where a condition holds."""
        region = self.region(gpu.Where(condition=condition, body=Block()))
        yield
        region.following()

    def like(self, tile: Tile) -> Tile:
        """A tile to be given, of a type that there is already."""
        return self.new(tile.dtype, tile.shape, tile.layout)

    def new(self, dtype: DType, shape: Coordinates, layout: Layout, hint: str = "x") -> Tile:
        """A tile that an op is to give."""
        return Tile(dtype, shape, layout, name=self._recorder.name(hint))

    # values -------------------------------------------------------------------------------------

    def tile(self, value: Value, layout: Layout | None = None) -> Tile:
        """A value in registers, in its own layout or the given one."""
        raise NotImplementedError

    def masked(self, mask: Value, layout: Layout) -> Tile:
        """A mask in the layout of the access that it guards, which may be any."""
        raise NotImplementedError

    def layout(self, value: Value) -> Layout:
        """The layout that the assignment gives a value."""
        found = self.known_layout(value)
        if found is None:
            if not value.shape:
                return self.assignment.scalar_layout
            raise KeyError(value)
        return found

    def known_layout(self, value: Value) -> Layout | None:
        """The layout that a value has here; None where the assignment gives it none."""
        return self.env.layout(value) or self.assignment.layouts.get(value)

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

    def plain_layout(self, shape: Coordinates, accesses: Sequence[Access] = ()) -> Layout:
        """A layout for a tile that nothing but the given accesses decides about."""
        if not shape:
            return self.assignment.scalar_layout
        return choose_blocked(shape, list(accesses), set(), self.assignment.certain_spread)

    # indices ------------------------------------------------------------------------------------

    def scalar(self, value: Value) -> Operand:
        """An index scalar as an i32."""
        bound = self.bound(value)
        return self._unsplat(bound) if isinstance(bound, Tile) else bound

    def _unsplat(self, tile: Tile, long: bool = False) -> str:
        """The element of a tile without axes, as an i32 or i64."""
        name = self.scalars.name_of()
        self.do(gpu.Unsplat(x=tile, long=long, names=(name,)))
        return name

    def bound(self, value: Value) -> Operand | Tile:
        """An index scalar as an i32, or a tile without axes where it has another type."""
        entry = self.env[value]
        if isinstance(entry, str | int):
            return entry
        if isinstance(entry, ops.Full):
            return int(entry.value)
        if isinstance(entry, ops.IndexTile) and not entry.shape:
            entry = self.materialise(entry, self.assignment.scalar_layout)
        if isinstance(entry, Tile) and not entry.shape:
            return entry
        raise LoweringError(f"{value!r} is used as an index scalar")

    def long_scalar(self, value: Value) -> Operand:
        """An index scalar as an i64."""
        bound = self.bound(value)
        if isinstance(bound, Tile):
            return self._unsplat(bound, long=True)
        if isinstance(bound, int):
            return bound
        return self.scalars.resize("sext", bound, "i32", "i64")

    def is_long(self, at: Index) -> bool:
        """Whether an index of a caller's kernel may need 64 bits: it is not known to fit 32."""
        return self.caller and not all_fit(at, self._is_narrow)

    def ends_short(self, at: Index) -> bool:
        """Whether what an index comes to fits 32 bits, if not all on the way to it."""
        return fits(range_of(at, self._is_narrow))

    def _is_narrow(self, value: Value) -> bool:
        """Whether an integer value is there in 32 bits."""
        return value.dtype.bits <= 32 or isinstance(self.env.get(value), str | int)

    def long_value(self, at: Index) -> Operand:
        """An index expression without tile axes, as an i64."""
        layout = self.assignment.scalar_layout
        indexer = Indexer(self.scalars, layout, self.long_scalar, _no_lookup, "i64")
        return self.scalars.total(indexer.evaluate(at, ()), "i64")

    def evaluate(self, at: Index) -> Operand:
        """An index expression without tile axes, as an i32."""
        low, high = at.range
        if low < -INT32 - 1 or high > INT32:
            unbounded = all(abs(end) >= 1 << 40 for end in at.range)
            if not unbounded and not self.caller:
                raise LoweringError(f"the index {at} needs more than 32 bits")
        if self.is_long(at):
            total = self.long_value(at)
            if isinstance(total, int):
                return total
            return self.scalars.resize("trunc", total, "i64", "i32")
        indexer = Indexer(self.scalars, self.assignment.scalar_layout, self.scalar, _no_lookup)
        return self.scalars.total(indexer.evaluate(at, ()))


def _no_lookup(atom: Lookup, layout: Layout, offset: Coordinates) -> str:
    raise LoweringError(f"{atom} is used as an index scalar")
