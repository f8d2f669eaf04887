"""Random tile programs: the passes keep what they do, and text parses back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fuser.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index, lookup, maximum, minimum
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel, View
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.text import canonical_text, print_kernel
from fuser.tilegen.value import Value
from fuser.tilegen.verify import verify
from tests.tilegen.programs import random_arrays

SHAPES: tuple[tuple[int, ...], ...] = ((4,), (6, 4), (1, 6), (6, 1), (4, 6))
SIZE = 100
FLOATS = ("add", "sub", "mul", "min", "max", "neg", "abs", "floor")
INTEGERS = ("add", "sub", "mul", "min", "max", "neg")


class Author:
    """Writes a random program: a pool of values grows op by op, and some of it is stored."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.b = Builder(f"random{seed}")
        self.inputs = [
            self.b.buffer(f"x{dtype}", dtype, SIZE) for dtype in (f32, f16, bf16, i32, i64, i8)
        ]
        self.programs = self.random.choice((1, 3))
        self.pid = self.b.program_id(0, self.programs)
        self.scalars: list[Value] = [self.pid]
        self.pool: list[Value] = []

    def kernel(self) -> Kernel:
        for _ in range(self.random.randint(5, 40)):
            self.step(2)
        outputs = self.random.sample(self.pool, min(3, len(self.pool)))
        for number, value in enumerate(outputs):
            self.store(f"y{number}", value)
        return self.b.build()

    def store(self, name: str, value: Value) -> None:
        size = value.type.size
        buffer = self.b.buffer(name, value.dtype, size * self.programs, "output")
        view = self.b.view(buffer, (self.programs, *value.shape))
        places = [axis(i, dim) for i, dim in enumerate(value.shape)]
        self.b.store(view, (index(self.pid), *places), value)

    # pieces -------------------------------------------------------------------------------------

    def any(self, *kinds: str, shape: tuple[int, ...] | None = None) -> Value:
        fits = [
            v for v in self.pool if v.dtype.kind in kinds and (shape is None or v.shape == shape)
        ]
        if fits and self.random.random() < 0.9:
            return self.random.choice(fits)
        shape = self.random.choice(SHAPES) if shape is None else shape
        kind = self.random.choice(kinds)
        if kind == "bool":
            return self.b.full(self.random.random() < 0.5, shape, bool_)
        if kind == "int":
            return self.b.full(self.random.choice((0, 1, 2, 5)), shape, i32)
        return self.b.full(self.random.choice((0.0, -0.0, 1.0, 2.5)), shape, f32)

    def like(self, value: Value) -> Value:
        """Another value of the same type."""
        fits = [v for v in self.pool if v.type == value.type]
        if fits and self.random.random() < 0.6:
            return self.random.choice(fits)
        number = self.random.choice((0, 1, 3))
        return self.b.full(number, value.shape, value.dtype)

    def expression(self, shape: tuple[int, ...]) -> Index:
        result = index(self.random.randint(-3, 9))
        for number, dim in enumerate(shape):
            if self.random.random() < 0.8:
                result = result + axis(number, dim) * self.random.choice((1, 2, 4))
        result = result + index(self.random.choice(self.scalars)) * self.random.choice((0, 1, 4))
        tiles = [v for v in self.pool if v.dtype.kind == "int" and v.shape == shape]
        if tiles and self.random.random() < 0.4:
            result = result + lookup(self.random.choice(tiles), range(len(shape)))
        pick = self.random.randrange(6)
        if pick == 0:
            return result // self.random.choice((2, 3, 4))
        if pick == 1:
            return result % self.random.choice((2, 5, 8))
        if pick == 2:
            return maximum(minimum(result, 7), 0)
        return result

    def load(self) -> Value:
        buffer = self.random.choice(self.inputs)
        shape = self.random.choice(SHAPES)
        view: View = self.b.view(buffer, (SIZE,))
        return self.b.load(view, (self.expression(shape),), shape, pad=self.random.choice((0, 3)))

    def widened(self, value: Value) -> Value:
        return self.b.cast(value, value.dtype.compute)

    # ops ----------------------------------------------------------------------------------------

    def step(self, depth: int) -> None:
        makers = [
            self.load, self.make_index, self.make_float, self.make_int, self.make_compare,
            self.make_select, self.make_cast, self.make_move, self.make_reduce,
        ]  # fmt: skip
        if depth:
            makers += [self.make_loop, self.make_branch]
        self.pool.append(self.random.choice(makers)())

    def make_index(self) -> Value:
        shape = self.random.choice(SHAPES)
        return self.b.index(self.expression(shape), shape, self.random.choice((i32, i64)))

    def make_float(self) -> Value:
        fn = self.random.choice(FLOATS)
        a = self.widened(self.any("float"))
        if fn in ("neg", "abs", "floor"):
            return self.b.map(fn, a)
        return self.b.map(fn, a, self.like(a))

    def make_int(self) -> Value:
        fn = self.random.choice(INTEGERS)
        a = self.any("int")
        return self.b.map(fn, a) if fn == "neg" else self.b.map(fn, a, self.like(a))

    def make_compare(self) -> Value:
        a = self.widened(self.any("float", "int"))
        return self.b.map(self.random.choice(("lt", "le", "gt", "ge", "eq", "ne")), a, self.like(a))

    def make_select(self) -> Value:
        condition = self.any("bool")
        a = self.any("float", "int", "bool", shape=condition.shape)
        return self.b.map("select", condition, a, self.like(a))

    def make_cast(self) -> Value:
        x = self.any("float", "int", "bool")
        if x.dtype.is_float:
            return self.b.cast(x, self.random.choice((f16, bf16, f32, f64)))
        targets: tuple[DType, ...] = (i8, i32, i64, f32, f64)
        return self.b.cast(x, self.random.choice(targets))

    def make_move(self) -> Value:
        x = self.any("float", "int", "bool")
        pick = self.random.randrange(3)
        if pick == 0:
            return self.b.permute(x, self.random.sample(range(x.type.rank), x.type.rank))
        if pick == 1 and len(x.shape) == 2:
            return self.b.reshape(x, x.shape[::-1])
        shape = tuple(5 if dim == 1 else dim for dim in x.shape)
        places = [place + 1 for place in range(len(shape))]
        return self.b.broadcast(x, (self.random.choice((1, 2)), *shape), places)

    def make_reduce(self) -> Value:
        x = self.widened(self.any("float", "int"))
        if not x.shape:
            return x
        fn = self.random.choice(("max", "min", "sum"))
        number = self.random.randrange(len(x.shape))
        if self.random.random() < 0.3:
            return self.b.scan(fn, x, number, self.random.random() < 0.5)  # type: ignore[arg-type]
        return self.b.reduce(fn, x, number)  # type: ignore[arg-type]

    def make_loop(self) -> Value:
        init = self.any("float", "int")
        known = list(self.pool)

        def body(variable: Value, carried: Value) -> list[Value]:
            self.scalars.append(variable)
            self.pool.append(carried)
            for _ in range(self.random.randint(1, 4)):
                self.step(0)
            result = self.like(carried)
            self.scalars.pop()
            self.pool[:] = known
            return [result]

        start, trips = self.random.randint(0, 3), self.random.choice((0, 1, 1, 3))
        step = self.random.choice((1, 2))
        (result,) = self.b.loop(start, start + trips * step, step, (init,), body)
        return result

    def make_branch(self) -> Value:
        known = list(self.pool)
        place = index(self.random.choice(self.scalars)) + self.random.randint(-1, 1)
        condition = self.b.map("gt", self.b.index(place), self.b.index(index(0)))
        value = self.any("float", "int")

        def side() -> list[Value]:
            for _ in range(2):
                self.step(0)
            result = self.like(value)
            self.pool[:] = known
            return [result]

        (result,) = self.b.branch(condition, side, side)
        return result


@pytest.mark.parametrize("seed", range(80))
def test_passes_keep_the_meaning(seed: int) -> None:
    kernel = Author(seed).kernel()
    verify(kernel)
    text = print_kernel(kernel)
    arrays = random_arrays(kernel, np.random.default_rng(seed))
    before = {name: array.copy() for name, array in arrays.items()}
    run(kernel, before)
    run_passes(kernel, verify=True)
    after = {name: array.copy() for name, array in arrays.items()}
    run(kernel, after)
    for name, array in before.items():
        # (the sign of a sum that is zero is open: it depends on where the fold starts)
        detail = f"{name}\n{text}\n{print_kernel(kernel)}"
        np.testing.assert_array_equal(array, after[name], err_msg=detail)
    parsed = parse_kernel(print_kernel(kernel))
    assert print_kernel(parsed) == print_kernel(kernel)
    again = parse_kernel(text)
    assert print_kernel(again) == text
    run_passes(again, verify=True)
    assert canonical_text(again) == canonical_text(kernel)
