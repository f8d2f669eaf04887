"""Which stores of one loop nest are known to write different elements."""

from __future__ import annotations

import pytest

from fuser.backend.cpu.tree import apart
from fuser.dtypes import f32
from fuser.tilegen import ops
from fuser.tilegen.index import Index, axis
from fuser.tilegen.ir import Buffer, TileType, Value, View

BUFFER = Buffer("out", f32, 1 << 20, "output")
VALUE = Value(TileType(f32, (8,)), "v")


def store(shape: tuple[int, ...], strides: tuple[int, ...], *indices: Index) -> ops.Store:
    return ops.Store(view=View("w", BUFFER, shape, strides), indices=indices, value=VALUE)


AT = axis(0, 8)


@pytest.mark.parametrize(
    ("shape", "strides", "left", "right", "wanted"),
    [
        ((6, 8), (8, 1), (Index(0), AT), (Index(5), AT), True),
        ((6, 8), (8, 1), (Index(2), AT), (Index(2), AT), False),
        ((32, 8), (8, 1), (AT * 4 + 1, AT), (AT * 4 + 3, AT), True),
        ((32, 8), (8, 1), (AT * 4 + 1, AT), (AT * 2 + 3, AT), False),  # 4 a + 1 = 2 b + 3
        ((9, 8), (8, 1), (AT, AT), (AT + 1, AT), False),
        ((6, 9), (8, 1), (Index(0), AT), (Index(1), AT), False),  # rows overlap
        ((8, 6), (1, 0), (AT, Index(0)), (AT, Index(1)), False),  # a guard moves nothing
    ],
)
def test_apart(
    shape: tuple[int, ...], strides: tuple[int, ...], left: tuple[Index, ...],
    right: tuple[Index, ...], wanted: bool,
) -> None:  # fmt: skip
    a, b = store(shape, strides, *left), store(shape, strides, *right)
    assert apart(a, b) is wanted
    assert apart(b, a) is wanted


def test_other_buffers_are_apart() -> None:
    other = View("x", Buffer("other", f32, 8, "output"), (8,), (1,))
    assert apart(store((8,), (1,), AT), ops.Store(view=other, indices=(AT,), value=VALUE))
