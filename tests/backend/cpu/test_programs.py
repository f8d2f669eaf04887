"""Hand-written and random tile programs: native code gives what the interpreter gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser.backend.cpu.compile import decisions_text
from fuser.base.target import Target
from fuser.dtypes import ALL, DType, f32, f64, i8
from fuser.tilegen import interpret
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.text import print_kernel
from fuser.tilegen.value import Value
from tests.backend.cpu import native
from tests.tilegen import programs
from tests.tilegen.test_random_programs import Author

Array = np.ndarray
PROGRAMS = ("scale", "matmul", "softmax", "gather", "convolve", "causal", "histogram", "scan",
            "branch", "integers")  # fmt: skip


def compare(
    kernel: Kernel, arrays: dict[str, Array], tolerance: float = 1e-5,
    target: Target = native.HOST,
) -> None:  # fmt: skip
    """Run both ways and compare every output; NaN equals NaN."""
    expected = {name: array.copy() for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        interpret.run(kernel, expected)
    native.run(kernel, arrays, target)
    for buffer in kernel.buffers:
        if buffer.role not in ("output", "workspace"):
            continue
        have, want = arrays[buffer.name], expected[buffer.name]
        if not buffer.dtype.is_float:
            np.testing.assert_array_equal(have, want, err_msg=print_kernel(kernel))
            continue
        limit = 1e-2 if buffer.dtype.bits == 16 else tolerance
        np.testing.assert_allclose(
            have.astype(np.float64),
            want.astype(np.float64),
            limit,
            limit,
            err_msg=print_kernel(kernel),
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, rng: np.random.Generator) -> None:
    kernel = getattr(programs, name)()
    compare(kernel, programs.random_arrays(kernel, rng))


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 20):
        kernel = Author(seed).kernel()
        compare(kernel, programs.random_arrays(kernel, np.random.default_rng(seed)))


def test_chunks_of_the_grid(rng: np.random.Generator) -> None:
    """Programs run in any partition of the grid, each once."""
    kernel = programs.matmul()
    arrays = programs.random_arrays(kernel, rng)
    expected = {name: array.copy() for name, array in arrays.items()}
    interpret.run(kernel, expected)
    loaded = native.Loaded(kernel, arrays)
    for first in reversed(range(loaded.compiled.programs)):
        loaded.run(first, first + 1)
    have = loaded.buffers["y"].array.astype(np.float64)
    np.testing.assert_allclose(have, expected["y"].astype(np.float64), 1e-2, 1e-2)


def rows_kernel(
    rows: int, columns: int, block: int, body: Callable[[Builder, Value], Value]
) -> Kernel:
    """body on [block, columns] tiles of x [rows, columns], stored to y of the same shape."""
    b = Builder("rows")
    x = b.buffer("x", f32, rows * columns)
    y = b.buffer("y", f32, rows * columns, role="output")
    start = index(b.program_id(0, -(-rows // block))) * block
    at = (start + axis(0, block), axis(1, columns))
    tile = b.load(b.view(x, (rows, columns)), at, (block, columns))
    b.store(b.view(y, (rows, columns)), at, body(b, tile))
    return b.build()


def softmax(b: Builder, x: Value) -> Value:
    high = b.broadcast(b.reduce("max", x, 1), x.shape, (0,))
    e = b.map("exp", b.map("sub", x, high))
    return b.map("div", e, b.broadcast(b.reduce("sum", e, 1), x.shape, (0,)))


def layer_norm(b: Builder, x: Value) -> Value:
    rows, columns = x.shape
    part = b.full(1 / columns, (rows,), f32)
    mean = b.map("mul", b.reduce("sum", x, 1), part)
    centred = b.map("sub", x, b.broadcast(mean, x.shape, (0,)))
    variance = b.map("mul", b.reduce("sum", b.map("mul", centred, centred), 1), part)
    scale = b.map("rsqrt", b.map("add", variance, b.full(1e-5, (rows,), f32)))
    return b.map("mul", centred, b.broadcast(scale, x.shape, (0,)))


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 63, 64, 65, 197, 1000])
@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("body", [softmax, layer_norm])
def test_rows(
    body: Callable[[Builder, Value], Value], block: int, columns: int, rng: np.random.Generator
) -> None:
    rows = 7
    kernel = rows_kernel(rows, columns, block, body)
    x = rng.standard_normal(rows * columns).astype(np.float32) * 3
    compare(kernel, {"x": x, "y": np.zeros_like(x)})


@pytest.mark.parametrize(
    "fn,dtype",
    [(f, d) for f in ("sum", "max", "min", "prod") for d in ALL if d.kind != "bool" or f == "max"],
    ids=lambda item: str(item),
)
@pytest.mark.parametrize("shape,along", [((5, 37), 1), ((37, 20), 0), ((3, 4, 18), 1)])
def test_reduce(
    fn: str, dtype: DType, shape: tuple[int, ...], along: int, rng: np.random.Generator
) -> None:
    b = Builder("reduce")
    size = int(np.prod(shape))
    left = shape[:along] + shape[along + 1 :]
    x, y = b.buffer("x", dtype, size), b.buffer("y", dtype, int(np.prod(left)), role="output")
    b.program_id(0, 1)
    tile = b.load(b.view(x, shape), [axis(i, n) for i, n in enumerate(shape)], shape)
    result = b.reduce(fn, tile, along)  # type: ignore[arg-type]
    b.store(b.view(y, left), [axis(i, n) for i, n in enumerate(left)], result)
    if dtype.kind == "bool":
        data = rng.integers(0, 2, size).astype(bool)
    elif dtype.is_integer:
        data = rng.integers(0, 100, size).astype(dtype.numpy)
    else:
        data = (rng.standard_normal(size) * 0.9).astype(dtype.numpy)
    arrays = {"x": data, "y": np.zeros(int(np.prod(left)), dtype.numpy)}
    compare(b.build(), arrays, 1e-4)


def test_nan_reaches_a_maximum() -> None:
    kernel = rows_kernel(2, 100, 1, lambda b, x: b.broadcast(b.reduce("max", x, 1), x.shape, (0,)))
    x = np.zeros(200, np.float32)
    x[37] = np.nan
    arrays = {"x": x, "y": np.zeros_like(x)}
    native.run(kernel, arrays)
    assert np.isnan(arrays["y"][:100]).all() and (arrays["y"][100:] == 0).all()


def test_dot_of_a_stretched_vector(rng: np.random.Generator) -> None:
    """An operand that is a broadcast of computed numbers, with one step of k."""
    b = Builder("outer")
    x, w = b.buffer("x", f32, 21), b.buffer("w", f32, 16)
    y = b.buffer("y", f32, 21 * 16, role="output")
    b.program_id(0, 1)
    column = b.load(b.view(x, (21,)), (axis(0, 21),), (21,))
    positive = b.map("gt", column, b.full(0.0, (21,), f32))
    kept = b.map("select", positive, column, b.full(0.25, (21,), f32))
    row = b.load(b.view(w, (1, 16)), (axis(0, 1), axis(1, 16)), (1, 16))
    product = b.dot(b.broadcast(kept, (21, 1), (0,)), row, b.full(0.0, (21, 16), f32))
    b.store(b.view(y, (21, 16)), (axis(0, 21), axis(1, 16)), product)
    kernel = b.build()
    compare(kernel, programs.random_arrays(kernel, rng))


@pytest.mark.parametrize("shape", [(64, 64), (37, 19), (100, 70), (511, 33)])
@pytest.mark.parametrize("dtype", [f32, f64, i8], ids=str)
def test_transpose(shape: tuple[int, int], dtype: DType, rng: np.random.Generator) -> None:
    """Read along one axis, written along the other: squares turned in registers, edges too."""
    m, n = shape
    b = Builder("transpose")
    x, y = b.buffer("x", dtype, m * n), b.buffer("y", dtype, m * n, role="output")
    row = index(b.program_id(0, -(-m // 32))) * 32 + axis(0, 32)
    column = index(b.program_id(1, -(-n // 64))) * 64 + axis(1, 64)
    tile = b.load(b.view(x, (m, n)), (row, column), (32, 64))
    b.store(b.view(y, (n, m)), (column, row), tile)
    data = (rng.standard_normal(m * n) * 50).astype(dtype.numpy)
    arrays = {"x": data, "y": np.zeros_like(data)}
    native.run(b.build(), arrays)
    np.testing.assert_array_equal(arrays["y"].reshape(n, m), data.reshape(m, n).T)


def test_transpose_of_what_is_computed() -> None:
    """Squares are worth their shuffles beside numbers of columns and a residual, too."""
    m, n = 70, 50
    b = Builder("transpose")
    x, r = (b.buffer(name, f32, m * n) for name in "xr")
    numbers = [b.buffer(name, f32, n) for name in "stu"]
    y = b.buffer("y", f32, m * n, role="output")
    row, column = index(b.program_id(0, 3)) * 32 + axis(0, 32), axis(1, 64)
    tile = b.load(b.view(x, (m, n)), (row, column), (32, 64))
    for number in numbers:
        line = b.load(b.view(number, (n,)), (axis(0, 64),), (64,))
        tile = b.map("add", tile, b.broadcast(line, (32, 64), (1,)))
    tile = b.map("add", tile, b.load(b.view(r, (m, n)), (row, column), (32, 64)))
    b.store(b.view(y, (n, m)), (column, row), tile)
    kernel = b.build()
    assert "squares" in decisions_text(kernel, native.HOST)
    compare(kernel, programs.random_arrays(kernel, np.random.default_rng(1)))
