"""Constants that kernels want transposed are copied piece by piece, by all cores."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.dtypes import DType
from fuser.pipeline import transposed
from fuser.pipeline.packing import pack
from fuser.tilegen.program import Packing

SHAPES = [(300, 70), (129, 1), (1, 400), (128, 257), (1500, 1500)]


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [None, dtypes.f32])
def test_a_matrix(
    shape: tuple[int, int], dtype: DType | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transposed, "available_cores", lambda: cores)
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    packed = pack(array, Packing(transpose=(1, 0), reshape=(1, *shape[::-1]), dtype=dtype))
    np.testing.assert_array_equal(packed, array.T[None])
    assert packed.dtype == (np.float16 if dtype is None else np.float32)
    assert packed.flags.c_contiguous


def test_matrices_of_a_batch() -> None:
    array = np.arange(3 * 200 * 5, dtype=np.int32).reshape(3, 200, 5)
    packed = pack(array, Packing(transpose=(0, 2, 1), reshape=(3, 5, 200)))
    np.testing.assert_array_equal(packed, array.transpose(0, 2, 1))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("k", "n", "width"), [(64, 192, 64), (8, 1, 1), (4096, 512, 64), (16, 6, 3)]
)
def test_codes_are_packed_into_words(
    bits: int, turned: bool, k: int, n: int, width: int, rng: np.random.Generator
) -> None:
    """In whatever order they lie, neighbours along k of a word at 16 bits from each other, of which
    several axes are one."""
    group = 32 // bits
    codes = rng.integers(-(1 << bits - 1), 1 << bits - 1, (n, k) if turned else (k, n), np.int8)
    packing = Packing(
        transpose=(1, 0) if turned else (), reshape=(k, n), words=bits,
        split=(k // group, group // 2, 2, n // width, width), permute=(3, 0, 4, 2, 1),
    )  # fmt: skip
    found = packing.apply(codes).view(np.uint32)
    assert packing.stored is dtypes.i32 and found.flags.c_contiguous
    plain = codes.T if turned else codes
    for step in range(group):
        place = step % 2 * 16 + step // 2 * bits
        number = (found >> np.uint32(place) & np.uint32((1 << bits) - 1)).astype(np.int64)
        wanted = plain.astype(np.int64)[step::group] % (1 << bits)
        wanted = wanted.reshape(k // group, n // width, width).transpose(1, 0, 2)
        np.testing.assert_array_equal(number, wanted)
