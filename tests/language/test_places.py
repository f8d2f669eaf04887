"""Addresses become views: which dims, bounds and masks the Tile IR gets of pointer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.graph.sizes import Sizes
from fuser.language.arguments import classify
from fuser.language.compile import Options, Program, finish, trace
from fuser.language.jit import KernelFunction
from fuser.tilegen import ops
from fuser.tilegen.index import Scalar
from fuser.tilegen.text import print_kernel
from tests.language.launching import DEVICES, launch

F32 = np.zeros(64, np.float32)


def program_of(
    kernel: KernelFunction, *args: Any, grid: Sequence[int] = (4,), **named: Any
) -> Program:
    """The tile program for a launch, after its passes."""
    bound, _ = kernel.bind(args, named)
    found = classify(bound, kernel.constexprs, kernel.plain)
    with Sizes({}) as sizes:
        program = trace(kernel, found.classes, found.leaves, grid, Options(), sizes)
        finish(program, sizes, check=True)
        program.text = print_kernel(program.kernel)  # type: ignore[attr-defined]
    return program


def lines(program: Program, *starts: str) -> list[str]:
    """The lines of a program's text that begin so, without where they came from."""
    text: str = program.text  # type: ignore[attr-defined]
    found = [line.strip().split("  #")[0] for line in text.splitlines()]
    return [line for line in found if any(start in line for start in starts)]


def loads(program: Program) -> list[ops.Load]:
    return [op for op in program.kernel.walk() if isinstance(op, ops.Load)]


@fuser.kernel
def masked_row(x, out, n, B: fl.constexpr):
    at = fl.program_id(0) * B + fl.arange(0, B)
    fl.store(out + at, fl.load(x + at, at < n, -1.0), at < n)


def test_a_bound_becomes_an_extent() -> None:
    program = program_of(masked_row, F32, F32.copy(), 100, B=32)
    assert lines(program, "view", "load", "store") == [
        "view &x0: x[`n`] strides(1)",
        "view &out1: out[`n`] strides(1)",
        "%x1 = load &x0, [%pid0*32 + #0] {pad = -1.0} : tile<32xf32>",
        "store &out1, [%pid0*32 + #0], %x1",
    ]
    assert not program.guards and not program.notes


@fuser.kernel
def transposed(x, out, rows, columns, sx, so, B: fl.constexpr):
    i = fl.program_id(0) * B + fl.arange(0, B)
    j = fl.program_id(1) * B + fl.arange(0, B)
    inside = (i[:, None] < rows) & (j[None, :] < columns)
    tile = fl.load(x + i[:, None] * sx + j[None, :], inside)
    fl.store(out + j[None, :] * so + i[:, None], tile, inside)


def test_conjuncts_and_strides_are_dims() -> None:
    program = program_of(transposed, F32, F32.copy(), 100, 200, 202, 102, B=8, grid=(13, 25))
    assert lines(program, "view &") == [
        "view &x0: x[`rows`, `columns`] strides(`sx`, 1)",
        "view &out1: out[`columns`, `rows`] strides(`so`, 1)",
    ]
    assert all(load.mask is None for load in loads(program))


@fuser.kernel
def advanced(x, out, n, stride, B: fl.constexpr):
    cols = fl.arange(0, B)
    at = x + cols
    total = fl.zeros((B,), fl.float32)
    for _ in range(n):
        total += fl.load(at)
        at += stride
    fl.store(out + cols, total)


def test_a_pointer_that_advances_is_a_multiple_of_the_loop_variable() -> None:
    program = program_of(advanced, F32, F32.copy(), 7, 100, B=16)
    (load,) = loads(program)
    (variable,) = (value for at in load.indices for value in at.values())
    (at,) = (at for at in load.indices if variable in at.values())
    assert at.coefficient(Scalar(variable)) == 1
    assert str(load.view.strides[load.indices.index(at)]) == "stride"
    (loop,) = (op for op in program.kernel.walk() if isinstance(op, ops.For))
    assert [value.shape for value in loop.inits] == [(16,)]  # the sum alone is carried


@fuser.kernel
def halo(x, out, n, B: fl.constexpr):
    at = fl.program_id(0) * B + fl.arange(0, B) - 2
    fl.store(out + at + 2, fl.load(x + at, at < n), at + 2 < n)


def test_what_may_be_negative_keeps_its_mask() -> None:
    program = program_of(halo, F32, F32.copy(), 100, B=32)
    (load,) = loads(program)
    assert load.mask is not None and lines(program, "view &x") == ["view &x0: x[inf] strides(1)"]


@pytest.mark.parametrize("device", DEVICES)
def test_memory_in_front_of_a_pointer_is_read(device: str) -> None:
    x = np.arange(40, dtype=np.float32)
    out = np.zeros(38, np.float32)

    @fuser.kernel
    def shifted(x, out, n, B: fl.constexpr):
        at = fl.program_id(0) * B + fl.arange(0, B) - 2
        fl.store(out + at + 2, fl.load(x + 2 + at, at + 2 < n), at + 2 < n)

    launch(shifted, device, x, out, 38, B=16, grid=(3,))
    np.testing.assert_array_equal(out, x[:38])


@fuser.kernel
def looked_up(x, ids, out, stride, B: fl.constexpr):
    at = fl.arange(0, B)
    places = fl.load(ids + at)
    fl.store(out + at, fl.load(x + places * stride))


def test_a_gather_is_noted_with_its_line() -> None:
    program = program_of(looked_up, F32, np.zeros(64, np.int32), F32.copy(), 3, B=16)
    (note,) = program.notes
    line = looked_up.source.first + 4
    assert note.startswith(f"{__file__}:{line}: the load of x: ") and "gather" in note


@pytest.mark.parametrize("device", DEVICES)
def test_addresses_of_looked_up_rows_do_not_wrap(device: str) -> None:
    """ids * stride is beyond 32 bits in the middle of the sum, its end is not."""

    @fuser.kernel
    def far(x, ids, out, stride, back, B: fl.constexpr):
        at = fl.arange(0, B)
        places = fl.load(ids + at)
        fl.store(out + at, fl.load(x + places * stride - back + at))

    x = np.arange(64, dtype=np.float32)
    ids = np.full(16, 4, np.int32)
    out = np.zeros(16, np.float32)
    launch(far, device, x, ids, out, 1 << 30, 1 << 32, B=16, grid=(1,))
    np.testing.assert_array_equal(out, x[:16])


@fuser.kernel
def wrapped(x, out, rows, columns, B: fl.constexpr, SUM: fl.constexpr):
    i = fl.program_id(0) * B + fl.arange(0, B)
    j = fl.arange(0, B)
    tile = fl.load(x + (i % rows)[:, None] * columns + j[None, :])
    if SUM:
        tile += fl.sum(tile, 0)[None, :]
    fl.store(out + i[:, None] * columns + j[None, :], tile, i[:, None] < rows)


def test_rows_that_wrap_run_out_of_bounds_where_they_are_not_stored() -> None:
    plain = program_of(wrapped, F32, F32.copy(), 20, 8, B=8, SUM=False)
    assert not any("%" in str(index).replace("%pid", "") for index in loads(plain)[0].indices)
    summed = program_of(wrapped, F32, F32.copy(), 20, 8, B=8, SUM=True)
    assert any("%" in str(index).replace("%pid", "") for index in loads(summed)[0].indices)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("total", [False, True])
def test_rows_that_wrap(total: bool, device: str) -> None:
    x = np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32)
    out = np.zeros_like(x)
    launch(wrapped, device, x, out, 20, 8, B=8, SUM=total, grid=(3,))
    want = x.copy()
    if total:
        for first in range(0, 20, 8):
            rows = np.arange(first, first + 8)
            want[first : first + 8] += x[rows % 20].sum(0)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


@fuser.kernel
def heads(x, out, H, sz, sh, sn, B: fl.constexpr, D: fl.constexpr):
    z, h = fl.program_id(1) // H, fl.program_id(1) % H
    base = z * sz + h * sh
    rows, d = fl.program_id(0) * B + fl.arange(0, B), fl.arange(0, D)
    tile = fl.load(x + base + rows[:, None] * sn + d[None, :])
    fl.store(out + base + rows[:, None] * sn + d[None, :], tile)


def test_terms_with_known_ends_are_dims() -> None:
    program = program_of(
        heads, F32, F32.copy(), 6, 6 * 40 * 32, 40 * 32, 32, B=8, D=32, grid=(5, 12)
    )
    (load,) = loads(program)
    assert "inf" not in lines(program, "view &x")[0] and len(load.view.shape) == 4


@fuser.kernel
def sums(x, out, n, B: fl.constexpr):
    total = fl.zeros((B,), fl.float32)
    for first in range(0, n, B):
        at = first + fl.arange(0, B)
        total += fl.load(x + at, at < n)
    fl.store(out, fl.sum(total))


def test_a_loop_of_one_iteration_is_none_and_a_guard_says_so() -> None:
    short = program_of(sums, F32, F32.copy(), 20, B=32)
    assert not any(isinstance(op, ops.For) for op in short.kernel.walk())
    assert [str(guard) for guard in short.guards] == ["32 >= n"]
    long = program_of(sums, F32, F32.copy(), 40, B=32)
    assert any(isinstance(op, ops.For) for op in long.kernel.walk())


@pytest.mark.parametrize("device", DEVICES)
def test_each_length_gets_its_variant(device: str) -> None:
    x = np.arange(100, dtype=np.float32)
    for n in (20, 31, 32, 33, 64, 100, 2, 5):
        out = np.zeros(1, np.float32)
        launch(sums, device, x, out, n, B=32, grid=(1,))
        assert out[0] == x[:n].sum()
