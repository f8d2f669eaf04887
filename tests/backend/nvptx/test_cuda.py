"""Kernels on a GPU against the Tile IR interpreter. sm_80 code runs on newer GPUs through the
driver's compiler, so both paths are checked on one machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fuser import dtypes
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64
from fuser.errors import LoweringError
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from tests.backend.cuda_launch import context, run_on_device
from tests.backend.nvptx import kernels

pytestmark = pytest.mark.cuda


def _targets() -> tuple[Target, ...]:
    return (SM_80, SM_90A)


TOLERANCE = {"f64": 1e-12, "f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}


@pytest.fixture(params=_targets(), ids=lambda t: t.arch)
def target(request: pytest.FixtureRequest) -> Target:
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    return request.param


def random_array(
    rng: np.random.Generator, dtype: DType, size: int, low: float = -3, high: float = 3
) -> np.ndarray:
    if dtype.kind == "bool":
        return rng.integers(0, 2, size).astype(np.bool_)
    if dtype.is_integer:
        start = 0 if dtype.kind == "uint" else -50
        return rng.integers(start, 50, size).astype(dtype.numpy)
    return rng.uniform(low, high, size).astype(dtype.numpy)


def check(
    kernel: Kernel,
    target: Target,
    arrays: dict[str, np.ndarray],
    tolerance: float,
    absolute: float | None = None,
) -> None:
    """Device results equal the interpreter's: relative to the size of the output, or exactly."""
    expected = {name: array.copy() for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        run(kernel, expected)
    found = run_on_device(kernel, compile_kernel(kernel, target), arrays)
    for buffer in kernel.buffers:
        want, have = expected[buffer.name], found[buffer.name]
        if buffer.role == "input":
            assert np.array_equal(have, arrays[buffer.name], equal_nan=not buffer.dtype.is_integer)
            continue
        if not buffer.dtype.is_float:
            np.testing.assert_array_equal(have, want)
            continue
        a, b = have.astype(np.float64), want.astype(np.float64)
        scale = absolute if absolute is not None else float(np.nanmax(np.abs(b), initial=0)) * 1e-3
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale + 1e-30)


def arrays_for(
    kernel: Kernel, rng: np.random.Generator, low: float = -3, high: float = 3
) -> dict[str, np.ndarray]:
    return {
        buffer.name: random_array(rng, buffer.dtype, buffer.size, low, high)
        if buffer.role == "input"
        else np.zeros(buffer.size, buffer.dtype.numpy)
        for buffer in kernel.buffers
    }


UNARY = [
    "neg", "abs", "sign", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "reciprocal", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "erf",
    "floor", "ceil", "round", "is_nan", "is_inf",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max", "eq", "ne", "lt", "le", "gt",
    "ge",
]  # fmt: skip
INTEGER = [
    "add", "sub", "mul", "div", "mod", "fmod", "min", "max", "eq", "lt", "ge", "bitwise_and",
    "bitwise_or", "bitwise_xor", "shift_left", "shift_right",
]  # fmt: skip
DOMAIN = {
    "log": (0.01, 9), "log2": (0.01, 9), "sqrt": (0, 9), "rsqrt": (0.01, 9),
    "reciprocal": (0.1, 3), "asin": (-1, 1),
    "acos": (-1, 1), "acosh": (1, 9), "atanh": (-0.99, 0.99), "pow": (0.1, 3), "tan": (-1.4, 1.4),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16], ids=str)
@pytest.mark.parametrize("fn", UNARY + BINARY)
def test_float_map(fn: str, dtype: DType, target: Target, rng: np.random.Generator) -> None:
    kernel = kernels.elementwise(fn, dtype, 2 if fn in BINARY else 1)
    try:
        compile_kernel(kernel, target)
    except LoweringError as error:
        pytest.skip(str(error))
    check(
        kernel, target, arrays_for(kernel, rng, *DOMAIN.get(fn, (-3, 3))),
        TOLERANCE[dtype.name],
        absolute=1e-1 if fn in ("log", "log2", "sin", "cos", "tan") else None,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("fn", ["add", "sub", "mul"])
def test_sixteen_bits_are_rounded_once(
    fn: str, dtype: DType, target: Target, rng: np.random.Generator
) -> None:
    """Bit by bit what float32 comes to, rounded, wherever both numbers of a pair stand."""
    for n in (999, 1024):
        kernel = kernels.elementwise(fn, dtype, 2, n=n)
        check(kernel, target, arrays_for(kernel, rng, -300, 300), 0)


@pytest.mark.parametrize(
    "fn", ["exp", "tanh", "erf", "log", "max", "min", "is_nan", "is_inf", "sign"]
)
def test_special_values(fn: str, target: Target) -> None:
    values = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -90.0, 88.0, 1e4, -1e4], np.float32
    )
    operands = 2 if fn in ("max", "min") else 1
    kernel = kernels.elementwise(fn, f32, operands, n=len(values), block=32, warps=1)
    try:
        compile_kernel(kernel, target)
    except LoweringError as error:
        pytest.skip(str(error))
    arrays = {"x0": values, "y": np.zeros(len(values), kernel.buffers[-1].dtype.numpy)}
    if operands == 2:
        arrays["x1"] = values[::-1].copy()
    check(kernel, target, arrays, 2e-5, absolute=1e-30)


@pytest.mark.parametrize("fn", INTEGER)
def test_integer_map(fn: str, target: Target, rng: np.random.Generator) -> None:
    for dtype in dtypes.ALL:
        if not dtype.is_integer:
            continue
        kernel = kernels.elementwise(fn, dtype, 2)
        arrays = arrays_for(kernel, rng)
        if fn in ("div", "mod", "fmod"):
            arrays["x1"][arrays["x1"] == 0] = 7
        if "shift" in fn:
            arrays["x1"] = (np.abs(arrays["x1"]) % 7).astype(dtype.numpy)
        check(kernel, target, arrays, 0)


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_casts(source: DType, target: Target, rng: np.random.Generator) -> None:
    for goal in dtypes.ALL:
        if goal == source:
            continue
        kernel = kernels.cast(source, goal)
        arrays = arrays_for(kernel, rng, 0 if goal.kind == "uint" else -50, 50)
        if source.kind == "int" and goal.kind == "uint":
            arrays["x0"] = np.abs(arrays["x0"])
        check(kernel, target, arrays, 1e-9, absolute=1e-30)


def test_select_and_bool(target: Target, rng: np.random.Generator) -> None:
    for dtype in (f32, f16, i64, bool_, i8):
        kernel = kernels.elementwise("select", dtype, 3)
        check(kernel, target, arrays_for(kernel, rng), 0)
    for fn, count in (
        ("logical_and", 2),
        ("logical_or", 2),
        ("logical_xor", 2),
        ("logical_not", 1),
    ):
        kernel = kernels.elementwise(fn, bool_, count)
        check(kernel, target, arrays_for(kernel, rng), 0)


@pytest.mark.parametrize("fn", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_reduce(fn: str, over: int, warps: int, target: Target, rng: np.random.Generator) -> None:
    low, high = (0.9, 1.1) if fn == "prod" else (-3, 3)
    for dtype, rows, columns, block in (
        (f32, 77, 100, (16, 128) if over else (128, 16)),
        (f32, 3, 1000, (1, 1024) if over else (4, 256)),
        (f64, 50, 40, (32, 64) if over else (64, 32)),
        (i32, 50, 40, (32, 64) if over else (64, 32)),
        (f32, 20, 80, (4, 80) if over else (20, 4)),
    ):
        kernel = kernels.reduce_axis(fn, dtype, rows, columns, block, over, warps)
        arrays = arrays_for(kernel, rng, low, high)
        if fn == "prod" and dtype is i32:
            arrays["x0"] = (arrays["x0"] % 2 + 1).astype(np.int32)
        check(kernel, target, arrays, 1e-12 if dtype is f64 else 1e-5, absolute=1.0)


def test_scan(target: Target, rng: np.random.Generator) -> None:
    for reverse in (False, True):
        for dtype, rows, columns, block in (
            (f32, 5, 1000, (1, 1024)), (i32, 50, 30, (16, 32)), (f64, 7, 200, (2, 256)),
        ):  # fmt: skip
            kernel = kernels.scan("sum", dtype, rows, columns, block, reverse)
            check(kernel, target, arrays_for(kernel, rng), 1e-4, absolute=1.0)


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_rows(dtype: DType, target: Target, rng: np.random.Generator) -> None:
    for rows, columns, block, warps in (
        (77, 1000, (1, 1024), 4), (77, 64, (16, 64), 4), (9, 513, (2, 1024), 8),
        (33, 768, (4, 768), 4),
    ):  # fmt: skip
        for kernel in (
            kernels.softmax(rows, columns, dtype, block, warps),
            kernels.layernorm(rows, columns, dtype, block, warps),
        ):
            check(
                kernel,
                target,
                arrays_for(kernel, rng),
                max(1e-4, TOLERANCE[dtype.name]),
                absolute=0.1,
            )


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_rows_over_a_cluster(cluster: int, target: Target, rng: np.random.Generator) -> None:
    for kernel in (
        kernels.softmax(37, 5000, f32, (1, 8192), 4, cluster=cluster),
        kernels.layernorm(37, 1000, f16, (1, 1024), 2, cluster=cluster),
        kernels.layernorm(37, 4096, bf16, (2, 4096), 8, cluster=cluster),
        kernels.softmax(5, 61003, f16, (1, 65536), 16, cluster=cluster),
    ):
        check(kernel, target, arrays_for(kernel, rng), TOLERANCE["bf16"], absolute=1e-5)
        assert compile_kernel(kernel, target).cluster == (cluster if target.sm >= 90 else 1)


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_rows_in_shared_memory(dtype: DType, target: Target, rng: np.random.Generator) -> None:
    for kernel in (
        kernels.softmax(37, 5000, dtype, (1, 8192), 4, held=True),
        kernels.softmax(37, 4096, dtype, (2, 4096), 4, held=True),
        kernels.layernorm(37, 4096, dtype, (1, 4096), 2, held=True),
        kernels.layernorm(37, 5000, dtype, (2, 8192), 8, held=True),
        kernels.softmax(9, 20000, dtype, (1, 32768), 8, cluster=4, held=True),
        kernels.layernorm(9, 16384, dtype, (2, 16384), 4, cluster=8, held=True),
        kernels.layernorm(9, 20000, dtype, (1, 32768), 8, cluster=2, held=True),
    ):
        assert b"cp.async" in compile_kernel(kernel, target).code
        tolerance = max(1e-4, TOLERANCE[dtype.name])
        check(kernel, target, arrays_for(kernel, rng), tolerance, absolute=0.1)


HELD = {
    "softmax": lambda: kernels.softmax(12, 16384, f32, (1, 16384), 8, held=True),
    "softmax_cluster": lambda: kernels.softmax(12, 32768, f32, (1, 32768), 8, 4, held=True),
    "layernorm": lambda: kernels.layernorm(12, 16384, f32, (1, 16384), 8, held=True),
    "layernorm_cluster": lambda: kernels.layernorm(12, 32768, f32, (2, 32768), 8, 4, held=True),
}


@pytest.mark.parametrize("name", HELD)
def test_statistics_made_together(name: str, rng: np.random.Generator) -> None:
    """Maximum and sum of exponentials, mean and variance in one pass: as exact as one after the
    other where the mean is a thousand deviations from zero, where a thread, a warp or a block has
    seen nothing but -inf, where a maximum comes last, and NaN only where it is the answer."""
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    kernel = HELD[name]()
    arrays = arrays_for(kernel, rng)
    x = arrays["x0"].reshape(12, -1).astype(np.float64)
    columns = x.shape[1]
    if name.startswith("softmax"):
        x[1:5] *= 50
        x[2, : columns // 2] = -np.inf
        x[3, 16:] = -np.inf
        x[4] = np.sort(x[4])
        x[5] = -np.inf
        x[6, 77] = np.nan
        x[7, 78] = np.inf
    else:
        x[1] += 1000
        x[2] -= 30000
        x[3] = 5.5
        x[4] = np.linspace(-3, 3, columns) ** 3
        x[5, : columns // 2] += 10000
        x[6, 77] = np.nan
    arrays["x0"][...] = x.astype(np.float32).reshape(-1)
    x = arrays["x0"].reshape(12, -1).astype(np.float64)
    if name.startswith("softmax"):
        with np.errstate(invalid="ignore"):
            e = np.exp(x - x.max(1, keepdims=True))
        expected = e / e.sum(1, keepdims=True)
    else:
        centred = x - x.mean(1, keepdims=True)
        expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        expected = expected * arrays["x1"] + arrays["x2"]
    found = run_on_device(kernel, compile_kernel(kernel, SM_90A), arrays)["y"].reshape(12, -1)
    for row, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert (np.isnan(got) == np.isnan(wanted)).all(), row
        if not np.isnan(wanted).any():
            error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
            most = {1: 1e-4, 2: 3e-3, 3: 1e-6}.get(row, 1e-6) if "layer" in name else 2e-6
            assert error < most, (row, error)


def test_movement(target: Target, rng: np.random.Generator) -> None:
    for dtype in (f32, f16, i8, bool_, f64):
        for kernel in (
            kernels.transpose(100, 200, dtype, (64, 64)),
            kernels.transpose(64, 64, dtype, (32, 32)),
            kernels.reshape(dtype, (16, 16), (4, 64)),
            kernels.reshape(dtype, (6, 10), (4, 15)),
            kernels.reshape(dtype, (4, 8, 16), (32, 16)),
            kernels.gather(100, 200, 33, dtype),
            kernels.gather(100, 77, 33, dtype),
        ):
            arrays = arrays_for(kernel, rng)
            if "x1" in arrays:
                arrays["x1"] = rng.integers(0, 100, len(arrays["x1"])).astype(np.int64)
            check(kernel, target, arrays, 0)
    kernel = kernels.accumulate(100, 200)
    check(kernel, target, arrays_for(kernel, rng), 1e-5, absolute=1.0)


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_matmul(dtype: DType, transposed: str, target: Target, rng: np.random.Generator) -> None:
    shapes: tuple[tuple[tuple[int, int, int], tuple[int, int, int], int, int], ...] = (
        ((256, 256, 128), (128, 128, 32), 4, 3),
        ((200, 136, 104), (64, 64, 64), 4, 3),
        ((100, 99, 77), (64, 64, 32), 4, 2),
        ((33, 100, 65), (16, 32, 16), 2, 3),
        ((256, 256, 256), (128, 256, 64), 8, 2),
        ((20, 96, 256), (16, 64, 64), 4, 4),
        ((40, 200, 136), (32, 32, 32), 4, 3),
    )
    for (m, n, k), blocks, warps, stages in shapes:
        if dtype is f32 and blocks[1] == 256:
            blocks = (64, 128, 32)
        kernel = kernels.matmul(
            m, n, k, dtype, blocks, warps=warps, stages=stages, transpose_a="a" in transposed,
            transpose_b="b" in transposed, group=2,
        )  # fmt: skip
        arrays = arrays_for(kernel, rng, -1, 1)
        tolerance = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-5}[dtype.name]
        check(kernel, target, arrays, tolerance, absolute=1.0)


def test_matmul_other_dtypes(target: Target, rng: np.random.Generator) -> None:
    for dtype, blocks in ((f64, (32, 32, 32)), (i8, (32, 32, 32)), (i32, (16, 64, 16))):
        kernel = kernels.matmul(70, 50, 60, dtype, blocks, epilogue=False, out=dtype.accumulate)
        check(kernel, target, arrays_for(kernel, rng), 1e-11, absolute=1.0)
    kernel = kernels.matmul(128, 128, 128, f32, (64, 64, 32), precision="tf32")
    check(kernel, target, arrays_for(kernel, rng, -1, 1), 1e-2, absolute=1.0)


@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_matmul_roles(transposed: str, target: Target, rng: np.random.Generator) -> None:
    """A producer warp and tensor-map copies, where the target has them; all strides a multiple of
    16 bytes, extents that no block divides."""
    if target.sm < 90:
        pytest.skip("needs the copy engine of sm_90")
    for (m, n, k), blocks, warps, stages in (
        ((256, 256, 256), (128, 128, 64), 4, 3),
        ((200, 136, 104), (64, 64, 64), 4, 2),
        ((264, 520, 328), (128, 256, 64), 8, 3),
        ((72, 96, 64), (64, 96, 32), 4, 4),
        ((136, 264, 1032), (128, 128, 32), 8, 4),
    ):
        kernel = kernels.matmul(
            m, n, k, bf16, blocks, warps=warps, stages=stages, transpose_a="a" in transposed,
            transpose_b="b" in transposed, group=2, roles=True,
        )  # fmt: skip
        assert compile_kernel(kernel, target).facts["copies"] == "tma"
        check(kernel, target, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)


@pytest.mark.parametrize("odd", ["a", "b"])
def test_one_operand_by_elements(odd: str, target: Target, rng: np.random.Generator) -> None:
    """One operand has rows that nothing copies by itself; the producer fetches the other, ahead."""
    m, n, k = (1024, 1024, 1025) if odd == "a" else (1024, 1025, 1024)
    for warps in (4, 8):
        kernel = kernels.matmul(
            m, n, k, bf16, (128, 32 * warps, 64), warps=warps, stages=4, epilogue=False
        )
        check(kernel, target, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_products_over_a_cluster(cluster: int, target: Target, rng: np.random.Generator) -> None:
    """Trips that do not divide by the blocks, fewer trips than blocks, edges in every extent."""
    for (m, n, k), blocks, warps, roles in (
        ((200, 264, 1032), (128, 128, 64), 8, True), ((200, 264, 1032), (128, 128, 64), 8, False),
        ((72, 96, 520), (64, 32, 32), 4, True), ((13, 77, 2048), (16, 32, 64), 4, None),
        ((256, 256, 128), (64, 64, 64), 4, None), ((99, 101, 777), (32, 32, 64), 4, None),
    ):  # fmt: skip
        kernel = kernels.matmul(
            m, n, k, f16, blocks, warps=warps, roles=roles, group=2, cluster=cluster
        )
        check(kernel, target, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)
    for kernel in (
        kernels.convolution(2, 7, 128, 72, f16, (64, 32, 64), cluster=cluster),
        kernels.gated(100, 130, 1032, f16, (64, 64, 64), warps=4, cluster=cluster),
        kernels.gated(20, 50, 300, f16, (16, 32, 64), warps=2, cluster=cluster),
    ):
        check(kernel, target, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)


@pytest.mark.parametrize("neighbours", [(2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4)], ids=str)
def test_neighbours_load_for_each_other(
    neighbours: tuple[int, int], target: Target, rng: np.random.Generator
) -> None:
    """Blocks of a cluster fetch shares of what they all read; edges in every extent, more and fewer
    trips than stages, persistent blocks with one team and two."""
    if target.sm < 90:
        pytest.skip("needs the copy engine of sm_90")
    count = neighbours[0] * neighbours[1]
    for (m, n, k), blocks, warps, transposed, teams in (
        ((456, 504, 328), (64, 128, 64), 4, "", 0), ((456, 504, 328), (64, 128, 64), 4, "b", 0),
        ((1000, 1000, 520), (128, 128, 64), 8, "a", 0), ((456, 504, 712), (64, 64, 64), 4, "b", 1),
        ((1024, 512, 128), (128, 64, 64), 4, "ab", 0),
        ((1000, 1016, 520), (64, 128, 64), 4, "b", 2),
        ((1000, 1016, 136), (128, 128, 64), 4, "", 2), ((512, 1000, 264), (128, 256, 64), 8, "", 1),
    ):  # fmt: skip
        few = dataclasses.replace(target, units=count * (3 if count < 4 else 1))
        kernel = kernels.matmul(
            m, n, k, bf16, blocks, warps=warps, stages=3, transpose_a="a" in transposed,
            transpose_b="b" in transposed, group=3, neighbours=neighbours, persistent=teams > 0,
            teams=max(1, teams),
        )  # fmt: skip
        found = compile_kernel(kernel, few)
        assert (found.cluster, found.facts["neighbours"]) == (count, neighbours)
        assert not teams or found.launch[0] == few.units
        check(kernel, few, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)
    kernel = kernels.gated(456, 504, 328, bf16, (128, 64, 64), neighbours=neighbours)
    assert compile_kernel(kernel, target).cluster == count
    check(kernel, target, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)


@pytest.mark.parametrize("transposed", ["", "b"])
def test_matmul_persistent(transposed: str, target: Target, rng: np.random.Generator) -> None:
    """Few blocks that run several programs each, by one team of warps or by two in turns; numbers
    of trips below, at and above the number of stages."""
    if target.sm < 90:
        pytest.skip("needs the copy engine of sm_90")
    for (m, n, k), blocks, teams, units in (
        ((512, 512, 256), (128, 128, 64), 1, 3), ((512, 512, 512), (128, 128, 64), 2, 3),
        ((520, 648, 136), (128, 128, 64), 2, 4), ((384, 768, 1032), (128, 256, 64), 1, 2),
        ((264, 336, 448), (128, 168, 64), 1, 3), ((328, 264, 712), (64, 128, 64), 2, 5),
        ((256, 99, 192), (128, 64, 64), 2, 1), ((128, 1280, 320), (128, 128, 64), 2, 3),
    ):  # fmt: skip
        few = dataclasses.replace(target, units=units)
        kernel = kernels.matmul(
            m, n, k, bf16, blocks, warps=4 if teams > 1 else 8, stages=3,
            transpose_b="b" in transposed or n % 8 > 0, group=2, persistent=True, teams=teams,
        )  # fmt: skip
        assert compile_kernel(kernel, few).launch[0] == units
        check(kernel, few, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)


@pytest.mark.parametrize("transposed", ["", "b"])
def test_matmul_of_three_warp_groups(
    transposed: str, target: Target, rng: np.random.Generator
) -> None:
    """Tiles of 192 x 192: whole ones, last ones of a few rows or columns, steps around a ring."""
    if target.sm < 90:
        pytest.skip("needs the copy engine of sm_90")
    for m, n, k in ((384, 192, 1024), (200, 392, 448), (576, 216, 72)):
        kernel = kernels.matmul(
            m, n, k, f16, (192, 192, 64), warps=12, stages=4, transpose_b="b" in transposed
        )
        assert compile_kernel(kernel, target).facts["copies"] == "tma"
        check(kernel, target, arrays_for(kernel, rng, -1, 1), 2e-3, absolute=1.0)


@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_matmul_wide(transposed: str, target: Target, rng: np.random.Generator) -> None:
    """float32 on wgmma, and the same schedule where the copy engine cannot bring the operands."""
    for (m, n, k), columns in (
        ((128, 192, 128), 96), ((72, 136, 204), 64), ((200, 100, 1032), 96), ((99, 101, 77), 64),
    ):  # fmt: skip
        kernel = kernels.matmul(
            m, n, k, f32, (64, columns, 32), stages=3, transpose_a="a" in transposed,
            transpose_b="b" in transposed, wide=True,
        )  # fmt: skip
        kinds = {"tf32"} if target.sm < 90 or n == 101 else {"wide"}
        assert {compile_kernel(kernel, target).facts["dot"]} == kinds
        check(kernel, target, arrays_for(kernel, rng, -1, 1), 1e-5, absolute=1.0)


def test_two_dots_at_once(target: Target, rng: np.random.Generator) -> None:
    for (m, n, k), blocks, warps in (
        ((256, 128, 256), (128, 64, 64), 8), ((200, 136, 328), (64, 64, 64), 4),
        ((16, 72, 512), (16, 32, 64), 4), ((264, 264, 72), (128, 128, 64), 8),
    ):  # fmt: skip
        kernel = kernels.gated(m, n, k, bf16, blocks, warps=warps)
        check(kernel, target, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)
    if target.sm < 90:
        return
    for teams, units in ((1, 3), (2, 3)):
        few = dataclasses.replace(target, units=units)
        kernel = kernels.gated(520, 328, 328, bf16, (128, 64, 64), warps=8 // teams, teams=teams)
        assert compile_kernel(kernel, few).launch[0] == units
        check(kernel, few, arrays_for(kernel, rng, -1, 1), 1.6e-2, absolute=1.0)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_roles(causal: bool, target: Target, rng: np.random.Generator) -> None:
    if target.sm < 90:
        pytest.skip("needs the copy engine of sm_90")
    for length, keys, width, blocks, warps in (
        (128, 128, 64, (64, 64), 4), (100, 100, 64, (64, 64), 4), (256, 384, 128, (128, 128), 8),
        (200, 160, 64, (128, 80), 8), (400, 300, 64, (192, 128), 12),
        (200, 260, 128, (192, 64), 12), (330, 250, 256, (128, 64), 8), (600, 600, 64, (128, 64), 8),
    ):  # fmt: skip
        kernel = kernels.attention(
            2, length, length if causal else keys, width, f16, blocks, causal=causal, warps=warps,
            roles=True,
        )  # fmt: skip
        assert compile_kernel(kernel, target).facts["copies"] == "tma"
        check(kernel, target, arrays_for(kernel, rng, -1, 1), 2e-3, absolute=1.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_attention(dtype: DType, causal: bool, target: Target, rng: np.random.Generator) -> None:
    for length, keys, width, blocks, warps in (
        (128, 128, 64, (64, 64), 4), (100, 100, 32, (64, 64), 4), (70, 77, 64, (128, 64), 8),
        (128, 160, 128, (64, 80), 4),
    ):  # fmt: skip
        if dtype is f32 and width == 128:
            continue
        kernel = kernels.attention(
            2, length, length if causal else keys, width, dtype, blocks, causal=causal, warps=warps
        )
        tolerance = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-4}[dtype.name]
        check(kernel, target, arrays_for(kernel, rng, -1, 1), tolerance, absolute=1.0)


@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_convolution(dtype: DType, target: Target, rng: np.random.Generator) -> None:
    for size, channels, filters, stride in ((14, 64, 96, 1), (9, 24, 40, 2), (7, 3, 16, 1)):
        kernel = kernels.convolution(2, size, channels, filters, dtype, stride=stride)
        tolerance = {"f16": 2e-3, "f32": 1e-5}[dtype.name]
        check(kernel, target, arrays_for(kernel, rng, -1, 1), tolerance, absolute=1.0)


def stream_k_cases() -> list[tuple[str, Kernel, int, int]]:
    """(name, kernel, multiprocessors, blocks of each): tiles in fewer and more than two turns,
    stretches of one trip, tiles of several blocks, edges in every extent; roles with one team and
    two, and pairs of neighbours; copies by all warps."""

    def product(sizes: tuple[int, int, int], blocks: tuple[int, int, int], **more: Any) -> Kernel:
        return kernels.matmul(*sizes, bf16, blocks, stages=3, group=3, **more)

    return [
        ("rest", product((520, 648, 456), (128, 128, 64), warps=8, stream_k=1), 7, 1),
        ("turns", product((1160, 1304, 264), (128, 128, 64), warps=8, stream_k=1), 13, 1),
        ("few", product((136, 264, 2056), (128, 128, 64), warps=8, stream_k=1), 33, 1),
        ("two", product((264, 392, 1000), (64, 64, 64), stream_k=2), 17, 2),
        ("teams", product((1160, 1304, 264), (128, 128, 64), stream_k=1, teams=2), 13, 1),
        ("few_teams", product((264, 392, 1000), (128, 128, 64), stream_k=1, teams=2), 8, 1),
        ("large", product((520, 1000, 520), (128, 256, 64), warps=8, stream_k=1), 9, 1),
        ("pairs", product((1160, 1000, 712), (128, 128, 64), warps=8, neighbours=(2, 1),
                          transpose_b=True, stream_k=1), 26, 1),
        ("pair_teams", product((1000, 1000, 328), (64, 128, 64), neighbours=(1, 2), teams=2,
                               stream_k=1), 22, 1),
        ("copies", product((200, 333, 777), (64, 64, 32), stream_k=2), 5, 2),
        ("small", product((40, 120, 999), (16, 32, 64), stream_k=3), 5, 3),
        ("own_copies", product((520, 648, 456), (128, 128, 64), warps=8, roles=False,
                               stream_k=1), 7, 1),
        ("gated", kernels.gated(456, 504, 712, stream_k=1), 15, 1),
        ("convolution", kernels.convolution(2, 14, 64, 72, f16, (64, 32, 32), stream_k=2), 6, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("case", stream_k_cases(), ids=lambda case: case[0])
def test_stream_k(
    case: tuple[str, Kernel, int, int], target: Target, rng: np.random.Generator
) -> None:
    """Results are those of the interpreter, and the same bits in launches one after the other: the
    flags are down again after each."""
    _, kernel, units, blocks_per_sm = case
    few = dataclasses.replace(target, units=units)
    compiled = compile_kernel(kernel, few)
    assert compiled.facts["stream_k"] == blocks_per_sm
    blocks = units // compiled.cluster * compiled.cluster * blocks_per_sm
    assert compiled.launch == (blocks, 1, 1) and compiled.workspace_bytes > 0
    arrays = arrays_for(kernel, rng, -1, 1)
    check(kernel, few, arrays, 1.6e-2, absolute=1.0)
    several = [run_on_device(kernel, compiled, arrays, launches=n)["y"] for n in (1, 5)]
    np.testing.assert_array_equal(*(found.view(np.uint16) for found in several))
