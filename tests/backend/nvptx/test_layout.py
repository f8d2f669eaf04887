"""Layouts own every element of their tile, and derived layouts agree with what they derive from."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest

from fuser.backend.nvptx.ir.layouts import in_registers
from fuser.backend.nvptx.layouts.access_layout import choose_blocked
from fuser.backend.nvptx.layouts.dot_plan import warp_grid
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout, WarpGrid, blocked
from fuser.backend.nvptx.lowering.scan import scan_layout
from fuser.backend.nvptx.tile_scheduler.raster import growing_axes
from tests.backend.nvptx import kernels


def owners(layout: Layout) -> dict[Coordinates, list[tuple[int, int]]]:
    """(thread, register) pairs of every element."""
    found: dict[Coordinates, list[tuple[int, int]]] = {}
    threads = 1 << len(layout.bits)
    for thread in range(threads):
        base = [0] * layout.rank
        for bit, basis in enumerate(layout.bits):
            if thread >> bit & 1:
                base = [a + b for a, b in zip(base, basis, strict=True)]
        for number, offset in enumerate(layout.regs):
            at = tuple(a + b for a, b in zip(base, offset, strict=True))
            found.setdefault(at, []).append((thread, number))
    return found


def assert_covers(layout: Layout, shape: Coordinates) -> None:
    found = owners(layout)
    assert all(layout.shape[d] >= shape[d] for d in range(len(shape)))
    for at in product(*map(range, layout.shape)):
        assert at in found, at
    sizes = {len(v) for v in found.values()}
    assert len(sizes) == 1  # the same number of repeats everywhere


@pytest.mark.parametrize("shape", [(1,), (7,), (1000,), (16, 64), (1, 1024), (80, 64), (3, 5, 40)])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_blocked_layouts_cover_their_tile(shape: Coordinates, warps: int) -> None:
    order = tuple(reversed(range(len(shape))))
    for spread in (False, True):
        for vector in (1, 4):
            if shape[-1] % vector == 0:
                assert_covers(blocked(shape, warps, order, vector, spread), shape)


@pytest.mark.parametrize("m, n, warps", [(128, 128, 4), (64, 80, 4), (16, 64, 4), (48, 24, 2)])
def test_fragments_cover_their_operands(m: int, n: int, warps: int) -> None:
    grid = warp_grid(m, n, warps, chained=False, wgmma=False)
    assert_covers(grid.accumulator(), (m, n))
    assert_covers(grid.left_fragment(48), (m, 48))
    narrow = dataclasses.replace(grid, depth=32)
    assert_covers(narrow.left_fragment(96), (m, 96))
    assert_covers(grid.left_fragment32(24), (m, 24))
    assert_covers(grid.right_fragment32(24), (24, n))


@pytest.mark.parametrize("run", [4, 8])
@pytest.mark.parametrize("m", [1, 8, 16])
def test_fragments_with_a_run_of_k_are_as_the_instruction_has_them(m: int, run: int) -> None:
    """Every element of [k, n] is one thread's alone, in vectors of neighbouring columns. Of each
    step of the instruction a lane has the same k of both operands, and what is in column 8 i + j of
    its tile is column j, i of the result in the same numbering."""
    grid = WarpGrid(m, 48, 1, 2, warps_k=4, run=run)
    k = 4 * run * 4 * 3
    left, right, result = grid.left_fragment(k), grid.right_fragment(k), grid.accumulator()
    assert_covers(left, (m, k))
    assert_covers(right, (k, 48))
    assert all(len(found) == 1 for found in owners(right).values())
    assert_covers(result, (m, 48))
    assert right.vector(0) == run and grid.columns == 24 and right.vector(1) == 1
    words, blocks = 2 if m > 8 else 1, grid.columns // 8
    for step in range(len(right.regs) // (4 * blocks)):
        a = left.regs[step * 4 * words : (step + 1) * 4 * words]
        b = right.regs[step * 4 * blocks : (step + 1) * 4 * blocks]
        for block in range(blocks):
            of_b = [at[0] for at in b[block * 4 : block * 4 + 4]]
            assert sorted({at[1] for at in a}) == of_b
            assert {at[1] for at in b[block * 4 : block * 4 + 4]} == {block}
            assert result.regs[block * 4][1] == block
    assert [basis[1] for basis in left.lanes[:2]] == [basis[0] for basis in right.lanes[:2]]
    pair = result.regs[1][1] - result.regs[0][1]
    assert [pair, *(basis[1] for basis in result.lanes[:2])] == [b[1] for b in right.lanes[2:]]
    assert WarpGrid(16, 32, 1, 1, run=run).right_fragment(k).vector(1) == 4


@pytest.mark.parametrize("m, n, warps", [(128, 256, 8), (64, 64, 4), (128, 64, 4), (64, 128, 8)])
def test_wgmma_accumulators_cover_their_tile(m: int, n: int, warps: int) -> None:
    grid = warp_grid(m, n, warps, chained=False, wgmma=True)
    assert grid.covered == (m, n)
    assert_covers(grid.accumulator(), (m, n))


def test_wgmma_accumulator_is_as_the_instruction_has_it() -> None:
    """Row 16 w + l / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (l % 4) + i % 2."""
    layout = WarpGrid(64, 32, 4, 1, wgmma=True).accumulator()
    table = {owner: at for at, all_owners in owners(layout).items() for owner in all_owners}
    for warp, lane, i in product(range(4), range(32), range(16)):
        row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
        assert table[32 * warp + lane, i] == (row, 8 * (i // 4) + 2 * (lane % 4) + i % 2)


@pytest.mark.parametrize("wgmma", [False, True])
def test_an_accumulator_is_a_left_operand_in_registers(wgmma: bool) -> None:
    grid = WarpGrid(128, 64, 4, 1, wgmma)
    assert in_registers(grid.accumulator(), grid.left_fragment(64))
    assert in_registers(grid.accumulator(), grid.left_fragment32(64))


def test_reduced_and_projected_layouts_drop_a_coordinate() -> None:
    layout = blocked((8, 64), 2, (1, 0), 4)
    rows = layout.reduced(1)
    assert rows == layout.project([0])
    for at, found in owners(rows).items():
        threads = {thread for thread, _ in found}
        whole = {t for (r, _), o in owners(layout).items() if (r,) == at for t, _ in o}
        assert threads == whole


def test_vectors_and_coalescing() -> None:
    layout = blocked((16, 64), 4, (1, 0), 8)
    assert layout.vector(1) == 8 and layout.vector(0) == 1
    assert layout.coalesced(1) == 64
    accumulator = WarpGrid(64, 64, 4, 1).accumulator()
    assert accumulator.vector(1) == 2 and accumulator.coalesced(1) == 8


def test_scans_put_the_axis_in_runs() -> None:
    layout = scan_layout((2, 1000), 1, 4)
    assert_covers(layout, (2, 1000))
    assert layout.vector(1) == 8


def test_longer_programs_start_first() -> None:
    causal = kernels.attention(2, 256, 256, 64, causal=True)
    assert growing_axes(causal) == {1}
    assert growing_axes(kernels.attention(2, 256, 256, 64)) == frozenset()
    assert growing_axes(kernels.matmul(256, 256, 256)) == frozenset()


def test_rows_stay_inside_a_warp() -> None:
    layout = choose_blocked((16, 128), [], {1}, 4)
    assert all(basis[1] == 0 for basis in layout.warps)
    assert np.prod([len(layout.regs), 32, 4]) == 16 * 128
