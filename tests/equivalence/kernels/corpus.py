"""Small kernels of many kinds, with inputs for which every order of sums gives the same bits.

Float inputs are multiples of 1/8 of small size: sums and products of a few are exact in float32.
Where a function such as exp makes other numbers, these are rounded to a multiple of 1/1024 before
they are added up.
"""

# Kernels are not Python: mypy does not know what the compiler makes of a constexpr.
# mypy: disable-error-code="attr-defined,call-overload,operator"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import fuser.language as fl

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A kernel and a launch of it. make: arguments of a launch by name, from a source of random
    numbers. outputs: the arrays to compare. quantum: how far elements of the two routes may lie
    apart, because they round a function such as exp each in its own way and kernels then round to
    a multiple of 1/1024 or 1/16; 0 where both compute the same bits. variant: tells the case
    from others of its kernel."""

    kernel: Callable[..., None]
    make: Callable[[np.random.Generator], Arrays]
    outputs: tuple[str, ...]
    grid: tuple[int, ...]
    quantum: float = 0.0
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.kernel.__name__} {self.variant}".strip()


def _eighths(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (rng.integers(-24, 25, shape) / 8).astype(dtype)


def _whole(rng: np.random.Generator, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return rng.integers(-40, 41, shape).astype(dtype)


def scaled_sum(x: Any, y: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    inside = at < n
    a = fl.load(x + at, inside, other=0.0)
    b = fl.load(y + at, inside, other=0.0)
    c = a * 2.0 + b
    d = fl.where(a > b, c, b - a)
    fl.store(out + at, d, inside)


def row_sums(x: Any, out: Any, rows: Any, columns: Any, R: fl.constexpr, C: fl.constexpr) -> None:
    r = fl.program_id(0) * R + fl.arange(0, R)
    c = fl.arange(0, C)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    tile = fl.load(x + r[:, None] * columns + c[None, :], inside, other=0.0)
    total = fl.sum(tile, 1)
    top = fl.max(tile, 1)
    fl.store(out + r, total + top * 4.0, r < rows)


def column_sums(
    x: Any, out: Any, rows: Any, columns: Any, R: fl.constexpr, C: fl.constexpr
) -> None:
    c = fl.program_id(0) * C + fl.arange(0, C)
    acc = fl.zeros((C,), fl.float32)
    for start in range(0, rows, R):
        r = start + fl.arange(0, R)
        inside = (r[:, None] < rows) & (c[None, :] < columns)
        tile = fl.load(x + r[:, None] * columns + c[None, :], inside, other=0.0)
        acc += fl.sum(tile, 0)
    fl.store(out + c, acc, c < columns)


def softmax(x: Any, out: Any, columns: Any, C: fl.constexpr) -> None:
    row = fl.program_id(0)
    c = fl.arange(0, C)
    inside = c < columns
    z = fl.load(x + row * columns + c, inside, other=-float("inf"))
    top = fl.max(z, 0)
    e = fl.floor(fl.exp(z - top) * 1024.0) / 1024.0
    total = fl.sum(e, 0)
    fl.store(out + row * columns + c, e / total, inside)


def rows_of_softmax(x: Any, out: Any, C: fl.constexpr, R: fl.constexpr) -> None:
    r = fl.program_id(0) * R + fl.arange(0, R)
    c = fl.arange(0, C)
    at = r[:, None] * C + c[None, :]
    z = fl.load(x + at)
    top = fl.max(z, 1)
    factor = fl.floor(fl.exp(-top) * 1024.0) / 1024.0
    e = fl.floor(fl.exp(z - top[:, None]) * 1024.0) / 1024.0
    total = factor + fl.sum(e, 1)
    fl.store(out + at, e * factor[:, None] + total[:, None])


def online_softmax(x: Any, out: Any, columns: Any, B: fl.constexpr) -> None:
    row = fl.program_id(0)
    top = -1000.0
    count = 0
    for start in range(0, columns, B):
        c = start + fl.arange(0, B)
        z = fl.load(x + row * columns + c, c < columns, other=-1000.0)
        new = fl.maximum(top, fl.max(z, 0))
        if new > top:
            count = 0
        count += fl.sum((z == new).to(fl.int32), 0)
        top = new
    fl.store(out + row * 2, top)
    fl.store(out + row * 2 + 1, count.to(fl.float32))


def matmul(a: Any, b: Any, out: Any, M: fl.constexpr, N: fl.constexpr, K: fl.constexpr,
           BK: fl.constexpr) -> None:  # fmt: skip
    m = fl.program_id(0) * M + fl.arange(0, M)
    n = fl.arange(0, N)
    acc = fl.zeros((M, N), fl.float32)
    for start in range(0, K, BK):
        k = start + fl.arange(0, BK)
        left = fl.load(a + m[:, None] * K + k[None, :])
        right = fl.load(b + k[:, None] * N + n[None, :])
        acc = fl.dot(left, right, acc)
    bias = fl.load(b + n)
    fl.store(out + m[:, None] * N + n[None, :], fl.maximum(acc + bias[None, :], 0.0))


def matmul_of_keys(q: Any, k: Any, out: Any, M: fl.constexpr, D: fl.constexpr) -> None:
    m = fl.program_id(0) * M + fl.arange(0, M)
    d = fl.arange(0, D)
    queries = fl.load(q + m[:, None] * D + d[None, :])
    keys = fl.load(k + m[:, None] * D + d[None, :])
    scores = fl.dot(queries, fl.trans(keys))
    top = fl.max(scores, 1)
    weights = fl.where(scores == top[:, None], 1.0, 0.0)
    values = fl.dot(weights, keys)
    fl.store(out + m[:, None] * D + d[None, :], values + top[:, None])


def running_sums(x: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    v = fl.load(x + at, at < n, other=0.0)
    s = fl.cumsum(v, 0)
    back = fl.cumsum(v, 0, reverse=True)
    fl.store(out + at, s * 2.0 - back, at < n)


def running_products(x: Any, out: Any, R: fl.constexpr, C: fl.constexpr) -> None:
    r = fl.program_id(0) * R + fl.arange(0, R)
    at = r[:, None] * C + fl.arange(0, C)[None, :]
    v = fl.load(x + at)
    s = fl.cumsum(v, 1)
    t = fl.cumsum(s, 0)
    fl.store(out + at, t + fl.sum(v, 1)[:, None])


def collatz(x: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    inside = at < n
    v = fl.load(x + at, inside, other=1)
    steps = fl.zeros((B,), fl.int32)
    while fl.max(v, 0) > 1:
        more = v > 1
        odd = (v & 1) == 1
        v = fl.where(more, fl.where(odd, 3 * v + 1, v >> 1), v)
        steps += more.to(fl.int32)
    fl.store(out + at, steps, inside)


def newton(x: Any, out: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    v = fl.load(x + at)
    guess = v
    count = 0
    while (fl.max(fl.abs(guess), 0) > 1.0) & (count < 6):
        guess = guess * 0.5
        count += 1
    fl.store(out + at, guess + count)


def histogram(x: Any, bins: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    inside = at < n
    v = fl.load(x + at, inside, other=0)
    place = (v & 7) + ((v >> 3) & 1)
    fl.atomic_add(bins + place, fl.where(inside, v, 0), inside)
    fl.atomic_max(bins + 16 + place, v, inside)


def gathered(x: Any, table: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    inside = at < n
    place = fl.load(table + at, inside, other=0)
    v = fl.load(x + place, inside, other=0.0)
    w = fl.load(x + (place * 3) % n, inside & (place > 2), other=-1.0)
    fl.store(out + (n - 1 - at), v - w, inside)


def flags(x: Any, y: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    inside = at < n
    a = fl.load(x + at, inside, other=0)
    b = fl.load(y + at, inside, other=1)
    less = a < b
    even = (a & 1) == 0
    both = less & even
    either = less | (b == 3)
    v = fl.where(both, a // (b * b + 1), fl.where(either, a % 7, a ^ b))
    v = fl.where(fl.max(both.to(fl.int32), 0) == 1, v, -v)
    fl.store(out + at, v, inside)


def stencil(x: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    total = fl.zeros((B,), fl.float32)
    for shift in range(-2, 3):
        place = at + shift
        near = (place >= 0) & (place < n)
        total += fl.load(x + place, near, other=0.0) * (3 - shift * shift)
    fl.store(out + at, total, at < n)


def in_place(x: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    inside = at < n
    v = fl.load(x + at, inside, other=0.0)
    fl.store(x + at, v * 2.0, inside)
    w = fl.load(x + at, inside, other=0.0)
    s = fl.sum(w, 0)
    fl.store(x + at, w - v + s, inside)


def halves(x: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    inside = at < n
    v = fl.load(x + at, inside, other=0.0)
    w = (v * 0.5 + 1.0).to(fl.float16)
    top = fl.max(w, 0)
    low = fl.min(fl.where(inside, w, 100.0), 0)
    fl.store(out + at, w + (top - low), inside)


def means(x: Any, out: Any, C: fl.constexpr) -> None:
    row = fl.program_id(0)
    c = fl.arange(0, C)
    v = fl.load(x + row * C + c)
    mean = fl.floor(fl.sum(v, 0) * 8.0 / C) / 8.0
    centred = v - mean
    square = fl.sum(centred * centred, 0)
    scale = fl.rsqrt(square / C + 1.0)
    scale = fl.floor(scale * 1024.0) / 1024.0
    fl.store(out + row * C + c, centred * scale)


def best(x: Any, out: Any, places: Any, R: fl.constexpr, C: fl.constexpr) -> None:
    r = fl.program_id(0) * R + fl.arange(0, R)
    c = fl.arange(0, C)
    v = fl.load(x + r[:, None] * C + c[None, :])
    first = fl.argmax(v, 1)
    least = fl.min(v, 1)
    second = fl.max(fl.where(c[None, :] == first[:, None], -1000.0, v), 1)
    fl.store(places + r, first)
    fl.store(out + r, second - least)


def blocks_of_two_axes(x: Any, out: Any, rows: Any, columns: Any, B: fl.constexpr) -> None:
    r = fl.program_id(0) * B + fl.arange(0, B)
    c = fl.program_id(1) * B + fl.arange(0, B)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    tile = fl.load(x + r[:, None] * columns + c[None, :], inside, other=0.0)
    turned = fl.trans(tile)
    there = (c[:, None] < columns) & (r[None, :] < rows)
    fl.store(out + c[:, None] * rows + r[None, :], turned * 3.0, there)


def conditions(x: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    v = fl.load(x + at, at < n, other=0.0)
    total = fl.sum(v, 0)
    if total > 0.0:
        w = v + total
        if fl.max(w, 0) > 20.0:
            w = w - 1.0
        else:
            w = w * 2.0
    else:
        w = v - total
    for i in range(0, 3):
        if fl.min(w, 0) > i:
            w = w - i
        total = total + fl.max(w, 0)
    fl.store(out + at, w + total, at < n)


def attention(q: Any, k: Any, v: Any, out: Any, N: fl.constexpr, D: fl.constexpr, M: fl.constexpr,
              BN: fl.constexpr) -> None:  # fmt: skip
    m = fl.program_id(0) * M + fl.arange(0, M)
    d = fl.arange(0, D)
    queries = fl.load(q + m[:, None] * D + d[None, :])
    top = fl.zeros((M,), fl.float32) - 100.0
    total = fl.zeros((M,), fl.float32)
    acc = fl.zeros((M, D), fl.float32)
    for start in range(0, N, BN):
        n = start + fl.arange(0, BN)
        keys = fl.load(k + n[:, None] * D + d[None, :])
        scores = fl.dot(queries, fl.trans(keys))
        scores = fl.where(m[:, None] >= n[None, :], scores, -100.0)
        new = fl.maximum(top, fl.max(scores, 1))
        weights = fl.floor(fl.exp((scores - new[:, None]) * 0.0625) * 16.0) / 16.0
        same = fl.where(new == top, 1.0, 0.0)
        total = total * same + fl.sum(weights, 1)
        values = fl.load(v + n[:, None] * D + d[None, :])
        acc = acc * same[:, None] + fl.dot(weights, values)
        top = new
    fl.store(out + m[:, None] * D + d[None, :], acc + total[:, None])


def sorted_rows(x: Any, out: Any, R: fl.constexpr, C: fl.constexpr) -> None:
    r = fl.program_id(0) * R + fl.arange(0, R)
    at = r[:, None] * C + fl.arange(0, C)[None, :]
    v = fl.load(x + at)
    low = fl.sort(v, 1)
    place = (fl.arange(0, C)[None, :] * 3 + r[:, None]) % C
    w = fl.gather(low, place, 1)
    fl.store(out + at, w - low)


def tickets(x: Any, count: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    inside = at < n
    v = fl.load(x + at, inside, other=0)
    place = fl.program_id(0) * B + fl.arange(0, B) // 4
    before = fl.atomic_xchg(count + at, v, inside)
    more = fl.load(count + at, inside, other=0)
    again = fl.atomic_add(count + at, place, inside)
    after = fl.load(count + at, inside, other=0)
    fl.store(out + at, fl.where(inside, after * 3 - again + more - before, 0), inside)


def two_results(x: Any, y: Any, out: Any, other: Any, rows: Any, C: fl.constexpr) -> None:
    c = fl.arange(0, C)
    for row in range(fl.program_id(0), rows, fl.num_programs(0)):
        a = fl.load(x + row * C + c)
        b = fl.load(y + row * C + c)
        total = a + b
        peak = fl.max(fl.abs(total), 0)
        if peak > 4.0:
            total = total * 0.5
        mean = fl.sum(total, 0) / C
        fl.store(out + row * C + c, total - mean)
        fl.store(other + row * C + c, total * peak)


def masks_that_are_carried(x: Any, out: Any, n: Any, B: fl.constexpr) -> None:
    at = fl.program_id(0) * B + fl.arange(0, B)
    live = at < n
    v = fl.load(x + at, live, other=0.0)
    steps = fl.zeros((B,), fl.int32)
    while fl.max(live.to(fl.int32), 0) > 0:
        v = fl.where(live, v * 0.5, v)
        steps = steps + live.to(fl.int32)
        live = live & (fl.abs(v) > 0.125) & (steps < 5)
    fl.store(out + at, v + steps, at < n)


def _vectors(n: int, *names: str, block: int = 64) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: {
        **{name: _eighths(rng, n) for name in names}, "out": np.zeros(n, np.float32),
        "n": n, "B": block,
    }  # fmt: skip


def _table(x: tuple[int, int], out: tuple[int, ...], dtype: Any = np.float32, **sizes: int) -> Any:
    return lambda rng: {
        "x": _eighths(rng, *x, dtype=dtype), "out": np.zeros(out, dtype), **sizes,
    }  # fmt: skip


CASES = [
    Case(scaled_sum, _vectors(150, "x", "y"), ("out",), (3,)),
    Case(scaled_sum, _vectors(45, "x", "y", block=16), ("out",), (3,), variant="short"),
    Case(row_sums, _table((11, 41), (11,), rows=11, columns=41, R=4, C=64), ("out",), (3,)),
    Case(row_sums, _table((11, 41), (11,), np.float16, rows=11, columns=41, R=4, C=64), ("out",),
         (3,), variant="float16"),
    Case(row_sums, _table((11, 21), (11,), np.float64, rows=11, columns=21, R=4, C=32), ("out",),
         (3,), variant="float64"),
    Case(column_sums, _table((13, 100), (100,), rows=13, columns=100, R=4, C=64), ("out",), (2,)),
    Case(softmax, _table((3, 41), (3, 41), columns=41, C=64), ("out",), (3,), 70 / 1024),
    Case(rows_of_softmax, _table((32, 64), (32, 64), C=64, R=16), ("out",), (2,), 90 / 1024),
    Case(rows_of_softmax, _table((32, 32), (32, 32), np.float64, C=32, R=16), ("out",), (2,),
         90 / 1024, "float64"),
    Case(online_softmax, _table((3, 150), (3, 2), columns=150, B=64), ("out",), (3,)),
    Case(
        matmul,
        lambda rng: {"a": _eighths(rng, 16, 32), "b": _eighths(rng, 32, 16),
                     "out": np.zeros((16, 16), np.float32), "M": 8, "N": 16, "K": 32, "BK": 16},
        ("out",), (2,),
    ),
    Case(
        matmul,
        lambda rng: {"a": _eighths(rng, 64, 64), "b": _eighths(rng, 64, 64),
                     "out": np.zeros((64, 64), np.float32), "M": 32, "N": 64, "K": 64, "BK": 32},
        ("out",), (2,), variant="large",
    ),
    Case(
        matmul_of_keys,
        lambda rng: {"q": _eighths(rng, 64, 32), "k": _eighths(rng, 64, 32),
                     "out": np.zeros((64, 32), np.float32), "M": 32, "D": 32},
        ("out",), (2,),
    ),
    Case(
        attention,
        lambda rng: {"q": _eighths(rng, 64, 16), "k": _eighths(rng, 64, 16),
                     "v": _eighths(rng, 64, 16), "out": np.zeros((64, 16), np.float32),
                     "N": 64, "D": 16, "M": 32, "BN": 32},
        ("out",), (2,), 64 * (3 + 1) / 16,
    ),
    Case(running_sums, _vectors(150, "x"), ("out",), (3,)),
    Case(running_products, _table((8, 64), (8, 64), R=4, C=64), ("out",), (2,)),
    Case(
        collatz,
        lambda rng: {"x": rng.integers(1, 30, 100).astype(np.int32),
                     "out": np.zeros(100, np.int32), "n": 100, "B": 64},
        ("out",), (2,),
    ),
    Case(newton, lambda rng: {"x": _eighths(rng, 128), "out": np.zeros(128, np.float32), "B": 64},
         ("out",), (2,)),
    Case(
        histogram,
        lambda rng: {"x": rng.integers(0, 90, 100).astype(np.int32),
                     "bins": np.zeros(32, np.int32), "n": 100, "B": 64},
        ("bins",), (2,),
    ),
    Case(
        gathered,
        lambda rng: {"x": _eighths(rng, 150), "table": rng.permutation(150).astype(np.int32),
                     "out": np.zeros(150, np.float32), "n": 150, "B": 64},
        ("out",), (3,),
    ),
    Case(
        flags,
        lambda rng: {"x": _whole(rng, 150), "y": _whole(rng, 150), "out": np.zeros(150, np.int32),
                     "n": 150, "B": 64},
        ("out",), (3,),
    ),
    Case(stencil, _vectors(150, "x"), ("out",), (3,)),
    Case(in_place, lambda rng: {"x": _eighths(rng, 150), "n": 150, "B": 64}, ("x",), (3,)),
    Case(
        halves,
        lambda rng: {"x": _eighths(rng, 150, dtype=np.float16), "out": np.zeros(150, np.float16),
                     "n": 150, "B": 64},
        ("out",), (3,),
    ),
    Case(means, _table((3, 64), (3, 64), C=64), ("out",), (3,), 8 / 1024),
    Case(
        best,
        lambda rng: {"x": _eighths(rng, 8, 64), "out": np.zeros(8, np.float32),
                     "places": np.zeros(8, np.int32), "R": 4, "C": 64},
        ("out", "places"), (2,),
    ),
    Case(blocks_of_two_axes, _table((37, 51), (51, 37), rows=37, columns=51, B=32), ("out",),
         (2, 2)),
    Case(blocks_of_two_axes, _table((19, 27), (27, 19), np.float16, rows=19, columns=27, B=16),
         ("out",), (2, 2), variant="float16"),
    Case(conditions, _vectors(150, "x"), ("out",), (3,)),
    Case(sorted_rows, _table((8, 16), (8, 16), R=4, C=16), ("out",), (2,)),
    Case(sorted_rows, _table((8, 32), (8, 32), np.int32, R=4, C=32), ("out",), (2,),
         variant="int32"),
    Case(
        tickets,
        lambda rng: {"x": _whole(rng, 100), "count": _whole(rng, 100),
                     "out": np.zeros(100, np.int32), "n": 100, "B": 64},
        ("out", "count"), (2,),
    ),
    Case(
        two_results,
        lambda rng: {"x": _eighths(rng, 5, 64), "y": _eighths(rng, 5, 64), "rows": 5, "C": 64,
                     "out": np.zeros((5, 64), np.float32),
                     "other": np.zeros((5, 64), np.float32)},
        ("out", "other"), (2,),
    ),
    Case(masks_that_are_carried, _vectors(150, "x"), ("out",), (3,)),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
