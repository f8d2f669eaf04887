"""Tiles that are wider than the rows under them: what lies after the edge counts as it should.

A row of n elements stands under a tile of EXTENT. Compiled for any n, kernels do what the
interpreter does for one. Behind each row there is poison, and numbers are such that sums are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fuser.backend.cpu.compile import lower_to_llvm
from fuser.backend.llvm import host_features
from fuser.base.target import X86_64_V3, Target
from fuser.dtypes import DType, bf16, f16, f32, i8, i32, u8
from fuser.graph import dims
from fuser.graph.sizes import Sizes
from fuser.tilegen import interpret, ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index, lookup
from fuser.tilegen.ir import Kernel, View
from fuser.tilegen.value import UNBOUNDED, Value
from tests.backend.cpu import native
from tests.backend.cpu.native import pointer

EXTENT, STRIDE = 128, 200
INF, NAN = float("inf"), float("nan")
LENGTHS = (1, 13, 16, 70, 127, 128)
FIXED = 70
"""The length for which a kernel is also compiled alone."""
TARGETS = [
    native.HOST,
    pytest.param(
        X86_64_V3,
        marks=pytest.mark.skipif("avx2" not in host_features(), reason="the code is for AVX2"),
    ),
]
EVERY = pytest.mark.parametrize("target", TARGETS, ids=["host", "v3"])
Write = Callable[["Rows"], None]


def rows(dtype: DType, n: int) -> np.ndarray:
    """Rows of n elements, the worst ones among them, with poison behind."""
    rng = np.random.default_rng(n)
    found = rng.integers(0 if dtype.kind == "uint" else -9, 9, (12, STRIDE)).astype(dtype.numpy)
    if not dtype.is_float:
        found[:, n:] = dtype.highest
        return found
    found[1, :n], found[2, :n], found[3, :n] = -INF, NAN, INF
    found[4, ::2] = NAN
    found[5, 0] = found[6, n - 1] = NAN
    found[7, 1:n], found[8, : n - 1] = -INF, -INF
    found[9, ::2], found[9, 1::2] = NAN, -INF
    found[10, n // 2], found[11, n // 3] = INF, -INF
    found[:, n:] = 77
    found[5:, n:] = NAN
    return found


class Rows:
    """A kernel of which each program works on a row of x, and on y, z for results."""

    def __init__(self, n: int, dtype: DType, result: DType) -> None:
        self.b, self.n, self.dtype = Builder("rows"), n, dtype
        self.row = index(self.b.program_id(0, 12))
        self.x = pointer(self.b, "x", dtype, 12 * STRIDE)
        self.y = pointer(self.b, "y", result, 12 * STRIDE)
        self.z = pointer(self.b, "z", result, 12 * STRIDE)
        self.at = axis(0, EXTENT)

    def view(self, n: int | None = None) -> View:
        return self.b.view(self.x, (12, self.n if n is None else n), (STRIDE, 1))

    def load(self, pad: float | int, n: int | None = None) -> Value:
        return self.b.load(self.view(n), (self.row, self.at), (EXTENT,), pad)

    def wide(self, one: Value) -> Value:
        return self.b.broadcast(one, (EXTENT,), ())

    def full(self, number: float, dtype: DType | None = None) -> Value:
        return self.b.full(number, (EXTENT,), dtype or self.dtype)

    def keep_one(self, value: Value) -> None:
        self.b.store(self.b.view(self.y, (12, 1), (STRIDE, 1)), (self.row, 0), value)

    def keep(self, value: Value, all_of_it: bool = False) -> None:
        """Store a row up to n, or all of the tile."""
        view = self.b.view(self.z, (12, EXTENT if all_of_it else self.n), (STRIDE, 1))
        self.b.store(view, (self.row, self.at), value)


def check(
    write: Write,
    dtype: DType = f32,
    *,
    result: DType | None = None,
    target: Target = native.HOST,
    lengths: Sequence[int] = LENGTHS,
) -> None:
    def kernel(n: int) -> Kernel:
        made = Rows(n, dtype, result or dtype)
        write(made)
        return made.b.build()

    with Sizes({"n": 70}):
        sized = kernel(dims.symbol("n"))
        compiled = None
        for n in lengths:
            x = rows(dtype, n).reshape(-1)
            out = np.full(12 * STRIDE, 5, (result or dtype).numpy)
            want, have, fixed = ({"x": x, "y": out.copy(), "z": out.copy()} for _ in range(3))
            with np.errstate(all="ignore"):
                interpret.run(kernel(n), want)
            compiled = native.run_in_place(
                sized, have, sizes={"n": n}, target=target, compiled=compiled
            )
            found = [have]
            if n == FIXED:
                native.run_in_place(kernel(n), fixed, target=target)
                found.append(fixed)
            for arrays, name in itertools.product(found, "yz"):
                _equal(arrays[name], want[name], f"{name}, n = {n}")


def _equal(have: np.ndarray, want: np.ndarray, what: str) -> None:
    if have.dtype.kind not in "iu":  # every NaN equals every other
        have, want = have.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(have, want, err_msg=what)


FOLDS: list[tuple[ops.ReduceFn, float]] = [
    ("sum", 0), ("sum", 3), ("sum", NAN), ("prod", 1), ("max", -INF), ("max", 0), ("max", NAN),
    ("min", INF), ("min", -2), ("fmax", -INF), ("fmax", NAN), ("fmax", 0), ("fmax", INF),
    ("fmin", INF), ("fmin", NAN), ("fmin", 0), ("fmin", -INF),
]  # fmt: skip


@EVERY
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize(("fn", "pad"), FOLDS)
def test_folds(fn: ops.ReduceFn, pad: float, dtype: DType, target: Target) -> None:
    def write(r: Rows) -> None:
        x = r.load(pad)
        if fn == "prod":  # of few numbers, or it overflows
            few = r.b.map("lt", r.b.index(r.at, (EXTENT,), i32), r.full(5, i32))
            x = r.b.map("select", few, x, r.full(1))
        r.keep_one(r.b.reduce(fn, x, 0))

    check(write, dtype, target=target)


WHOLE: list[tuple[ops.ReduceFn, int]] = [
    ("sum", 0), ("sum", 1), ("max", -128), ("max", -3), ("min", 127), ("fmax", -128),
    ("bitwise_and", -1), ("bitwise_or", 0), ("bitwise_xor", 0), ("bitwise_or", 4),
]  # fmt: skip


@EVERY
@pytest.mark.parametrize(("fn", "pad"), WHOLE)
def test_folds_of_whole_numbers(fn: ops.ReduceFn, pad: int, target: Target) -> None:
    check(lambda r: r.keep_one(r.b.reduce(fn, r.load(pad), 0)), i8, target=target)


def _clamped(r: Rows, x: Value) -> Value:
    """Of -inf 0, and of NaN NaN, as exp has it, but exact."""
    return r.b.map("add", r.b.map("max", x, r.full(-64.0)), r.full(64.0))


@EVERY
@pytest.mark.parametrize("all_of_it", [False, True])
@pytest.mark.parametrize("fn", ["max", "fmax"])
def test_softmax(fn: ops.ReduceFn, all_of_it: bool, target: Target) -> None:
    """A kept tile, summed on the way; stored up to the edge, or all of it."""

    def write(r: Rows) -> None:
        x = r.load(-INF)
        made = _clamped(r, r.b.map("sub", x, r.wide(r.b.reduce(fn, x, 0))))
        made = r.b.map("sqrt", r.b.map("mul", made, made))
        total = r.b.reduce("sum", made, 0)
        r.keep_one(total)
        r.keep(r.b.map("sub", r.wide(total), made), all_of_it)

    check(write, target=target)


def test_two_folds_of_a_kept_tile() -> None:
    """Written on the way of one fold, read by another that counts what is after the edge."""

    def write(r: Rows) -> None:
        x = r.load(-INF)
        made = _clamped(r, r.b.map("sub", x, r.wide(r.b.reduce("fmax", x, 0))))
        made = r.b.map("sqrt", r.b.map("mul", made, made))
        total = r.b.reduce("sum", made, 0)
        away = r.b.map("sub", made, r.wide(total))
        r.keep_one(r.b.reduce("sum", away, 0))
        r.keep(r.b.map("add", made, away))

    check(write)


@pytest.mark.parametrize("other", [7, 100])
def test_two_edges(other: int) -> None:
    """Where one row ends the other goes on."""

    def write(r: Rows) -> None:
        together = r.b.map("add", r.load(0.0), r.load(0.0, other))
        r.keep_one(r.b.reduce("sum", together, 0))
        r.keep(together)

    check(write)


@EVERY
@pytest.mark.parametrize("fn", ["lt", "le", "gt", "ge", "ne"])
def test_conditions_at_the_edge(fn: str, target: Target) -> None:
    """`where(column < n, x - 1, 0)`, and conditions that are not quite this one."""

    def write(r: Rows) -> None:
        inside = r.b.map(fn, r.b.index(r.at, (EXTENT,), i32), r.b.index(Index(r.n), (EXTENT,), i32))
        away = r.b.map("sub", r.load(0.0), r.full(1.0))
        chosen = r.b.map("select", inside, away, r.full(0.0))
        r.keep_one(r.b.reduce("sum", r.b.map("mul", chosen, chosen), 0))
        r.keep(chosen)

    check(write, target=target)


def test_masks_beside_the_edge() -> None:
    def write(r: Rows) -> None:
        mask = r.b.map("ne", r.b.index(r.at, (EXTENT,), i32), r.full(9, i32))
        x = r.b.load(r.view(), (r.row, r.at), (EXTENT,), -INF, mask)
        r.keep_one(r.b.reduce("fmax", x, 0))
        r.keep(x)

    check(write)


def test_positions_do_not_end() -> None:
    """A sum of positions: x ends at the edge, they do not."""

    def write(r: Rows) -> None:
        at = r.b.cast(r.b.index(r.at, (EXTENT,), i32), f32)
        r.keep_one(r.b.reduce("sum", r.b.map("add", r.b.map("fmax", r.load(0.0), at), at), 0))

    check(write)


@EVERY
def test_rows_in_pieces(target: Target) -> None:
    """A loop over a row, also where nothing of a piece is inside."""

    def write(r: Rows) -> None:
        def body(i: Value, total: Value, tops: Value) -> Sequence[Value]:
            at = index(i) * 32 + axis(0, 32)
            x = r.b.load(r.view(), (r.row, at), (32,), -INF)
            top = r.b.reduce("fmax", x, 0)
            away = r.b.map("sub", x, r.b.broadcast(top, (32,), ()))
            away = r.b.map("max", away, r.b.full(-64.0, (32,), f32))
            away = r.b.map("add", away, r.b.full(64.0, (32,), f32))
            total = r.b.map("add", total, r.b.reduce("sum", away, 0))
            return total, r.b.map("max", tops, x)

        starts = (r.b.full(0.0, (), f32), r.b.full(-INF, (32,), f32))
        total, tops = r.b.loop(0, 5, 1, starts, body)
        r.keep_one(total)
        view = r.b.view(r.z, (12, UNBOUNDED), (STRIDE, 1))
        r.b.store(view, (r.row, axis(0, 32)), tops)

    check(write, target=target)


@EVERY
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("fn", ["sum", "fmax", "fmin", "max"])
def test_blocks(fn: ops.ReduceFn, along: int, target: Target) -> None:
    """Rows and columns that end; folds of both."""

    def write(r: Rows) -> None:
        shape = (32, EXTENT)
        view = r.b.view(r.x, (11, r.n), (STRIDE, 1))
        pad = 0.0 if fn == "sum" else INF if fn == "fmin" else -INF
        x = r.b.load(view, (axis(0, 32), axis(1, EXTENT)), shape, pad)
        folded = r.b.reduce(fn, x, along)
        out = r.b.view(r.y, (12, UNBOUNDED), (STRIDE, 1))
        r.b.store(out, (r.row, axis(0, shape[1 - along])), folded)

    check(write, target=target)


@EVERY
@pytest.mark.parametrize("dtype", [f16, bf16, u8, i8], ids=str)
def test_narrow_elements(dtype: DType, target: Target) -> None:
    """The last vector of a store has a mask; nothing is written behind it."""

    def write(r: Rows) -> None:
        x = r.load(0)
        r.keep(r.b.map("add", x, r.b.map("max", x, r.full(3))))

    check(write, dtype, target=target)


def test_places_that_are_looked_up() -> None:
    """Behind the edge a kept tile of places holds anything: nobody may look there."""

    def write(r: Rows) -> None:
        place = r.b.map("bitwise_and", r.load(0), r.full(63))
        first = r.b.map("add", place, r.wide(r.b.reduce("max", place, 0)))
        there = r.b.gather(place, r.b.map("bitwise_and", first, r.full(63)), 0)
        r.keep(r.b.map("add", there, first))

    check(write, i32)


FOLDED = 8
"""Places of the axis that moves the bound along the other one."""


@EVERY
@pytest.mark.parametrize("step", [20, 1, -7])
@pytest.mark.parametrize("fn", ["sum", "fmax", "max"])
def test_a_bound_that_moves_with_the_fold(fn: ops.ReduceFn, step: int, target: Target) -> None:
    """Columns end at another place in each row that is folded, as rows of a flat view do."""

    def write(r: Rows) -> None:
        view = r.b.view(r.x, (2 * r.n,))
        place = axis(0, FOLDED) * step + axis(1, EXTENT) + (0 if step > 0 else 64)
        x = r.b.load(view, (place,), (FOLDED, EXTENT), 0.0 if fn == "sum" else -INF)
        # Sums of what is exact in any order.
        x = r.b.map("fmin", r.b.map("fmax", x, r.b.full(-9.0, x.shape, f32)),
                    r.b.full(99.0, x.shape, f32))  # fmt: skip
        out = r.b.view(r.y, (12, UNBOUNDED), (STRIDE, 1))
        r.b.store(out, (r.row, axis(0, EXTENT)), r.b.reduce(fn, x, 0))

    check(write, target=target)


def _table(r: Rows, extent: int) -> Value:
    """Whole numbers 0 .. 7 along a tile, of which no algebra is known."""
    return r.b.map("bitwise_and", r.b.index(axis(0, extent) * 5, (extent,), i32),
                   r.b.full(7, (extent,), i32))  # fmt: skip


@EVERY
@pytest.mark.parametrize("scale", [1, 9])
def test_a_bound_that_is_looked_up_where_the_fold_is(scale: int, target: Target) -> None:
    def write(r: Rows) -> None:
        place = lookup(_table(r, FOLDED), (0,)) * scale + axis(1, EXTENT)
        x = r.b.load(r.view(), (r.row, place), (FOLDED, EXTENT), -INF)
        out = r.b.view(r.y, (12, UNBOUNDED), (STRIDE, 1))
        r.b.store(out, (r.row, axis(0, EXTENT)), r.b.reduce("fmax", x, 0))

    check(write, target=target)


@EVERY
@pytest.mark.parametrize("fn", ["sum", "fmax"])
def test_places_after_the_edge_are_not_looked_up(fn: ops.ReduceFn, target: Target) -> None:
    """What is after the edge of one load is asked before the loops; another looks up places."""

    def write(r: Rows) -> None:
        pad = 0.0 if fn == "sum" else -INF
        there = r.b.load(r.view(), (r.row, lookup(_table(r, EXTENT), (0,))), (EXTENT,), pad)
        both = r.b.map("fmin", r.load(pad), r.b.map("fmax", there, r.full(-9.0)))
        both = both if fn == "fmax" else r.b.map("fmax", both, r.full(-9.0))
        r.keep_one(r.b.reduce(fn, both, 0))

    check(write, target=target)


@pytest.mark.parametrize("columns", [96, 90])
def test_a_bound_on_which_all_lanes_agree_is_no_mask(columns: int) -> None:
    """Rows of 96 end where a vector does, those of 90 within one."""
    b = Builder("shifted")
    x, y = b.buffer("x", i8, 4 * columns), b.buffer("y", i8, 12 * 128, role="output")
    program = index(b.program_id(0, 3))
    shift = program * 32 - 32
    tile = b.load(b.view(x, (4, columns)), (axis(0, 4), axis(1, 128) + shift), (4, 128), pad=7)
    b.store(b.view(y, (12, 128)), (program * 4 + axis(0, 4), axis(1, 128)), tile)
    kernel = b.build()
    assert ("masked" in lower_to_llvm(kernel, native.HOST)) == (columns == 90)
    data = np.arange(4 * columns).astype(np.int8)
    arrays = {"x": data, "y": np.zeros(12 * 128, np.int8)}
    want = {name: array.copy() for name, array in arrays.items()}
    interpret.run(kernel, want)
    native.run(kernel, arrays)
    np.testing.assert_array_equal(arrays["y"], want["y"])


def test_whole_vectors_have_no_masks() -> None:
    """Below the edge the loops of a row softmax load and store plain vectors."""
    with Sizes({"n": 70}):
        r = Rows(dims.symbol("n"), f32, f32)
        x = r.load(-INF)
        made = r.b.map("exp", r.b.map("sub", x, r.wide(r.b.reduce("fmax", x, 0))))
        r.keep(r.b.map("div", made, r.wide(r.b.reduce("sum", made, 0))))
        text = lower_to_llvm(r.b.build(), native.HOST)
    blocks = text.split("\n\n")[0].split(":\n")
    plain = [block for block in blocks if "load <16 x float>" in block]
    assert len(plain) >= 3 or native.HOST.vector_bits != 512
    assert all("masked" not in block for block in plain if "ptr %x" in block)
