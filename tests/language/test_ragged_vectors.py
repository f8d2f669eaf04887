"""Arrays whose end is not the end of a vector: long vectors up to there, then single elements."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.base.target import SM_90A
from fuser.language import variants
from tests.language.launching import DEVICES, launch


@triton.jit(do_not_specialize=["n"])
def scaled(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    left = tl.load(x + at, mask=inside, other=3)
    right = tl.load(y + at, mask=inside)
    tl.store(out + at, left * 2 + right, mask=inside)


@triton.jit(do_not_specialize=["n"])
def rows(x, out, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows that begin at multiples of the block, of which each has n elements."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < n
    values = tl.load(x + row * BLOCK + column, mask=inside, other=0)
    tl.store(out + row * BLOCK + column, -values, mask=inside)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "float64"])
@pytest.mark.parametrize("n", [1, 7, 1024, 1025, 3001])
def test_flat(device: str, dtype: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = (rng.integers(-9, 9, 3072).astype(dtype) for _ in range(2))
    out = np.full(3072, 77, dtype)
    launch(scaled, device, x, y, out, n, grid=(-(-n // 1024),), BLOCK=1024)
    np.testing.assert_array_equal(out[:n], x[:n] * np.dtype(dtype).type(2) + y[:n])
    assert (out[n:] == 77).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("n", [1, 37, 100, 128])
def test_rows(device: str, dtype: str, n: int) -> None:
    x = np.random.default_rng(n).integers(-9, 9, (16, 128)).astype(dtype)
    out = np.full_like(x, 77)
    launch(rows, device, x, out, n, grid=(4,), ROWS=4, BLOCK=128)
    np.testing.assert_array_equal(out[:, :n], -x[:, :n])
    assert (out[:, n:] == 77).all()


@pytest.mark.parametrize("dtype, vector", [("float16", "v4.b32"), ("float32", "v4.b32")])
def test_code_has_long_vectors(dtype: str, vector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    make = variants.make_variant

    def also(*launched: Any) -> Any:
        code = variants.code_for(*launched, SM_90A).compiled.code
        found.append(code if isinstance(code, str) else code.decode())
        return make(*launched)

    monkeypatch.setattr(variants, "make_variant", also)
    x = np.ones(1001, dtype)
    kernel = triton.jit(scaled.fn, do_not_specialize=["n"])
    kernel[(1,)](x, x.copy(), x.copy(), 1001, BLOCK=1024)
    (text,) = found
    assert len(re.findall(rf"ld\.global\.nc\.{vector}", text)) >= 2
    assert re.search(rf"st\.global\.{vector}", text)
