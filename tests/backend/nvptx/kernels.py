"""Tile programs for the tests, written with the Builder: each as an emitter might write it."""

from __future__ import annotations

from fuser.dtypes import DType, bf16, bool_, f16, f32, i32
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index, lookup, minimum
from fuser.tilegen.ir import Kernel
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value

MINUS_INFINITY = float("-inf")


def elementwise(
    fn: str, dtype: DType, operands: int, n: int = 999, block: int = 512, warps: int = 4
) -> Kernel:
    """y = fn(x0, ..., x(operands - 1)), a bool first for select."""
    b = Builder(f"map_{fn}_{dtype}", Schedule(warps=warps))
    pid = b.program_id(0, -(-n // block))
    at = index(pid) * block + axis(0, block)
    args = []
    for number in range(operands):
        kind = bool_ if fn == "select" and number == 0 else dtype
        x = b.buffer(f"x{number}", kind, n)
        args.append(b.load(b.view(x, (n,)), (at,), (block,)))
    value = b.map(fn, *args)
    y = b.buffer("y", value.dtype, n, role="output")
    b.store(b.view(y, (n,)), (at,), value)
    return b.build()


def cast(source: DType, target: DType, n: int = 999, block: int = 512) -> Kernel:
    b = Builder(f"cast_{source}_{target}", Schedule(warps=4))
    pid = b.program_id(0, -(-n // block))
    at = index(pid) * block + axis(0, block)
    x = b.buffer("x0", source, n)
    y = b.buffer("y", target, n, role="output")
    value = b.cast(b.load(b.view(x, (n,)), (at,), (block,)), target)
    b.store(b.view(y, (n,)), (at,), value)
    return b.build()


def reduce_axis(
    fn: str,
    dtype: DType,
    rows: int,
    columns: int,
    block: tuple[int, int],
    over: int,
    warps: int = 4,
) -> Kernel:
    """One tile of the whole array in a program each way: y = reduce(x, over)."""
    b = Builder(f"reduce_{fn}_{dtype}_{over}", Schedule(warps=warps))
    kept = rows if over == 1 else columns
    step = block[1 - over]
    pid = b.program_id(0, -(-kept // step))
    x = b.buffer("x0", dtype, rows * columns)
    y = b.buffer("y", dtype, kept, role="output")
    at: list[Index] = [axis(0, block[0]), axis(1, block[1])]
    at[1 - over] = at[1 - over] + index(pid) * step
    pad: float | int = {"sum": 0, "prod": 1, "max": dtype.lowest, "min": dtype.highest}[fn]
    tile = b.load(b.view(x, (rows, columns)), at, block, pad=pad)
    out = b.reduce(fn, tile, over)  # type: ignore[arg-type]
    b.store(b.view(y, (kept,)), (index(pid) * step + axis(0, step),), out)
    return b.build()


def scan(
    fn: str, dtype: DType, rows: int, columns: int, block: tuple[int, int], reverse: bool
) -> Kernel:
    b = Builder(f"scan_{fn}_{dtype}", Schedule(warps=4))
    pid = b.program_id(0, -(-rows // block[0]))
    x = b.buffer("x0", dtype, rows * columns)
    y = b.buffer("y", dtype, rows * columns, role="output")
    at = (index(pid) * block[0] + axis(0, block[0]), axis(1, block[1]))
    tile = b.load(b.view(x, (rows, columns)), at, block)
    b.store(b.view(y, (rows, columns)), at, b.scan(fn, tile, 1, reverse))  # type: ignore[arg-type]
    return b.build()


def softmax(
    rows: int,
    columns: int,
    dtype: DType,
    block: tuple[int, int],
    warps: int = 4,
    cluster: int = 1,
    held: bool = False,
) -> Kernel:
    b = Builder("softmax", Schedule(warps=warps, cluster=cluster, resident_rows=held))
    x = b.buffer("x0", dtype, rows * columns)
    y = b.buffer("y", dtype, rows * columns, role="output")
    pid = b.program_id(0, -(-rows // block[0]))
    at = (index(pid) * block[0] + axis(0, block[0]), axis(1, block[1]))
    tile = b.cast(b.load(b.view(x, (rows, columns)), at, block, pad=MINUS_INFINITY), f32)
    top = b.broadcast(b.reduce("max", tile, 1), block, (0,))
    grown = b.map("exp", b.map("sub", tile, top))
    total = b.broadcast(b.reduce("sum", grown, 1), block, (0,))
    b.store(b.view(y, (rows, columns)), at, b.cast(b.map("div", grown, total), dtype))
    return b.build()


def layernorm(
    rows: int,
    columns: int,
    dtype: DType,
    block: tuple[int, int],
    warps: int = 4,
    cluster: int = 1,
    held: bool = False,
) -> Kernel:
    b = Builder("layernorm", Schedule(warps=warps, cluster=cluster, resident_rows=held))
    x = b.buffer("x0", dtype, rows * columns)
    scale = b.buffer("x1", dtype, columns)
    shift = b.buffer("x2", dtype, columns)
    y = b.buffer("y", dtype, rows * columns, role="output")
    pid = b.program_id(0, -(-rows // block[0]))
    at = (index(pid) * block[0] + axis(0, block[0]), axis(1, block[1]))
    tile = b.cast(b.load(b.view(x, (rows, columns)), at, block), f32)
    at_most = b.full(columns, block, i32)
    inside = b.map("lt", b.index(axis(1, block[1]), block), at_most)
    count = b.full(float(columns), (block[0],), f32)
    mean = b.map("div", b.reduce("sum", tile, 1), count)
    centred = b.map("sub", tile, b.broadcast(mean, block, (0,)))
    if columns < block[1]:  # the padding must not count
        centred = b.map("select", inside, centred, b.full(0.0, block, f32))
    variance = b.map("div", b.reduce("sum", b.map("mul", centred, centred), 1), count)
    variance = b.map("add", variance, b.full(1e-5, (block[0],), f32))
    value = b.map("mul", centred, b.broadcast(b.map("rsqrt", variance), block, (0,)))
    columns_at = (axis(0, block[1]),)
    for buffer, fn in ((scale, "mul"), (shift, "add")):
        row = b.cast(b.load(b.view(buffer, (columns,)), columns_at, (block[1],)), f32)
        value = b.map(fn, value, b.broadcast(row, block, (1,)))
    b.store(b.view(y, (rows, columns)), at, b.cast(value, dtype))
    return b.build()


def transpose(rows: int, columns: int, dtype: DType, block: tuple[int, int]) -> Kernel:
    b = Builder("transpose", Schedule(warps=4))
    x = b.buffer("x0", dtype, rows * columns)
    y = b.buffer("y", dtype, rows * columns, role="output")
    i = index(b.program_id(0, -(-rows // block[0]))) * block[0]
    j = index(b.program_id(1, -(-columns // block[1]))) * block[1]
    tile = b.load(b.view(x, (rows, columns)), (i + axis(0, block[0]), j + axis(1, block[1])), block)
    flat = b.permute(tile, (1, 0))
    b.store(b.view(y, (columns, rows)), (j + axis(0, block[1]), i + axis(1, block[0])), flat)
    return b.build()


def reshape(dtype: DType, source: tuple[int, ...], target: tuple[int, ...]) -> Kernel:
    """A tile reshaped in registers, plus its row-major index so that order shows."""
    b = Builder("reshape", Schedule(warps=2))
    size = 1
    for dim in source:
        size *= dim
    x = b.buffer("x0", dtype, size)
    y = b.buffer("y", dtype, size, role="output")
    tile = b.load(b.view(x, source), [axis(i, dim) for i, dim in enumerate(source)], source)
    b.store(
        b.view(y, target), [axis(i, dim) for i, dim in enumerate(target)], b.reshape(tile, target)
    )
    return b.build()


def gather(rows: int, columns: int, picks: int, dtype: DType) -> Kernel:
    """y[i] = x[indices[i]], indices int64."""
    from fuser.dtypes import i64

    b = Builder("gather", Schedule(warps=4))
    block = (16, 64)
    x = b.buffer("x0", dtype, rows * columns)
    indices = b.buffer("x1", i64, picks)
    y = b.buffer("y", dtype, picks * columns, role="output")
    i = index(b.program_id(0, -(-picks // block[0]))) * block[0]
    j = index(b.program_id(1, -(-columns // block[1]))) * block[1]
    where = b.load(b.view(indices, (picks,)), (i + axis(0, block[0]),), (block[0],))
    where.low, where.high = 0, rows - 1
    at = (lookup(where, (0,)), j + axis(1, block[1]))
    tile = b.load(b.view(x, (rows, columns)), at, block)
    b.store(b.view(y, (picks, columns)), (i + axis(0, block[0]), j + axis(1, block[1])), tile)
    return b.build()


def accumulate(rows: int, columns: int) -> Kernel:
    """y[j] += x[i, j] over programs of row blocks."""
    b = Builder("accumulate", Schedule(warps=4))
    block = (8, 64)
    x = b.buffer("x0", f32, rows * columns)
    y = b.buffer("y", f32, columns, role="output")
    i = index(b.program_id(0, -(-rows // block[0]))) * block[0]
    j = index(b.program_id(1, -(-columns // block[1]))) * block[1]
    tile = b.load(b.view(x, (rows, columns)), (i + axis(0, block[0]), j + axis(1, block[1])), block)
    b.atomic_add(b.view(y, (columns,)), (j + axis(0, block[1]),), b.reduce("sum", tile, 0))
    return b.build()


def matmul(
    m: int,
    n: int,
    k: int,
    dtype: DType = f16,
    blocks: tuple[int, int, int] = (128, 128, 32),
    *,
    warps: int = 4,
    stages: int = 3,
    group: int = 8,
    transpose_a: bool = False,
    transpose_b: bool = False,
    epilogue: bool = True,
    out: DType | None = None,
    precision: str = "exact",
    roles: bool | None = None,
    cluster: int = 1,
    neighbours: tuple[int, int] = (1, 1),
    persistent: bool = False,
    teams: int = 1,
    wide: bool = False,
    codes: str = "",
    stream_k: int = 0,
) -> Kernel:
    """y = relu(a @ b + bias) + residual, or a @ b alone."""
    bm, bn, bk = blocks
    result = out or dtype
    schedule = Schedule(
        warps=warps, stages=stages, group=group, cluster=cluster, neighbours=neighbours,
        persistent=persistent, stream_k=stream_k, warp_specialized=roles,
        consumer_groups=teams, tf32x3=wide,
    )  # fmt: skip
    b = Builder("matmul", schedule)
    a_view = b.view(b.buffer("x0", dtype, m * k), (m, k), (1, m) if transpose_a else (k, 1))
    b_view = b.view(b.buffer("x1", dtype, k * n), (k, n), (1, k) if transpose_b else (n, 1))
    rows = index(b.program_id(0, -(-m // bm))) * bm
    columns = index(b.program_id(1, -(-n // bn))) * bn
    accumulate = f32 if codes else dtype.accumulate

    def body(i: Value, acc: Value) -> list[Value]:
        left = b.load(a_view, (rows + axis(0, bm), index(i) + axis(1, bk)), (bm, bk))
        right = b.load(b_view, (index(i) + axis(0, bk), columns + axis(1, bn)), (bk, bn))
        return [b.dot(left, right, acc, precision, codes)]

    (acc,) = b.loop(0, k, bk, [b.full(0, (bm, bn), accumulate)], body)
    at = (rows + axis(0, bm), columns + axis(1, bn))
    if epilogue:
        bias = b.load(b.view(b.buffer("x2", f32, n), (n,)), (columns + axis(0, bn),), (bn,))
        acc = b.map("add", acc, b.broadcast(bias, (bm, bn), (1,)))
        acc = b.map("max", acc, b.full(0.0, (bm, bn), f32))
        residual = b.load(b.view(b.buffer("x3", dtype, m * n), (m, n)), at, (bm, bn))
        acc = b.map("add", acc, b.cast(residual, f32))
    y = b.buffer("y", result, m * n, role="output")
    b.store(b.view(y, (m, n)), at, b.cast(acc, result))
    return b.build()


def gated(
    m: int,
    n: int,
    k: int,
    dtype: DType = bf16,
    blocks: tuple[int, int, int] = (128, 64, 64),
    *,
    warps: int = 8,
    stages: int = 3,
    teams: int = 0,
    neighbours: tuple[int, int] = (1, 1),
    cluster: int = 1,
    stream_k: int = 0,
) -> Kernel:
    """y = (x @ g) * (x @ u): a loop that accumulates two dots. teams: of a persistent kernel."""
    bm, bn, bk = blocks
    schedule = Schedule(
        warps=warps, stages=stages, group=8, neighbours=neighbours, persistent=teams > 0,
        consumer_groups=teams or 1,
        cluster=cluster, stream_k=stream_k,
    )  # fmt: skip
    b = Builder("gated", schedule)
    x_view = b.view(b.buffer("x0", dtype, m * k), (m, k))
    sides = [b.view(b.buffer(f"x{i}", dtype, k * n), (k, n)) for i in (1, 2)]
    rows = index(b.program_id(0, -(-m // bm))) * bm
    columns = index(b.program_id(1, -(-n // bn))) * bn

    def body(i: Value, *sums: Value) -> list[Value]:
        left = b.load(x_view, (rows + axis(0, bm), index(i) + axis(1, bk)), (bm, bk))
        at = (index(i) + axis(0, bk), columns + axis(1, bn))
        return [
            b.dot(left, b.load(view, at, (bk, bn)), total)
            for view, total in zip(sides, sums, strict=True)
        ]

    gate, up = b.loop(0, k, bk, [b.full(0, (bm, bn), f32)] * 2, body)
    y = b.buffer("y", dtype, m * n, role="output")
    at = (rows + axis(0, bm), columns + axis(1, bn))
    b.store(b.view(y, (m, n)), at, b.cast(b.map("mul", gate, up), dtype))
    return b.build()


def attention(
    heads: int,
    length: int,
    keys: int,
    width: int,
    dtype: DType = f16,
    blocks: tuple[int, int] = (64, 64),
    *,
    causal: bool = False,
    warps: int = 4,
    stages: int = 2,
    roles: bool | None = None,
    cluster: int = 1,
    bias: str = "",
    bias_dtype: DType | None = None,
) -> Kernel:
    """softmax(q @ k^T * scale) @ v with an online softmax over blocks of keys. bias: "added", a
    number a key; "instead", and what is subtracted is its maximum instead of that of the scores."""
    bm, bn = blocks
    schedule = Schedule(warps=warps, stages=stages, cluster=cluster, warp_specialized=roles)
    b = Builder("attention", schedule)
    q = b.buffer("x0", dtype, heads * length * width)
    k = b.buffer("x1", dtype, heads * keys * width)
    v = b.buffer("x2", dtype, heads * keys * width)
    y = b.buffer("y", dtype, heads * length * width, role="output")
    head = index(b.program_id(0, heads))
    first = index(b.program_id(1, -(-length // bm))) * bm
    rows = first + axis(0, bm)
    tile = (bm, bn)
    wide = (bm, width)
    query = b.load(b.view(q, (heads, length, width)), (head, rows, axis(1, width)), wide)
    k_view = b.view(k, (heads, width, keys), (keys * width, 1, width))
    v_view = b.view(v, (heads, keys, width))
    if bias:
        bias_view = b.view(b.buffer("x3", bias_dtype or dtype, keys), (keys,))

    def body(j: Value, top: Value, total: Value, acc: Value) -> list[Value]:
        at = index(j)
        key = b.load(k_view, (head, axis(0, width), at + axis(1, bn)), (width, bn))
        score = b.dot(query, key, b.full(0.0, tile, f32))
        score = b.map("mul", score, b.full(width**-0.5, tile, f32))
        column = b.index(at + axis(1, bn), tile)
        seen = b.map("lt", column, b.full(keys, tile, i32))
        if bias:
            numbers = b.load(bias_view, (at + axis(0, bn),), (bn,), pad=0 if keys % bn else None)
            added = b.broadcast(b.cast(numbers, f32), tile, (1,))
            score = b.map("add", score, added)
        if causal:
            seen = b.map("logical_and", seen, b.map("le", column, b.index(rows, tile)))
        least = b.full(MINUS_INFINITY, tile, f32)
        score = b.map("select", seen, score, least)
        bound = b.map("select", seen, added, least) if bias == "instead" else score
        higher = b.map("max", top, b.reduce("max", bound, 1))
        weight = b.map("exp", b.map("sub", score, b.broadcast(higher, tile, (0,))))
        fade = b.map("exp", b.map("sub", top, higher))
        total = b.map("add", b.map("mul", total, fade), b.reduce("sum", weight, 1))
        acc = b.map("mul", acc, b.broadcast(fade, wide, (0,)))
        value = b.load(v_view, (head, at + axis(0, bn), axis(1, width)), (bn, width))
        return [higher, total, b.dot(b.cast(weight, dtype), value, acc)]

    inits = [
        b.full(MINUS_INFINITY, (bm,), f32),
        b.full(0.0, (bm,), f32),
        b.full(0.0, wide, f32),
    ]
    stop = minimum(first + bm, keys) if causal else index(keys)
    _, total, acc = b.loop(0, stop, bn, inits, body)
    out = b.map("div", acc, b.broadcast(total, wide, (0,)))
    b.store(b.view(y, (heads, length, width)), (head, rows, axis(1, width)), b.cast(out, dtype))
    return b.build()


def convolution(
    batch: int,
    size: int,
    channels: int,
    filters: int,
    dtype: DType = f16,
    blocks: tuple[int, int, int] = (64, 64, 32),
    *,
    stride: int = 1,
    warps: int = 4,
    stages: int = 3,
    cluster: int = 1,
    neighbours: tuple[int, int] = (1, 1),
    teams: int = 0,
    stream_k: int = 0,
) -> Kernel:
    """3x3, padding 1, NHWC times [3, 3, C, M]: rows are gathered through // and %. teams: of
    persistent blocks."""
    bm, bn, bk = blocks
    out = (size - 1) // stride + 1
    pixels = batch * out * out
    schedule = Schedule(
        warps=warps, stages=stages, cluster=cluster, neighbours=neighbours, stream_k=stream_k,
        persistent=teams > 0, consumer_groups=max(1, teams),
    )  # fmt: skip
    b = Builder("convolution", schedule)
    x_view = b.view(
        b.buffer("x0", dtype, batch * size * size * channels), (batch, size, size, channels)
    )
    w_view = b.view(b.buffer("x1", dtype, 9 * channels * filters), (3, 3, channels, filters))
    first = index(b.program_id(0, -(-pixels // bm))) * bm
    columns = index(b.program_id(1, -(-filters // bn))) * bn
    pixel = first + axis(0, bm)
    line = pixel // out
    steps = -(-channels // bk)

    def body(i: Value, acc: Value) -> list[Value]:
        tap = index(i) // steps
        channel = index(i) % steps * bk
        at = (
            line // out,
            line % out * stride + tap // 3 - 1,
            pixel % out * stride + tap % 3 - 1,
            channel + axis(1, bk),
        )
        left = b.load(x_view, at, (bm, bk))
        where = (tap // 3, tap % 3, channel + axis(0, bk), columns + axis(1, bn))
        right = b.load(w_view, where, (bk, bn))
        return [b.dot(left, right, acc)]

    (acc,) = b.loop(0, 9 * steps, 1, [b.full(0, (bm, bn), f32)], body)
    y = b.buffer("y", dtype, pixels * filters, role="output")
    b.store(b.view(y, (pixels, filters)), (pixel, columns + axis(1, bn)), b.cast(acc, dtype))
    return b.build()
