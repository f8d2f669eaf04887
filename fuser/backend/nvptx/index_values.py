"""Index scalars and expressions of a kernel that is lowered: in 32 bits, or in 64 where a caller's
kernel may need them."""

from __future__ import annotations

from fuser.backend.nvptx.emitter import INT32, Emitter, Operand
from fuser.backend.nvptx.indexing import Indexer
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layout import Coordinates, Layout
from fuser.backend.nvptx.ranges import all_fit, fits, range_of
from fuser.errors import LoweringError
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Lookup
from fuser.tilegen.value import Value

Flexible = ops.Full | ops.IndexTile
Entry = Tile | SharedTile | Flexible | Operand


class IndexValues:
    """The part of a lowering that evaluates indices. env: what each value is by now."""

    emitter: Emitter
    env: dict[Value, Entry]
    caller: bool

    @property
    def scalar_layout(self) -> Layout:
        raise NotImplementedError

    def tile(self, value: Value, layout: Layout | None = None) -> Tile:
        raise NotImplementedError

    def materialise(self, op: Flexible, layout: Layout) -> Tile:
        raise NotImplementedError

    def do(self, op: Op) -> None:
        raise NotImplementedError

    def scalar(self, value: Value) -> Operand:
        """An index scalar as an i32."""
        bound = self.bound(value)
        return self._unsplat(bound) if isinstance(bound, Tile) else bound

    def _unsplat(self, tile: Tile, long: bool = False) -> str:
        """The element of a tile without axes, as an i32 or i64."""
        name = self.emitter.name_of()
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
            entry = self.materialise(entry, self.scalar_layout)
        if isinstance(entry, Tile) and not entry.shape:
            return entry
        raise LoweringError(f"{value!r} is used as an index scalar")

    def long_scalar(self, value: Value) -> Operand:
        """An index scalar as an i64."""
        bound = self.bound(value)
        if isinstance(bound, Tile):
            return self._unsplat(bound, long=True)
        return bound if isinstance(bound, int) else self.emitter.value(f"sext i32 {bound} to i64")

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
        layout = self.scalar_layout
        indexer = Indexer(self.emitter, layout, self.long_scalar, _no_lookup, "i64")
        return self.emitter.total(indexer.evaluate(at, ()), "i64")

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
            return self.emitter.value(f"trunc i64 {total} to i32")
        indexer = Indexer(self.emitter, self.scalar_layout, self.scalar, _no_lookup)
        return self.emitter.total(indexer.evaluate(at, ()))


def _no_lookup(atom: Lookup, layout: Layout, offset: Coordinates) -> str:
    raise LoweringError(f"{atom} is used as an index scalar")
