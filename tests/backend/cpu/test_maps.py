"""Every map primitive and cast, natively, against the graph's NumPy definitions."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fuser.base.target import Target
from fuser.dtypes import ALL, DType, bf16, bool_, f16, f32, f64, i32
from fuser.graph.ops.registry import PRIMITIVES
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from tests.backend.cpu import native

SIZE, BLOCK = 331, 128
UNARY = ("neg", "abs", "sign", "bitwise_not", "logical_not", "is_nan", "is_inf", "floor", "ceil",
         "round", "sqrt", "rsqrt", "reciprocal")  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max", "fmin", "fmax",
          "mul_high", "eq", "ne", "lt", "le", "gt", "ge",
          "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor",
          "shift_left", "shift_right")  # fmt: skip
FLOAT_ONLY = {"floor", "ceil", "round", "sqrt", "rsqrt", "reciprocal", "is_nan", "is_inf"}
INTEGER_ONLY = {"mul_high", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"}
LOGICAL = {"logical_and", "logical_or", "logical_xor", "logical_not"}


def fits(fn: str, dtype: DType) -> bool:
    if dtype is bool_:
        return fn in LOGICAL | {"eq", "ne"}
    if fn in LOGICAL:
        return False
    if fn in INTEGER_ONLY or fn in ("shift_left", "shift_right"):
        return dtype.is_integer
    return dtype.is_float or fn not in FLOAT_ONLY


def values(dtype: DType, rng: np.random.Generator, small: bool = False) -> np.ndarray:
    if dtype is bool_:
        return rng.integers(0, 2, SIZE).astype(bool)
    if dtype.is_integer:
        low = 0 if dtype.kind == "uint" or small else -60
        data = rng.integers(low, 7 if small else 60, SIZE)
        return data.astype(dtype.numpy)
    data = rng.standard_normal(SIZE) * 3
    data[:8] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.5]
    return data.astype(dtype.numpy)


def run_map(
    fn: str, arrays: list[np.ndarray], dtype: DType, result: DType, flush: bool = False,
    target: Target = native.HOST,
) -> np.ndarray:  # fmt: skip
    b = Builder(fn)
    inputs = [b.buffer(f"x{i}", dtype, SIZE) for i in range(len(arrays))]
    y = b.buffer("y", result, SIZE, role="output")
    at = index(b.program_id(0, -(-SIZE // BLOCK))) * BLOCK + axis(0, BLOCK)
    tiles = [b.load(b.view(x, (SIZE,)), (at,), (BLOCK,)) for x in inputs]
    made = b.cast(tiles[0], result, flush) if fn == "cast" else b.map(fn, *tiles)
    b.store(b.view(y, (SIZE,)), (at,), made)
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    feeds["y"] = np.zeros(SIZE, result.numpy)
    native.run(b.build(), feeds, target)
    return feeds["y"]


@pytest.mark.parametrize("vnni", [False, True])
def test_dp4a(vnni: bool, rng: np.random.Generator) -> None:
    """Four products of bytes, unsigned by signed, as one instruction and without it."""
    if vnni and not native.HOST.dp4a:
        pytest.skip("this processor has no VNNI")
    target = native.HOST if vnni else without_vnni(native.HOST)
    words = [rng.integers(-(2**31), 2**31, SIZE).astype(np.int32) for _ in range(3)]
    words[0] //= 2  # no sum leaves 32 bits
    found = run_map("dp4a", words, i32, i32, target=target)
    left = words[1].view(np.uint8).reshape(-1, 4).astype(int)
    right = words[2].view(np.int8).reshape(-1, 4).astype(int)
    np.testing.assert_array_equal(found, words[0] + (left * right).sum(1))


def without_vnni(target: Target) -> Target:
    kept = [name for name in target.features.split(",") if "vnni" not in name]
    return dataclasses.replace(target, features=",".join(kept))


@pytest.mark.parametrize(
    "fn,dtype",
    [(fn, d) for fn in UNARY + BINARY for d in ALL if fits(fn, d)],
    ids=lambda item: str(item),
)
def test_map(fn: str, dtype: DType, rng: np.random.Generator) -> None:
    arrays = [values(dtype, rng)]
    if fn in BINARY:
        arrays.append(values(dtype, rng, small=fn in ("pow", "shift_left", "shift_right")))
        if fn == "pow" and dtype.is_float:
            arrays[0] = np.abs(arrays[0].astype(np.float64)).astype(dtype.numpy)
        if fn in ("shift_left", "shift_right"):
            arrays[1][::5] = dtype.bits  # by the width: nothing but the sign is left
            arrays[1][1::5] = min(100, int(dtype.highest))
        if fn in ("div", "mod", "fmod") and dtype.is_integer:
            arrays[1][arrays[1] == 0] = 3
    with np.errstate(all="ignore"):
        (want,) = PRIMITIVES[fn].evaluate(arrays, {})
    result = bool_ if want.dtype == np.bool_ else dtype
    have = run_map(fn, arrays, dtype, result)
    if not result.is_float:
        np.testing.assert_array_equal(have, want)
        return
    limit = {f16: 1e-3, bf16: 1e-2, f32: 3e-7, f64: 1e-13}[dtype]
    np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), limit, limit)


@pytest.mark.parametrize(
    "source,target", [(a, b) for a in ALL for b in ALL if a != b], ids=lambda item: str(item)
)
def test_cast(source: DType, target: DType, rng: np.random.Generator) -> None:
    x = values(source, rng)
    if source.is_float and target.is_integer:
        x = np.abs(np.nan_to_num(x.astype(np.float64), posinf=1, neginf=1)).astype(source.numpy)
    with np.errstate(all="ignore"):
        (want,) = PRIMITIVES["cast"].evaluate([x], {"dtype": target})
    have = run_map("cast", [x], source, target)
    np.testing.assert_array_equal(have.astype(np.float64), want.astype(np.float64))


INTEGERS = [d for d in ALL if d.is_integer]


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [f16, bf16, f32, f64], ids=str)
def test_floats_beyond_an_integer_saturate(source: DType, target: DType) -> None:
    """Both ends, what is next to them, infinities; 0 of NaN; by vectors as by single elements."""
    lowest, highest = int(target.lowest), int(target.highest)
    ends = [float(end) + step for end in (lowest, highest) for step in (-1.5, -0.5, 0.0, 0.5, 1.5)]
    given = np.array([*ends, np.inf, -np.inf, np.nan, -0.0, -0.75, 1e30, -1e30])
    with np.errstate(all="ignore"):
        x = np.resize(given, SIZE).astype(source.numpy)
    have = run_map("cast", [x], source, target)
    for number, got in zip(x.astype(np.float64).tolist(), have.tolist(), strict=True):
        want = 0 if math.isnan(number) else max(lowest, min(highest, _towards_zero(number)))
        assert got == want, number


def _towards_zero(number: float) -> int:
    return int(max(-1e300, min(1e300, number)))


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_the_sign_of_zero_is_zero(dtype: DType) -> None:
    """Of either zero: +0, as NumPy, ONNX and PyTorch have it."""
    have = run_map("sign", [values(dtype, np.random.default_rng(0))], dtype, dtype)
    assert have[:2].tolist() == [0, 0]
    assert not np.signbit(have[:2].astype(np.float64)).any()


def test_integer_division_never_traps() -> None:
    x = np.zeros(SIZE, np.int32)
    x[:3] = [7, -(2**31), -7]
    y = np.zeros(SIZE, np.int32)
    y[1:3] = [-1, 2]
    have = run_map("div", [x, y], dtype_of(x), dtype_of(x))
    assert have[:3].tolist() == [0, -(2**31), -3]


def dtype_of(array: np.ndarray) -> DType:
    return next(d for d in ALL if d.numpy == array.dtype)


@pytest.mark.parametrize("dtype,flush", [(f16, False), (bf16, False), (bf16, True)], ids=str)
def test_rounding_to_16_bits(dtype: DType, flush: bool) -> None:
    """Ties, denormals, overflow and NaN of float32 to 16 bits, all as NumPy rounds them; denormals
    may be lost where the cast says so, and nothing else."""
    rng = np.random.default_rng(1)
    patterns = rng.integers(0, 1 << 32, SIZE, dtype=np.uint64).astype(np.uint32)
    patterns[:100] = (patterns[:100] & 0xFFFF8000) | 0x8000  # halfway between neighbours
    x = patterns.view(np.float32).copy()
    x[100:200] = rng.standard_normal(100) * 1e-6
    x[200:250] = rng.uniform(6e4, 7e4, 50)
    with np.errstate(all="ignore"):
        want = x.astype(dtype.numpy)
    have = run_map("cast", [x], f32, dtype, flush)
    nan = np.isnan(want)
    assert (np.isnan(have) == nan).all()
    if flush:
        small = np.abs(x) < np.finfo(np.float32).tiny
        assert small.any() and (have[small] == want[small])[have[small] != 0].all()
        have, want, nan = have[~small], want[~small], nan[~small]
    np.testing.assert_array_equal(have.view(np.uint16)[~nan], want.view(np.uint16)[~nan])
