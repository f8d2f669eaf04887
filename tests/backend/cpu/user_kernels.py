"""Random kernels of the kind that users write: pointers with offsets that are computed, masks,
memory that is loaded and stored again, loops and branches around stores, tiles of many shapes.

Numbers are small whole ones, which sums keep exactly, in whatever order: results are equal bit by
bit, but for the sign of zeros.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuser.dtypes import ALL, DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from fuser.tilegen import ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index, lookup
from fuser.tilegen.ir import Buffer, Kernel
from fuser.tilegen.value import UNBOUNDED, Value

Array = np.ndarray[Any, Any]
SIZE = 256
"""Elements of every buffer; a power of two."""
FAR = 1 << 40
"""An offset that no buffer has."""
NUMBERS = tuple(dtype for dtype in ALL if dtype is not bool_)
WIDE = tuple(dtype for dtype in NUMBERS if not (dtype.is_float and dtype.bits < 32))
EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64)
PLACES = (i32, i64, u8)


class Author:
    """Writes one kernel; the same seed, the same kernel."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.b = Builder(f"user{seed}")
        self.buffers = [self.buffer(f"p{n}", self.random.choice(ALL)) for n in range(4)]
        self.shared()
        self.pid = self.b.program_id(0, self.random.choice((1, 2, 3)))
        self.pool: list[Value] = [
            self.b.scalar(f"s{dtype}", dtype) for dtype in (i32, i64, f32, bool_, u8)
        ]
        self.outputs = 0
        self.depth = 0

    def kernel(self) -> Kernel:
        for _ in range(self.random.randint(6, 22)):
            self.step()
        for value in self.random.sample(self.pool, min(4, len(self.pool))):
            self.keep(value)
        return self.b.build()

    def buffer(self, name: str, dtype: DType) -> Buffer:
        buffer = self.b.buffer(name, dtype, SIZE, "output")
        buffer.open = True
        buffer.align = self.random.choice((0, 1, 16))
        return buffer

    def shared(self) -> None:
        """Sometimes two buffers are one."""
        if self.random.random() < 0.4:
            other = self.buffer("q", self.buffers[0].dtype)
            self.buffers[0].alias = other.alias = 7
            self.buffers.append(other)

    def keep(self, value: Value) -> None:
        """Store a value where each program has room of its own."""
        size = value.type.size
        buffer = self.b.buffer(f"y{self.outputs}", value.dtype, size * 3, "output")
        self.outputs += 1
        at = [axis(i, extent) for i, extent in enumerate(value.shape)]
        self.b.store(self.b.view(buffer, (3, *value.shape)), (index(self.pid), *at), value)

    # choices ------------------------------------------------------------------------------------

    def shape(self) -> tuple[int, ...]:
        rank = self.random.choice((0, 1, 1, 1, 2, 2, 3, 4, 5))
        found = [self.random.choice(EXTENTS) for _ in range(rank)]
        while np.prod(found, dtype=int) > SIZE:
            found[self.random.randrange(rank)] = 1
        return tuple(found)

    def fitting(self) -> tuple[int, ...]:
        """The shape of a tile of the pool, or another one, no larger than a buffer."""
        shape = self.tile().shape if self.random.random() < 0.8 else self.shape()
        return shape if np.prod(shape, dtype=int) <= SIZE else self.shape()

    def value(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        """One of the pool that fits, if there is one, else a new one."""
        fits = [v for v in self.pool if v.dtype == dtype and v.shape == shape]
        if fits and self.random.random() < 0.8:
            return self.random.choice(fits)
        near = [v for v in self.pool if v.shape == shape and v.dtype.name != "index"]
        if near and self.random.random() < 0.6:
            return self.cast(self.random.choice(near), dtype)
        if self.random.random() < 0.3:
            return self.b.full(self.random.randint(0, 5), shape, dtype)
        return self.cast(self.positions(shape), dtype)

    def positions(self, shape: tuple[int, ...]) -> Value:
        """Small whole numbers that differ between elements."""
        expression = Index(self.random.randint(0, 6))
        for i, extent in enumerate(shape):
            expression = expression + axis(i, extent) * self.random.randint(1, 5)
        if self.random.random() < 0.5:
            expression = expression + index(self.pid) * self.random.randint(1, 4)
        return self.b.index(expression % self.random.choice((5, 8, 11)), shape, i32)

    def cast(self, value: Value, dtype: DType) -> Value:
        if value.dtype.is_float and dtype.kind == "uint":
            value = self.b.map("abs", self.b.cast(value, f32))
        return self.b.cast(value, dtype)

    def small(self, value: Value) -> Value:
        """The value kept within what all sums hold."""
        if not value.dtype.is_float:
            return value
        limit = [self.b.full(n, value.shape, value.dtype) for n in (-8, 8)]
        return self.b.map("min", self.b.map("max", value, limit[0]), limit[1])

    def add(self, value: Value) -> Value:
        self.pool.append(value)
        return value

    def tile(self) -> Value:
        tiles = [v for v in self.pool if v.shape]
        if tiles and self.random.random() < 0.8:
            return self.random.choice(tiles[-8:])
        return self.add(self.value(self.random.choice(WIDE), self.shape() or (5,)))

    # steps --------------------------------------------------------------------------------------

    def step(self) -> None:
        kinds: list[Callable[[], None]] = [
            self.load, self.load, self.store, self.store, self.map, self.map, self.move, self.fold,
            self.bits, self.gather, self.dot, self.atomic, self.update,
        ]  # fmt: skip
        if self.depth < 2:
            kinds += [self.branch, self.loop, self.while_loop]
        self.random.choice(kinds)()

    def offsets(self, shape: tuple[int, ...], distinct: bool) -> Value:
        """An integer tile of places within a buffer."""
        dtype = self.random.choice(PLACES if SIZE <= 256 else PLACES[:2])
        if distinct or self.random.random() < 0.5:
            flat = Index(0)
            for i, extent in enumerate(shape):
                flat = flat * extent + axis(i, extent)
            start, step = self.random.randrange(SIZE), self.random.choice((1, 1, 1, 3, 5, -1, -3))
            numbers = self.b.index(flat * step + start, shape, i32)
        else:
            numbers = self.cast(self.value(self.random.choice((i32, i8, i64)), shape), i32)
        last = self.b.full(SIZE - 1, shape, i32)
        return self.b.cast(self.b.map("bitwise_and", numbers, last), dtype)

    def mask(self, shape: tuple[int, ...]) -> Value | None:
        if self.random.random() < 0.4:
            return None
        if shape and self.random.random() < 0.2:
            return self.b.broadcast(self.value(bool_, ()), shape, ())
        left = self.b.cast(self.positions(shape), i32)
        right = self.b.full(self.random.randint(0, 8), shape, i32)
        return self.b.map(self.random.choice(("lt", "ne", "ge")), left, right)

    def place(
        self, buffer: Buffer, shape: tuple[int, ...], distinct: bool
    ) -> tuple[tuple[int, ...], tuple[Index, ...], Value | None]:
        """(shape of a view, indices, mask) for a tile."""
        mask = self.mask(shape)
        axes = tuple(range(len(shape)))
        form = self.random.random()
        if form < 0.3:  # a view with bounds, which some elements are beyond
            starts = [self.random.randint(-1, 2) for _ in shape]
            at = [
                axis(i, n) + start for (i, n), start in zip(enumerate(shape), starts, strict=True)
            ]
            return shape, tuple(at), mask
        if form < 0.6:  # neighbours, in some order of axes
            order = self.random.sample(axes, len(axes))
            flat, step = Index(self.random.randint(0, SIZE - int(np.prod(shape, dtype=int)))), 1
            for i in order:
                forward = self.random.random() < 0.8
                flat = (
                    flat
                    + (axis(i, shape[i]) if forward else -1 * axis(i, shape[i]) + (shape[i] - 1))
                    * step
                )
                step *= shape[i]
            return (UNBOUNDED,), (flat,), mask
        places = self.offsets(shape, distinct)
        if not shape:
            return (UNBOUNDED,), (index(places),), mask
        if mask is not None and self.random.random() < 0.5:  # nobody may go there
            far = self.b.full(FAR, shape, i64)
            places = self.b.map("select", mask, self.b.cast(places, i64), far)
        return (UNBOUNDED,), (lookup(places, axes),), mask

    def load(self) -> None:
        buffer, shape = self.random.choice(self.buffers), self.shape()
        extents, at, mask = self.place(buffer, shape, False)
        pad = self.random.choice((0, 1))
        view = self.b.view(buffer, extents)
        self.add(self.b.load(view, at, shape, pad, mask))

    def store(self) -> None:
        buffer = self.random.choice(self.buffers)
        shape = self.fitting()
        value = (
            self.small(self.value(buffer.dtype, shape))
            if buffer.dtype in WIDE
            else self.value(buffer.dtype, shape)
        )
        extents, at, mask = self.place(buffer, shape, True)
        self.b.store(self.b.view(buffer, extents), at, value, mask)

    def update(self) -> None:
        """Load, change and store in place."""
        buffer = self.random.choice(self.buffers)
        if buffer.dtype not in WIDE:
            return
        shape = self.shape()
        extents, at, mask = self.place(buffer, shape, True)
        view = self.b.view(buffer, extents)
        old = self.b.load(view, at, shape, 0, mask)
        new = self.small(self.b.map("add", old, self.value(buffer.dtype, shape)))
        self.b.store(view, at, new, mask)
        self.add(old)

    def map(self) -> None:
        x = self.tile() if self.random.random() < 0.7 else self.random.choice(self.pool)
        if x.dtype is bool_:
            fn = self.random.choice(("logical_and", "logical_or", "logical_xor", "max", "min"))
            self.add(self.b.map(fn, x, self.value(bool_, x.shape)))
            return
        if x.dtype not in WIDE:
            x = self.b.cast(x, f32)
        y = self.value(x.dtype, x.shape)
        fns = ["add", "sub", "min", "max", "fmin", "fmax", "mul", "lt", "eq", "ge", "select"]
        if x.dtype.is_integer:
            fns += ["bitwise_xor", "bitwise_and", "mul_high", "shift_right", "div"]
        fn = self.random.choice(fns)
        if fn == "select":
            self.add(self.b.map(fn, self.value(bool_, x.shape), x, y))
        elif fn == "mul" and x.dtype.is_float:
            self.add(self.small(self.b.map(fn, self.small(x), self.small(y))))
        elif fn == "shift_right":
            few = self.b.full(self.random.randint(0, 9), x.shape, x.dtype)
            self.add(self.b.map(fn, x, few))
        else:
            self.add(
                self.small(self.b.map(fn, x, y)) if fn in ("add", "sub") else self.b.map(fn, x, y)
            )

    def move(self) -> None:
        x = self.tile()
        kind = self.random.choice(("permute", "reshape", "broadcast"))
        if kind == "permute":
            self.add(self.b.permute(x, self.random.sample(range(x.type.rank), x.type.rank)))
        elif kind == "reshape":
            flat = self.b.reshape(x, (x.type.size,))
            for first in (2, 3, 4, 5, 8):
                if x.type.size % first == 0 and self.random.random() < 0.5:
                    self.add(self.b.reshape(flat, (first, x.type.size // first)))
                    return
            self.add(flat)
        else:
            extent = self.random.choice((1, 2, 3, 5, 8))
            if x.type.size * extent <= SIZE and x.type.rank < 5:
                at = self.random.randint(0, x.type.rank)
                shape = (*x.shape[:at], extent, *x.shape[at:])
                kept = [i for i in range(x.type.rank + 1) if i != at]
                self.add(self.b.broadcast(x, shape, kept))

    def fold(self) -> None:
        x = self.tile()
        if x.dtype not in (*WIDE, bool_):
            x = self.b.cast(x, f32)
        fns: list[ops.ReduceFn] = ["max", "min", "fmax", "fmin"]
        if x.dtype is not bool_:
            fns += ["sum", "sum", "prod"] if x.dtype.is_integer else ["sum", "sum"]
        if not x.dtype.is_float:
            fns += ["bitwise_and", "bitwise_or", "bitwise_xor"]
        along, fn = self.random.randrange(x.type.rank), self.random.choice(fns)
        x = self.small(x)
        if self.random.random() < 0.7:
            self.add(self.small(self.b.reduce(fn, x, along)))
        else:
            self.add(self.small(self.b.scan(fn, x, along, self.random.random() < 0.5)))

    def bits(self) -> None:
        x = self.tile()
        if x.dtype.is_float:
            wide = self.b.cast(x, f32 if x.dtype.bits < 64 else f64)
            x = self.b.cast(self.b.map("add", wide, self.b.full(0, x.shape, wide.dtype)), x.dtype)
        whole = [d for d in ALL if d.bits == x.dtype.bits and d.is_integer]
        if whole and x.dtype is not bool_:
            self.add(self.b.bitcast(x, self.random.choice(whole)))

    def gather(self) -> None:
        x = self.tile()
        along = self.random.randrange(x.type.rank)
        extent = self.random.choice((1, 2, 3, 8, x.shape[along]))
        shape = (*x.shape[:along], extent, *x.shape[along + 1 :])
        if np.prod(shape, dtype=int) > SIZE:
            return
        places = Index(self.random.randint(0, 3))
        for i, n in enumerate(shape):
            places = places + axis(i, n) * self.random.randint(0, 3)
        at = self.b.index(places % x.shape[along], shape, i32)
        self.add(self.b.gather(x, self.b.cast(at, self.random.choice((i32, i64))), along))

    def dot(self) -> None:
        m, n, k = (self.random.choice((1, 2, 3, 5, 8, 15, 16)) for _ in range(3))
        dtype = self.random.choice((f16, bf16, f32, f64, i8))
        total = i32 if dtype is i8 else f64 if dtype is f64 else f32
        a, b, acc = self.value(dtype, (m, k)), self.value(dtype, (k, n)), self.value(total, (m, n))
        if dtype in (f32, f64):
            a, b = self.small(a), self.small(b)
        self.add(self.small(self.b.dot(a, b, self.small(acc))))

    def atomic(self) -> None:
        buffer = self.random.choice(self.buffers)
        shape = self.random.choice((self.shape(), ()))
        value = self.value(buffer.dtype, shape)
        fns: list[ops.AtomicFn] = ["exchange", "compare_exchange", "max", "min"]
        if buffer.dtype in WIDE and not buffer.dtype.is_float:
            fns += ["add", "and", "or", "xor"]
        fn = self.random.choice(fns)
        extents, at, mask = self.place(buffer, shape, self.random.random() < 0.5)
        compare = self.value(buffer.dtype, shape) if fn == "compare_exchange" else None
        if compare is not None and buffer.dtype.is_float:
            return  # zeros have signs
        view = self.b.view(buffer, extents)
        self.add(self.b.atomic(fn, view, at, value, compare=compare, mask=mask))

    # control ------------------------------------------------------------------------------------

    def inside(self, gives: Sequence[Value]) -> list[Value]:
        """Some steps, and values of the types of `gives`."""
        kept, self.pool = self.pool, list(self.pool)
        self.depth += 1
        for _ in range(self.random.randint(0, 4)):
            self.step()
        self.depth -= 1
        found = [self.like(value) for value in gives]
        self.random.shuffle(found) if len({v.type for v in found}) == 1 else None
        self.pool = kept
        return found

    def like(self, value: Value) -> Value:
        found = self.value(value.dtype, value.shape)
        return self.small(found) if found.dtype in WIDE else found

    def carried(self) -> list[Value]:
        found = [self.random.choice(self.pool) for _ in range(self.random.randint(0, 3))]
        if found and self.random.random() < 0.5:
            found.append(self.value(found[0].dtype, found[0].shape))
        return found

    def branch(self) -> None:
        gives = self.carried()
        condition = self.value(bool_, ())
        sides = [lambda: self.inside(gives), lambda: self.inside(gives)]
        self.pool += self.b.branch(condition, *sides)

    def loop(self) -> None:
        gives = self.carried()
        start: Index | int = self.random.choice((0, 0, -3, 2))
        stop: Index | int = self.random.choice((0, 2, 3, 5, -2))
        if self.random.random() < 0.4:
            whole = self.value(i32, ())
            three = self.b.full(3, (), i32)
            stop = index(self.b.map("bitwise_and", whole, three))

        def body(i: Value, *carried: Value) -> list[Value]:
            kept, self.pool = self.pool, [*self.pool, *carried]
            self.pool.append(self.b.index(index(i) * 2 + 3, (), i32))
            found = self.inside(gives)
            self.pool = kept
            return found

        self.pool += self.b.loop(start, stop, self.random.choice((1, 2)), gives, body)

    def while_loop(self) -> None:
        gives = [self.b.full(0, (), i32), *self.carried()]
        most = self.random.randint(0, 4)

        def condition(count: Value, *carried: Value) -> Value:
            kept, self.pool = self.pool, [*self.pool, *carried]
            self.inside([])
            self.pool = kept
            return self.b.map("lt", count, self.b.full(most, (), i32))

        def body(count: Value, *carried: Value) -> list[Value]:
            kept, self.pool = self.pool, [*self.pool, *carried, count]
            found = self.inside(gives[1:])
            self.pool = kept
            return [self.b.map("add", count, self.b.full(1, (), i32)), *found]

        self.pool += self.b.while_loop(gives, condition, body)


def memory(kernel: Kernel, seed: int) -> dict[str, Array]:
    """An array for each buffer; those of one alias lie in one, 3 elements apart."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    shared: dict[int, Array] = {}
    for buffer in kernel.buffers:
        room = np.zeros(buffer.size + 64, buffer.dtype.numpy)
        first = (-(room.ctypes.data // buffer.dtype.bytes)) % (64 // buffer.dtype.bytes)
        array = room[first : first + buffer.size]
        if buffer.name[0] == "p":
            high = 2 if buffer.dtype is bool_ else 8
            array[:] = rng.integers(0, high, buffer.size).astype(buffer.dtype.numpy)
        if buffer.alias in shared and buffer.alias:
            array = shared[buffer.alias]
        shared[buffer.alias] = array
        found[buffer.name] = array
    return found


SCALARS: dict[str, float | int | bool] = {
    "si32": 5, "si64": 3, "sf32": 2.0, "sbool": True, "su8": 6
}  # fmt: skip
