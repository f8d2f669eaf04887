"""Dots of any size and dtype, folds that drop NaN, and large tiles, as users' kernels have them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fuser.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u16
from fuser.tilegen import interpret, ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import UNBOUNDED, Value
from tests.backend.cpu import native
from tests.backend.cpu.native import pointer


def check(kernel: Kernel, arrays: dict[str, np.ndarray]) -> None:
    want = {name: array.copy() for name, array in arrays.items()}
    interpret.run(kernel, want, races=False)
    native.run_in_place(kernel, arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, want[name], err_msg=name)


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64, i8], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_dots(dtype: DType, seed: int) -> None:
    """In a loop over k, with masks, and with operands that are loaded turned or computed."""
    choose = random.Random(seed)
    m, n, k = (choose.choice((1, 2, 3, 7, 16, 17, 32, 40, 65)) for _ in range(3))
    total = i32 if dtype is i8 else f64 if dtype is f64 else f32
    b = Builder("dot")
    b.program_id(0, 1)
    x, w = pointer(b, "x", dtype, 3 * m * k), pointer(b, "w", dtype, 3 * k * n)
    y = pointer(b, "y", total, m * n)
    turned, masked, computed = (choose.random() < 0.5 for _ in range(3))

    def operand(i: Value, buffer_shape: tuple[int, int], left: bool) -> Value:
        rows, columns = buffer_shape
        step, at = Index(0), b.index(axis(1, columns) if left else axis(0, rows), buffer_shape, i32)
        step = axis(0, rows) * (columns if not turned else 1)
        step = step + axis(1, columns) * (1 if not turned else rows)
        last = b.full(k - 1, buffer_shape, i32)
        mask = b.map("lt", at, last) if masked else None
        view = b.view(x if left else w, (UNBOUNDED,))
        tile = b.load(view, (step + index(i) * (rows * columns),), buffer_shape, 0, mask)
        if computed and left:
            wide = b.cast(tile, f32) if dtype.is_float else tile
            tile = b.cast(b.map("add", wide, b.full(1, buffer_shape, wide.dtype)), dtype)
        return tile

    def body(i: Value, acc: Value) -> tuple[Value]:
        return (b.dot(operand(i, (m, k), True), operand(i, (k, n), False), acc),)

    (found,) = b.loop(0, 3, 1, (b.full(0, (m, n), total),), body)
    b.store(b.view(y, (m, n)), (axis(0, m), axis(1, n)), found)
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.integers(-3, 4, size).astype(dtype.numpy)
        for name, size in (("x", 3 * m * k), ("w", 3 * k * n))
    }
    check(b.build(), {**arrays, "y": np.zeros(m * n, total.numpy)})


FOLDS: list[tuple[ops.ReduceFn, DType]] = [
    *((fn, dtype) for fn in ("fmax", "fmin") for dtype in (f32, f64, i8, u16, bool_)),
    *(
        (fn, dtype)
        for fn in ("bitwise_and", "bitwise_or", "bitwise_xor")
        for dtype in (i8, i64, u16, bool_)
    ),
    ("max", bool_),
    ("min", bool_),
]  # type: ignore[list-item]


@pytest.mark.parametrize(("fn", "dtype"), FOLDS, ids=str)
@pytest.mark.parametrize("shape", [(3, 50), (1, 1), (40, 5)])
@pytest.mark.parametrize("along", [0, 1])
def test_folds(fn: ops.ReduceFn, dtype: DType, shape: tuple[int, int], along: int) -> None:
    b = Builder("fold")
    b.program_id(0, 1)
    size, left = shape[0] * shape[1], shape[1 - along]
    x, y, z = (
        pointer(b, "x", dtype, size),
        pointer(b, "y", dtype, left),
        pointer(b, "z", dtype, size),
    )
    at = (axis(0, shape[0]), axis(1, shape[1]))
    tile = b.load(b.view(x, shape), at, shape)
    b.store(b.view(y, (left,)), (axis(0, left),), b.reduce(fn, tile, along))
    b.store(b.view(z, shape), at, b.scan(fn, tile, along, reverse=True))
    rng = np.random.default_rng(3)
    low = 0 if dtype.kind != "int" else -100
    data = rng.integers(low, 2 if dtype is bool_ else 100, size).astype(dtype.numpy)
    if dtype.is_float:
        data[rng.random(size) < 0.5] = np.nan
        data.reshape(shape)[:, 0] = data.reshape(shape)[0, :] = np.nan
    check(
        b.build(), {"x": data, "y": np.zeros(left, dtype.numpy), "z": np.zeros(size, dtype.numpy)}
    )


@pytest.mark.parametrize("shape", [(65536,), (256, 256), (8, 16, 4, 32, 4), (3, 5, 7, 2, 300)])
def test_large_tiles(shape: tuple[int, ...]) -> None:
    b = Builder("large")
    b.program_id(0, 1)
    size = int(np.prod(shape))
    x, y = pointer(b, "x", f32, size), pointer(b, "y", f32, 2 * size)
    at = [axis(i, n) for i, n in enumerate(shape)]
    tile = b.load(b.view(x, shape), at, shape)
    back = tuple(reversed(range(len(shape))))
    turned = b.permute(tile, back)
    peak = b.reduce("max", turned, 0)
    spread = b.broadcast(peak, turned.shape, tuple(range(1, len(shape))))
    made = b.permute(b.map("sub", spread, turned), back)
    b.store(b.view(y, (2, *shape)), (0, *at), made)
    flat = b.reshape(made, (size,))
    b.store(b.view(y, (UNBOUNDED,)), (axis(0, size) * -1 + (2 * size - 1),), flat)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 99, size).astype(np.float32)
    check(b.build(), {"x": data, "y": np.zeros(2 * size, np.float32)})
