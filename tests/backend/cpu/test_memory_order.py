"""A load gives what memory held at its place in the program, wherever its value is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from fuser.backend.cpu.analysis import placement
from fuser.dtypes import DType, f16, f32, i8, i32
from fuser.tilegen import interpret
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index
from fuser.tilegen.ir import Buffer, Kernel
from fuser.tilegen.text import print_kernel
from fuser.tilegen.value import UNBOUNDED, Value
from tests.backend.cpu import native

N = 100
HERE, BACK = axis(0, N), axis(0, N) * -1 + (N - 1)


class Pointers:
    """A kernel of one program, with pointers to whole numbers."""

    def __init__(self, *names: str, dtype: DType = f32, alias: int = 0) -> None:
        self.b = Builder("order")
        self.b.program_id(0, 1)
        self.pointers = {name: self.pointer(name, dtype, alias) for name in names}

    def pointer(self, name: str, dtype: DType, alias: int) -> Buffer:
        buffer = self.b.buffer(name, dtype, 4 * N, "output")
        buffer.open, buffer.alias = True, alias
        return buffer

    def load(self, name: str, at: Index = HERE, count: int = N) -> Value:
        shape = (count,) if count else ()
        return self.b.load(self.b.view(self.pointers[name], (UNBOUNDED,)), (at,), shape)

    def store(self, name: str, value: Value, at: Index = HERE) -> None:
        self.b.store(self.b.view(self.pointers[name], (UNBOUNDED,)), (at,), value)

    def twice(self, value: Value) -> Value:
        return self.b.map("add", value, value)

    def more(self, value: Value, by: int = 1) -> Value:
        return self.b.map("add", value, self.b.full(by, value.shape, value.dtype))


def check(kernel: Kernel, arrays: Mapping[str, np.ndarray]) -> None:
    """arrays: they may share memory."""
    before = {name: array.copy() for name, array in arrays.items()}
    interpret.run(kernel, arrays, races=False)
    want = {name: array.copy() for name, array in arrays.items()}
    for name, array in arrays.items():
        array[:] = before[name]
    native.run_in_place(kernel, arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, want[name], err_msg=f"{name}\n{print_kernel(kernel)}")


def numbers(*names: str, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {name: (np.arange(4 * N) % 97 + 10 * i).astype(dtype) for i, name in enumerate(names)}


def held(kernel: Kernel) -> int:
    return len(placement.analyse(kernel, native.HOST).held)


def reverse_in_place(p: Pointers) -> None:
    p.store("x", p.load("x"), BACK)


def shift_in_place(p: Pointers) -> None:
    p.store("x", p.load("x"), HERE + 1)


def swap(p: Pointers) -> None:
    x, y = p.load("x"), p.load("y")
    p.store("x", y)
    p.store("y", x)


def load_store_load(p: Pointers) -> None:
    first = p.load("x")
    p.store("x", p.more(first))
    second = p.load("x")
    p.store("x", p.twice(second))
    p.store("y", p.b.map("sub", second, first))


def sum_before_a_store(p: Pointers) -> None:
    total = p.b.reduce("sum", p.load("x"), 0)
    p.store("x", p.b.full(0, (N,), f32))
    p.store("y", total, Index(0))


def two_stores_of_one_place(p: Pointers) -> None:
    x = p.load("x")
    p.store("x", p.more(x))
    p.store("x", p.more(x, 2))


def an_element_of_another(p: Pointers) -> None:
    """Each iteration reads what the one before it wrote."""

    def body(i: Value) -> tuple[Value, ...]:
        last = p.load("x", index(i), 0)
        p.store("x", p.more(last), index(i) + 1)
        return ()

    p.b.loop(0, 50, 1, (), body)


def carried_and_in_memory(p: Pointers) -> None:
    def body(i: Value, total: Value) -> tuple[Value]:
        x = p.load("x")
        p.store("x", p.more(x))
        return (p.b.map("add", total, x),)

    (total,) = p.b.loop(0, 5, 1, (p.load("y"),), body)
    p.store("y", total)


def before_a_branch(p: Pointers) -> None:
    x = p.load("x")
    some = p.b.reduce("max", x, 0)
    large = p.b.map("gt", some, p.b.full(5, (), f32))

    def then() -> tuple[()]:
        p.store("x", p.twice(x), BACK)
        return ()

    p.b.branch(large, then, lambda: ())
    p.store("y", x)


def in_a_branch(p: Pointers) -> None:
    x = p.load("x")
    large = p.b.map("gt", p.b.reduce("max", x, 0), p.b.full(500, (), f32))

    def other() -> tuple[Value]:
        p.store("x", p.more(x, 7))
        return (p.load("x", BACK),)

    (found,) = p.b.branch(large, lambda: (p.load("y"),), other)
    p.store("x", p.b.full(1, (N,), f32))
    p.store("y", found)


def until_it_is_found(p: Pointers) -> None:
    """A loop whose condition is in memory."""

    def condition() -> Value:
        return p.b.map("lt", p.load("x", Index(0), 0), p.b.full(20, (), f32))

    def body() -> tuple[()]:
        p.store("x", p.more(p.load("x", Index(0), 0), 3), Index(0))
        return ()

    p.b.while_loop((), condition, body)


def at_an_index_in_memory(p: Pointers) -> None:
    """What is stored moves the place of the next load."""
    for _ in range(3):
        here = p.b.cast(p.load("x", Index(5), 0), i32)
        place = p.b.map("mod", here, p.b.full(50, (), i32))
        p.store("x", p.more(p.load("x", index(place), 0), 11), Index(5))


def kept_for_two(p: Pointers) -> None:
    """A costly value that two stores use, the first of them into its memory."""
    e = p.b.map("sqrt", p.b.map("exp", p.b.map("tanh", p.load("x"))))
    p.store("x", p.b.map("sub", e, e))
    p.store("y", p.b.map("floor", e))


CASES = (
    reverse_in_place, shift_in_place, swap, load_store_load, sum_before_a_store,
    two_stores_of_one_place, an_element_of_another, carried_and_in_memory, before_a_branch,
    in_a_branch, until_it_is_found, at_an_index_in_memory, kept_for_two,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_order(case: Callable[[Pointers], None]) -> None:
    pointers = Pointers("x", "y")
    case(pointers)
    check(pointers.b.build(), numbers("x", "y"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("distance", [0, 1, 5])
def test_order_of_overlapping_buffers(case: Callable[[Pointers], None], distance: int) -> None:
    """y is x, or begins a few elements behind its start."""
    pointers = Pointers("x", "y", alias=3)
    case(pointers)
    both = (np.arange(4 * N + distance) % 89).astype(np.float32)
    check(pointers.b.build(), {"x": both[: 4 * N], "y": both[distance:]})


def test_a_copy_onto_itself() -> None:
    """Of overlapping buffers, a tile is read before it is written."""
    p = Pointers("x", "y", alias=1)
    p.store("y", p.more(p.load("x")))
    both = np.arange(4 * N + 1).astype(np.float32)
    check(p.b.build(), {"x": both[:-1], "y": both[1:]})


def test_halves_of_a_word() -> None:
    """Buffers that overlap have dtypes of their own."""
    b = Builder("bytes")
    b.program_id(0, 1)
    words, parts = b.buffer("words", i32, N, "output"), b.buffer("parts", i8, 4 * N, "output")
    for buffer in (words, parts):
        buffer.open, buffer.alias = True, 1
    whole = b.load(b.view(words, (N,)), (HERE,), (N,))
    ends = b.load(b.view(parts, (N,), (4,)), (HERE,), (N,))
    b.store(b.view(parts, (N,), (4,)), (BACK,), ends)
    again = b.load(b.view(words, (N,)), (HERE,), (N,))
    b.store(b.view(words, (N,)), (HERE,), b.map("sub", whole, again))
    memory = np.arange(N, dtype=np.int32) * 77777
    check(b.build(), {"words": memory, "parts": memory.view(np.int8)})


def test_updates_in_place_need_no_copy() -> None:
    p = Pointers("x", "y")
    p.store("x", p.more(p.load("x")))
    p.store("y", p.twice(p.load("y", HERE * 2)), HERE * 2)
    kernel = p.b.build()
    assert held(kernel) == 0
    check(kernel, numbers("x", "y"))


def test_what_may_meet_is_copied() -> None:
    same_element, several = axis(0, N) // 2, Index(3)
    for at in (same_element, several):
        p = Pointers("x")
        p.store("x", p.load("x", at), at)
        assert held(p.b.build()) == 1
    p = Pointers("x")
    reverse_in_place(p)
    assert held(p.b.build()) == 1


def test_a_store_does_not_pass_a_load() -> None:
    """Stores of one shape share a loop, but for those with a load of their memory between them."""
    p = Pointers("x", "y", dtype=f16)
    p.store("x", p.b.full(3, (N,), f16))
    p.store("y", p.load("x", BACK))
    p.store("x", p.b.full(4, (N,), f16))
    check(p.b.build(), numbers("x", "y", dtype=np.float16))


def test_a_store_does_not_pass_a_loop() -> None:
    p = Pointers("x", "y")
    p.store("y", p.b.full(3, (N,), f32))

    def body(i: Value, total: Value) -> tuple[Value]:
        return (p.b.map("add", total, p.load("x", HERE + index(i))),)

    (total,) = p.b.loop(0, 3, 1, (p.b.full(0, (N,), f32),), body)
    p.store("x", p.b.full(9, (N,), f32))
    p.store("y", total, HERE + N)
    check(p.b.build(), numbers("x", "y"))
