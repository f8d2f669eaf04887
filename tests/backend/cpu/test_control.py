"""Loops and branches: what they carry, what they give, and how often they run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser.backend.module import CompiledKernel
from fuser.dtypes import ALL, DType, bool_, f32, f64, i32
from fuser.tilegen import interpret
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value
from tests.backend.cpu import native
from tests.backend.cpu.native import pointer

SIDE = 24
Body = Callable[[Builder, Value, Value], tuple[Value, Value]]


def check(
    kernel: Kernel,
    arrays: dict[str, np.ndarray],
    compiled: CompiledKernel | None = None,
    **scalars: float | int | bool,
) -> CompiledKernel:
    want = {name: array.copy() for name, array in arrays.items()}
    interpret.run(kernel, want, scalars=scalars, races=False)
    compiled = native.run_in_place(kernel, arrays, scalars=scalars, compiled=compiled)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, want[name], err_msg=name)
    return compiled


def swap(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    return y, x


def turn(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    return b.permute(y, (1, 0)), b.permute(x, (1, 0))


def turn_alone(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    return b.permute(x, (1, 0)), b.map("add", x, y)


def step(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    return b.map("add", x, y), x


def rows(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """Every element of the next x needs a whole row of this one."""
    total = b.broadcast(b.reduce("max", x, 1), x.shape, (1,))
    return b.map("sub", total, y), b.map("max", x, y)


def gathered(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    back = b.index(axis(1, SIDE) * -1 + (SIDE - 1), x.shape, i32)
    return b.gather(x, back, 1), b.gather(b.map("add", x, y), back, 0)


@pytest.mark.parametrize("body", [swap, turn, turn_alone, step, rows, gathered])
@pytest.mark.parametrize("kind", ["for", "while"])
@pytest.mark.parametrize("side", [SIDE, 1])
def test_carried_tiles(body: Body, kind: str, side: int) -> None:
    if body is gathered and side == 1:
        return
    b = Builder("carried")
    b.program_id(0, 1)
    x, y = pointer(b, "x", i32, side * side), pointer(b, "y", i32, side * side)
    at, shape = (axis(0, side), axis(1, side)), (side, side)
    starts = [b.load(b.view(buffer, shape), at, shape) for buffer in (x, y)]
    if kind == "for":
        ends = b.loop(0, 3, 1, starts, lambda i, *both: body(b, *both))
    else:
        three, one = b.full(3, (), i32), b.full(1, (), i32)
        _, *ends = b.while_loop(
            (b.full(0, (), i32), *starts),
            lambda i, *both: b.map("lt", i, three),
            lambda i, *both: (b.map("add", i, one), *body(b, *both)),
        )
    for buffer, end in zip((x, y), ends, strict=True):
        b.store(b.view(buffer, shape), at, end)
    numbers = np.arange(side * side, dtype=np.int32)
    check(b.build(), {"x": numbers * 7 % 31, "y": numbers})


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (1, 1), (5,), (33, 3), (2, 1, 40)])
def test_values_of_every_type(dtype: DType, shape: tuple[int, ...]) -> None:
    """Through a branch, a loop that may not run, and a while."""
    b = Builder("types")
    b.program_id(0, 1)
    size = int(np.prod(shape, dtype=int))
    x, y = pointer(b, "x", dtype, size), pointer(b, "y", dtype, 3 * size)
    at = [axis(i, n) for i, n in enumerate(shape)]
    tile = b.load(b.view(x, shape), at, shape)
    other = b.full(1, shape, dtype)
    on, count = b.scalar("on", bool_), b.scalar("count", i32)
    (chosen,) = b.branch(on, lambda: (tile,), lambda: (other,))
    looped, _ = b.loop(0, index(count), 1, (chosen, other), lambda i, a, c: (c, a))
    one = b.full(1, (), i32)
    _, last, _ = b.while_loop(
        (count, looped, tile),
        lambda i, *_: b.map("gt", i, one),
        lambda i, a, c: (b.map("sub", i, one), c, a),
    )
    for number, value in enumerate((chosen, looped, last)):
        b.store(b.view(y, (3, *shape)), (number, *at), value)
    kernel = b.build()
    data = (np.arange(size) % (2 if dtype is bool_ else 7)).astype(dtype.numpy)
    compiled = None
    for given in (True, False):
        for times in (0, 1, 4):
            arrays = {"x": data.copy(), "y": np.zeros(3 * size, dtype.numpy)}
            compiled = check(kernel, arrays, compiled, on=given, count=times)


@pytest.mark.parametrize("start", [-7, 0, 3])
@pytest.mark.parametrize("stop", [-9, -2, 0, 3, 8])
@pytest.mark.parametrize("by", [1, 3])
def test_ranges_that_a_launch_gives(start: int, stop: int, by: int) -> None:
    b = Builder("range")
    b.program_id(0, 1)
    first, last = b.scalar("first", i32), b.scalar("last", i32)
    y = pointer(b, "y", i32, 2)

    def body(i: Value, total: Value, count: Value) -> tuple[Value, Value]:
        here = b.index(index(i), (), i32)
        return b.map("add", total, here), b.map("add", count, b.full(1, (), i32))

    none = b.full(0, (), i32)
    for position, value in enumerate(b.loop(index(first), index(last), by, (none, none), body)):
        b.store(b.view(y, (2,)), (position,), value)
    check(b.build(), {"y": np.zeros(2, np.int32)}, first=start, last=stop)


def test_effects_in_branches_of_branches() -> None:
    """Early exits come as branches around the rest."""
    b = Builder("exits")
    pid = b.program_id(0, 12)
    x = pointer(b, "x", f32, 12 * 8)
    here = b.index(index(pid), (), i32)
    view, at = b.view(x, (12, 8)), (index(pid), axis(0, 8))

    def put(number: float) -> tuple[()]:
        old = b.load(view, at, (8,))
        b.store(view, at, b.map("add", old, b.full(number, (8,), f32)))
        return ()

    def less(limit: int) -> Value:
        return b.map("lt", here, b.full(limit, (), i32))

    def rest() -> tuple[()]:
        put(1.0)
        b.branch(less(7), lambda: put(10.0), lambda: ())
        b.branch(less(9), lambda: b.branch(less(5), lambda: put(100.0), lambda: put(1000.0)), tuple)
        return put(10000.0)

    b.branch(less(3), tuple, rest)
    check(b.build(), {"x": np.arange(96, dtype=np.float32)})


def test_what_a_carried_tile_in_registers_makes() -> None:
    """A costly value that an inner loop reads again and again; registers of 64-bit lanes."""
    b = Builder("inner")
    b.program_id(0, 1)
    x, y = pointer(b, "x", f32, 16), pointer(b, "y", f32, 16)
    at, shape = (axis(0, 16),), (16,)
    start = b.load(b.view(x, shape), at, shape)

    def outer(i: Value, acc: Value, wide: Value) -> tuple[Value, Value]:
        half = b.map("floor", b.map("sqrt", b.map("abs", acc)))
        (total,) = b.loop(0, 5, 1, (acc,), lambda j, t: (b.map("add", t, half),))
        return total, b.map("add", wide, b.full(1.0, shape, f64))

    total, wide = b.loop(0, 3, 1, (start, b.full(0.0, shape, f64)), outer)
    b.store(b.view(y, shape), at, b.map("add", total, b.cast(wide, f32)))
    check(b.build(), {"x": np.arange(16, dtype=np.float32) ** 2, "y": np.zeros(16, np.float32)})
