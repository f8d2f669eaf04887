"""Tile programs to test with: small, of odd sizes, and between them with every op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.dtypes import DType, bf16, f16, f32, i8, i32, i64
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index, lookup, maximum, minimum
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value

Array = np.ndarray[Any, Any]


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def scale(size: int = 1000, block: int = 128) -> Kernel:
    b = Builder("scale")
    x, y = b.buffer("x", f32, size), b.buffer("y", f32, size, "output")
    at = index(b.program_id(0, blocks(size, block))) * block + axis(0, block)
    b.origin = ("/Mul",)
    tile = b.load(b.view(x, (size,)), (at,), (block,))
    b.store(b.view(y, (size,)), (at,), b.map("mul", tile, b.full(2.0, (block,), f32)))
    return b.build()


def single() -> Kernel:
    """One element, by views without dims."""
    b = Builder("single")
    x, y = b.buffer("x", f32, 1), b.buffer("y", f32, 1, "output")
    tile = b.load(b.view(x, ()), (), (1,))
    b.store(b.view(y, ()), (), b.map("exp", tile))
    return b.build()


def matmul(m: int = 33, n: int = 20, k: int = 50, block: int = 16, dtype: DType = f16) -> Kernel:
    """relu(a @ b + bias), the bias as a column of its own."""
    b = Builder("matmul")
    a, w = b.buffer("a", dtype, m * k), b.buffer("w", dtype, k * n)
    bias, y = b.buffer("bias", dtype, n), b.buffer("y", dtype, m * n, "output")
    rows = index(b.program_id(0, blocks(m, block))) * block
    columns = index(b.program_id(1, blocks(n, block))) * block
    zero = b.full(0.0, (block, block), f32)
    b.origin = ("/fc/MatMul",)

    def body(i: Value, acc: Value) -> tuple[Value]:
        left = (rows + axis(0, block), index(i) + axis(1, block))
        right = (index(i) + axis(0, block), columns + axis(1, block))
        return (
            b.dot(
                b.load(b.view(a, (m, k)), left, (block, block)),
                b.load(b.view(w, (k, n)), right, (block, block)),
                acc,
            ),
        )

    (acc,) = b.loop(0, k, block, (zero,), body)
    b.origin = ("/fc/Add", "/act/Relu")
    row = b.cast(b.load(b.view(bias, (n,)), (columns + axis(0, block),), (block,)), f32)
    y_tile = b.map("max", b.map("add", acc, b.broadcast(row, (block, block), (1,))), zero)
    at = (rows + axis(0, block), columns + axis(1, block))
    b.store(b.view(y, (m, n)), at, b.cast(y_tile, dtype, flush=dtype is bf16))
    return b.build()


def softmax(rows: int = 5, columns: int = 77) -> Kernel:
    """One row a program, in a tile that is wider than the row."""
    b = Builder("softmax")
    x, y = b.buffer("x", f32, rows * columns), b.buffer("y", f32, rows * columns, "output")
    row, width = index(b.program_id(0, rows)), 128
    view = b.view(x, (rows, columns))
    tile = b.load(view, (row, axis(1, width)), (1, width), pad=float("-inf"))
    peak = b.broadcast(b.reduce("max", tile, 1), (1, width), (0,))
    shifted = b.map("exp", b.map("sub", tile, peak))
    total = b.broadcast(b.reduce("sum", shifted, 1), (1, width), (0,))
    result = b.map("div", shifted, total)
    b.store(b.view(y, (rows, columns)), (row, axis(1, width)), result)
    return b.build()


def gather(count: int = 13, table: int = 9, width: int = 6, dtype: DType = bf16) -> Kernel:
    """Rows of a table, where a negative index counts from the end."""
    b = Builder("gather")
    ids = b.buffer("ids", i64, count)
    x, y = b.buffer("x", dtype, table * width), b.buffer("y", dtype, count * width, "output")
    block = 4
    at = index(b.program_id(0, blocks(count, block))) * block
    rows = b.load(b.view(ids, (count,)), (at + axis(0, block),), (block,))
    size, zero = b.full(table, (block,), i64), b.full(0, (block,), i64)
    rows = b.map("select", b.map("lt", rows, zero), b.map("add", rows, size), rows)
    rows.low, rows.high = 0, table - 1
    shape = (block, width)
    tile = b.load(b.view(x, (table, width)), (lookup(rows, (0,)), axis(1, width)), shape, pad=None)
    b.store(b.view(y, (count, width)), (at + axis(0, block), axis(1, width)), tile)
    return b.build()


def convolve(size: int = 30, taps: int = 3) -> Kernel:
    """A padded 1-D convolution as a loop over taps: addresses below and beyond the view."""
    b = Builder("convolve")
    x, w = b.buffer("x", f32, size), b.buffer("w", f32, taps, "constant")
    y = b.buffer("y", f32, size, "output")
    block = 8
    at = index(b.program_id(0, blocks(size, block))) * block + axis(0, block)

    def body(tap: Value, total: Value) -> tuple[Value]:
        part = b.load(b.view(x, (size,)), (at + index(tap) - taps // 2,), (block,))
        weight = b.load(b.view(w, (taps,)), (index(tap),), (block,), pad=None)
        return (b.map("add", total, b.map("mul", part, weight)),)

    (total,) = b.loop(0, taps, 1, (b.full(0.0, (block,), f32),), body)
    b.store(b.view(y, (size,)), (at,), total)
    return b.build()


def causal(size: int = 24) -> Kernel:
    """x where column <= row, else -1: a mask from index tiles; the loop has a computed bound."""
    b = Builder("causal")
    x, y = b.buffer("x", f32, size * size), b.buffer("y", f32, size * size, "output")
    block = 8
    first = index(b.program_id(0, blocks(size, block))) * block
    shape = (block, block)

    def body(start: Value) -> tuple[()]:
        at = (first + axis(0, block), index(start) + axis(1, block))
        tile = b.load(b.view(x, (size, size)), at, shape)
        mask = b.map("ge", b.index(at[0], shape), b.index(at[1], shape))
        value = b.map("select", mask, tile, b.full(-1.0, shape, f32))
        b.store(b.view(y, (size, size)), at, value)
        return ()

    b.loop(0, minimum(first + block, size), block, (), body)
    return b.build()


def histogram(count: int = 100, bins: int = 7) -> Kernel:
    b = Builder("histogram")
    x, y = b.buffer("x", i32, count), b.buffer("y", i32, bins, "output")
    block = 16
    at = index(b.program_id(0, blocks(count, block))) * block + axis(0, block)
    bin = b.load(b.view(x, (count,)), (at,), (block,), pad=bins)
    b.atomic_add(b.view(y, (bins,)), (lookup(bin, (0,)),), b.full(1, (block,), i32))
    return b.build()


def scan(rows: int = 3, columns: int = 19) -> Kernel:
    """Running sum and reversed running maximum, one above the other, written transposed."""
    b = Builder("scan")
    x, y = b.buffer("x", f32, rows * columns), b.buffer("y", f32, 2 * rows * columns, "output")
    row = index(b.program_id(0, rows))
    tile = b.load(b.view(x, (rows, columns)), (row, axis(1, columns)), (1, columns))
    view = b.view(y, (2, columns, rows))
    shape = (columns, 1)
    for number, result in enumerate((b.scan("sum", tile, 1), b.scan("max", tile, 1, reverse=True))):
        b.store(view, (number, axis(0, columns), row), b.permute(result, (1, 0)))
    assert shape == (columns, 1)
    return b.build()


def branch(size: int = 20) -> Kernel:
    """Even programs negate, odd ones take the product of pairs."""
    b = Builder("branch")
    x, y = b.buffer("x", f32, size * 4), b.buffer("y", f32, size * 4, "output")
    pid = b.program_id(0, size)
    at = index(pid) * 4 + axis(0, 4)
    tile = b.load(b.view(x, (size * 4,)), (at,), (4,))
    even = b.map("eq", b.index(index(pid) % 2), b.index(index(0)))

    def other() -> tuple[Value]:
        pairs = b.reduce("prod", b.reshape(tile, (2, 2)), 1)
        return (b.reshape(b.broadcast(b.reshape(pairs, (2, 1)), (2, 2), (0, 1)), (4,)),)

    (result,) = b.branch(even, lambda: (b.map("neg", tile),), other)
    b.store(b.view(y, (size * 4,)), (at,), result)
    return b.build()


def integers(m: int = 4, k: int = 8) -> Kernel:
    """An i8 dot, and minima over clamped addresses of a strided view that starts inside."""
    b = Builder("integers")
    x, y = b.buffer("x", i8, 100), b.buffer("y", i32, m * m, "output")
    at = (axis(0, m), axis(1, k))
    a = b.load(b.view(x, (m, k), (k * 2, 2), offset=3), at, (m, k), pad=None)
    low = b.load(b.view(x, (100,)), (maximum(0, axis(0, m) * 40 - 20),), (m,))
    acc = b.dot(a, b.permute(a, (1, 0)), b.full(0, (m, m), i32))
    acc = b.map("add", acc, b.broadcast(b.cast(low, i32), (m, m), (0,)))
    b.store(b.view(y, (m, m)), (axis(0, m), axis(1, m)), acc)
    return b.build()


CORPUS: dict[str, Callable[[], Kernel]] = {
    "scale": scale,
    "single": single,
    "matmul": matmul,
    "matmul_one_block": lambda: matmul(16, 16, 16),
    "softmax": softmax,
    "gather": gather,
    "convolve": convolve,
    "convolve_one_tap": lambda: convolve(16, 1),
    "causal": causal,
    "histogram": histogram,
    "scan": scan,
    "branch": branch,
    "integers": integers,
}


def random_arrays(kernel: Kernel, rng: np.random.Generator) -> dict[str, Array]:
    """Buffers for a kernel: small numbers, zeros for what it writes."""
    arrays: dict[str, Array] = {}
    for buffer in kernel.buffers:
        if buffer.role in ("output", "workspace"):
            arrays[buffer.name] = np.zeros(buffer.size, buffer.dtype.numpy)
        elif buffer.dtype.is_float:
            values = rng.standard_normal(buffer.size)
            arrays[buffer.name] = values.astype(np.float32).astype(buffer.dtype.numpy)
        else:
            arrays[buffer.name] = rng.integers(0, 7, buffer.size).astype(buffer.dtype.numpy)
    return arrays
