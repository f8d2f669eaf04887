"""Operators on tiles of every pair of types: the type of the result, and its numbers.

The types are a table of what Triton 3.6 gives, written down by hand: rows and columns are operands.
"""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from tests.language.launching import DEVICES, launch

NAMES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
         "float16", "bfloat16", "float32", "float64")  # fmt: skip
SUMS = """
i8  i16 i32 i64 u8  u16 u32 u64 f16 f32 f32 f64
i16 i16 i32 i64 i16 u16 u32 u64 f16 f32 f32 f64
i32 i32 i32 i64 i32 i32 u32 u64 f16 f32 f32 f64
i64 i64 i64 i64 i64 i64 i64 u64 f16 f32 f32 f64
u8  i16 i32 i64 u8  u16 u32 u64 f16 f32 f32 f64
u16 u16 i32 i64 u16 u16 u32 u64 f16 f32 f32 f64
u32 u32 u32 i64 u32 u32 u32 u64 f16 f32 f32 f64
u64 u64 u64 u64 u64 u64 u64 u64 f16 f32 f32 f64
f16 f16 f16 f16 f16 f16 f16 f16 f16 f32 f32 f64
f32 f32 f32 f32 f32 f32 f32 f32 f32 b16 f32 f64
f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f64
f64 f64 f64 f64 f64 f64 f64 f64 f64 f64 f64 f64
"""
SHORT = dict(
    zip(
        ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "b16", "f32", "f64"],
        NAMES,
        strict=True,
    )
)
TABLE = [[SHORT[item] for item in row.split()] for row in SUMS.strip().splitlines()]
PAIRS = [(a, b) for i, a in enumerate(NAMES) for j, b in enumerate(NAMES) if (i + 2 * j) % 3 == 0]
OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, "==": operator.eq,
}  # fmt: skip


def numpy_type(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else getattr(np, name)


def numbers(name: str, seed: int) -> np.ndarray[Any, Any]:
    """Integers that every type holds, negative ones where there are."""
    rng = np.random.default_rng(seed)
    low = 0 if name.startswith("u") else -9
    return rng.integers(low, 10, 32).astype(numpy_type(name))


@triton.jit
def arithmetic(x, y, out, WANTED: tl.constexpr):
    at = tl.arange(0, 32)
    found = EXPRESSION  # noqa: F821
    tl.static_assert(found.dtype == WANTED)
    tl.store(out + at, found.to(tl.float64))


def run(expression: str, a: str, b: str, wanted: str, device: str) -> np.ndarray[Any, Any]:
    kernel = triton.JITFunction(arithmetic.fn)
    text = kernel.src.replace("EXPRESSION", expression)
    kernel._unsafe_update_src(text)
    out = np.zeros(32, np.float64)
    launch(kernel, device, numbers(a, 1), numbers(b, 2), out, getattr(tl, wanted))
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_pairs_of_types(a: str, b: str, device: str) -> None:
    number = NAMES.index(a) + NAMES.index(b)
    sign = list(OPERATORS)[number % len(OPERATORS)]
    wanted = TABLE[NAMES.index(a)][NAMES.index(b)]
    kind = numpy_type(wanted)
    x, y = numbers(a, 1).astype(kind), numbers(b, 2).astype(kind)
    expected = np.asarray(OPERATORS[sign](x, y)).astype(np.float64)
    result = "int1" if sign in ("<", "==") else wanted
    found = run(f"tl.load(x + at) {sign} tl.load(y + at)", a, b, result, device)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("expression", "a", "wanted", "expected"),
    [
        ("tl.load(x + at) * 2", "int8", "int8", lambda x: x * np.int8(2)),
        ("tl.load(x + at) + 0.5", "float16", "float16", lambda x: x + np.float16(0.5)),
        ("tl.load(x + at) + 0.5", "int8", "float32", lambda x: x + np.float32(0.5)),
        ("tl.load(x + at) + 2**31", "int64", "int64", lambda x: x + 2**31),
        ("tl.load(x + at) / 4", "float16", "float32", lambda x: x.astype(np.float32) / 4),
        ("tl.load(x + at) / 4", "int32", "float32", lambda x: x.astype(np.float32) / 4),
        ("tl.load(x + at) // 4", "int32", "int32", lambda x: np.trunc(x / 4)),
        ("tl.load(x + at) % 4", "int32", "int32", lambda x: np.fmod(x, 4)),
        ("tl.load(x + at) % 4.0", "float32", "float32", lambda x: np.fmod(x, 4)),
        ("tl.load(x + at) % 4", "bfloat16", "float32", lambda x: np.fmod(x.astype(float), 4)),
        ("-tl.load(x + at)", "uint8", "uint8", lambda x: (-x.astype(int)) % 256),
        ("~tl.load(x + at)", "int16", "int16", lambda x: ~x),
        ("tl.load(x + at) >> 1", "int32", "int32", lambda x: x >> 1),
        ("tl.load(x + at) << 3", "int8", "int8", lambda x: x << np.int8(3)),
        ("tl.maximum(tl.load(x + at), 0)", "bfloat16", "float32",
         lambda x: np.maximum(x.astype(float), 0)),
        ("tl.abs(tl.load(x + at))", "int8", "int8", np.abs),
        ("tl.sum(tl.load(x + at))", "int8", "int32", lambda x: x.astype(int).sum()),
        ("tl.sum(tl.load(x + at))", "float16", "float16", lambda x: x.astype(float).sum()),
        ("tl.max(tl.load(x + at))", "float16", "float32", np.max),
        ("tl.cumsum(tl.load(x + at), 0)", "bfloat16", "float32",
         lambda x: x.astype(float).cumsum()),
        ("tl.argmax(tl.load(x + at), 0)", "float32", "int32", np.argmax),
        ("tl.where(tl.load(x + at) > 0, tl.load(x + at), 1.5)", "int32", "float32",
         lambda x: np.where(x > 0, x, 1.5)),
        ("(tl.load(x + at) > 0) & (tl.load(x + at) < 5)", "int32", "int1",
         lambda x: (x > 0) & (x < 5)),
        ("(tl.load(x + at) > 0) + (tl.load(x + at) > 3)", "int32", "int32",
         lambda x: (x > 0).astype(int) + (x > 3)),
        ("tl.load(x + at).to(tl.int8).to(tl.uint16)", "int32", "uint16",
         lambda x: x.astype(np.int8).astype(np.uint16)),
        ("tl.load(x + at).to(tl.int32, bitcast=True)", "float32", "int32",
         lambda x: x.view(np.int32)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", DEVICES)
def test_numbers_and_functions(
    expression: str, a: str, wanted: str, expected: Any, device: str
) -> None:
    found = run(expression, a, a, wanted, device)
    np.testing.assert_array_equal(found, np.broadcast_to(expected(numbers(a, 1)), 32))
