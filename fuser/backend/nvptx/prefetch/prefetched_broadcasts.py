"""What all rows share (a norm's scale and bias), some of it prefetched.

It comes from the L2. The first strips are asked for before the exchange of sums that the pass over
them has to wait for anyway: the registers are free then, and so is the time.
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.tilegen import ops
from fuser.tilegen.value import Value

AT_ONCE = 160
"""Bytes that a thread has registers for, the current strip included."""


class PrefetchedBroadcasts:
    """Loads of a pass over strips. tables: for each strip, the layouts of what it computes."""

    def __init__(
        self, low: Builder, loads: list[ops.Load], tables: list[dict[Value, Layout]]
    ) -> None:
        self.low, self.loads, self.tables = low, loads, tables
        self._tiles: list[dict[Value, Tile]] = []
        self.bytes = sum(len(tables[0][op.result].regs) * op.view.dtype.bytes for op in loads)

    def start(self) -> None:
        """Ask for the first strips."""
        self._load(max(1, AT_ONCE // self.bytes) - 1)

    def of(self, strip: int) -> dict[Value, Tile]:
        """The values of a strip."""
        self._load(strip + 1)
        return self._tiles[strip]

    def _load(self, strips: int) -> None:
        low = self.low
        for table in self.tables[len(self._tiles) : strips]:
            found: dict[Value, Tile] = {}
            for op in self.loads:
                with low.bindings.laid_out({op.result: table[op.result]}):
                    low.op(op)
                    found[op.result] = low.tile(op.result, table[op.result])
                del low.env[op.result]
                low.do(gpu.Keep(x=found[op.result]))
            self._tiles.append(found)
