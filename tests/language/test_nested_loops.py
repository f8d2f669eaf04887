"""Loops around the loop that multiplies: the ring of a producer goes on from tile to tile.

The GPU IR of each kernel is verified and simulated, at several sizes, without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.backend.nvptx import lower_to_gpu
from fuser.backend.nvptx.compile import mechanisms
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.prefetch import prefetch_loads
from fuser.backend.nvptx.simulate import simulate
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.base.target import SM_90A
from fuser.graph.sizes import Sizes
from fuser.language import variants
from fuser.language.variants import Code
from tests.language.random_loops import random_loops
from tests.language.test_tutorials import load

M, N, K, PROGRAMS = 192, 160, 224, 2
WARP_SPECIALISATION = "warp specialisation"


@triton.jit
def counted(
    a, b, c, m_size, n_size, k_size, a_row, b_row, c_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The tile to store is counted beside the loop; the first half of k may have no iteration."""
    tiles_n = tl.cdiv(n_size, BLOCK_N)
    tiles = tl.cdiv(m_size, BLOCK_M) * tiles_n
    number = tl.program_id(0)
    for _ in range(tl.program_id(0), tiles, tl.num_programs(0)):
        m = (number // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
        n = (number % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(number % 2 * BLOCK_K * 2, k_size, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            left = tl.load(
                a + m * a_row + k[None, :], mask=(m < m_size) & (k[None, :] < k_size), other=0.0
            )
            right = tl.load(
                b + k[:, None] * b_row + n, mask=(k[:, None] < k_size) & (n < n_size), other=0.0
            )
            total = tl.dot(left, right, total)
        tl.store(c + m * c_row + n, total.to(c.dtype.element_ty), mask=(m < m_size) & (n < n_size))
        number += tl.num_programs(0)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Code]:
    """Compiles what a call launches for a GPU, and launches it on the CPU."""
    found: list[Code] = []
    make = variants.make_variant

    def also(function: Any, arguments: Any, grid: Any, options: Any) -> Any:
        found.append(variants.code_for(function, arguments, grid, options, SM_90A))
        return make(function, arguments, grid, options)

    monkeypatch.setattr(variants, "make_variant", also)

    def call(launch: Callable[[], None]) -> Code:
        launch()
        return found[-1]

    return call


def lowered(code: Code) -> Program:
    with Sizes(code.examples):
        program = lower_to_gpu(code.program.kernel, SM_90A)
        verify(program)
        verify_protocol(program)
    return program


def code_text(code: Code) -> str:
    return print_program(lowered(code))


def applied(code: Code, mechanism: str) -> bool:
    with Sizes(code.examples):
        decisions = mechanisms(code.program.kernel, SM_90A)
    return any(d.applied for d in decisions if d.mechanism == mechanism)


def run_simulated(
    code: Code, arrays: dict[str, np.ndarray[Any, Any]], late: bool, scalars: Sequence[float] = ()
) -> None:
    program, flat = lowered(code), {k: v.reshape(-1) for k, v in arrays.items()}
    with Sizes(code.examples):
        simulate(program, flat, seed=7, late=late, scalars=scalars)


def operands(m: int = M, n: int = N, k: int = K) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype("float16") for shape in ((m, k), (k, n)))
    return a, b, np.zeros((m, n), "float16")


def assert_close(found: Any, want: Any) -> None:
    np.testing.assert_allclose(found.astype("float64"), want, rtol=2e-3, atol=2e-2)


CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("descriptors", [False, True], ids=["pointers", "descriptors"])
def test_a_persistent_matmul_is_fed_across_its_tiles(
    descriptors: bool, late: bool, compiled: Callable[..., Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("09_persistent_matmul")
    monkeypatch.setattr(module.workbench, "multiprocessors", lambda x: PROGRAMS)
    a, b, c = operands()
    code = compiled(lambda: module.matmul(a, b, c, descriptors, {**CONFIG, "GROUP": 2}))
    assert applied(code, WARP_SPECIALISATION)
    want = a.astype("float64") @ b.astype("float64")
    assert_close(c, want)
    names = [buffer.name for buffer in code.program.kernel.buffers]
    out = np.full_like(c, np.nan)
    run_simulated(code, dict(zip(names, (a, b, out), strict=True)), late)
    assert_close(out, want)


@pytest.mark.parametrize("k", [16, 64, K])
def test_rings_of_loops_that_may_have_no_iteration(k: int, compiled: Callable[..., Code]) -> None:
    a, b, c = operands(k=k)
    counted.forget()

    def launch() -> None:
        counted[(PROGRAMS,)](a, b, c, M, N, k, k, N, N, **CONFIG)

    code = compiled(launch)
    assert applied(code, WARP_SPECIALISATION)
    out = np.full_like(c, np.nan)
    run_simulated(code, {"a": a, "b": b, "c": out}, True)
    assert_close(out, c.astype("float64"))
    tiles = -(-N // 64)
    for number in range(-(-M // 64) * tiles):
        rows, columns = (slice(64 * i, 64 * i + 64) for i in divmod(number, tiles))
        first = number % 2 * 64
        part = a[rows, first:].astype("float64") @ b[first:, columns].astype("float64")
        assert_close(c[rows, columns], part)


def test_rows_whose_places_are_loaded_are_copied_ahead(compiled: Callable[..., Code]) -> None:
    """A grouped matmul: neither strides nor beginnings of its matrices are known at launch."""
    module = load("08_grouped_matmul")
    shapes = [(70, 64, 96), (64, 160, 32), (130, 48, 80)]
    table, sizes, aligned = module.describe(shapes, "cpu")
    a, b = (module.workbench.draw(i, (sizes[i],), "float16", "cpu") for i in range(2))
    c = np.zeros(sizes[2], "float16")
    config = {**CONFIG, "resident": 1}
    code = compiled(lambda: module.grouped_matmul(a, b, c, table, aligned, config))
    assert applied(code, "multistage pipeline")
    out = np.zeros_like(c)
    run_simulated(code, {"a": a, "b": b, "c": out, "table": table}, True)
    assert_close(out, c.astype("float64"))
    for m, n, k, i, j, at in table:
        left, right = a[i : i + m * k].reshape(m, k), b[j : j + k * n].reshape(k, n)
        want = left.astype("float64") @ right.astype("float64")
        assert_close(c[at : at + m * n].reshape(m, n), want)


@triton.jit
def wrapped(
    a, b, c, m_size, n_size, k_size, a_row, b_row, c_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows and columns beyond the end begin again; which tile it is is known at run time alone."""
    in_group = 2 * tl.cdiv(n_size, BLOCK_N)
    first = tl.program_id(0) // in_group * 2
    group = min(tl.cdiv(m_size, BLOCK_M) - first, 2)
    tile_m = first + tl.program_id(0) % in_group % group
    tile_n = tl.program_id(0) % in_group // group
    m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m_size)[:, None]
    n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n_size)[None, :]
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, tl.cdiv(k_size, BLOCK_K)):
        left = tl.load(a + m * a_row + (start * BLOCK_K + k)[None, :])
        right = tl.load(b + n * b_row + (start * BLOCK_K + k)[:, None])
        total = tl.dot(left, right, total)
    tl.store(c + m * c_row + n, total.to(c.dtype.element_ty))


def test_columns_that_begin_again_are_copied_ahead(compiled: Callable[..., Code]) -> None:
    """What says where they are comes out of the loop, and the schedule of the loop stays."""
    a, right, c = operands()
    b = np.ascontiguousarray(right.T)
    config = CONFIG | {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8}
    code = compiled(lambda: wrapped[4,](a, b, c, M, N, K, K, K, N, **config))
    assert applied(code, "multistage pipeline")
    out = np.full_like(c, np.nan)
    run_simulated(code, {"a": a, "b": b, "c": out}, True)
    assert_close(c, a.astype("float64") @ right.astype("float64"))
    assert_close(out, c.astype("float64"))


@triton.jit
def rows_of(
    x, y, out, sums, stride, rows, columns, BLOCK: tl.constexpr
):  # fmt: skip
    """Two reductions of each row, and a sum over rows."""
    column = tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        left = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        right = tl.load(y + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(left, axis=0) / columns
        product = tl.sum(left * right, axis=0)
        tl.store(out + row * stride + column, (left - mean) * product, mask=inside)
        total += right
    tl.store(sums + tl.program_id(0) * stride + column, total, mask=inside)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("words", [64, 4, 0], ids=["registers", "both", "shared"])
def test_rows_are_requested_while_the_row_before_is_reduced(
    rows: int, words: int, compiled: Callable[..., Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one row the second program has none; nobody reads a row after the last."""
    monkeypatch.setattr(prefetch_loads, "MAX_WORDS", words)
    monkeypatch.setenv("FUSER_CACHE", "0")
    columns, programs = 1008, 2
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal((rows, columns)).astype("float16") for _ in range(2))
    out, sums = np.zeros((rows, columns), "float32"), np.zeros((programs, columns), "float32")
    rows_of.forget()
    code = compiled(
        lambda: rows_of[(programs,)](
            x, y, out, sums, columns, rows, columns, BLOCK=1024, num_warps=4
        )
    )
    assert rows == 1 or applied(code, "loads prefetched")
    assert rows == 1 or ("copy_own" in code_text(code)) == (words < 64)
    found = {"x": x, "y": y, "out": np.zeros_like(out), "sums": np.zeros_like(sums)}
    run_simulated(code, found, True)
    a, b = x.astype("float64"), y.astype("float64")
    want = (a - a.mean(1, keepdims=True)) * (a * b).sum(1, keepdims=True)
    np.testing.assert_allclose(found["out"], want, rtol=1e-4, atol=1e-4)
    want = np.stack([b[program::programs].sum(0) for program in range(programs)])
    np.testing.assert_allclose(found["sums"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize(("causal", "tokens"), [(True, 320), (True, 192), (False, 200)])
def test_loops_of_one_form_share_a_ring(
    causal: bool, tokens: int, late: bool, compiled: Callable[..., Code]
) -> None:
    """Keys that all queries see, then the others: two loops, the first of which may have no
    iteration; two consumer warp groups take turns across both."""
    module, d, heads = load("06_attention"), 64, 2
    rng = np.random.default_rng(11)
    q, k, v = (rng.standard_normal((heads, tokens, d)).astype("float16") for _ in range(3))
    out, levels = np.zeros_like(q), np.zeros((heads, tokens), "float32")
    config = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
    code = compiled(lambda: module.forward(q, k, v, out, levels, causal, config))
    assert applied(code, WARP_SPECIALISATION) and applied(code, "matmuls under softmax")
    fetched = re.findall(r"fetch %\w+, @(\d+)", code_text(code))
    assert len(set(fetched)) == 2 and len(fetched) == (4 if causal else 2)
    found = {"q": q, "k": k, "v": v, "out": np.zeros_like(q), "levels": np.zeros_like(levels)}
    run_simulated(code, found, late, [module.factor(d)])
    want, _ = module.reference(*(x.astype("float64") for x in (q, k, v)), causal)
    np.testing.assert_allclose(found["out"].astype("float64"), want, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("seed", range(12))
def test_random_loops_around_loops(seed: int, compiled: Callable[..., Code]) -> None:
    check_random_loops(seed, compiled)


def check_random_loops(seed: int, compiled: Callable[..., Code]) -> None:
    """A drawn kernel is right on the CPU, and simulated for a GPU."""
    drawn = random_loops(seed)
    arrays = drawn.arrays()
    code = compiled(lambda: drawn.launch(arrays))
    want = drawn.expected(arrays)
    np.testing.assert_allclose(arrays["c"], want, rtol=1e-3, atol=1e-2)
    found = {**arrays, "c": np.full_like(arrays["c"], np.nan)}
    names = {buffer.name for buffer in code.program.kernel.buffers}
    run_simulated(code, {name: x for name, x in found.items() if name in names}, bool(seed % 2))
    np.testing.assert_allclose(found["c"], want, rtol=1e-3, atol=1e-2)


@triton.jit
def far(a, b, c, tiles, K, BLOCK: tl.constexpr):
    """So many tiles, of which a few are there."""
    at = tl.arange(0, BLOCK)
    for _ in range(tl.program_id(0), tiles, tl.num_programs(0)):
        total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for start in range(0, K, BLOCK):
            k = start + at
            left = tl.load(a + at[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
            right = tl.load(b + k[:, None] * BLOCK + at[None, :], mask=k[:, None] < K, other=0.0)
            total = tl.dot(left, right, total)
        tl.store(c + at[:, None] * BLOCK + at[None, :], total)


def test_a_producer_leaves_loops_whose_range_needs_64_bits(
    compiled: Callable[..., Code],
) -> None:
    """The computing warps count such a loop in another way, which knows of no ring."""
    a, b = np.zeros((64, 128), "float16"), np.zeros((128, 64), "float16")
    c = np.zeros((64, 64), "float32")
    for tiles, fed in ((3, True), (1 << 33, False)):
        far.forget()
        code = compiled(
            lambda tiles=tiles: far.warmup(a, b, c, tiles, 128, BLOCK=64, grid=(2,), num_stages=3)
        )
        assert applied(code, WARP_SPECIALISATION) == fed
        lowered(code)


@triton.jit
def unrolled(x, out, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for start in tl.static_range(0, 4 * STEP, STEP):
        inside = start + at < n
        values = tl.load(x + tl.program_id(0) * n + start + at, mask=inside, other=0)
        tl.store(out + tl.program_id(0) * n + start + at, values + start, mask=inside)


@pytest.mark.parametrize("step, apart", [(256, True), (384, True), (255, False), (128, False)])
def test_stores_that_lie_apart_wait_for_nobody(
    step: int, apart: bool, compiled: Callable[..., Code]
) -> None:
    kernel = triton.jit(unrolled.fn)
    n = 3 * step + 200
    x = np.random.default_rng(0).integers(0, 99, (2, n)).astype(np.int32)
    out = np.zeros_like(x)
    code = compiled(lambda: kernel[2,](x, out, n, step, 256))
    with Sizes(code.examples):
        assert ("barrier" in code_text(code)) is not apart
    found = np.zeros_like(x)
    run_simulated(code, {"x": x, "out": found}, True)
    np.testing.assert_array_equal(found, out)
