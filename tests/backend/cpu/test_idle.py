"""Programs that hang over the rows of a kernel store nothing, and do nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.cpu import lower_to_llvm
from fuser.dtypes import f32
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel
from tests.backend.cpu import native
from tests.backend.cpu.test_programs import compare

ROWS, DEPTH = 40, 24


def swept(rows: int, groups: int, group: int, start: int = 0) -> Kernel:
    """y = x @ w, rows in `groups` groups of `group` tiles of 40, from row `start` on; a tile is
    in scratch."""
    b = Builder("swept")
    x, w = b.buffer("x", f32, rows * DEPTH), b.buffer("w", f32, DEPTH * ROWS)
    y = b.buffer("y", f32, rows * ROWS, role="output")
    tile = index(b.program_id(0, groups)) * group + index(b.program_id(1, group))
    row = tile * ROWS + start + axis(0, ROWS)
    left = b.load(b.view(x, (rows, DEPTH)), (row, axis(1, DEPTH)), (ROWS, DEPTH))
    right = b.load(b.view(w, (DEPTH, ROWS)), (axis(0, DEPTH), axis(1, ROWS)), (DEPTH, ROWS))
    acc = b.dot(left, right, b.full(0.0, (ROWS, ROWS), f32))
    b.store(b.view(y, (rows, ROWS)), (row, axis(1, ROWS)), acc)
    return b.build()


def arrays(kernel: Kernel, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        buffer.name: rng.standard_normal(buffer.size, np.float32)
        if buffer.role == "input" else np.zeros(buffer.size, np.float32)
        for buffer in kernel.buffers
    }  # fmt: skip


@pytest.mark.parametrize(("rows", "idle"), [(120, 3), (121, 2), (161, 1), (199, 1), (201, 0)])
def test_idle_programs_touch_nothing(rows: int, idle: int, rng: np.random.Generator) -> None:
    kernel = swept(rows, 2, 3)
    loaded = native.Loaded(kernel, arrays(kernel, rng))
    loaded.run(6 - idle, 6)
    assert loaded.scratch.array.size
    assert (loaded.scratch.array == loaded.scratch.raw[0]).all()
    compare(kernel, arrays(kernel, rng))
    assert ("idle" in lower_to_llvm(kernel, native.HOST)) is bool(idle)


@pytest.mark.parametrize("start", [-45, 45])
def test_rows_that_start_elsewhere(start: int, rng: np.random.Generator) -> None:
    kernel = swept(120, 2, 2, start)
    compare(kernel, arrays(kernel, rng))


@pytest.mark.parametrize("other", ["longer", "other ids", "atomic", "alike"])
def test_another_effect(other: str, rng: np.random.Generator) -> None:
    """A program is idle only if none of its effects can be there."""
    b = Builder("two")
    x = b.buffer("x", f32, 64)
    y, z = b.buffer("y", f32, 20, role="output"), b.buffer("z", f32, 40, role="output")
    tile = index(b.program_id(0, 4))
    here = tile * 8 + axis(0, 8)
    value = b.load(b.view(x, (64,)), (here,), (8,))
    b.store(b.view(y, (20,)), (here,), value)
    if other == "longer":
        b.store(b.view(z, (40,)), (here,), value)
    elif other == "other ids":
        b.store(b.view(z, (20,)), (axis(0, 8) + 24 - tile * 8,), value)
    elif other == "atomic":
        b.atomic_add(b.view(z, (40,)), (here,), value)
    else:
        b.store(b.view(z, (20,)), (here,), b.map("neg", value))
    kernel = b.build()
    compare(kernel, arrays(kernel, rng))
    assert ("idle" in lower_to_llvm(kernel, native.HOST)) is (other == "alike")
