"""Register-blocked dots: odd sizes, dtypes, epilogues, and the layouts operands come in."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.cpu.compile import decisions_text
from fuser.backend.features import missing_features
from fuser.base.target import X86_64_V3, Target
from fuser.dtypes import DType, bf16, f16, f32, f64, i8, i32
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value
from tests.backend.cpu import native
from tests.backend.cpu.test_programs import compare

ROWS, COLUMNS = native.HOST.micro_tile()


def packed_matmul(m: int, n: int, k: int, fn: str = "") -> Kernel:
    """fn(a @ b + bias), b in panels of COLUMNS, one register tile a program."""
    panels = -(-n // COLUMNS)
    b = Builder("packed")
    x, w = b.buffer("x", f32, m * k), b.buffer("w", f32, panels * k * COLUMNS)
    bias, y = b.buffer("bias", f32, n), b.buffer("y", f32, m * n, role="output")
    column = index(b.program_id(0, panels)) * COLUMNS
    row = index(b.program_id(1, -(-m // ROWS))) * ROWS + axis(0, ROWS)
    here = column + axis(1, COLUMNS)
    left = b.load(b.view(x, (m, k)), (row, axis(1, k)), (ROWS, k))
    at = (here // COLUMNS, axis(0, k), here % COLUMNS)
    right = b.load(b.view(w, (panels, k, COLUMNS)), at, (k, COLUMNS), pad=None)
    acc = b.dot(left, right, b.full(0.0, (ROWS, COLUMNS), f32))
    add = b.load(b.view(bias, (n,)), (column + axis(0, COLUMNS),), (COLUMNS,))
    acc = b.map("add", acc, b.broadcast(add, (ROWS, COLUMNS), (1,)))
    b.store(b.view(y, (m, n)), (row, here), b.map(fn, acc) if fn else acc)
    return b.build()


@pytest.mark.parametrize("fn", ["", "tanh"])
@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (8, 48, 64), (13, 50, 7), (9, 100, 33), (3, 47, 200)])
def test_packed(m: int, n: int, k: int, fn: str, rng: np.random.Generator) -> None:
    kernel = packed_matmul(m, n, k, fn)
    panels = -(-n // COLUMNS)
    x, weights = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    bias = rng.standard_normal(n, np.float32)
    padded = np.pad(weights, ((0, 0), (0, panels * COLUMNS - n)))
    packed = np.ascontiguousarray(padded.reshape(k, panels, COLUMNS).transpose(1, 0, 2))
    arrays = {"x": x.reshape(-1), "w": packed.reshape(-1), "bias": bias,
              "y": np.zeros(m * n, np.float32)}  # fmt: skip
    native.run(kernel, arrays)
    want = x.astype(np.float64) @ weights + bias
    want = np.tanh(want) if fn else want
    np.testing.assert_allclose(arrays["y"].reshape(m, n), want, 1e-5, 1e-5 * np.sqrt(k))


def whole_dot(
    m: int, n: int, k: int, dtype: DType, turned: tuple[bool, bool], prologue: bool
) -> Kernel:
    """One program: x @ w as one tile, each operand perhaps stored transposed."""
    b = Builder("whole")
    x, w = b.buffer("x", dtype, m * k), b.buffer("w", dtype, k * n)
    b.program_id(0, 1)
    tiles = []
    for buffer, shape, turn in ((x, (m, k), turned[0]), (w, (k, n), turned[1])):
        if turn:
            stored = (shape[1], shape[0])
            tile = b.load(b.view(buffer, stored), (axis(1, stored[0]), axis(0, stored[1])), shape)
        else:
            tile = b.load(b.view(buffer, shape), (axis(0, shape[0]), axis(1, shape[1])), shape)
        tiles.append(b.map("abs", b.map("neg", tile)) if prologue else tile)
    out = dtype.accumulate
    y = b.buffer("y", out, m * n, role="output")
    zero = b.full(0, (m, n), out)
    made = b.dot(tiles[0], tiles[1], zero)
    b.store(b.view(y, (m, n)), (axis(0, m), axis(1, n)), made)
    return b.build()


@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16, i8, i32], ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    "m,n,k,prologue", [(5, 7, 9, False), (33, 70, 20, False), (70, 33, 20, True)]
)
def test_whole(
    m: int,
    n: int,
    k: int,
    prologue: bool,
    turned: tuple[bool, bool],
    dtype: DType,
    rng: np.random.Generator,
) -> None:
    kernel = whole_dot(m, n, k, dtype, turned, prologue)

    def draw(count: int) -> np.ndarray:
        if dtype.is_integer:
            return rng.integers(-100, 100, count).astype(dtype.numpy)
        return rng.standard_normal(count).astype(dtype.numpy)

    arrays = {"x": draw(m * k), "w": draw(k * n), "y": np.zeros(m * n, dtype.accumulate.numpy)}
    compare(kernel, arrays, 1e-5)


def blocks_of_k(m: int, n: int, k: int, block: tuple[int, int, int], dtype: DType) -> Kernel:
    """Programs of blocks that hang over all edges, with a loop over k, as people write matmuls."""
    high, wide, deep = block
    b = Builder("blocks")
    x, w = b.buffer("x", dtype, m * k), b.buffer("w", dtype, k * n)
    y = b.buffer("y", dtype.accumulate, m * n, role="output")
    row = index(b.program_id(0, -(-m // high))) * high
    column = index(b.program_id(1, -(-n // wide))) * wide
    total = dtype.accumulate

    def body(at: Value, acc: Value) -> list[Value]:
        left = (row + axis(0, high), index(at) + axis(1, deep))
        right = (index(at) + axis(0, deep), column + axis(1, wide))
        one = b.load(b.view(x, (m, k)), left, (high, deep))
        other = b.load(b.view(w, (k, n)), right, (deep, wide))
        return [b.dot(one, other, acc)]

    (found,) = b.loop(0, k, deep, [b.full(0, (high, wide), total)], body)
    b.store(b.view(y, (m, n)), (row + axis(0, high), column + axis(1, wide)), found)
    return b.build()


@pytest.mark.parametrize("target", [native.HOST, X86_64_V3], ids=["host", "avx2"])
@pytest.mark.parametrize("dtype", [f32, f64, f16], ids=str)
@pytest.mark.parametrize("block", [(32, 32, 16), (64, 64, 32), (60, 72, 24)])
def test_blocks_that_hang_over(
    block: tuple[int, int, int], dtype: DType, target: Target, rng: np.random.Generator
) -> None:
    """Blocks of the right operand are copied to panels in scratch, with what is in bounds."""
    m, n, k = 67, 101, 53
    kernel = blocks_of_k(m, n, k, block, dtype)
    arrays = {"x": rng.standard_normal(m * k).astype(dtype.numpy),
              "w": rng.standard_normal(k * n).astype(dtype.numpy),
              "y": np.zeros(m * n, dtype.accumulate.numpy)}  # fmt: skip
    compare(kernel, arrays, 1e-5, target)
    assert "%x" in decisions_text(kernel, target).partition("nests")[0].partition("dots")[0]


@pytest.mark.parametrize("target", [native.HOST, X86_64_V3], ids=["host", "avx2"])
@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16], ids=str)
@pytest.mark.parametrize("m,n,k", [
    (1, 5, 64), (1, 70, 32), (3, 33, 208), (4, 100, 64), (1, 21, 300), (2, 18, 141), (4, 37, 333),
    (3, 7, 17),
])  # fmt: skip
def test_few_rows_along_k(
    m: int, n: int, k: int, dtype: DType, target: Target, rng: np.random.Generator
) -> None:
    """A query and keys, as both lie in memory: nothing is copied."""
    if missing_features(target.features):
        pytest.skip("the code is for another processor")
    kernel = whole_dot(m, n, k, dtype, (False, True), False)
    units = target.dot_unit(dtype.name) is not None
    assert ("vectors along k" in decisions_text(kernel, target)) is not units
    arrays = {"x": rng.standard_normal(m * k).astype(dtype.numpy),
              "w": rng.standard_normal(k * n).astype(dtype.numpy),
              "y": np.zeros(m * n, dtype.accumulate.numpy)}  # fmt: skip
    compare(kernel, arrays, 1e-5, target)
