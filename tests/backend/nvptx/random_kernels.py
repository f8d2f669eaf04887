"""Random tile programs of callers: what a block language makes of user code, in all combinations.

Numbers are small whole ones, so that sums come out alike in any order and results are compared bit
by bit. Every program of the grid has a region of each buffer for itself, in which it loads, stores
and loads again, in any layout, through buffers that overlap.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from fuser.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64
from fuser.graph.dims import as_int, symbol
from fuser.graph.sizes import Sizes
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index, lookup
from fuser.tilegen.ir import Buffer, Kernel, View
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import UNBOUNDED, Value

REGION = 4096
PROGRAMS = 2
MOST = 2048
"""Elements of a tile."""
WORDS = (f32, i32, i64, f16)
LEAST, GREATEST = -8, 8
DOTS = ((f16, f32), (bf16, f32), (f32, f32), (i8, i32), (f64, f64))


class Random:
    """One kernel. Tiles that exist are kept by type, and ops pick among them."""

    def __init__(self, seed: int, size: int = 14, dim: Callable[[int], int] = int) -> None:
        """dim: how the kernel knows a number of the launch, as itself or as a symbol."""
        self.dim = dim
        self.rng = random.Random(seed)
        self.warps = self.rng.choice((1, 2, 4, 4, 8, 16, 32))
        self.b = Builder(
            f"random{seed}", Schedule(warps=self.warps, stages=self.rng.choice((1, 3)))
        )
        self.pid = self.b.program_id(0, PROGRAMS)
        self.base = index(self.pid) * dim(REGION)
        self.views: dict[DType, list[View]] = {}
        for dtype in WORDS:
            for number, role in enumerate(("input", "output", "output")):
                buffer = self.b.buffer(
                    f"{dtype.name}_{number}", dtype, REGION * PROGRAMS,
                    role="input" if role == "input" else "output",
                )  # fmt: skip
                buffer.open = True
                buffer.align = self.rng.choice((0, 16))
                self.views.setdefault(dtype, []).append(self.b.view(buffer, (UNBOUNDED,), (1,)))
        for dtype in WORDS:  # the same memory under two names
            made = Buffer(f"{dtype.name}_3", dtype, REGION * PROGRAMS, "output", True)
            self.b.kernel.buffers.append(made)
            made.alias = self.views[dtype][2].buffer.alias = 1 + WORDS.index(dtype)
            self.views[dtype].append(self.b.view(made, (UNBOUNDED,), (1,)))
        self.count = self.b.scalar("count", i32)
        self.flag = self.b.scalar("flag", bool_)
        self.pools: list[list[Value]] = [[]]
        self.size = size

    # what there is ------------------------------------------------------------------------------

    def values(self) -> list[Value]:
        return [value for pool in self.pools for value in pool]

    def keep(self, value: Value) -> Value:
        """Numbers stay small; wide tiles stay few."""
        if value.dtype.kind == "bool":
            self.pools[-1].append(value)
            return value
        b = self.b
        wide = value
        if value.dtype.compute is not value.dtype:
            wide = b.cast(value, f32)
        low = b.full(LEAST, value.shape, wide.dtype)
        high = b.full(GREATEST, value.shape, wide.dtype)
        kept = b.cast(b.map("min", b.map("max", wide, low), high), value.dtype)
        self.pools[-1].append(kept)
        return kept

    def shape(self) -> tuple[int, ...]:
        rank = self.rng.choice((1, 1, 2, 2, 3))
        while True:
            dims = tuple(1 << self.rng.randrange(0, 10 if rank == 1 else 7) for _ in range(rank))
            if int(np.prod(dims)) <= MOST:
                return dims

    def pick(self, dtype: DType | None = None, shape: tuple[int, ...] | None = None) -> Value:
        """A tile that is there, or one that is made for the purpose."""
        found = [
            value for value in self.values()
            if (dtype is None or value.dtype is dtype) and (shape is None or value.shape == shape)
        ]  # fmt: skip
        if found and self.rng.random() < 0.9:
            return self.rng.choice(found)
        wanted = self.shape() if shape is None else shape
        return self.load(dtype or self.rng.choice(WORDS), wanted)

    # memory -------------------------------------------------------------------------------------

    def place(self, shape: Sequence[int]) -> Index:
        """A window of the region: elements apart, in some order of axes."""
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        at, step = self.base, self.rng.choice((1, 1, 2))
        step = 1 if int(np.prod(shape)) * step > REGION else step
        room = REGION - int(np.prod(shape)) * step
        at = at + self.rng.choice((0, 0, self.rng.randrange(room + 1), 16 * (room // 16)))
        for number in reversed(order):
            at = at + axis(number, shape[number]) * step
            step *= shape[number]
        return at

    def mask(self, shape: tuple[int, ...]) -> Value | None:
        kind = self.rng.randrange(4)
        b = self.b
        if kind < 2:
            return None
        if kind == 2:
            flat = Index(0)
            for number, dim in enumerate(shape):
                flat = flat * dim + axis(number, dim)
            limit = b.broadcast(self.count, shape, ()) if shape else self.count
            return b.map("lt", b.index(flat, shape, i32), limit)
        return self.pick(bool_, shape) if self.rng.random() < 0.5 else self.compare(shape)

    def load(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        b = self.b
        if dtype is bool_:
            return self.compare(shape)
        source = dtype if dtype in WORDS else i32 if dtype.is_integer else f32
        view = self.rng.choice(self.views[source])
        at = self.place(shape)
        mask = self.mask(shape)
        if self.rng.random() < 0.3 and shape:
            offsets = self.offsets(shape)
            at = self.base + lookup(offsets, range(len(shape)))
        pad = self.rng.choice((0, 3))
        return self.keep(b.cast(b.load(view, (at,), shape, pad=pad, mask=mask), dtype))

    def window(self, dtype: DType, shape: tuple[int, int]) -> tuple[View, list[Index]]:
        """A place in a view with bounds, some of it outside of them."""
        rows, columns = (self.rng.choice((1, 7, 16, 40)) for _ in range(2))
        pitch = columns + self.rng.choice((0, 0, 8 - columns % 8, 3))
        offset = self.rng.choice((0, 16, self.rng.randrange(REGION - rows * pitch)))
        buffer = self.rng.choice(self.views[dtype]).buffer
        dims = (PROGRAMS, self.dim(rows), self.dim(columns))
        view = self.b.view(buffer, dims, (self.dim(REGION), self.dim(pitch), 1), offset)
        at = [axis(n, d) + self.rng.choice((0, 0, -3, 8)) for n, d in enumerate(shape)]
        return view, [index(self.pid), *at]

    def bounded(self) -> None:
        shape = (1 << self.rng.randrange(6), 1 << self.rng.randrange(6))
        dtype = self.rng.choice(WORDS)
        view, at = self.window(dtype, shape)
        mask = self.mask(shape)
        if view.buffer.role == "output" and self.rng.random() < 0.5:
            self.b.store(view, at, self.pick(dtype, shape), mask=mask)
        else:
            self.keep(self.b.load(view, at, shape, pad=self.rng.choice((0, 5)), mask=mask))

    def product(self) -> None:
        """A matmul over a loop, its operands in memory that the kernel may write to."""
        b, rng = self.b, self.rng
        m, n, k = rng.choice((16, 64, 128)), rng.choice((16, 64, 128)), rng.choice((16, 32))
        depth = rng.choice((1, 40, 64, 100))
        sides = []
        for shape in ((m, depth), (depth, n)):
            buffer = rng.choice(self.views[f16][:2]).buffer
            turned = rng.random() < 0.4
            rows = REGION // max(shape)
            pitch = max(shape) if rows >= min(shape) else 1  # rows may overlap
            dims = tuple(map(self.dim, shape))
            strides = (1, self.dim(pitch)) if turned else (self.dim(pitch), 1)
            fits = (shape[1] if turned else shape[0]) * pitch + max(shape) <= REGION
            if not fits:
                strides = (1, 1)
            sides.append(b.view(buffer, (PROGRAMS, *dims), (self.dim(REGION), *strides)))

        def step(i: Value, acc: Value) -> list[Value]:
            left = [index(self.pid), axis(0, m), index(i) + axis(1, k)]
            right = [index(self.pid), index(i) + axis(0, k), axis(1, n)]
            a, w = b.load(sides[0], left, (m, k)), b.load(sides[1], right, (k, n))
            return [b.dot(a, w, acc)]

        stop = index(self.dim(depth)) if rng.random() < 0.5 else index(depth)
        (total,) = b.loop(0, stop, k, [b.full(0, (m, n), f32)], step)
        self.keep(b.reduce("sum", total, rng.randrange(2)) if m * n > MOST else total)

    def offsets(self, shape: tuple[int, ...]) -> Value:
        """Places in a region: i32 or i64."""
        dtype = self.rng.choice((i32, i64))
        b, known = self.b, [v for v in self.values() if v.dtype in (i32, i64) and v.shape == shape]
        flat = Index(self.rng.randrange(64))
        for number, dim in enumerate(shape):
            flat = flat + axis(number, dim) * self.rng.choice((1, 3, 64))
        found = b.cast(b.index(flat, shape, i32), dtype)
        if known:
            found = b.map("add", found, b.cast(self.rng.choice(known), dtype))
        return b.map("mod", found, b.full(REGION, shape, dtype))

    def store(self) -> None:
        value = self.pick()
        if value.dtype not in WORDS:
            value = self.b.cast(value, i32 if not value.dtype.is_float else f32)
        view = self.rng.choice(self.views[value.dtype][1:])
        self.b.store(view, (self.place(value.shape),), value, mask=self.mask(value.shape))

    def atomic(self) -> None:
        b = self.b
        value = self.pick(self.rng.choice((f32, i32, i64)))
        functions = ["add", "max", "min"]
        if not value.dtype.is_float:
            functions += ["and", "or", "xor"]
        view = self.rng.choice(self.views[value.dtype][1:])
        mask = self.mask(value.shape)
        kind = self.rng.randrange(4)
        if kind == 0 and value.shape:  # to places that meet
            at = self.base + lookup(self.offsets(value.shape), range(len(value.shape)))
            b.atomic(self.rng.choice(functions), view, (at,), value, mask=mask)  # type: ignore[arg-type]
            return
        at = self.place(value.shape)
        if kind == 1:
            swap = b.atomic(
                "compare_exchange", view, (at,), value, mask=mask,
                compare=self.pick(value.dtype, value.shape),
            )  # fmt: skip
            self.keep(swap)
            return
        fn = self.rng.choice([*functions, "exchange"])
        found = b.atomic(fn, view, (at,), value, mask=mask)  # type: ignore[arg-type]
        if kind == 2:
            self.keep(found)

    # arithmetic ---------------------------------------------------------------------------------

    def compare(self, shape: tuple[int, ...]) -> Value:
        b = self.b
        x = self.pick(self.rng.choice((f32, i32, i64)), shape)
        fn = self.rng.choice(("lt", "le", "gt", "ge", "eq", "ne"))
        return self.keep(b.map(fn, x, b.full(self.rng.randrange(-2, 3), shape, x.dtype)))

    def map(self) -> None:
        x = self.pick(self.rng.choice((f32, i32, i64)))
        y = self.pick(x.dtype, x.shape)
        functions = ["add", "sub", "mul", "min", "max", "fmin", "fmax", "select", "neg", "abs"]
        if not x.dtype.is_float:
            functions += ["bitwise_and", "bitwise_or", "bitwise_xor", "mul_high", "div", "mod"]
        fn = self.rng.choice(functions)
        b = self.b
        if fn in ("neg", "abs"):
            self.keep(b.map(fn, x))
        elif fn == "select":
            self.keep(b.map(fn, self.pick(bool_, x.shape), x, y))
        elif fn in ("div", "mod"):
            self.keep(b.map(fn, x, b.full(self.rng.choice((3, 4, -5)), x.shape, x.dtype)))
        else:
            self.keep(b.map(fn, x, y))

    def cast(self) -> None:
        x = self.pick()
        self.keep(self.b.cast(x, self.rng.choice((f32, i32, i64, f16, bf16, i8, i16, f64, bool_))))

    def bitcast(self) -> None:
        x = self.pick(self.rng.choice((f32, i32)))
        there = self.b.bitcast(x, i32 if x.dtype is f32 else f32)
        self.keep(self.b.bitcast(self.b.bitcast(there, i32), x.dtype))

    def movement(self) -> None:
        x, b = self.pick(), self.b
        kind = self.rng.randrange(4)
        if kind == 0:
            axes = list(range(x.type.rank))
            self.rng.shuffle(axes)
            self.keep(b.permute(x, axes))
        elif kind == 1:
            count = x.type.size
            first = 1 << self.rng.randrange(count.bit_length())
            shape = self.rng.choice(((count,), (first, count // first), (1, count), (count, 1)))
            self.keep(b.reshape(x, shape))
        elif kind == 2 and x.type.rank < 3 and x.type.size <= 128:
            place = self.rng.randrange(x.type.rank + 1)
            axes = [number + (number >= place) for number in range(x.type.rank)]
            shape = [0] * (x.type.rank + 1)
            for number, dim in zip(axes, x.shape, strict=True):
                shape[number] = dim
            shape[place] = self.rng.choice((1, 4, 16))
            self.keep(b.broadcast(x, shape, axes))
        elif x.shape:
            along = self.rng.randrange(x.type.rank)
            length = self.rng.choice((1, x.shape[along], 8))
            shape = [*x.shape[:along], length, *x.shape[along + 1 :]]
            if int(np.prod(shape)) > MOST:
                return
            mixed = axis(along, length) * 3 + sum(
                (axis(i, d) for i, d in enumerate(shape)), Index(1)
            )
            at = b.index(mixed % x.shape[along], shape, self.rng.choice((i32, i64)))
            self.keep(b.gather(x, at, along))

    def fold(self) -> None:
        x = self.pick(self.rng.choice((f32, i32, i64, bool_)))
        if not x.shape:
            return
        functions = ["max", "min", "fmax", "fmin"]
        if x.dtype is not bool_:
            functions += ["sum"]
        if not x.dtype.is_float:
            functions += ["bitwise_and", "bitwise_or", "bitwise_xor"]
        fn, along = self.rng.choice(functions), self.rng.randrange(x.type.rank)
        if self.rng.random() < 0.6:
            self.keep(self.b.reduce(fn, x, along))  # type: ignore[arg-type]
        else:
            self.keep(self.b.scan(fn, x, along, reverse=self.rng.random() < 0.5))  # type: ignore[arg-type]

    def dot(self) -> None:
        b, (dtype, sums) = self.b, self.rng.choice(DOTS)
        m, n, k = (self.rng.choice((16, 16, 32, 64)) for _ in range(3))
        operands = []
        for shape in ((m, k), (k, n)):
            if dtype is f16 and self.rng.random() < 0.5:
                view = self.rng.choice(self.views[f16])
                turned = self.rng.random() < 0.5
                loaded = shape[::-1] if turned else shape
                tile = b.load(view, (self.place(loaded),), loaded, mask=self.mask(loaded))
                operands.append(b.permute(tile, (1, 0)) if turned else tile)
            else:
                operands.append(b.cast(self.pick(f32 if dtype is not i8 else i32, shape), dtype))
        acc = b.cast(self.pick(f32 if sums.is_float else i32, (m, n)), sums)
        found = b.dot(operands[0], operands[1], acc)
        self.keep(b.cast(found, f32) if sums is f64 else found)

    # control ------------------------------------------------------------------------------------

    def scalar(self) -> Value:
        """A whole number from 0 to 3."""
        b, kind = self.b, self.rng.randrange(3)
        if kind == 0:
            return b.map("mod", self.count, b.full(4, (), i32))
        dtype = self.rng.choice((i32, i64))
        at = self.base + self.rng.randrange(REGION)
        found = b.load(self.rng.choice(self.views[dtype]), (at,), ())
        if kind == 1:
            tile = self.pick(dtype)
            while tile.shape:
                tile = b.reduce("max", tile, 0)
            found = tile
        return b.map("mod", found, b.full(4, (), dtype))

    def carried(self) -> list[Value]:
        return [self.pick() for _ in range(self.rng.randrange(1, 4))]

    def block(self, like: Sequence[Value], size: int) -> list[Value]:
        """Some ops, then values of the types of others."""
        self.pools.append([])
        self.steps(size)
        b = self.b
        found = []
        for value in like:
            made = self.pick(value.dtype, value.shape)
            if made.dtype is not value.dtype:
                made = b.cast(made, value.dtype)
            found.append(made)
        self.pools.pop()
        return found

    def branch(self, size: int) -> None:
        b, inits = self.b, self.carried()
        number = self.scalar()
        condition = b.map("lt", number, b.full(2, (), number.dtype))
        if self.rng.random() < 0.3:
            condition = self.flag
        self.pools[-1] += b.branch(
            condition, lambda: self.block(inits, size), lambda: self.block(inits, size)
        )

    def loop(self, size: int) -> None:
        b, inits = self.b, self.carried()
        start = self.rng.choice((0, 1, index(self.pid)))
        stop = self.rng.choice((3, index(self.scalar()), index(self.scalar()) + 1))

        def body(i: Value, *carried: Value) -> list[Value]:
            self.pools.append(list(carried))
            shape = self.shape()
            at = (
                self.base + index(i) * 64 + sum((axis(n, d) for n, d in enumerate(shape)), Index(0))
            )
            self.keep(b.load(self.rng.choice(self.views[f32]), (at,), shape))
            self.keep(b.index(index(i) + axis(0, 8), (8,), self.rng.choice((i32, i64))))
            found = self.block(inits, size)
            self.pools.pop()
            return found

        self.pools[-1] += b.loop(start, stop, self.rng.choice((1, 2)), inits, body)

    def while_loop(self, size: int) -> None:
        b, inits = self.b, self.carried()
        counter = b.cast(self.scalar(), i32)

        def condition(left: Value, *carried: Value) -> Value:
            self.pools.append(list(carried))
            if self.rng.random() < 0.5:
                self.steps(1)
            self.pools.pop()
            return b.map("gt", left, b.full(0, (), i32))

        def body(left: Value, *carried: Value) -> list[Value]:
            self.pools.append(list(carried))
            found = self.block(inits, size)
            self.pools.pop()
            return [b.map("sub", left, b.full(1, (), i32)), *found]

        self.pools[-1] += b.while_loop([counter, *inits], condition, body)[1:]

    # all ----------------------------------------------------------------------------------------

    def steps(self, size: int) -> None:
        plain = (
            self.map, self.map, self.cast, self.movement, self.movement, self.fold, self.store,
            self.store, self.atomic, self.bitcast, self.dot, self.bounded, self.bounded,
            self.product,
        )  # fmt: skip
        for _ in range(size):
            if len(self.pools) < 4 and size > 2 and self.rng.random() < 0.2:
                self.rng.choice((self.branch, self.loop, self.while_loop))(size // 3)
            else:
                self.rng.choice(plain)()

    def build(self) -> Kernel:
        self.steps(self.size)
        for value in self.values()[-3:]:
            if value.dtype in WORDS:
                view = self.views[value.dtype][1]
                self.b.store(view, (self.place(value.shape),), value)
        return self.b.build()


def random_kernel(seed: int, dim: Callable[[int], int] = int) -> Kernel:
    return Random(seed, dim=dim).build()


def as_symbols(sizes: Sizes) -> Callable[[int], int]:
    """Numbers of a launch as symbols of open sizes, those of 16 as multiples of it."""

    def dim(number: int) -> int:
        by = 16 if number % 16 == 0 else 1
        if number // by < 2:
            return number
        name = f"n{number}"
        sizes.examples[name] = number // by
        return as_int(symbol(name)) * by

    return dim


def random_arrays(kernel: Kernel, seed: int) -> dict[str, np.ndarray]:
    """Small whole numbers; buffers of one memory share an array."""
    rng = np.random.default_rng(seed)
    shared: dict[int, np.ndarray] = {}
    found = {}
    for buffer in kernel.buffers:
        array = rng.integers(LEAST, GREATEST + 1, buffer.size).astype(buffer.dtype.numpy)
        if buffer.alias:
            array = shared.setdefault(buffer.alias, array)
        found[buffer.name] = array
    return found


def random_scalars(seed: int) -> dict[str, int | bool]:
    return {"count": seed * 7919 % 700, "flag": bool(seed % 3)}
