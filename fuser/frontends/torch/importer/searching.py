"""ATen operators that find places in sorted tensors, and count by them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.frontends.torch.importer.registry import aten, promote
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int
from fuser.graph.ir import TensorType, Value
from fuser.graph.linear_index import gather_along


def _places(b: Builder, ordered: Value, wanted: Value, right: bool) -> Value:
    """Where each of `wanted` would stand in rows of sorted elements: in all of one row, or in that
    of its own row; int64. By halves, so that rows with NaN give what PyTorch's search gives."""
    size = as_int(ordered.shape[-1])
    low = b.full(0, TensorType(dtypes.i64, wanted.type.shape))
    high = b.full(size, low.type)
    for _ in range(size.bit_length()):
        middle = b.map("shift_right", b.map("add", low, high), 1)
        at = b.map("min", middle, size - 1)
        if ordered.type.rank == 1:
            element = b.emit("gather", ordered, at, axis=0)
        else:
            element = gather_along(b, ordered, at, ordered.type.rank - 1)
        stays = b.map("gt" if right else "ge", element, wanted)
        open_ = b.map("lt", low, high)
        ahead = b.map("logical_and", open_, b.map("logical_not", stays))
        low, high = (
            b.map("select", ahead, b.map("add", middle, 1), low),
            b.map("select", b.map("logical_and", open_, stays), middle, high),
        )
    return low


@aten("searchsorted")
def searchsorted(
    b: Builder, ordered: Value, wanted: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    common = promote(ordered, wanted)
    if not isinstance(wanted, Value):
        wanted = b.scalar(wanted, common)
    if sorter is not None:
        ordered = gather_along(b, ordered, sorter, ordered.type.rank - 1)
    found = _places(b, b.cast(ordered, common), b.cast(wanted, common), right or side == "right")
    return b.cast(found, dtypes.i32 if out_int32 else dtypes.i64)


@aten("bucketize")
def bucketize(
    b: Builder, wanted: Any, edges: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    return searchsorted(b, edges, wanted, out_int32=out_int32, right=right)


@aten("histc")
def histc(b: Builder, x: Value, bins: int = 100, low: Any = 0, high: Any = 0) -> Value:
    """How many elements lie in each of `bins` equal parts of a range; without one that of the data,
    whose result is NaN where it is not finite: PyTorch raises an error there."""
    flat = b.reshape(x, (x.type.size,))
    dtype = x.dtype if x.dtype.is_float else dtypes.f32
    wide = b.cast(flat, dtype)
    start, end = b.scalar(low, dtype), b.scalar(high, dtype)
    of_data = low == high and x.type.size
    if of_data:
        start, end = (b.reduce(f"reduce_{op}", wide, [0]) for op in ("min", "max"))
    if low == high:
        same = b.map("eq", start, end)
        start, end = (
            b.map("select", same, b.map("add", edge, step), edge)
            for edge, step in ((start, -1), (end, 1))
        )
    span = b.map("sub", end, start)
    offset = b.map("mul", b.map("sub", wide, start), bins)
    inside = b.map("logical_and", b.map("ge", wide, start), b.map("le", wide, end))
    place = b.cast(b.map("select", inside, b.map("div", offset, span), 0), dtypes.i64)
    place = b.map("min", place, bins - 1)
    counts = b.emit(
        "scatter", b.full(0, TensorType(dtypes.i64, (bins,))), place, b.cast(inside, dtypes.i64),
        axis=0, reduction="add",
    )  # fmt: skip
    found = b.cast(counts, x.dtype)
    if of_data and x.dtype.is_float:
        finite = b.map("eq", b.map("sub", span, span), 0)
        found = b.map("select", finite, found, np.nan)
    return found
