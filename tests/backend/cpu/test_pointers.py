"""Pointers of a caller, scalars of a launch, masks, index scalars of any kind."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.cpu import compile_kernel
from fuser.backend.cpu.compile import lower_to_llvm
from fuser.dtypes import ALL, DType, bool_, f32, i8, i16, i32, i64, u8, u16, u32, u64
from fuser.graph import dims
from fuser.graph.sizes import Sizes
from fuser.tilegen import interpret
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index, lookup
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import UNBOUNDED, Value
from tests.backend.cpu import native
from tests.backend.cpu.native import pointer

Array = np.ndarray
FAR = 1 << 40


def check(kernel: Kernel, arrays: dict[str, Array], **scalars: float | int | bool) -> None:
    want = {name: array.copy() for name, array in arrays.items()}
    interpret.run(kernel, want, scalars=scalars, races=False)
    native.run_in_place(kernel, arrays, scalars=scalars)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, want[name], err_msg=name)


def sample(dtype: DType, size: int) -> Array:
    return (np.arange(size) % (2 if dtype is bool_ else 50)).astype(dtype.numpy)


def shifted(array: Array, skew: int) -> Array:
    """A copy that starts `skew` bytes behind a multiple of 64."""
    room = np.zeros(array.nbytes + 192, np.uint8)
    first = -room.ctypes.data % 64 + skew
    found = room[first : first + array.nbytes].view(array.dtype)
    found[:] = array
    return found


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("count", [1, 5, 16, 64, 100])
def test_masks(dtype: DType, count: int) -> None:
    """Loads and stores of neighbours, of a stride and of places that are looked up."""
    b = Builder("masks")
    b.program_id(0, 1)
    x, y = pointer(b, "x", dtype, 400), pointer(b, "y", dtype, 1200)
    here = axis(0, count)
    places = b.index(here % 7 * 50 + here // 7, (count,), i32)
    odd = b.map("ne", b.index(here % 3, (count,), i32), b.full(1, (count,), i32))
    far = b.full(FAR, (count,), i64)
    wild = b.map("select", odd, b.cast(places, i64), far)
    xs, ys = b.view(x, (UNBOUNDED,)), b.view(y, (UNBOUNDED,))
    ways = (here + 3, here * 3, index(7), lookup(places, (0,)), lookup(wild, (0,)))
    for number, at in enumerate(ways):
        tile = b.load(xs, (at,), (count,), 1, odd)
        b.store(ys, (here + number * 200,), tile, odd)
    b.store(ys, (lookup(wild, (0,)) + 1000 - 0,), b.load(xs, (here,), (count,)), odd)
    check(b.build(), {"x": sample(dtype, 400), "y": sample(dtype, 1500)})


@pytest.mark.parametrize("flag", [False, True])
def test_a_mask_of_one_value(flag: bool) -> None:
    """Where it is false nothing is touched, wherever the pointers lead."""
    b = Builder("uniform")
    b.program_id(0, 1)
    on, where = b.scalar("on", bool_), b.scalar("where", i64)
    x, y = pointer(b, "x", f32, 100), pointer(b, "y", f32, 100)
    mask = b.broadcast(on, (40,), ())
    tile = b.load(b.view(x, (UNBOUNDED,)), (index(where) + axis(0, 40),), (40,), 5.0, mask)
    b.store(b.view(y, (UNBOUNDED,)), (index(where) + axis(0, 40),), tile, mask)
    one = b.load(b.view(x, (UNBOUNDED,)), (index(where),), (), 7.0, on)
    b.store(b.view(y, (100,)), (90,), one)
    b.store(b.view(y, (UNBOUNDED,)), (index(where) + 50,), one, on)
    arrays = {"x": sample(f32, 100), "y": np.zeros(100, np.float32)}
    check(b.build(), arrays, on=flag, where=8 if flag else FAR)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_scalars(dtype: DType) -> None:
    """Every dtype, in a map, in an index and in a branch."""
    b = Builder("scalars")
    b.program_id(0, 1)
    first, value, last = b.scalar("first", i8), b.scalar("value", dtype), b.scalar("last", i64)
    y = pointer(b, "y", dtype, 100)
    at = index(first) + index(last)
    b.store(b.view(y, (UNBOUNDED,)), (at + axis(0, 20),), b.broadcast(value, (20,), ()))
    kernel = b.build()
    compiled = compile_kernel(kernel, native.HOST)
    assert compiled.facts == {"scalars": ["first", "value", "last"]}
    number = 2.5 if dtype.is_float else dtype.highest
    check(kernel, {"y": np.zeros(100, dtype.numpy)}, first=-7, value=number, last=40)


def test_scalars_behind_sizes() -> None:
    with Sizes({"n": 90, "step": 3}):
        b = Builder("sized")
        n, step = dims.symbol("n"), dims.symbol("step")
        x, y = pointer(b, "x", f32, n * step), pointer(b, "y", f32, n)
        factor = b.scalar("factor", f32)
        at = index(b.program_id(0, dims.ceildiv(n, 32))) * 32 + axis(0, 32)
        inside = b.map("lt", b.index(at, (32,), i32), b.index(Index(n), (32,), i32))
        tile = b.load(b.view(x, (UNBOUNDED,)), (at * step,), (32,), 0, inside)
        tile = b.map("mul", tile, b.broadcast(factor, (32,), ()))
        b.store(b.view(y, (UNBOUNDED,)), (at,), tile, inside)
        kernel = b.build()
        for sizes in ({"n": 90, "step": 3}, {"n": 130, "step": 5}):
            x_, y_ = np.arange(1000, dtype=np.float32), np.zeros(200, np.float32)
            arrays = {"x": x_, "y": y_}
            found = native.run_in_place(kernel, arrays, scalars={"factor": 2.0}, sizes=sizes)
            want = np.zeros(200, np.float32)
            want[: sizes["n"]] = np.arange(sizes["n"]) * sizes["step"] * 2.0
            np.testing.assert_array_equal(y_, want)
            assert found.facts["scalars"] == ["factor"]
            assert len(found.facts["sizes"]) > 2


def test_scalars_behind_the_extents_of_the_grid() -> None:
    """The loop over the programs needs the extent of axis 1, and it alone."""
    with Sizes({"columns": 3}):
        b = Builder("places")
        columns = dims.symbol("columns")
        row, column = b.program_id(0, 2), b.program_id(1, columns)
        y, value = pointer(b, "y", f32, 100), b.scalar("value", f32)
        tile = b.broadcast(value, (4,), ())
        b.store(b.view(y, (UNBOUNDED,)), (index(row) * 40 + index(column) * 4 + axis(0, 4),), tile)
        kernel = b.build()
        for count in (3, 7):
            found = np.zeros(100, np.float32)
            sizes = {"columns": count}
            native.run_in_place(kernel, {"y": found}, scalars={"value": 2.5}, sizes=sizes)
            want = np.zeros((2, 50), np.float32)
            want.reshape(-1)[: 4 * count] = 2.5
            want.reshape(-1)[40 : 40 + 4 * count] = 2.5
            np.testing.assert_array_equal(found, want.reshape(-1))


@pytest.mark.parametrize("align", [0, 1, 4, 16, 32])
def test_alignment(align: int) -> None:
    """Loads and stores take for granted what the caller promised, and no more."""
    b = Builder("aligned")
    b.program_id(0, 1)
    x, y = pointer(b, "x", f32, 256, align), pointer(b, "y", f32, 256, align)
    tile = b.load(b.view(x, (256,)), (axis(0, 256),), (256,))
    b.store(b.view(y, (256,)), (axis(0, 256),), b.map("add", tile, tile))
    kernel = b.build()
    text = lower_to_llvm(kernel, native.HOST)
    assert f"align {max(align, 4)}" in text and "noalias" in text
    arrays = {name: shifted(sample(f32, 256), max(align, 4)) for name in ("x", "y")}
    check(kernel, arrays)


def test_overlapping_buffers_are_not_noalias() -> None:
    b = Builder("overlap")
    b.program_id(0, 1)
    buffers = [pointer(b, name, f32, 16) for name in ("read", "too", "written", "alone")]
    for buffer in buffers[:3]:
        buffer.alias = 1
    tile = b.load(b.view(buffers[0], (16,)), (axis(0, 16),), (16,))
    b.store(b.view(buffers[2], (16,)), (axis(0, 16),), tile)
    text = lower_to_llvm(b.build(), native.HOST)
    head = next(line for line in text.splitlines() if ".program(" in line)
    params = [param for param in head.split(", ") if " %b" in param]
    assert ["noalias" in param for param in params] == [False, False, False, True]
    assert ["readonly" in param for param in params] == [True, True, False, True]


@pytest.mark.parametrize("dtype", [i8, i16, i32, i64, u8, u16, u32, u64], ids=str)
def test_places_of_every_dtype(dtype: DType) -> None:
    """Places that are looked up, beyond the signed numbers of their dtype too."""
    b = Builder("places")
    b.program_id(0, 1)
    table, places = pointer(b, "table", f32, 70000), pointer(b, "places", dtype, 64)
    y = pointer(b, "y", f32, 64)
    at = b.load(b.view(places, (64,)), (axis(0, 64),), (64,))
    b.store(
        b.view(y, (64,)), (axis(0, 64),),
        b.load(b.view(table, (UNBOUNDED,)), (lookup(at, (0,)),), (64,)),
    )  # fmt: skip
    one = b.load(b.view(places, (64,)), (63,), ())
    b.store(b.view(y, (64,)), (0,), b.load(b.view(table, (UNBOUNDED,)), (index(one),), ()))
    most = min(int(dtype.highest), 69999)
    where = np.linspace(0, most, 64).astype(dtype.numpy)
    arrays = {"table": np.arange(70000, dtype=np.float32), "places": where}
    check(b.build(), {**arrays, "y": np.zeros(64, np.float32)})


def test_index_scalars_of_every_origin() -> None:
    b = Builder("origins")
    b.program_id(0, 1)
    x, ids, y = pointer(b, "x", f32, 100), pointer(b, "ids", i32, 8), pointer(b, "y", f32, 20)
    line, rows = b.view(ids, (8,)), b.view(x, (UNBOUNDED,))
    loaded = b.load(line, (2,), ())
    most = b.reduce("max", b.load(line, (axis(0, 8),), (8,)), 0)
    more = b.map("lt", loaded, most)
    (chosen,) = b.branch(more, lambda: (most,), lambda: (loaded,))

    def body(i: Value, total: Value) -> tuple[Value]:
        return (b.map("add", total, b.index(index(i), (), i32)),)

    (summed,) = b.loop(index(loaded), index(most), 2, (b.full(0, (), i32),), body)
    narrow = b.cast(b.full(9, (), i32), u8)
    (counted,) = b.while_loop(
        (narrow,),
        lambda i: b.map("lt", i, b.full(60, (), u8)),
        lambda i: (b.map("add", i, narrow),),
    )
    for number, place in enumerate((loaded, most, chosen, summed, narrow, counted)):
        found = b.load(rows, (index(place) + 1,), ())
        b.store(b.view(y, (UNBOUNDED,)), (number * 2,), found)
    where = np.array([3, 7, 2, 11, 5, 6, 1, 0], np.int32)
    arrays = {"x": np.arange(100, dtype=np.float32), "ids": where}
    check(b.build(), {**arrays, "y": np.zeros(20, np.float32)})


@pytest.mark.parametrize("narrow", [i8, u8, i16, u32], ids=str)
@pytest.mark.parametrize("wide", [u8, i16, u16, u32, i64, u64], ids=str)
def test_comparisons_of_positions(narrow: DType, wide: DType) -> None:
    """Positions that a cast wraps around are no positions any more."""
    if wide.bits < narrow.bits:
        return
    b = Builder("positions")
    b.program_id(0, 1)
    y = pointer(b, "y", bool_, 60)
    place = b.index(axis(0, 20) - 10, (20,), i32)
    far = b.index(axis(0, 20) * 20 - 10, (20,), i32)
    for number, tile in enumerate((place, far)):
        made = b.cast(b.cast(tile, narrow), wide)
        less = b.map("lt", made, b.full(5, (20,), wide))
        b.store(b.view(y, (60,)), (axis(0, 20) + 20 * number,), less)
    check(b.build(), {"y": np.zeros(60, bool)})


@pytest.mark.parametrize("dtype", [i8, u8, i16, u16, u32], ids=str)
def test_positions_that_their_dtype_does_not_hold(dtype: DType) -> None:
    b = Builder("wrapped")
    b.program_id(0, 1)
    y = pointer(b, "y", bool_, 40)
    place = b.index(axis(0, 40) * 4096 - 9, (40,), dtype)
    b.store(b.view(y, (40,)), (axis(0, 40),), b.map("lt", place, b.full(100, (40,), dtype)))
    check(b.build(), {"y": np.zeros(40, bool)})
