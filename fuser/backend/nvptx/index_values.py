"""Index scalars and expressions of a kernel that is lowered: in 32 bits, or in 64 where a caller's
kernel may need them."""

from __future__ import annotations

from fuser.backend.nvptx.access_layout import operand_layout
from fuser.backend.nvptx.emitter import INT32, Emitter, Operand
from fuser.backend.nvptx.indexing import Indexer
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layout import Coordinates, Layout
from fuser.backend.nvptx.ranges import all_fit, fits, range_of
from fuser.errors import LoweringError
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Lookup
from fuser.tilegen.value import INDEX, Value

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

    def scalar(self, value: Value) -> Operand:
        """An index scalar as an i32."""
        bound = self.bound(value)
        return self.as_i32(bound.regs[0], bound) if isinstance(bound, Tile) else bound

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
        entry = self.env[value]
        if isinstance(entry, ops.IndexTile) and not entry.shape:
            entry = self.materialise(entry, self.scalar_layout)
        if isinstance(entry, Tile) and not entry.shape:
            return self.as_i64(entry.regs[0], entry)
        short = self.scalar(value)
        return short if isinstance(short, int) else self.emitter.value(f"sext i32 {short} to i64")

    def as_i64(self, reg: str, tile: Tile) -> str:
        if tile.dtype.bits == 64 or tile.dtype is INDEX:
            return reg
        extend = "sext" if tile.dtype.kind == "int" else "zext"
        return self.emitter.value(f"{extend} {tile.type} {reg} to i64")

    def is_long(self, at: Index) -> bool:
        """Whether an index of a caller's kernel may need 64 bits: it is not known to fit 32."""
        return self.caller and not all_fit(at, self._is_narrow)

    def ends_short(self, at: Index) -> bool:
        """Whether what an index comes to fits 32 bits, if not all on the way to it."""
        return fits(range_of(at, self._is_narrow))

    def _is_narrow(self, value: Value) -> bool:
        """Whether an integer value is there in 32 bits."""
        return value.dtype.bits <= 32 or isinstance(self.env.get(value), str | int)

    def as_i32(self, reg: str, tile: Tile) -> str:
        bits = tile.dtype.bits
        if bits == 32:
            return reg
        if bits > 32:
            return self.emitter.value(f"trunc {tile.type} {reg} to i32")
        extend = "sext" if tile.dtype.kind == "int" else "zext"
        return self.emitter.value(f"{extend} {tile.type} {reg} to i32")

    def indexer(self, layout: Layout) -> Indexer:
        return Indexer(self.emitter, layout, self.scalar, self._lookup)

    def long_indexer(self, layout: Layout) -> Indexer:
        """One that computes in 64 bits."""
        return Indexer(self.emitter, layout, self.long_scalar, self._long_lookup, "i64")

    def _lookup(self, atom: Lookup, layout: Layout, offset: Coordinates) -> str:
        return self.as_i32(*self._looked_up(atom, layout, offset))

    def _long_lookup(self, atom: Lookup, layout: Layout, offset: Coordinates) -> str:
        return self.as_i64(*self._looked_up(atom, layout, offset))

    def _looked_up(self, atom: Lookup, layout: Layout, offset: Coordinates) -> tuple[str, Tile]:
        wanted = operand_layout(layout, atom.axes, atom.value.shape)
        tile = self.tile(atom.value, wanted)
        at = tuple(
            0 if dim == 1 else offset[axis]
            for axis, dim in zip(atom.axes, atom.value.shape, strict=True)
        )
        return tile.regs[wanted.register_of[at]], tile

    def evaluate(self, at: Index) -> Operand:
        """An index expression without tile axes, as an i32."""
        low, high = at.range
        if low < -INT32 - 1 or high > INT32:
            unbounded = all(abs(end) >= 1 << 40 for end in at.range)
            if not unbounded and not self.caller:
                raise LoweringError(f"the index {at} needs more than 32 bits")
        if self.is_long(at):
            long = self.long_indexer(self.scalar_layout)
            total = self.emitter.total(long.evaluate(at, ()), "i64")
            if isinstance(total, int):
                return total
            return self.emitter.value(f"trunc i64 {total} to i32")
        indexer = self.indexer(self.scalar_layout)
        return self.emitter.total(indexer.evaluate(at, ()))
