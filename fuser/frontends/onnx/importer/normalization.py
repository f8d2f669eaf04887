"""ONNX softmax and normalisation operators, in the spellings of graph/compose.py."""

from __future__ import annotations

from collections.abc import Callable

from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int, product
from fuser.graph.ir import Value
from fuser.graph.windows import reduce_windows

_SOFTMAX: dict[str, Callable[..., Value]] = {
    "Softmax": compose.softmax,
    "LogSoftmax": compose.log_softmax,
}


@onnx_op("Softmax", "LogSoftmax", since=1)
def softmax_flattened(b: Builder, node: OnnxNode) -> Value:
    """Before opset 13: the softmax of the matrix that flattening at axis gives."""
    x = node.x
    axis = node.axis(node.attr("axis", 1), max(x.type.rank, 2))
    if axis == x.type.rank - 1:
        return _SOFTMAX[node.op_type](b, x, [axis])
    shape = x.type.shape
    matrix = b.reshape(x, (product(shape[:axis]), product(shape[axis:])))
    return b.reshape(_SOFTMAX[node.op_type](b, matrix, [1]), shape)


@onnx_op("Softmax", "LogSoftmax", since=13)
def softmax(b: Builder, node: OnnxNode) -> Value:
    axis = node.axis(node.attr("axis", -1), node.x.type.rank)
    return _SOFTMAX[node.op_type](b, node.x, [axis])


@onnx_op("LayerNormalization", since=17)
def layer_normalization(b: Builder, node: OnnxNode) -> list[Value | None]:
    """Also the mean and the inverse standard deviation, with the reduced axes kept as 1."""
    x, scale, bias = node.x, node.operand(1), node.optional(2)
    axis = node.axis(node.attr("axis", -1), x.type.rank)
    axes = list(range(axis, x.type.rank))
    wide = compose.stash(b, x) if node.attr("stash_type", 1) == 1 else x
    normal, mean, inverse = compose.standardize(b, wide, axes, node.attr("epsilon", 1e-5))
    result = b.map("mul", b.narrowed(normal, x.dtype), scale)
    if bias is not None:
        result = b.map("add", result, bias)
    statistics = [
        b.unsqueeze(value, axes) if node.uses_output(index) else None
        for index, value in ((1, mean), (2, inverse))
    ]
    return [result, *statistics]


@onnx_op("RMSNormalization", since=23)
def rms_normalization(b: Builder, node: OnnxNode) -> Value:
    x, scale = node.x, node.operand(1)
    axis = node.axis(node.attr("axis", -1), x.type.rank)
    wide = compose.stash(b, x) if node.attr("stash_type", 1) == 1 else x
    axes = range(axis, x.type.rank)
    normal = compose.rms_normalize(b, wide, axes, node.attr("epsilon", 1e-5))
    return b.map("mul", b.narrowed(normal, x.dtype), scale)


def _per_channel(b: Builder, vector: Value, like: Value) -> Value:
    """A vector [C] stretched over [N, C, ...]."""
    return b.broadcast(vector, like.type.shape, (1,))


@onnx_op("BatchNormalization")
def batch_normalization(b: Builder, node: OnnxNode) -> Value | list[Value | None]:
    """(x - mean) * (scale * rsqrt(var + epsilon)) + bias, per channel. In training mode with the
    statistics of the batch; the running ones are further results."""
    if node.attr("training_mode", 0):
        return _train_batch_normalization(b, node)
    if node.opset < 7 and not node.attr("is_test", 0):
        raise node.unsupported("training mode")
    if node.opset < 9 and not node.attr("spatial", 1):
        raise node.unsupported("spatial=0")
    x = node.x
    mean, variance = node.operand(3), node.operand(4)
    return _normalize_channels(b, node, x, mean, variance)


def _normalize_channels(
    b: Builder, node: OnnxNode, x: Value, mean: Value, variance: Value
) -> Value:
    scale, bias = node.operand(1), node.operand(2)
    spread = b.map("add", variance, node.attr("epsilon", 1e-5))
    factor = b.map("mul", b.narrowed(b.map("rsqrt", spread), scale.dtype), scale)
    if mean.dtype is not x.dtype or factor.dtype is not x.dtype:
        mean, factor, bias = (b.cast(v, x.dtype) for v in (mean, factor, bias))
    centred = b.map("sub", x, _per_channel(b, mean, x))
    scaled = b.map("mul", centred, _per_channel(b, factor, x))
    return b.map("add", scaled, _per_channel(b, bias, x))


def _train_batch_normalization(b: Builder, node: OnnxNode) -> list[Value | None]:
    x, running = node.x, (node.operand(3), node.operand(4))
    axes = [axis for axis in range(x.type.rank) if axis != 1]
    wide = compose.stash(b, x)
    mean = b.mean(wide, axes)
    centred = b.map("sub", wide, b.restore(mean, wide, axes))
    variance = b.mean(b.map("mul", centred, centred), axes)
    momentum = node.attr("momentum", 0.9)
    updated = [
        b.map("add", b.map("mul", old, momentum),
              b.cast(b.map("mul", new, 1 - momentum), old.dtype))
        for old, new in zip(running, (mean, variance), strict=True)
    ]  # fmt: skip
    mean, variance = (
        b.cast(v, old.dtype) for v, old in zip((mean, variance), running, strict=True)
    )
    return [_normalize_channels(b, node, x, mean, variance), *updated]


@onnx_op("InstanceNormalization")
def instance_normalization(b: Builder, node: OnnxNode) -> Value:
    x, scale, bias = node.x, node.operand(1), node.operand(2)
    axes = list(range(2, x.type.rank))
    normal = compose.standardize(b, compose.stash(b, x), axes, node.attr("epsilon", 1e-5))[0]
    scaled = b.map("mul", b.narrowed(normal, x.dtype), _per_channel(b, scale, x))
    return b.map("add", scaled, _per_channel(b, bias, x))


@onnx_op("GroupNormalization", since=18)
def group_normalization(b: Builder, node: OnnxNode) -> Value:
    """Statistics over each group of channels. Opset 18 had one scale a group, 21 one a channel."""
    x, scale, bias = node.x, node.operand(1), node.operand(2)
    n, channels, *spatial = x.type.shape
    groups = node.required("num_groups")
    per_group = channels // groups
    grouped = b.reshape(compose.stash(b, x), (n, groups, per_group * product(spatial)))
    normal = compose.standardize(b, grouped, [2], node.attr("epsilon", 1e-5))[0]
    restored = b.narrowed(b.reshape(normal, x.type.shape), x.dtype)
    if node.opset < 21:
        wide = (groups, per_group)
        scale, bias = (b.reshape(b.broadcast(v, wide, (0,)), (channels,)) for v in (scale, bias))
    scaled = b.map("mul", restored, _per_channel(b, scale, x))
    return b.map("add", scaled, _per_channel(b, bias, x))


@onnx_op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(b: Builder, node: OnnxNode) -> Value:
    """(x - mean) / (sqrt(mean((x - mean)^2)) + 1e-9), as its function body says."""
    x = compose.stash(b, node.x)
    axes = node.axes(node.attr("axes", [0, 2, 3]), x.type.rank)
    centred = b.map("sub", x, b.restore(b.mean(x, axes), x, axes))
    deviation = b.map("sqrt", b.mean(b.map("mul", centred, centred), axes))
    normal = b.map("div", centred, b.restore(b.map("add", deviation, 1e-9), x, axes))
    return b.cast(normal, node.x.dtype)


@onnx_op("LpNormalization")
def lp_normalization(b: Builder, node: OnnxNode) -> Value:
    """x divided by its norm along axis; a zero norm leaves 0."""
    x = compose.stash(b, node.x)
    axis = node.axis(node.attr("axis", -1), x.type.rank)
    if node.attr("p", 2) == 1:
        norm = b.reduce("reduce_sum", b.map("abs", x), [axis])
    else:
        norm = b.map("sqrt", b.reduce("reduce_sum", b.map("mul", x, x), [axis]))
    safe = b.map("select", b.map("eq", norm, 0), 1, norm)
    return b.cast(b.map("div", x, b.restore(safe, x, [axis])), node.x.dtype)


@onnx_op("LRN")
def local_response_normalization(b: Builder, node: OnnxNode) -> Value:
    """x / (bias + alpha/size * sum of squares over `size` neighbouring channels) ^ beta."""
    x, size = compose.stash(b, node.x), as_int(node.required("size"))
    low = (size - 1) // 2
    rest = x.type.rank - 2
    spans = (size, *(1,) * rest)
    padding = ((low, size - 1 - low), *((0, 0),) * rest)
    ones = (1,) * (rest + 1)
    squares = reduce_windows(b, "sum", b.map("mul", x, x), spans, ones, padding, ones)
    scaled = b.map("mul", squares, node.attr("alpha", 1e-4) / size)
    base = b.map("add", scaled, node.attr("bias", 1.0))
    scale = b.map("pow", base, node.attr("beta", 0.75))
    return b.cast(b.map("div", x, scale), node.x.dtype)
