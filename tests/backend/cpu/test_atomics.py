"""Atomic updates: every function and dtype against the interpreter, and from many threads."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from fuser.backend.cpu import compile_kernel
from fuser.base.target import AARCH64, X86_64_V3
from fuser.dtypes import ALL, DType, bf16, bool_, f16, f32, f64, i8, i32, i64
from fuser.errors import LoweringError
from fuser.tilegen import interpret, ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import UNBOUNDED, Value
from tests.backend.cpu import native
from tests.backend.cpu.native import pointer
from tests.backend.cpu.test_targets import calls

COUNT = 37
FNS = get_args(ops.AtomicFn)


def one_place_each(fn: ops.AtomicFn, dtype: DType, masked: bool) -> Kernel:
    """Elements meet three by three; some are out of bounds, and some masked."""
    b = Builder("atomic")
    b.program_id(0, 1)
    x, y, old = (pointer(b, name, dtype, COUNT) for name in ("x", "y", "old"))
    here = axis(0, COUNT)
    value = b.load(b.view(y, (COUNT,)), (here,), (COUNT,))
    compare = b.full(3, (COUNT,), dtype) if fn == "compare_exchange" else None
    mask = None
    if masked:
        mask = b.map("ne", b.index(here % 4, (COUNT,), i32), b.full(1, (COUNT,), i32))
    at = (here // 3 - 1,)
    before = b.atomic(fn, b.view(x, (COUNT,)), at, value, compare=compare, mask=mask)
    b.store(b.view(old, (COUNT,)), (here,), before)
    return b.build()


def defined(fn: str, dtype: DType) -> bool:
    return fn not in ("and", "or", "xor") or not dtype.is_float


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("fn", "dtype"), [(fn, d) for fn in FNS for d in ALL if defined(fn, d)], ids=str
)
def test_atomic(fn: ops.AtomicFn, dtype: DType, masked: bool, rng: np.random.Generator) -> None:
    high = 2 if dtype is bool_ else 6
    arrays = {name: rng.integers(0, high, COUNT).astype(dtype.numpy) for name in ("x", "y", "old")}
    if dtype.is_float:
        arrays["y"][::5] = np.nan
        arrays["x"][2] = np.nan
    want = {name: array.copy() for name, array in arrays.items()}
    kernel = one_place_each(fn, dtype, masked)
    interpret.run(kernel, want)
    native.run_in_place(kernel, arrays)
    for name, array in arrays.items():
        have, expected = array, want[name]
        if dtype.is_float:  # NumPy does not know the NaN of bfloat16
            have, expected = have.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_array_equal(have, expected, err_msg=name)


@pytest.mark.parametrize("fn", ["and", "or", "xor"])
def test_bits_of_floats_are_refused(fn: ops.AtomicFn) -> None:
    with pytest.raises(LoweringError, match="integers"):
        compile_kernel(one_place_each(fn, f32, False), native.HOST)


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64, i8, i64, bool_], ids=str)
@pytest.mark.parametrize("fn", ["add", "max", "exchange", "compare_exchange"])
def test_no_function_of_a_library(fn: ops.AtomicFn, dtype: DType) -> None:
    from fuser.backend.cpu import assembly

    for arch, target in (("x86-64-v3", X86_64_V3), ("aarch64", AARCH64)):
        assert not calls(assembly(one_place_each(fn, dtype, True), target), arch)


@pytest.mark.parametrize("dtype", [f16, f32, f64, i8, i32], ids=str)
@pytest.mark.parametrize("shape", [(), (8,)])
def test_sums_from_many_threads(dtype: DType, shape: tuple[int, ...]) -> None:
    """No update is lost, and of a counter each program finds a number of its own."""
    programs = 100
    b = Builder("sums")
    b.program_id(0, programs)
    x = pointer(b, "x", dtype, 8)
    at = axis(0, 8) if shape else Index(3)
    b.atomic("add", b.view(x, (8,)), (at,), b.full(1, shape, dtype))
    kernel = b.build()
    have = np.zeros(8, dtype.numpy)
    native.run_in_place(kernel, {"x": have}, threads=4)
    assert have.tolist() == [programs if shape or i == 3 else 0 for i in range(8)]


def test_every_program_draws_another_number() -> None:
    programs = 200
    b = Builder("draw")
    b.program_id(0, programs)
    counter, found = (
        pointer(b, "counter", i32, 1),
        pointer(b, "found", i32, programs),
    )
    mine = b.atomic("add", b.view(counter, (1,)), (0,), b.full(1, (), i32))
    one = b.full(1, (), i32)
    b.store(b.view(found, (UNBOUNDED,)), (index(mine),), b.map("add", mine, one))
    arrays = {"counter": np.zeros(1, np.int32), "found": np.zeros(programs, np.int32)}
    native.run_in_place(b.build(), arrays, threads=4)
    assert arrays["found"].tolist() == list(range(1, programs + 1))


def test_a_lock() -> None:
    """Between taking and giving back a lock, a sum is loaded, changed and stored as usual."""
    programs, count = 200, 50
    b = Builder("lock")
    b.program_id(0, programs)
    lock, x = pointer(b, "lock", i32, 1), pointer(b, "x", f32, count)
    free, taken = b.full(0, (), i32), b.full(1, (), i32)
    door = b.view(lock, (1,))

    def closed() -> Value:
        seen = b.atomic("compare_exchange", door, (0,), taken, compare=free)
        return b.map("eq", seen, taken)

    b.while_loop((), closed, lambda: ())
    view, at = b.view(x, (UNBOUNDED,)), (axis(0, count),)
    old = b.load(view, at, (count,))
    b.store(view, at, b.map("add", old, b.full(1.0, (count,), f32)))
    b.atomic("exchange", door, (0,), free)
    arrays = {"lock": np.zeros(1, np.int32), "x": np.zeros(count, np.float32)}
    native.run_in_place(b.build(), arrays, threads=4)
    assert (arrays["x"] == programs).all() and arrays["lock"][0] == 0


def test_what_was_loaded_before_a_lock_is_given_back() -> None:
    """A load in a lock is not left for later."""
    b = Builder("held")
    b.program_id(0, 1)
    lock, x = pointer(b, "lock", i32, 1), pointer(b, "x", f32, 8)
    y = pointer(b, "y", f32, 8)
    at, view = (axis(0, 8),), b.view(x, (8,))
    old = b.load(view, at, (8,))
    b.atomic("exchange", b.view(lock, (1,)), (0,), b.full(0, (), i32))
    b.store(view, at, b.full(1.0, (8,), f32))
    b.store(b.view(y, (8,)), at, old)
    kernel = b.build()
    from fuser.backend.cpu.analysis.placement import analyse

    assert len(analyse(kernel, native.HOST).held) == 1
    arrays = {name: np.arange(8, dtype=np.float32) for name in ("x", "y")}
    native.run_in_place(kernel, {"lock": np.ones(1, np.int32), **arrays})
    assert arrays["y"].tolist() == list(range(8)) and (arrays["x"] == 1).all()
