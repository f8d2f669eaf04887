"""ONNX matmuls and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import einsum as einstein
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, as_int, ceildiv
from fuser.graph.ir import Value

Padding = tuple[tuple[int, int], ...]


@onnx_op("MatMul")
def matmul(b: Builder, node: OnnxNode) -> Value:
    return b.matmul(node.operand(0), node.operand(1))


@onnx_op("Gemm")
def gemm(b: Builder, node: OnnxNode) -> Value:
    """alpha * op(A) @ op(B) + beta * C; a transposed operand only moves the contracted axis."""
    lhs, rhs, bias = node.operand(0), node.operand(1), node.optional(2)
    contract = ((0 if node.attr("transA", 0) else 1,), (1 if node.attr("transB", 0) else 0,))
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    result = b.dot(lhs, rhs, contract)
    if alpha != 1.0:
        result = b.map("mul", result, alpha)
    if bias is None or beta == 0.0:
        return result
    return b.map("add", result, bias if beta == 1.0 else b.map("mul", bias, beta))


def spatial_attr(node: OnnxNode, name: str, rank: int) -> list[int]:
    """A per-axis attribute, 1 where it is not given. Raises InvalidModelError."""
    values = list(node.attr(name, None) or [1] * rank)
    if len(values) != rank:
        raise InvalidModelError(f"{name} has {len(values)} entries, not {rank}", where=node.where)
    if any(value < 1 for value in values):
        raise InvalidModelError(f"{name} is {values}", where=node.where)
    return values


def auto_pad(node: OnnxNode) -> str:
    """The attribute, where an empty one says nothing."""
    mode: str = node.attr("auto_pad", "NOTSET")
    return mode or "NOTSET"


def spatial_padding(
    node: OnnxNode,
    sizes: Sequence[Dim],
    window: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> Padding:
    """(low, high) per spatial axis from pads or auto_pad. Raises ShapeError, InvalidModelError."""
    rank = len(window)
    mode = auto_pad(node)
    if mode == "NOTSET":
        pads = list(node.attr("pads", None) or [0] * (2 * rank))
        if len(pads) != 2 * rank:
            message = f"pads has {len(pads)} entries, not {2 * rank}"
            raise InvalidModelError(message, where=node.where)
        return tuple(zip(pads[:rank], pads[rank:], strict=True))
    if mode == "VALID":
        return ((0, 0),) * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise InvalidModelError(f"auto_pad is {mode!r}", where=node.where)
    padding = []
    for size, w, stride, d in zip(sizes, window, strides, dilation, strict=True):
        fixed = as_int(size)
        total = max(0, (as_int(ceildiv(fixed, stride)) - 1) * stride + (w - 1) * d + 1 - fixed)
        small, large = total // 2, total - total // 2
        padding.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return tuple(padding)


@onnx_op("Conv")
def conv(b: Builder, node: OnnxNode) -> Value:
    result = convolve(b, node, node.operand(0), node.operand(1))
    return add_channel_bias(b, result, node.optional(2))


def convolve(b: Builder, node: OnnxNode, x: Value, weight: Value) -> Value:
    """The convolution that the attributes of a Conv-like node describe."""
    spatial = x.type.rank - 2
    window = [as_int(dim) for dim in weight.type.shape[2:]]
    strides = spatial_attr(node, "strides", spatial)
    dilation = spatial_attr(node, "dilations", spatial)
    if list(node.attr("kernel_shape", None) or window) != window:
        what = f"kernel_shape is {node.attrs['kernel_shape']}, the weight {weight.type}"
        raise InvalidModelError(what, where=node.where)
    if node.attr("group", 1) < 1:
        raise InvalidModelError(f"group is {node.attrs['group']}", where=node.where)
    return b.emit(
        "conv",
        x,
        weight,
        strides=tuple(strides),
        padding=spatial_padding(node, x.type.shape[2:], window, strides, dilation),
        dilation=tuple(dilation),
        groups=node.attr("group", 1),
    )


def add_channel_bias(b: Builder, x: Value, bias: Value | None) -> Value:
    """x [N, C, ...] plus a vector [C]."""
    if bias is None:
        return x
    return b.map("add", x, b.broadcast(bias, x.type.shape, (1,)))


@onnx_op("ConvTranspose")
def conv_transpose(b: Builder, node: OnnxNode) -> Value:
    """A convolution of the zero-stuffed input with the flipped kernel, channels exchanged.

    Source: the definition in the ONNX operator page (output_shape and auto_pad included).
    """
    x, weight, bias = node.operand(0), node.operand(1), node.optional(2)
    spatial = x.type.rank - 2
    groups = node.attr("group", 1)
    strides = spatial_attr(node, "strides", spatial)
    dilation = spatial_attr(node, "dilations", spatial)
    extra = list(node.attr("output_padding", None) or [0] * spatial)
    kernel = [as_int(dim) for dim in weight.type.shape[2:]]
    sizes = [as_int(dim) for dim in x.type.shape[2:]]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pads = _transpose_padding(node, sizes, strides, reach, extra)
    padding = tuple(
        (r - 1 - low, r - 1 - high + e)
        for r, (low, high), e in zip(reach, pads, extra, strict=True)
    )
    result = b.emit(
        "conv",
        stuff_zeros(b, x, strides),
        _flip_kernel(b, weight, groups),
        strides=(1,) * spatial,
        padding=padding,
        dilation=tuple(dilation),
        groups=groups,
    )
    return add_channel_bias(b, result, bias)


def _transpose_padding(
    node: OnnxNode, sizes: list[int], strides: list[int], reach: list[int], extra: list[int]
) -> list[tuple[int, int]]:
    spatial = len(sizes)
    shape = node.attr("output_shape", None)
    mode = auto_pad(node)
    if shape is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        shape = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    if shape is None:
        pads = list(node.attr("pads", None) or [0] * (2 * spatial))
        return list(zip(pads[:spatial], pads[spatial:], strict=True))
    padding = []
    for size, stride, r, e, wanted in zip(
        sizes, strides, reach, extra, shape[-spatial:], strict=True
    ):
        total = stride * (size - 1) + e + r - wanted
        if total < 0:  # the output is longer than the windows reach: zeros at its end
            padding.append((0, total))
            continue
        half = total // 2
        padding.append((half, total - half) if mode == "SAME_UPPER" else (total - half, half))
    return padding


def stuff_zeros(b: Builder, x: Value, strides: list[int]) -> Value:
    """x with stride - 1 zeros between neighbours on each spatial axis."""
    for axis, stride in enumerate(strides, 2):
        if stride == 1:
            continue
        shape = x.type.shape
        high = [0] * (x.type.rank + 1)
        high[axis + 1] = stride - 1
        wide = b.pad(b.unsqueeze(x, [axis + 1]), [0] * len(high), high)
        x = b.reshape(wide, (*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]))
        x = b.slice_axis(x, axis, 0, x.type.shape[axis] - (stride - 1))
    return x


def _flip_kernel(b: Builder, weight: Value, groups: int) -> Value:
    """[C, M/groups, k...] -> [M, C/groups, reversed k...]."""
    channels, per_group, *kernel = weight.type.static_shape
    rank = len(kernel)
    starts = [0, 0, *(k - 1 for k in kernel)]
    limits = [channels, per_group, *(-1 for _ in kernel)]
    weight = b.slice(weight, starts, limits, [1, 1, *(-1 for _ in kernel)])
    split = b.reshape(weight, (groups, channels // groups, per_group, *kernel))
    swapped = b.transpose(split, (0, 2, 1, *range(3, 3 + rank)))
    return b.reshape(swapped, (groups * per_group, channels // groups, *kernel))


@onnx_op("Einsum", since=12)
def einsum(b: Builder, node: OnnxNode) -> Value:
    """Any number of operands, contracted from the left."""
    return einstein.einsum(b, node.required("equation"), node.present())
