"""Which vectors are said to be masked alike, against the masks themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fuser.backend.nvptx.lowering.masks import uniform
from fuser.dtypes import DType, i8, i16, i32, i64, u8, u32
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis

EXTENT = 512
COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


def claims(dtype: DType, wide: DType, shift: int, bound: int, fn: str) -> tuple[set[int], set[int]]:
    """(widths that are said to be masked alike, widths that are) of (wide)(e - shift) fn bound,
    where e - shift is of `dtype`."""
    b = Builder("mask")
    at = b.cast(b.index(axis(0, EXTENT), (EXTENT,)), dtype)
    moved = b.cast(b.map("sub", at, b.full(shift, (EXTENT,), dtype)), wide)
    mask = b.map(fn, moved, b.full(bound, (EXTENT,), wide))
    makers = {value: op for op in b.kernel.body.ops for value in op.results}
    numbers = (np.arange(EXTENT).astype(dtype.numpy) - dtype.numpy.type(shift)).astype(wide.numpy)
    truth = COMPARE[fn](numbers, wide.numpy.type(bound))
    widths = (2, 4, 8, 16)
    return (
        {width for width in widths if uniform(mask, makers, 0, width)},
        {width for width in widths if all(len(set(v)) == 1 for v in truth.reshape(-1, width))},
    )


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(i8, i8), (u8, u8), (u8, i32), (i16, i16), (u32, u32), (i32, u32), (i32, i64)],
)
def test_what_is_masked_alike_is(dtype: DType, wide: DType) -> None:
    for shift, bound, fn in itertools.product((0, 1, 7, 8, 64), (0, 3, 8, 9, 96), COMPARE):
        said, true = claims(dtype, wide, shift, bound, fn)
        assert said <= true, (shift, bound, fn)


def test_bounds_that_are_multiples_of_the_width_are_found() -> None:
    assert claims(i32, i32, 0, 96, "lt")[0] == {2, 4, 8, 16}
    assert claims(i32, i64, 8, 12, "ge")[0] == {2, 4}
    assert claims(u32, u32, 8, 4, "lt")[0] == {2, 4}
