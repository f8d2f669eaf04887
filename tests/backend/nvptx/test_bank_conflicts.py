"""Bank conflicts of stores to a swizzled tile."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.nvptx.ir.values import SharedTile, Slot
from fuser.backend.nvptx.layouts.layout import Layout, blocked
from fuser.backend.nvptx.memory.bank_conflicts import store_cycles, swizzled
from fuser.dtypes import DType, f16, f32


def tile(rows: int, columns: int, inner: int, dtype: DType = f16) -> SharedTile:
    return SharedTile(dtype, (rows, columns), inner, Slot(0, 0, 0))


@pytest.mark.parametrize("columns", [16, 32, 64, 128])
@pytest.mark.parametrize("inner", [0, 1])
def test_every_element_has_a_place(columns: int, inner: int) -> None:
    shared = tile(64, columns, inner)
    rows, along = np.meshgrid(np.arange(64), np.arange(columns), indexing="ij")
    places = np.sort(swizzled(shared, rows, along).reshape(-1))
    np.testing.assert_array_equal(places, np.arange(64 * columns) * 2)


def test_whole_lines_take_the_least() -> None:
    """Vectors of 16 bytes, eight lanes a line of 128: four turns a store."""
    layout = blocked((64, 64), 4, (1, 0), 8)
    assert store_cycles(tile(64, 64, 1), layout) == 4 * len(layout.regs) // 8


def test_a_column_of_eight_rows_meets_nowhere() -> None:
    """What the swizzle is for: lanes under each other."""
    down = Layout((32, 64), tuple((0, c) for c in range(64)),
                  ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0)), ())  # fmt: skip
    assert store_cycles(tile(32, 64, 1), down) == 4 * len(down.regs) // 8


def test_rows_four_apart_meet() -> None:
    """Eight lanes of which each has four columns, contiguous along rows: two places for eight."""
    layout = blocked((256, 32), 4, (1, 0), 4, runs={0: 16})
    along_rows, along_columns = (store_cycles(tile(256, 32, axis), layout) for axis in (0, 1))
    assert (along_rows, along_columns) == (4 * 32, 2 * 32)


def test_words() -> None:
    layout = blocked((32, 32), 1, (1, 0), 1)
    assert store_cycles(tile(32, 32, 1, f32), layout) == len(layout.regs)
