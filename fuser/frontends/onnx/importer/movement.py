"""ONNX operators that move elements: reshapes, slices, concatenation, padding, tiling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fuser.base.limits import check_table
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.reduction import read_axes
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph.builder import Builder, broadcast_shapes, infer_minus_one
from fuser.graph.dims import Dim, DimExpr, as_int, is_decided, maximum, minimum, product
from fuser.graph.ir import Value


@onnx_op("Reshape")
def reshape(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    operand = node.optional(1)
    wanted = list(node.required("shape")) if operand is None else b.read_dims(operand, "the shape")
    if not node.attr("allowzero", 0):
        if any(dim == 0 and i >= x.type.rank for i, dim in enumerate(wanted)):
            raise InvalidModelError(f"the shape {wanted} copies a missing dim", where=node.where)
        wanted = [x.type.shape[i] if dim == 0 else dim for i, dim in enumerate(wanted)]
    return b.reshape(x, infer_minus_one(x.type, wanted))


@onnx_op("Flatten")
def flatten(b: Builder, node: OnnxNode) -> Value:
    shape, axis = node.x.type.shape, node.attr("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise InvalidModelError(f"axis {axis} is outside of {node.x.type}", where=node.where)
    axis = axis + len(shape) if axis < 0 else axis
    return b.reshape(node.x, (product(shape[:axis]), product(shape[axis:])))


@onnx_op("Squeeze")
def squeeze(b: Builder, node: OnnxNode) -> Value:
    axes = read_axes(b, node, 1)
    if axes is None:
        axes = [axis for axis, dim in enumerate(node.x.type.shape) if dim == 1]
    return b.squeeze(node.x, axes)


@onnx_op("Unsqueeze")
def unsqueeze(b: Builder, node: OnnxNode) -> Value:
    operand = node.optional(1)
    axes = node.required("axes") if operand is None else b.read_ints(operand, "axes")
    return b.unsqueeze(node.x, node.axes(axes, node.x.type.rank + len(axes)))


@onnx_op("Transpose")
def transpose(b: Builder, node: OnnxNode) -> Value:
    perm = node.attr("perm", None)
    return b.transpose(node.x, perm if perm is not None else range(node.x.type.rank)[::-1])


@onnx_op("Concat")
def concat(b: Builder, node: OnnxNode) -> Value:
    values = node.present()
    axis = node.axis(node.attr("axis", 1), values[0].type.rank)
    return b.concat(values, axis)


@onnx_op("Expand", since=8)
def expand(b: Builder, node: OnnxNode) -> Value:
    shape = b.read_dims(node.operand(1), "the shape")
    return b.broadcast_to(node.x, broadcast_shapes("Expand", [node.x.type.shape, shape]))


@onnx_op("Tile", since=6)
def tile(b: Builder, node: OnnxNode) -> Value:
    """Each axis n repeated r times: [n] -> [r, n] by broadcast -> [r * n] by reshape."""
    x, repeats = node.x, b.read_dims(node.operand(1), "repeats")
    if len(repeats) != x.type.rank:
        raise InvalidModelError(f"repeats {repeats} do not fit {x.type}", where=node.where)
    if any(isinstance(repeat, int) and repeat < 0 for repeat in repeats):
        raise InvalidModelError(f"repeats {repeats} are negative", where=node.where)
    if all(repeat == 1 for repeat in repeats):
        return x
    split = [dim for pair in zip(repeats, x.type.shape, strict=True) for dim in pair]
    wide = b.broadcast(x, split, range(1, len(split), 2))
    return b.reshape(wide, [r * n for r, n in zip(repeats, x.type.shape, strict=True)])


@onnx_op("Split")
def split(b: Builder, node: OnnxNode) -> list[Value | None]:
    x, count = node.x, len(node.outputs)
    axis = node.axis(node.attr("axis", 0), x.type.rank)
    size = x.type.shape[axis]
    operand = node.optional(1)
    if operand is not None:
        sizes: Sequence[Dim] = b.read_dims(operand, "split")
    elif "split" in node.attrs:
        sizes = node.attrs["split"]
    else:
        count = node.attr("num_outputs", count)
        if is_decided(size):
            # Opset 18: the last part is smaller where the size does not divide.
            part = -(-size // count)
            sizes = [min(part, size - i * part) for i in range(count)]
        else:
            sizes = [size // count] * count
    bounds: list[Dim] = [0]
    for part_size in sizes:
        bounds.append(bounds[-1] + part_size)
    return [b.slice_axis(x, axis, low, high) for low, high in pairwise(bounds)]


@onnx_op("Slice")
def slice_attributes(b: Builder, node: OnnxNode) -> Value:
    starts, ends = node.required("starts"), node.required("ends")
    axes = node.attr("axes", list(range(len(starts))))
    return _slice(b, node, starts, ends, axes, [1] * len(starts))


@onnx_op("Slice", since=10)
def slice_operands(b: Builder, node: OnnxNode) -> Value:
    starts = b.read_dims(node.operand(1), "starts")
    ends = b.read_dims(node.operand(2), "ends")
    axes, steps = node.optional(3), node.optional(4)
    return _slice(
        b,
        node,
        starts,
        ends,
        list(range(len(starts))) if axes is None else b.read_ints(axes, "axes"),
        [1] * len(starts) if steps is None else b.read_ints(steps, "steps"),
    )


def _slice(
    b: Builder,
    node: OnnxNode,
    starts: Sequence[Dim],
    ends: Sequence[Dim],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Value:
    x = node.x
    low: list[Dim] = [0] * x.type.rank
    high, stride = list(x.type.shape), [1] * x.type.rank
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise InvalidModelError("starts, ends, axes and steps differ in length", where=node.where)
    if len({node.axis(axis, x.type.rank) for axis in axes}) != len(axes):
        raise InvalidModelError(f"axes {list(axes)} repeat", where=node.where)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = node.axis(axis, x.type.rank)
        if step == 0:
            raise InvalidModelError("a step is 0", where=node.where)
        size = x.type.shape[axis]
        first, last = (size - 1, -1) if step < 0 else (size, 0)
        if step > 0:
            low[axis] = _clamp(start, size, 0, first)
            # A start beyond the end is an empty slice, not a negative one.
            high[axis] = maximum(_clamp(end, size, last, size), low[axis])
        else:
            low[axis] = _clamp(start, size, 0, first)
            high[axis] = minimum(_clamp(end, size, last, first), low[axis])
        stride[axis] = step
    return b.slice(x, low, high, stride)


def _clamp(index: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    """An index counted from the front and kept within [low, high]."""
    if isinstance(index, int) and index < 0:
        # INT_MIN stands for "before the beginning" whatever the size.
        index = low if index < -(2**31) + 1 else index + size
    elif isinstance(index, DimExpr):
        negative = index < 0 if is_decided(index) else maximum(index, 0) == 0
        index = index + size if negative else index
    if isinstance(index, int) and index >= 2**31 - 1:
        return high
    return minimum(maximum(index, low), high)


@onnx_op("Pad")
def pad(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    mode = node.attr("mode", "constant")
    operand = node.optional(1)
    if operand is not None:
        pads: Sequence[Dim] = b.read_dims(operand, "pads")
    else:
        pads = node.attr("pads", node.attr("paddings", None)) or []
    fill_value = node.optional(2)
    fill = node.attr("value", 0.0) if fill_value is None else b.read_scalar(fill_value, "the fill")
    axes = node.optional(3)
    given = range(x.type.rank) if axes is None else b.read_ints(axes, "axes")
    if len(pads) != 2 * len(given):
        raise InvalidModelError(f"{len(pads)} pads for {len(given)} axes", where=node.where)
    low: list[Dim] = [0] * x.type.rank
    high: list[Dim] = [0] * x.type.rank
    for i, axis in enumerate(given):
        axis = node.axis(axis, x.type.rank)
        low[axis], high[axis] = pads[i], pads[i + len(given)]
    if mode == "constant":
        kind = int if x.dtype.is_integer else bool if x.dtype.kind == "bool" else float
        return b.pad(x, low, high, kind(fill))
    return _pad_mirrored(b, node, x, [as_int(d) for d in low], [as_int(d) for d in high], mode)


def _pad_mirrored(
    b: Builder, node: OnnxNode, x: Value, low: list[int], high: list[int], mode: str
) -> Value:
    """Edge, reflect and wrap padding: a gather with fixed indices on each padded axis."""
    if mode not in ("edge", "reflect", "wrap"):
        raise node.unsupported(f"mode {mode!r}")
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        if before == after == 0:
            continue
        size = as_int(x.type.shape[axis])
        check_table("the places of a padded axis", size + max(0, before) + max(0, after), arrays=3)
        index = np.arange(size)
        index = index[max(0, -before) : len(index) - max(0, -after)]
        widths = (max(0, before), max(0, after))
        index = np.pad(index, widths, mode=mode)  # type: ignore[call-overload]
        x = b.emit("gather", x, b.constant(index), axis=axis)
    return x


@onnx_op("DepthToSpace", since=1)
def depth_to_space(b: Builder, node: OnnxNode) -> Value:
    n, c, h, w = node.x.type.shape
    block = node.required("blocksize")
    depth = c // (block * block)
    if node.attr("mode", "DCR") == "DCR":
        split, perm = (n, block, block, depth, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (n, depth, block, block, h, w), (0, 1, 4, 2, 5, 3)
    moved = b.transpose(b.reshape(node.x, split), perm)
    return b.reshape(moved, (n, depth, h * block, w * block))


@onnx_op("SpaceToDepth", since=1)
def space_to_depth(b: Builder, node: OnnxNode) -> Value:
    n, c, h, w = node.x.type.shape
    block = node.required("blocksize")
    split = b.reshape(node.x, (n, c, h // block, block, w // block, block))
    perm = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = b.transpose(split, perm)
    return b.reshape(moved, (n, c * block * block, h // block, w // block))
