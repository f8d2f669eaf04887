"""How warps share a dot whose sums lie in tensor memory."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.nvptx.layouts.layout import Coordinates, Layout, WarpGrid

LANES, COLUMNS = 128, 512
"""Lanes and columns of a multiprocessor's tensor memory, which are 32 bits each."""
MIN_COLUMNS = 32
"""Minimum columns of an allocation, which are a power of two."""
MAX_WIDTH, WIDTH_STEP = 256, 16
"""Columns of the result of one instruction, and what they are a multiple of."""
DEPTH = 16
"""Elements of k of an instruction, of operands of 16 bits: it multiplies no others here."""
MAX_REGISTERS = 128
"""Sums that a thread reads at once."""
ROW_A_LANE = ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0))


@dataclass(frozen=True)
class TensorGrid(WarpGrid):
    """How the warps of a program read the [m, n] tile of a dot from tensor memory.

    One thread issues the matmuls of the whole block, 128 rows each: a row is a lane of tensor
    memory. Of the four warps of a group each reaches 32 lanes, so that a thread has a whole row
    (`32x32b`). Groups share bands of 128 rows, then columns.
    """

    @property
    def rows(self) -> int:
        """Rows of a warp group."""
        return self.m // (self.warps_m // 4)

    @property
    def band(self) -> int:
        return LANES

    @property
    def covered(self) -> tuple[int, int]:
        return self.m, self.columns * self.warps_n

    def warp_bits(
        self, along_m: bool, along_n: bool, k_axis: int | None = None
    ) -> tuple[Coordinates, ...]:
        steps: list[Coordinates] = [(32 * along_m, 0), (64 * along_m, 0)]
        groups = self.warps_m // 4
        steps += [((self.rows << b) * along_m, 0) for b in range(groups.bit_length() - 1)]
        parts = self.warps_n.bit_length() - 1
        steps += [(0, (self.columns << b) * along_n) for b in range(parts)]
        return tuple(steps)

    def group_slices(self, left: bool) -> tuple[int, int]:
        """All of an operand is one slice: one thread issues for every group."""
        return 1, self.covered[0 if left else 1]

    def accumulator(self) -> Layout:
        """The result: rows of lanes, neighbouring columns in registers."""
        return self._rows(self.columns, self.covered[1], along_n=True)

    def left_fragment(self, k: int) -> Layout:
        """The left operand [m, k], as an instruction takes it from tensor memory."""
        return self._rows(k, k, along_n=False)

    def _rows(self, columns: int, covered: int, along_n: bool) -> Layout:
        regs = tuple(
            (band * LANES, column) for band in range(self.bands) for column in range(columns)
        )
        return Layout((self.m, covered), regs, ROW_A_LANE, self.warp_bits(True, along_n))


def tensor_grid(m: int, n: int, k: int, warps: int) -> TensorGrid | None:
    """The grid of a dot [m, k] x [k, n]; None where it is none of whole instructions."""
    if warps % 4 or warps & (warps - 1) or m % LANES or n % WIDTH_STEP or k % DEPTH:
        return None
    if n > MAX_WIDTH or m // LANES * n > COLUMNS:
        return None
    groups = warps // 4
    parts = groups
    while m % (LANES * parts):
        parts //= 2
    grid = TensorGrid(m, n, 4 * parts, groups // parts, depth=DEPTH)
    whole = grid.covered == (m, n) and grid.columns % 8 == 0
    return grid if whole and len(grid.accumulator().regs) <= MAX_REGISTERS else None
