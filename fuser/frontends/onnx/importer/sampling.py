"""ONNX operators that read an image between its pixels: GridSample, RoiAlign, DeformConv, Col2Im;
and AffineGrid, which says where.

Images are flattened to rows of channels, so that one gather reads a pixel with all its channels;
where to read, and the weights of the neighbours, are tensors like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.contraction import add_channel_bias, spatial_attr, stuff_zeros
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, as_int, maximum, product
from fuser.graph.ir import Value


def _clamp(b: Builder, x: Value, low: float, high: float) -> Value:
    return b.map("min", b.map("max", x, low), high)


def _reflect(b: Builder, x: Value, low: float, high: float) -> Value:
    """x folded back into [low, high] as if there were mirrors at both ends."""
    span = high - low
    if span <= 0:
        return b.full(low, x.type)
    folded = b.map("mod", b.map("abs", b.map("sub", x, low)), 2 * span)
    return b.map("sub", b.full(high, x.type), b.map("abs", b.map("sub", folded, span)))


def _linear_index(b: Builder, coordinates: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Row-major index of integer coordinates, int64."""
    total = b.cast(coordinates[0], dtypes.i64)
    for coordinate, size in zip(coordinates[1:], sizes[1:], strict=True):
        total = b.map("add", b.map("mul", total, size), b.cast(coordinate, dtypes.i64))
    return total


def _read(
    b: Builder, rows: Value, base: Value, coordinates: Sequence[Value], sizes: Sequence[int]
) -> tuple[Value, Value]:
    """rows [images * pixels, channels] at float coordinates of whole pixels in the image whose
    first row `base` gives: [..., channels], and whether the pixel exists."""
    inside: Value | None = None
    safe = []
    for coordinate, size in zip(coordinates, sizes, strict=True):
        here = b.map("logical_and", b.map("ge", coordinate, 0), b.map("le", coordinate, size - 1))
        inside = here if inside is None else b.map("logical_and", inside, here)
        safe.append(_clamp(b, coordinate, 0, size - 1))
    assert inside is not None
    index = b.map("add", base, _linear_index(b, safe, sizes))
    return b.emit("gather", rows, index, axis=0), inside


def _over_channels(b: Builder, x: Value, like: Value) -> Value:
    """x stretched over the channels that `like` has as its last axis."""
    return b.broadcast(x, like.type.shape, range(x.type.rank))


def _to_rows(b: Builder, x: Value) -> Value:
    """[N, C, spatial...] as [N * pixels, C]."""
    rank = x.type.rank
    moved = b.transpose(x, (0, *range(2, rank), 1))
    return b.reshape(moved, (product(moved.type.shape[:-1]), x.type.shape[1]))


def _bases(b: Builder, shape: Sequence[Dim], axis: int, pixels: int) -> Value:
    """The first row of the image of each point: images follow `axis`."""
    return b.map("mul", b.iota(shape, axis), pixels)


@onnx_op("GridSample", since=16)
def grid_sample(b: Builder, node: OnnxNode) -> Value:
    x, grid = node.operand(0), node.operand(1)
    sizes = [as_int(dim) for dim in x.type.shape[2:]]
    rank = len(sizes)
    aligned = bool(node.attr("align_corners", 0))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(*[node.attr("mode", "linear")] * 2)
    padding = node.attr("padding_mode", "zeros")
    wide = b.cast(grid, dtypes.f32) if grid.dtype.bits < 32 else grid
    shape = grid.type.shape[:-1]
    bounds = [(0.0, size - 1.0) if aligned else (-0.5, size - 0.5) for size in sizes]
    coordinates = []
    for axis, size in enumerate(sizes):
        # The last entry of a grid point is along the last axis.
        entry = rank - 1 - axis
        at = b.reshape(b.slice_axis(wide, wide.type.rank - 1, entry, entry + 1), shape)
        at = b.map("add", at, 1)
        if aligned:
            at = b.map("mul", at, (size - 1) / 2)
        else:
            at = b.map("div", b.map("sub", b.map("mul", at, size), 1), 2)
        if mode == "nearest":
            at = b.emit("round", at)
        low, high = bounds[axis]
        if padding == "border":
            at = _clamp(b, at, 0, size - 1) if mode != "cubic" else at
        elif padding == "reflection":
            at = _reflect(b, at, low, high) if mode != "cubic" else at
        coordinates.append(at)
    rows, base = _to_rows(b, x), _bases(b, shape, 0, int(np.prod(sizes)))
    total: Value | None = None
    for taps in cartesian(*[_axis_taps(b, at, mode, node) for at in coordinates]):
        pixels = [coordinate for coordinate, _ in taps]
        if padding == "border":
            pixels = [_clamp(b, p, 0, n - 1) for p, n in zip(pixels, sizes, strict=True)]
        elif padding == "reflection":
            pixels = [
                _clamp(b, b.emit("round", _reflect(b, p, *bound)), 0, n - 1)
                for p, bound, n in zip(pixels, bounds, sizes, strict=True)
            ]
        found, inside = _read(b, rows, base, pixels, sizes)
        if padding == "zeros":
            found = b.map("select", _over_channels(b, inside, found), found, 0)
        weight: Value | None = None
        for _, factor in taps:
            if factor is not None:
                weight = factor if weight is None else b.map("mul", weight, factor)
        if weight is not None:
            found = b.map("mul", found, _over_channels(b, b.cast(weight, found.dtype), found))
        total = found if total is None else b.map("add", total, found)
    assert total is not None
    last = total.type.rank - 1
    return b.transpose(total, (0, last, *range(1, last)))


@onnx_op("AffineGrid", since=20)
def affine_grid(b: Builder, node: OnnxNode) -> Value:
    """Where each pixel is read: theta times its coordinates (x, y, [z,] 1), from -1 to 1.

    The standard's function body is not used: it drops a batch of one image.
    """
    theta, dims = node.operand(0), b.read_dims(node.operand(1), "the size")
    batch, spatial, rank = dims[0], dims[2:], len(dims) - 2
    if rank not in (2, 3):
        raise InvalidModelError(f"the size has {len(dims)} numbers, not 4 or 5", where=node.where)
    if theta.type.rank != 3 or theta.type.shape[1:] != (rank, rank + 1):
        raise InvalidModelError(
            f"theta is {theta.type}, not [N, {rank}, {rank + 1}]", where=node.where
        )
    shape = (batch, *spatial, rank)
    wide = b.cast(theta, dtypes.f32) if theta.dtype.bits < 32 else theta

    def factor(entry: int) -> Value:
        row = b.slice_axis(wide, 2, entry, entry + 1)
        return b.broadcast(b.reshape(row, theta.type.shape[:2]), shape, (0, rank + 1))

    total = factor(rank)
    for axis, size in enumerate(spatial):
        at = b.map("mul", b.iota((size,), 0, wide.dtype), 2)
        if node.attr("align_corners", 0):  # of one pixel: at the start
            at = b.map("div", at, b.dim(maximum(size - 1, 1), wide.dtype))
        else:
            at = b.map("div", b.map("add", at, 1), b.dim(size, wide.dtype))
        at = b.broadcast(b.map("sub", at, 1), shape, (1 + axis,))
        # The first entry of a row of theta is for the last axis.
        total = b.map("add", total, b.map("mul", factor(rank - 1 - axis), at))
    return b.cast(total, theta.dtype)


def _axis_taps(
    b: Builder, at: Value, mode: str, node: OnnxNode
) -> list[tuple[Value, Value | None]]:
    """(pixel, weight) of every neighbour along one axis."""
    if mode == "nearest":
        return [(at, None)]
    base = b.emit("floor", at)
    t = b.map("sub", at, base)
    if mode == "linear":
        return [(base, b.map("sub", b.full(1, t.type), t)), (b.map("add", base, 1), t)]
    if mode != "cubic":
        raise node.unsupported(f"mode {mode!r}")
    a = -0.75
    taps: list[tuple[Value, Value | None]] = []
    for step in (-1, 0, 1, 2):
        d = b.emit("abs", b.map("sub", t, step))
        if step in (0, 1):  # ((a + 2) d - (a + 3)) d^2 + 1
            inner = b.map("sub", b.map("mul", d, a + 2), a + 3)
            weight = b.map("add", b.map("mul", b.map("mul", inner, d), d), 1)
        else:  # ((a d - 5 a) d + 8 a) d - 4 a
            inner = b.map("sub", b.map("mul", d, a), 5 * a)
            inner = b.map("add", b.map("mul", inner, d), 8 * a)
            weight = b.map("sub", b.map("mul", inner, d), 4 * a)
        taps.append((b.map("add", base, step), weight))
    return taps


@onnx_op("RoiAlign", since=10)
def roi_align(b: Builder, node: OnnxNode) -> Value:
    """The mean or maximum of bilinear samples on a fixed grid in each cell of each region."""
    x, rois, images = (node.operand(i) for i in range(3))
    height, width = node.attr("output_height", 1), node.attr("output_width", 1)
    samples = node.attr("sampling_ratio", 0)
    if samples == 0:
        raise node.unsupported("sampling_ratio 0 takes as many samples as a region is wide")
    half = (
        node.opset >= 16
        and node.attr("coordinate_transformation_mode", "half_pixel") != "output_half_pixel"
    )
    scale = node.attr("spatial_scale", 1.0)
    sizes = [as_int(dim) for dim in x.type.shape[2:]]
    count = rois.type.shape[0]
    shape = (count, height, width, samples, samples)
    corner = [b.reshape(b.slice_axis(rois, 1, i, i + 1), (count,)) for i in range(4)]
    coordinates = []
    for axis, cells, sample_axis in ((1, height, 3), (2, width, 4)):
        start, end = (b.map("mul", corner[i], scale) for i in (2 - axis, 4 - axis))
        if half:
            start, end = b.map("sub", start, 0.5), b.map("sub", end, 0.5)
        extent = b.map("sub", end, start)
        if not half:
            extent = b.map("max", extent, 1)
        cell = b.broadcast(b.map("div", extent, cells), shape, (0,))
        step = b.map("div", b.map("add", b.iota(shape, sample_axis, x.dtype), 0.5), samples)
        offset = b.map("add", b.iota(shape, axis, x.dtype), step)
        coordinates.append(
            b.map("add", b.broadcast(start, shape, (0,)), b.map("mul", offset, cell))
        )
    base = b.map("mul", b.cast(images, dtypes.i64), int(np.prod(sizes)))
    rows, base = _to_rows(b, x), b.broadcast(base, shape, (0,))
    valid: Value | None = None
    ways = []
    for at, size in zip(coordinates, sizes, strict=True):
        here = b.map("logical_and", b.map("ge", at, -1), b.map("le", at, size))
        valid = here if valid is None else b.map("logical_and", valid, here)
        at = _clamp(b, at, 0, size - 1)
        low = b.emit("floor", at)
        t = b.map("sub", at, low)
        ways.append([(low, b.map("sub", b.full(1, t.type), t)),
                     (b.map("min", b.map("add", low, 1), size - 1), t)])  # fmt: skip
    assert valid is not None
    largest = node.attr("mode", "avg") == "max"
    total: Value | None = None
    for (row, row_weight), (column, column_weight) in cartesian(*ways):
        found, _ = _read(b, rows, base, [row, column], sizes)
        weight = b.map("mul", row_weight, column_weight)
        found = b.map("mul", found, _over_channels(b, weight, found))
        # The maximum is over weighted neighbours, not over samples: so the reference has it.
        total = found if total is None else b.map("max" if largest else "add", total, found)
    assert total is not None
    total = b.map("select", _over_channels(b, valid, total), total, 0)
    result = b.reduce("reduce_max", total, [3, 4]) if largest else b.mean(total, [3, 4])
    return b.transpose(result, (0, 3, 1, 2))


@onnx_op("DeformConv", since=19)
def deform_conv(b: Builder, node: OnnxNode) -> Value:
    """A convolution whose taps each read at an offset of their own, two spatial axes."""
    x, weight, offset = (node.operand(i) for i in range(3))
    bias, mask = node.optional(3), node.optional(4)
    if x.type.rank != 4:
        raise node.unsupported(f"{x.type.rank - 2} spatial axes")
    batch, channels = (as_int(dim) for dim in x.type.shape[:2])
    sizes = [as_int(dim) for dim in x.type.shape[2:]]
    groups, spans = node.attr("group", 1), node.attr("offset_group", 1)
    window = [as_int(dim) for dim in weight.type.shape[2:]]
    taps = window[0] * window[1]
    out = [as_int(dim) for dim in offset.type.shape[2:]]
    strides, dilation = spatial_attr(node, "strides", 2), spatial_attr(node, "dilations", 2)
    pads = list(node.attr("pads", None) or [0] * 4)
    shape = (batch, spans, taps, *out)
    moved = b.reshape(offset, (batch, spans, taps, 2, *out))
    check_table("the taps of a window", 2, taps, arrays=4)
    grid = np.stack(np.meshgrid(*map(np.arange, window), indexing="ij")).reshape(2, taps)
    coordinates = []
    for axis in range(2):
        own = b.reshape(b.slice_axis(moved, 3, axis, axis + 1), shape)
        first = b.constant((grid[axis] * dilation[axis] - pads[axis]).astype(x.dtype.numpy))
        at = b.map("mul", b.iota(shape, 3 + axis, x.dtype), strides[axis])
        coordinates.append(b.map("add", b.map("add", at, b.broadcast(first, shape, (2,))), own))
    split = b.reshape(x, (batch * spans, channels // spans, *sizes))
    rows = _to_rows(b, split)
    image = b.map("add", b.map("mul", b.iota(shape, 0), spans), b.iota(shape, 1))
    base = b.map("mul", image, int(np.prod(sizes)))
    total: Value | None = None
    for pair in cartesian(*[_axis_taps(b, at, "linear", node) for at in coordinates]):
        found, inside = _read(b, rows, base, [coordinate for coordinate, _ in pair], sizes)
        factors = [factor for _, factor in pair if factor is not None]
        factor = b.map("select", inside, b.map("mul", *factors), 0)
        found = b.map("mul", found, _over_channels(b, factor, found))
        total = found if total is None else b.map("add", total, found)
    assert total is not None
    if mask is not None:
        total = b.map("mul", total, _over_channels(b, b.reshape(mask, shape), total))
    # [batch, spans, taps, h, w, channels / spans] -> [batch, groups, channels / groups * taps, h*w]
    columns = b.transpose(total, (0, 1, 5, 2, 3, 4))
    per_group = channels // groups
    columns = b.reshape(columns, (batch, groups, per_group * taps, out[0] * out[1]))
    outputs = as_int(weight.type.shape[0])
    kernel = b.reshape(weight, (groups, outputs // groups, per_group * taps))
    result = b.dot(kernel, columns, ((2,), (2,)), ((0,), (1,)))  # [groups, m, batch, pixels]
    result = b.reshape(b.transpose(result, (2, 0, 1, 3)), (batch, outputs, *out))
    return add_channel_bias(b, result, bias)


@onnx_op("Col2Im", since=18)
def col2im(b: Builder, node: OnnxNode) -> Value:
    """The sum of blocks laid over each other: each tap of the block spread out and added."""
    x = node.x
    image = b.read_ints(node.operand(1), "the image shape")
    block = b.read_ints(node.operand(2), "the block shape")
    rank = len(image)
    strides, dilation = (spatial_attr(node, name, rank) for name in ("strides", "dilations"))
    pads = list(node.attr("pads", None) or [0] * (2 * rank))
    spans = [size + pads[i] + pads[i + rank] for i, size in enumerate(image)]
    counts = [
        (span - (k - 1) * d - 1) // s + 1
        for span, k, d, s in zip(spans, block, dilation, strides, strict=True)
    ]
    batch = x.type.shape[0]
    channels = as_int(x.type.shape[1]) // int(np.prod(block))
    columns = b.reshape(x, (batch, channels, int(np.prod(block)), *counts))
    total: Value | None = None
    for number, taps in enumerate(np.ndindex(*block)):
        tap = b.reshape(b.slice_axis(columns, 2, number, number + 1), (batch, channels, *counts))
        spread = stuff_zeros(b, tap, strides)
        low = [0, 0, *(t * d for t, d in zip(taps, dilation, strict=True))]
        high = [0, 0, *(
            span - before - as_int(size)
            for span, before, size in zip(spans, low[2:], spread.type.shape[2:], strict=True)
        )]  # fmt: skip
        layer = b.pad(spread, low, high)
        total = layer if total is None else b.map("add", total, layer)
    assert total is not None
    starts = [0, 0, *pads[:rank]]
    limits = [batch, channels, *(p + n for p, n in zip(pads[:rank], image, strict=True))]
    return b.slice(total, starts, limits)
