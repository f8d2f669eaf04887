"""Which program of the grid a CUDA block is: the raster, and coordinates from block numbers."""

from __future__ import annotations

from fuser.backend.nvptx.emitter import Emitter, Operand

MAX_YZ = 65535


class ProgramOrder:
    """Maps a kernel's grid to a launch.

    Without a group, the last three axes are block x, y, z where they fit; otherwise, and with a
    group, the blocks are numbered in one dimension. `group` rows of blocks of the last two axes
    (m, n) are swept together, column by column, so that the blocks that run at one time share
    operands in L2.
    """

    def __init__(self, grid: tuple[int, ...], group: int) -> None:
        self.grid = grid
        self.group = group if len(grid) >= 2 and grid[-2] > 1 and grid[-1] > 1 else 0
        tail = grid[-3:][::-1]
        fits = len(grid) <= 3 and all(extent <= MAX_YZ for extent in tail[1:])
        self.flat = bool(self.group) or not fits
        self.launch = (1, 1, 1)
        if self.flat:
            count = 1
            for extent in grid:
                count *= extent
            self.launch = (count, 1, 1)
        else:
            padded = (*tail, 1, 1, 1)
            self.launch = (padded[0], padded[1], padded[2])
        self._known: dict[int, Operand] = {}

    def coordinate(self, emitter: Emitter, axis: int) -> Operand:
        """The program's coordinate on a grid axis; computed at the head of the kernel."""
        if axis >= len(self.grid) or self.grid[axis] == 1:
            return 0
        if not self._known:
            self._decode(emitter)
        return self._known[axis]

    def _decode(self, emitter: Emitter) -> None:
        rank = len(self.grid)
        if not self.flat:
            for axis, letter in zip(reversed(range(rank)), "xyz", strict=False):
                if self.grid[axis] > 1:
                    name = f"call i32 @llvm.nvvm.read.ptx.sreg.ctaid.{letter}()"
                    self._known[axis] = emitter.hoisted(name)
            return
        rest = emitter.hoisted("call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()")
        axes = list(reversed(range(rank)))
        if self.group:
            m, n = self.grid[-2:]
            if rank > 2:
                inside = emitter.hoisted(f"urem i32 {rest}, {m * n}")
                rest = emitter.hoisted(f"udiv i32 {rest}, {m * n}")
            else:
                inside = rest
            self._group(emitter, inside, m, n)
            axes = axes[2:]
        for position, axis in enumerate(axes):
            extent = self.grid[axis]
            last = position == len(axes) - 1
            self._known[axis] = rest if last else emitter.hoisted(f"urem i32 {rest}, {extent}")
            if not last:
                rest = emitter.hoisted(f"udiv i32 {rest}, {extent}")

    def _group(self, emitter: Emitter, number: str, m: int, n: int) -> None:
        group = min(self.group, m)
        sweep = group * n
        band = emitter.hoisted(f"udiv i32 {number}, {sweep}")
        first = emitter.hoisted(f"mul i32 {band}, {group}")
        inside = emitter.hoisted(f"urem i32 {number}, {sweep}")
        rows = str(group)
        if m % group:
            left = emitter.hoisted(f"sub i32 {m}, {first}")
            rows = emitter.hoisted(f"call i32 @llvm.umin.i32(i32 {left}, i32 {group})")
        row = emitter.hoisted(f"urem i32 {inside}, {rows}")
        rank = len(self.grid)
        self._known[rank - 2] = emitter.hoisted(f"add i32 {first}, {row}")
        self._known[rank - 1] = emitter.hoisted(f"udiv i32 {inside}, {rows}")
