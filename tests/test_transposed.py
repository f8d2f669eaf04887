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
