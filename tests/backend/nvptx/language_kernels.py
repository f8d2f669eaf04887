"""Tile programs as a block language makes them of what users write: pointers without bounds, masks,
sizes at launch, blocks and warps of their choice."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.dtypes import DType, f16, f32, i32, i64
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index, lookup
from fuser.tilegen.ir import Kernel, View
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import UNBOUNDED, Value

SIZE = 1 << 20


def pointer(
    b: Builder, name: str, dtype: DType, role: str = "input", align: int = 16, size: int = SIZE
) -> View:
    """A pointer of a caller, as a view without bounds."""
    buffer = b.buffer(name, dtype, size, "output" if role == "output" else "input")
    buffer.open, buffer.align = True, align
    return b.view(buffer, (UNBOUNDED,), (1,))


def flat(shape: Sequence[int], strides: Sequence[int]) -> Index:
    return sum(
        (axis(i, d) * s for i, (d, s) in enumerate(zip(shape, strides, strict=True))), Index(0)
    )


def add(block: int = 1024, warps: int = 4, multiple: int = 1, align: int = 16) -> Kernel:
    """y = x + y for n elements, n a multiple."""
    b = Builder("add", Schedule(warps=warps))
    x, y = pointer(b, "x", f32, align=align), pointer(b, "y", f32, "output", align)
    n = b.scalar("n", i32)
    n.multiple = multiple
    at = index(b.program_id(0, 4)) * block + axis(0, block)
    mask = b.map("lt", b.index(at, (block,), i32), b.broadcast(n, (block,), ()))
    total = b.map(
        "add", b.load(x, (at,), (block,), mask=mask), b.load(y, (at,), (block,), mask=mask)
    )
    b.store(y, (at,), total, mask=mask)
    return b.build()


def matmul(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    *,
    warps: int = 4,
    stages: int = 3,
    style: str = "plain",
    precision: str = "exact",
    codes: str = "",
) -> Kernel:
    """c = a @ b of one block each program, over K columns of a. style: "plain"; "masked" beyond K;
    "computed": operands from registers; "turned": b is stored the other way round; "while"."""
    b = Builder(f"matmul_{style}", Schedule(warps=warps, stages=stages))
    sums = f32 if codes else dtype.accumulate
    left, right = pointer(b, "a", dtype), pointer(b, "b", dtype)
    out = pointer(b, "c", sums, "output")
    row = index(b.program_id(0, 2)) * m
    limit = b.scalar("K", i32)
    limit.multiple = 16
    pitch = 256

    def operand(view: View, at: Index, shape: tuple[int, int], first: Index, along: int) -> Value:
        mask = None
        if style == "masked":
            places = b.index(first + axis(along, k), shape, i32)
            mask = b.map("lt", places, b.broadcast(limit, shape, ()))
        tile = b.load(view, (at,), shape, mask=mask)
        if style != "computed":
            return tile
        wide = b.cast(tile, f32) if dtype.is_float and dtype.bits == 16 else tile
        return b.cast(b.map("add", wide, b.full(1, shape, wide.dtype)), dtype)

    def step(first: Index, acc: Value) -> Value:
        a = operand(left, row * pitch + flat((m, k), (pitch, 1)) + first, (m, k), first, 1)
        if style == "turned":
            place = flat((n, k), (pitch, 1)) + first
            w = b.permute(operand(right, place, (n, k), first, 1), (1, 0))
        else:
            w = operand(right, flat((k, n), (n, 1)) + first * n, (k, n), first, 0)
        return b.dot(a, w, acc, precision=precision, codes=codes)

    zero = b.full(0, (m, n), sums)
    if style == "while":
        one = b.full(k, (), i32)
        start = b.full(0, (), i32)
        _, total = b.while_loop(
            [start, zero],
            lambda at, acc: b.map("lt", at, limit),
            lambda at, acc: [b.map("add", at, one), step(index(at), acc)],
        )
    else:
        (total,) = b.loop(0, index(limit), k, [zero], lambda i, acc: [step(index(i), acc)])
    b.store(out, (row * n + flat((m, n), (n, 1)),), total)
    return b.build()


def bounded_matmul(rows: int, depth: int, columns: int, block: tuple[int, int, int]) -> Kernel:
    """Views with bounds on pointers of a caller, as descriptors are."""
    m, n, k = block
    b = Builder("bounded_matmul", Schedule(warps=4, stages=3))
    views = []
    for name, shape in (("a", (rows, depth)), ("b", (depth, columns)), ("c", (rows, columns))):
        role, dtype = ("output", f32) if name == "c" else ("input", f16)
        buffer = pointer(b, name, dtype, role).buffer
        views.append(b.view(buffer, shape))
    row = index(b.program_id(1, -(-rows // m))) * m
    column = index(b.program_id(0, -(-columns // n))) * n

    def step(i: Value, acc: Value) -> list[Value]:
        left = b.load(views[0], (row + axis(0, m), index(i) + axis(1, k)), (m, k))
        right = b.load(views[1], (index(i) + axis(0, k), column + axis(1, n)), (k, n))
        return [b.dot(left, right, acc)]

    (total,) = b.loop(0, depth, k, [b.full(0, (m, n), f32)], step)
    b.store(views[2], (row + axis(0, m), column + axis(1, n)), total)
    return b.build()


def dropping(rows: int = 32, columns: int = 64) -> Kernel:
    """Maps and folds that drop NaN."""
    b = Builder("dropping", Schedule(warps=4))
    x, y = pointer(b, "x", f32), pointer(b, "y", f32, "output")
    shape, size = (rows, columns), rows * columns
    first, second = (b.load(x, (flat(shape, (columns, 1)) + at,), shape) for at in (0, size))
    place = 0
    for number, fn in enumerate(("fmax", "fmin")):
        b.store(y, (flat(shape, (columns, 1)) + place,), b.map(fn, first, second))
        b.store(y, (flat(shape, (columns, 1)) + place + size,), b.scan(fn, first, number))  # type: ignore[arg-type]
        b.store(y, (axis(0, rows) + place + 2 * size,), b.reduce(fn, first, 1))  # type: ignore[arg-type]
        b.store(y, (axis(0, columns) + place + 2 * size + rows,), b.reduce(fn, first, 0))  # type: ignore[arg-type]
        place += 3 * size
    return b.build()


def attention(
    m: int, n: int, width: int, *, warps: int = 4, stages: int = 2, causal: bool = True
) -> Kernel:
    """Flash attention of one head: an online softmax, two dots a step."""
    b = Builder("attention", Schedule(warps=warps, stages=stages))
    q, k, v = (pointer(b, name, f16) for name in "qkv")
    out = pointer(b, "o", f32, "output")
    pid = b.program_id(0, 2)
    count = b.scalar("count", i32)
    first = index(pid) * m
    query = b.load(q, ((first * width) + flat((m, width), (width, 1)),), (m, width))
    wide = (m, n)

    def body(j: Value, acc: Value, top: Value, total: Value) -> list[Value]:
        keys = b.load(k, (index(j) * width + flat((n, width), (width, 1)),), (n, width))
        scores = b.dot(query, b.permute(keys, (1, 0)), b.full(0, wide, f32))
        scores = b.map("mul", scores, b.full(0.125, wide, f32))
        places = b.index(index(j) + axis(1, n), wide, i32)
        seen = b.map("lt", places, b.broadcast(count, wide, ()))
        if causal:
            rows = b.index(first + axis(0, m), wide, i32)
            seen = b.map("logical_and", seen, b.map("ge", rows, places))
        scores = b.map("select", seen, scores, b.full(-1e30, wide, f32))
        higher = b.map("max", top, b.reduce("max", scores, 1))
        weights = b.map("exp", b.map("sub", scores, b.broadcast(higher, wide, (0,))))
        shrink = b.map("exp", b.map("sub", top, higher))
        total = b.map("add", b.map("mul", total, shrink), b.reduce("sum", weights, 1))
        acc = b.map("mul", acc, b.broadcast(shrink, (m, width), (0,)))
        values = b.load(v, (index(j) * width + flat((n, width), (width, 1)),), (n, width))
        return [b.dot(b.cast(weights, f16), values, acc), higher, total]

    acc, _, total = b.loop(
        0, index(count), n,
        [b.full(0, (m, width), f32), b.full(-1e30, (m,), f32), b.full(0, (m,), f32)], body,
    )  # fmt: skip
    result = b.map("div", acc, b.broadcast(total, (m, width), (0,)))
    b.store(out, (first * width + flat((m, width), (width, 1)),), result)
    return b.build()


def attention_backward(m: int, n: int, width: int, *, warps: int = 4, stages: int = 2) -> Kernel:
    """Gradients of the keys and values of a block: five dots a step, two of them accumulate; those
    of the queries are added up in memory."""
    b = Builder("attention_backward", Schedule(warps=warps, stages=stages))
    q, k, v, given = (pointer(b, name, f16) for name in ("q", "k", "v", "do"))
    tops, deltas = pointer(b, "top", f32), pointer(b, "delta", f32)
    dq, dk, dv = (pointer(b, name, f32, "output") for name in ("dq", "dk", "dv"))
    first = index(b.program_id(0, 2)) * n
    count = b.scalar("count", i32)
    here = (first * width + flat((n, width), (width, 1)),)
    keys, values = b.load(k, here, (n, width)), b.load(v, here, (n, width))
    zero = b.full(0, (n, width), f32)

    def body(i: Value, dk_acc: Value, dv_acc: Value) -> list[Value]:
        at = (index(i) * width + flat((m, width), (width, 1)),)
        queries, grads = b.load(q, at, (m, width)), b.load(given, at, (m, width))
        row = index(i) + axis(0, m)
        top, delta = b.load(tops, (row,), (m,)), b.load(deltas, (row,), (m,))
        turned = (n, m)
        scores = b.dot(keys, b.permute(queries, (1, 0)), b.full(0, turned, f32))
        scores = b.map("mul", scores, b.full(0.125, turned, f32))
        weights = b.map("exp", b.map("sub", scores, b.broadcast(top, turned, (1,))))
        dv_acc = b.dot(b.cast(weights, f16), grads, dv_acc)
        inner = b.dot(values, b.permute(grads, (1, 0)), b.full(0, turned, f32))
        change = b.map("mul", weights, b.map("sub", inner, b.broadcast(delta, turned, (1,))))
        change16 = b.cast(change, f16)
        dk_acc = b.dot(change16, queries, dk_acc)
        part = b.dot(b.permute(change16, (1, 0)), keys, b.full(0, (m, width), f32))
        b.atomic("add", dq, at, part)
        return [dk_acc, dv_acc]

    dk_total, dv_total = b.loop(0, index(count), m, [zero, zero], body)
    b.store(dk, here, dk_total)
    b.store(dv, here, dv_total)
    return b.build()


def rows_in_place(columns: int, block: int, warps: int = 4) -> Kernel:
    """A softmax of a row in pieces, in place: three loops over the same memory."""
    b = Builder("rows_in_place", Schedule(warps=warps))
    x = pointer(b, "x", f32, "output")
    n = b.scalar("n", i32)
    base = index(b.program_id(0, 3)) * columns

    def tile(i: Value) -> tuple[Index, Value]:
        at = index(i) + axis(0, block)
        return base + at, b.map("lt", b.index(at, (block,), i32), b.broadcast(n, (block,), ()))

    low = -1e30

    def most(i: Value, top: Value) -> list[Value]:
        at, mask = tile(i)
        return [
            b.map("max", top, b.reduce("max", b.load(x, (at,), (block,), pad=low, mask=mask), 0))
        ]

    (top,) = b.loop(0, index(n), block, [b.full(low, (), f32)], most)

    def power(i: Value, total: Value) -> list[Value]:
        at, mask = tile(i)
        centred = b.map(
            "sub", b.load(x, (at,), (block,), pad=low, mask=mask), b.broadcast(top, (block,), ())
        )
        found = b.map("exp", centred)
        b.store(x, (at,), found, mask=mask)
        return [b.map("add", total, b.reduce("sum", found, 0))]

    (total,) = b.loop(0, index(n), block, [b.full(0, (), f32)], power)

    def share(i: Value) -> list[Value]:
        at, mask = tile(i)
        found = b.load(x, (at,), (block,), mask=mask)
        b.store(x, (at,), b.map("div", found, b.broadcast(total, (block,), ())), mask=mask)
        return []

    b.loop(0, index(n), block, [], share)
    return b.build()


def locked_sum(programs: int = 32, block: int = 256, warps: int = 4) -> Kernel:
    """Every program adds its block to a sum that a spin lock guards."""
    b = Builder("locked_sum", Schedule(warps=warps))
    x, total = pointer(b, "x", f32), pointer(b, "total", f32, "output")
    lock = pointer(b, "lock", i32, "output")
    at = axis(0, block)
    mine = b.load(x, (index(b.program_id(0, programs)) * block + at,), (block,))
    free, taken = b.full(0, (), i32), b.full(1, (), i32)

    def busy(seen: Value) -> Value:
        return b.map("ne", seen, free)

    def again(_: Value) -> list[Value]:
        return [b.atomic("compare_exchange", lock, (0,), taken, compare=free)]

    b.while_loop([taken], busy, again)
    b.store(total, (at,), b.map("add", b.load(total, (at,), (block,)), mine))
    b.atomic("exchange", lock, (0,), free)
    return b.build()


def locked_rows(
    programs: int = 2,
    dtype: DType = f32,
    block: tuple[int, int, int] = (64, 32, 32),
    depth: int = 96,
    *,
    gathered: bool = True,
    warps: int = 2,
    stages: int = 5,
) -> Kernel:
    """The greatest of each row of a @ b^T, columns by programs; a spin lock guards a row's read and
    write. gathered: rows of a by numbers."""
    m, n, k = block
    b = Builder("locked_rows", Schedule(warps=warps, stages=stages))
    left, out = pointer(b, "a", dtype), pointer(b, "best", f32, "output")
    lock = pointer(b, "lock", i32, "output")
    right = b.view(pointer(b, "b", dtype).buffer, (programs * n, depth // k, k))
    rows = b.load(pointer(b, "rows", i64), (axis(0, m),), (m,)) if gathered else None
    row = axis(0, m) if rows is None else lookup(rows, (0,))
    column = index(b.program_id(0, programs)) * n

    def step(i: Value, acc: Value) -> list[Value]:
        x = b.load(left, (row * depth + index(i) * k + axis(1, k),), (m, k))
        w = b.load(right, (column + axis(1, n), index(i), axis(0, k)), (k, n))
        return [b.dot(x, w, acc, precision="tf32" if dtype is f32 else "exact")]

    (total,) = b.loop(0, depth // k, 1, [b.full(0, (m, n), f32)], step)
    best = b.reduce("fmax", total, 1)
    free, taken = b.full(0, (), i32), b.full(1, (), i32)
    b.while_loop(
        [taken],
        lambda seen: b.map("ne", seen, free),
        lambda _: [b.atomic("compare_exchange", lock, (0,), taken, compare=free)],
    )
    b.store(out, (axis(0, m),), b.map("fmax", b.load(out, (axis(0, m),), (m,)), best))
    b.atomic("exchange", lock, (0,), free)
    return b.build()


def handed_on(block: int = 256, warps: int = 4) -> Kernel:
    """The second of two programs waits for the flag of the first, which it loads."""
    b = Builder("handed_on", Schedule(warps=warps))
    x, total = pointer(b, "x", f32), pointer(b, "total", f32, "output")
    flag = pointer(b, "lock", i32, "output")
    pid = b.program_id(0, 2)
    at = axis(0, block)
    one, none = b.full(1, (), i32), b.full(0, (), i32)
    first = b.map("eq", b.cast(b.index(index(pid)), i32), none)

    def give() -> list[Value]:
        b.store(total, (at,), b.load(x, (at,), (block,)))
        b.atomic("exchange", flag, (0,), one)
        return []

    def take() -> list[Value]:
        b.while_loop(
            [none], lambda seen: b.map("eq", seen, none), lambda _: [b.load(flag, (0,), ())]
        )
        b.store(total, (at + block,), b.load(total, (at,), (block,)))
        return []

    b.branch(first, give, take)
    return b.build()


def published(dtype: DType = i32, block: int = 256, warps: int = 4) -> Kernel:
    """The second of two programs waits with atomic loads for what the first stores atomically, in
    elements of any type."""
    b = Builder("published", Schedule(warps=warps))
    x, total = pointer(b, "x", dtype), pointer(b, "total", dtype, "output")
    flag = pointer(b, "lock", i32, "output")
    pid = b.program_id(0, 2)
    at = axis(0, block)
    one, none = b.full(1, (), i32), b.full(0, (), i32)
    first = b.map("eq", b.cast(b.index(index(pid)), i32), none)
    shape = b.full(0, (block,), dtype)

    def give() -> list[Value]:
        b.atomic("store", total, (at,), b.atomic("load", x, (at,), shape))
        b.atomic("store", flag, (0,), one)
        return []

    def take() -> list[Value]:
        b.while_loop(
            [none],
            lambda seen: b.map("eq", seen, none),
            lambda _: [b.atomic("load", flag, (0,), none)],
        )
        found = b.atomic("load", total, (at,), shape)
        b.atomic("store", total, (at + block,), found, system=True)
        return []

    b.branch(first, give, take)
    return b.build()


def histogram(block: int = 512, warps: int = 4) -> Kernel:
    b = Builder("histogram", Schedule(warps=warps))
    x, counts = pointer(b, "x", i32), pointer(b, "counts", i32, "output")
    at = index(b.program_id(0, 4)) * block + axis(0, block)
    places = b.load(x, (at,), (block,))
    b.atomic("add", counts, (lookup(places, (0,)),), b.full(1, (block,), i32))
    return b.build()


def far(block: int = 256) -> Kernel:
    """Elements more than 4 GiB into a buffer, at 64-bit places."""
    b = Builder("far", Schedule(warps=4))
    x = pointer(b, "x", f32, size=1 << 33)
    y = pointer(b, "y", f32, "output")
    start = b.scalar("start", i64)
    offsets = b.map("add", b.broadcast(start, (block,), ()), b.index(axis(0, block), (block,), i64))
    b.store(y, (axis(0, block),), b.load(x, (lookup(offsets, (0,)),), (block,)))
    b.store(y, (axis(0, block) + block,), b.load(x, (index(start) + axis(0, block) + 1,), (block,)))
    return b.build()


def large(size: int, warps: int, dtype: DType = f32) -> Kernel:
    """Everything that moves a tile, of one that does not fit shared memory."""
    b = Builder("large", Schedule(warps=warps))
    x, y = pointer(b, "x", dtype), pointer(b, "y", dtype, "output")
    rows = 64
    columns = size // rows
    tile = b.load(x, (axis(0, rows) * columns + axis(1, columns),), (rows, columns))
    turned = b.permute(tile, (1, 0))
    summed = b.scan("sum", turned, 0)
    most = b.broadcast(b.reduce("max", turned, 1), (columns, rows), (0,))
    found = b.map("sub", summed, most)
    b.store(y, (axis(0, size),), b.reshape(found, (size,)))
    return b.build()


def masked_store() -> Kernel:
    """c = a @ b of one block, of which some columns are stored: by whole lines, under a mask."""
    b = Builder("masked_store", Schedule(warps=4, stages=2))
    left, right = pointer(b, "a", f16), pointer(b, "b", f16)
    out = pointer(b, "c", f16, "output")
    limit = b.scalar("n", i32)

    def step(i: Value, acc: Value) -> list[Value]:
        a = b.load(left, (flat((64, 64), (128, 1)) + index(i),), (64, 64))
        w = b.load(right, (flat((64, 64), (64, 1)) + index(i) * 64,), (64, 64))
        return [b.dot(a, w, acc)]

    (total,) = b.loop(0, 128, 64, [b.full(0, (64, 64), f32)], step)
    places = b.index(axis(1, 64), (64, 64), i32)
    inside = b.map("lt", places, b.broadcast(limit, (64, 64), ()))
    b.store(out, (flat((64, 64), (64, 1)),), b.cast(total, f16), mask=inside)
    return b.build()
