"""ONNX signal processing: Fourier transforms as matmuls with constant matrices, mel filters."""

from __future__ import annotations

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.frontends.onnx.importer.types import onnx_dtype
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int
from fuser.graph.ir import TensorType, Value
from fuser.graph.ops.primitive import Array


def _fit(b: Builder, x: Value, axis: int, length: int) -> Value:
    """x cut or padded with zeros to `length` along axis."""
    size = as_int(x.type.shape[axis])
    if length <= size:
        return b.slice_axis(x, axis, 0, length)
    high = [0] * x.type.rank
    high[axis] = length - size
    return b.pad(x, [0] * x.type.rank, high)


def _waves(inputs: int, outputs: int, length: int, sign: int) -> tuple[Array, Array]:
    """cos and sin of sign * 2 pi i k / length, [inputs, outputs], exact modulo 2 pi."""
    check_table("the matrix of a Fourier transform", inputs, outputs, arrays=6)
    steps = np.outer(np.arange(inputs), np.arange(outputs)) % length
    angle = 2 * np.pi * steps / length
    return np.cos(angle), sign * np.sin(angle)


def _multiply(b: Builder, x: Value, matrix: Array, axis: int) -> Value:
    """The matmul of an axis of x with a matrix; the axis stays where it is."""
    rank = x.type.rank
    result = b.dot(x, b.constant(matrix), ((axis,), (0,)))
    return b.transpose(result, [*range(axis), rank - 1, *range(axis, rank - 1)])


def _transform(
    b: Builder, x: Value, axis: int, length: int, inverse: bool, onesided: bool
) -> Value:
    """The DFT of [..., 1 or 2] along axis in float64, as [..., 2] (or [..., 1] for irfft)."""
    last = x.type.rank - 1
    wide = b.cast(x, dtypes.f64)
    half = length // 2 + 1
    size = half if inverse and onesided else length
    wide = _fit(b, wide, axis, size)
    parts = [
        b.reshape(b.slice_axis(wide, last, i, i + 1), wide.type.shape[:-1])
        for i in range(as_int(x.type.shape[last]))
    ]
    outputs = half if onesided and not inverse else length
    cos, sin = _waves(size, outputs, length, 1 if inverse else -1)
    if inverse:
        cos, sin = cos / length, sin / length
    if inverse and onesided:
        # The missing half is the conjugate of this one: what is not its own mirror counts twice.
        check_table("the weights of a Fourier transform", half)
        weight = np.full((half, 1), 2.0)
        weight[0] = 1.0
        if length % 2 == 0:
            weight[-1] = 1.0
        cos, sin = cos * weight, sin * weight
    real = _multiply(b, parts[0], cos, axis)
    imaginary = _multiply(b, parts[0], sin, axis)
    if len(parts) == 2:
        real = b.map("sub", real, _multiply(b, parts[1], sin, axis))
        imaginary = b.map("add", imaginary, _multiply(b, parts[1], cos, axis))
    if inverse and onesided:
        return b.unsqueeze(real, [last])
    return b.concat([b.unsqueeze(real, [last]), b.unsqueeze(imaginary, [last])], last)


@onnx_op("DFT", since=17)
def dft(b: Builder, node: OnnxNode) -> Value:
    x, length_operand = node.x, node.optional(1)
    if node.opset >= 20:
        operand = node.optional(2)
        given = -2 if operand is None else b.read_ints(operand, "axis")[0]
    else:
        given = node.attr("axis", 1)
    axis = node.axis(given, x.type.rank)
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    size = as_int(x.type.shape[axis])
    length = 2 * (size - 1) if inverse and onesided else size
    if length_operand is not None:
        length = b.read_ints(length_operand, "dft_length")[0]
    return b.cast(_transform(b, x, axis, length, inverse, onesided), x.dtype)


@onnx_op("STFT", since=17)
def stft(b: Builder, node: OnnxNode) -> Value:
    """[batch, length, 1 or 2] -> [batch, frames, bins, 2]."""
    x, window, length_operand = node.operand(0), node.optional(2), node.optional(3)
    step = b.read_ints(node.operand(1), "frame_step")[0]
    if length_operand is not None:
        length = b.read_ints(length_operand, "frame_length")[0]
    else:
        length = as_int(window.type.shape[0]) if window is not None else as_int(x.type.shape[1])
    if x.type.rank == 2:
        x = b.unsqueeze(x, [2])
    frames = (as_int(x.type.shape[1]) - length) // step + 1
    check_table("the places of the frames", frames, length, arrays=2)
    index = step * np.arange(frames)[:, None] + np.arange(length)
    cut = b.emit("gather", x, b.constant(index), axis=1)  # [batch, frames, length, parts]
    if window is not None:
        cut = b.map("mul", cut, b.broadcast(window, cut.type.shape, (2,)))
    onesided = bool(node.attr("onesided", 1)) and x.type.shape[2] == 1
    return b.cast(_transform(b, cut, 2, length, False, onesided), x.dtype)


@onnx_op("MelWeightMatrix", since=17)
def mel_weights(b: Builder, node: OnnxNode) -> Value:
    """[bins / 2 + 1, bands]: triangles whose corners are evenly spaced in mel."""
    bands, length, rate = (int(b.read_scalar(node.operand(i), "a size")) for i in range(3))
    low, high = (float(b.read_scalar(node.operand(i), "an edge")) for i in (3, 4))
    bins = length // 2 + 1
    ends = 2595 * np.log10(1 + np.array([low, high]) / 700)
    check_table("the mel filters", bins, bands + 2, arrays=8)
    mel = ends[0] + np.arange(bands + 2) * ((ends[1] - ends[0]) / (bands + 2))
    hertz = 700 * (np.power(10, mel / 2595) - 1)
    corner = ((length + 1) * hertz // rate).astype(np.int64)
    if not (corner.min() >= 0 and corner[:-1].max() < bins and corner[-1] <= bins):
        what = f"the mel bands reach from bin {corner.min()} to {corner.max()} of {bins}"
        raise InvalidModelError(what, where=node.where)
    start, centre, end = (corner[i : i + bands] for i in range(3))
    at = np.arange(bins)[:, None]
    rise = np.where(centre == start, 1.0, (at - start) / np.maximum(centre - start, 1))
    fall = (end - at) / np.maximum(end - centre, 1)
    matrix = np.where((at >= centre) & (at < end), fall, 0.0)
    matrix = np.where((at >= start) & (at <= centre) & ((at < centre) | (at >= end)), rise, matrix)
    dtype = onnx_dtype(node.attr("output_datatype", 1), node.where)
    return b.constant(matrix.astype(dtype.numpy))


@onnx_op("Det", since=11)
def determinant(b: Builder, node: OnnxNode) -> Value:
    """Elimination with row pivots, a column at a time, over any stack of matrices."""
    *outer, size, _ = node.x.type.shape
    rows = as_int(size)
    stack = tuple(outer)
    axis = len(stack)
    x = b.cast(node.x, dtypes.f64) if node.x.dtype is not dtypes.f64 else node.x
    result = b.full(1, TensorType(x.dtype, stack))
    for left in range(rows, 0, -1):
        column = b.reshape(b.slice_axis(x, axis + 1, 0, 1), (*stack, left))
        pivot_row = b.emit("argmax", b.emit("abs", column), axis=axis, select_last=False)
        hit = b.map("eq", b.iota((*stack, left), axis), b.broadcast(pivot_row, (*stack, left),
                                                                    range(axis)))  # fmt: skip
        wide = b.broadcast(hit, x.type.shape, range(axis + 1))
        chosen = b.reduce("reduce_sum", b.map("select", wide, x, 0), [axis])
        first = b.reshape(b.slice_axis(x, axis, 0, 1), (*stack, left))
        kept = [*range(axis), axis + 1]
        x = b.map("select", wide, b.broadcast(first, x.type.shape, kept), x)
        pivot = b.reshape(b.slice_axis(chosen, axis, 0, 1), stack)
        sign = b.map("select", b.map("eq", pivot_row, 0), b.full(1, pivot.type), -1)
        result = b.map("mul", result, b.map("mul", pivot, sign))
        if left == 1:
            break
        rest = b.slice_axis(b.slice_axis(x, axis, 1, left), axis + 1, 1, left)
        head = b.reshape(
            b.slice_axis(b.slice_axis(x, axis, 1, left), axis + 1, 0, 1), (*stack, left - 1)
        )
        safe = b.map("select", b.map("eq", pivot, 0), b.full(1, pivot.type), pivot)
        factor = b.map("div", head, b.broadcast(safe, head.type.shape, range(axis)))
        tail = b.slice_axis(chosen, axis, 1, left)
        both = b.map(
            "mul",
            b.broadcast(factor, rest.type.shape, range(axis + 1)),
            b.broadcast(tail, rest.type.shape, [*range(axis), axis + 1]),
        )
        x = b.map("sub", rest, both)
    return b.cast(result, node.x.dtype)
