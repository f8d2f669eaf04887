"""ATen's pooling with windows of one size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.convolution import extend, spread, stretch, windows
from fuser.frontends.torch.importer.registry import aten
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import TensorType, Value
from fuser.graph.windows import reduce_windows

MOST_PLACES = 64
"""In the window of a max pool whose gradient is computed."""


def _overhang(size: int, window: int, step: int, pad: int, spacing: int) -> int:
    """How far the last window of ceil_mode reaches beyond the padded input; one that would start
    in the padding after the input is left out."""
    reach = (window - 1) * spacing + 1
    count = -(-(size + 2 * pad - reach) // step) + 1
    if (count - 1) * step >= size + pad:
        count -= 1
    return max(0, (count - 1) * step + reach - (size + 2 * pad))


def _max_pool(rank: int) -> Any:
    def handler(
        b: Builder, x: Value, window: Any, strides: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value]:  # fmt: skip
        sizes = x.shape[-rank:]
        shape, pads, spacing = (spread(v, rank) for v in (window, padding, dilation))
        steps = spread(strides, rank) if strides else shape
        extra = [
            _overhang(*each) if ceil_mode else 0
            for each in zip(sizes, shape, steps, pads, spacing, strict=True)
        ]
        ends = [(p, p + e) for p, e in zip(pads, extra, strict=True)]
        result = reduce_windows(b, "max", x, shape, steps, ends, spacing)
        out = result.shape[-rank:]
        return result, _indices_of_maxima(b, x, out, shape, steps, pads, spacing)

    return handler


def _indices_of_maxima(
    b: Builder, x: Value, out: Sequence[int], window: Sequence[int], steps: Sequence[int],
    pads: Sequence[int], spacing: Sequence[int],
) -> Value:  # fmt: skip
    """The linear index in its image of each window's maximum; removed again if nobody reads it.

    Windows are gathered from the flattened image, which an element of -inf at its end stands for
    the padding of.
    """
    rank = len(window)
    sizes = x.shape[-rank:]
    area = int(np.prod(sizes))
    check_table("the places in pooled windows", *out, *window, arrays=4)
    indices = np.zeros((1, 1), np.int64)
    inside = np.ones((1, 1), bool)
    each = zip(sizes, out, window, steps, pads, spacing, strict=True)
    for size, count, width, step, pad, gap in each:
        line = np.arange(count)[:, None] * step - pad + np.arange(width) * gap
        shape = (indices.shape[0] * count, indices.shape[1] * width)
        fits = (line >= 0) & (line < size)
        indices = (indices[:, None, :, None] * size + line[None, :, None, :]).reshape(shape)
        inside = (inside[:, None, :, None] & fits[None, :, None, :]).reshape(shape)
    indices = np.where(inside, indices, area)
    flat = b.reshape(x, (*x.shape[:-rank], area))
    lead = flat.type.rank - 1
    lowest = x.dtype.lowest
    flat = b.pad(flat, [0] * (lead + 1), [0] * lead + [1], lowest)
    best = b.emit(
        "argmax", b.emit("gather", flat, b.constant(indices), axis=lead), axis=lead + 1,
        select_last=False,
    )  # fmt: skip
    row = b.map("mul", b.iota(best.type.shape, lead), indices.shape[1])
    linear = b.map("add", row, best)
    found = b.emit("gather", b.constant(indices.reshape(-1)), linear, axis=0)
    return b.reshape(found, (*x.shape[:-rank], *out))


@aten("max_pool_backward")
def max_pool_backward(
    b: Builder, grad: Value, x: Value, window: Any, strides: Any, padding: Any, dilation: Any,
    ceil_mode: bool,
) -> Value:  # fmt: skip
    """The gradient of x (`fuser.max_pool_backward`, frontends/torch/pools.py): an element has that
    of the windows in which it is the first maximum, or the last NaN. Raises UnsupportedError for
    large windows."""
    rank, batched = len(window), x.type.rank == len(window) + 2
    if math.prod(window) > MOST_PLACES:
        raise UnsupportedError(f"the gradient of a max pool with the window {list(window)}")
    image, own = (v if batched else b.unsqueeze(v, [0]) for v in (x, grad))
    pads, spacing = (spread(v, rank) for v in (padding, dilation))
    steps = spread(strides, rank) if strides else window
    sizes, counts = image.shape[2:], own.shape[2:]
    parts = windows(b, image, counts, window, steps, pads, spacing, x.dtype.lowest)
    whole = b.full(True, TensorType(dtypes.bool_, (1, 1, *sizes)))
    inside = windows(b, whole, counts, window, steps, pads, spacing)
    best, first, taken = parts[0], b.full(0, TensorType(dtypes.u8, parts[0].type.shape)), inside[0]
    for number, part in enumerate(parts[1:], 1):
        beyond = b.map("logical_or", b.map("gt", part, best), b.map("is_nan", part))
        if any(pads):  # -inf is no more than the padding before it
            fresh = b.map("logical_and", inside[number], b.map("logical_not", taken))
            beyond = b.map("logical_or", beyond, b.broadcast_to(fresh, part.shape))
            taken = b.map("logical_or", taken, inside[number])
        best = b.map("select", beyond, part, best)
        first = b.map("select", beyond, b.scalar(number, dtypes.u8), first)
    wide = compose.stash(b, own)
    total: Value | None = None
    for number, place in enumerate(product(*map(range, window))):
        chosen = b.map("select", b.map("eq", first, number), wide, b.scalar(0, wide.dtype))
        begins = [at * gap - pad for at, gap, pad in zip(place, spacing, pads, strict=True)]
        ends = [
            (begin, n - begin - (count - 1) * step - 1)
            for n, begin, count, step in zip(sizes, begins, counts, steps, strict=True)
        ]
        moved = extend(b, stretch(b, chosen, steps), ends)
        total = moved if total is None else b.map("add", total, moved)
    assert total is not None
    return b.cast(b.reshape(total, x.type.shape), x.dtype)


def _ends(
    sizes: Sequence[int], window: Sequence[int], steps: Sequence[int], pads: Sequence[int],
    ceil_mode: bool,
) -> list[tuple[int, int]]:  # fmt: skip
    """The padding of an average pool, with what its last windows reach beyond."""
    one = [1] * len(window)
    extra = [
        _overhang(*each) if ceil_mode else 0
        for each in zip(sizes, window, steps, pads, one, strict=True)
    ]
    return [(p, p + e) for p, e in zip(pads, extra, strict=True)]


def _shares(
    b: Builder, x: Value, sizes: Sequence[int], shape: Sequence[int], steps: Sequence[int],
    pads: Sequence[int], ends: Sequence[tuple[int, int]], counts_padding: bool,
    divisor: int | None,
) -> Value:  # fmt: skip
    """x, with an element for every window of an image, over the elements that the window has."""
    rank = len(shape)
    extra = [high - low for low, high in ends]
    if divisor or (not any(extra) and (counts_padding or not any(pads))):
        return b.map("div", x, divisor or math.prod(shape))
    check_table("the sizes of pooled windows", *sizes, arrays=4)
    ones, inner = np.ones(sizes, x.dtype.numpy), ends
    if counts_padding:
        ones = np.pad(ones, [(p, p) for p in pads], constant_values=1)
        inner = [(0, e) for e in extra]
    counts = reduce_windows(b, "sum", b.constant(ones), shape, steps, inner, [1] * rank)
    axes = range(x.type.rank - rank, x.type.rank)
    return b.map("div", x, b.broadcast(counts, x.type.shape, axes))


def _average_pool(rank: int) -> Any:
    def handler(
        b: Builder, x: Value, window: Any, strides: Any = (), padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
    ) -> Value:  # fmt: skip
        sizes = x.shape[-rank:]
        shape, pads = spread(window, rank), spread(padding, rank)
        steps = spread(strides, rank) if strides else shape
        ends = _ends(sizes, shape, steps, pads, ceil_mode)
        total = reduce_windows(b, "sum", compose.stash(b, x), shape, steps, ends, [1] * rank)
        mean = _shares(b, total, sizes, shape, steps, pads, ends, count_include_pad, divisor)
        return b.cast(mean, x.dtype)

    return handler


def _average_pool_backward(rank: int) -> Any:
    def handler(
        b: Builder, grad: Value, x: Value, window: Any, strides: Any, padding: Any,
        ceil_mode: bool, count_include_pad: bool, divisor: int | None,
    ) -> Value:  # fmt: skip
        """Sums over windows of the shares with zeros between them."""
        sizes = x.shape[-rank:]
        shape, pads = spread(window, rank), spread(padding, rank)
        steps = spread(strides, rank) if strides else shape
        ends = _ends(sizes, shape, steps, pads, ceil_mode)
        wide = compose.stash(b, grad)
        share = _shares(b, wide, sizes, shape, steps, pads, ends, count_include_pad, divisor)
        image = (1, math.prod(x.shape[:-rank]), *grad.shape[-rank:])
        apart = stretch(b, b.reshape(share, image), steps)
        around = [
            (width - 1 - pad, n + pad - length)
            for n, width, pad, length in zip(sizes, shape, pads, apart.shape[2:], strict=True)
        ]
        one = [1] * rank
        whole = extend(b, apart, around)
        total = reduce_windows(b, "sum", whole, shape, one, [(0, 0)] * rank, one)
        return b.cast(b.reshape(total, x.type.shape), x.dtype)

    return handler


for _rank in (1, 2, 3):
    aten(f"max_pool{_rank}d_with_indices")(_max_pool(_rank))
    aten(f"avg_pool{_rank}d")(_average_pool(_rank))
    aten(f"avg_pool{_rank}d_backward")(_average_pool_backward(_rank))
