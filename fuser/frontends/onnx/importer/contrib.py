"""com.microsoft: activations, norms, embeddings and matmuls that ONNX Runtime's optimiser and the
exporters built on it write. Source: the page of contrib operators in ONNX Runtime's documentation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuser import dtypes
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.contraction import add_channel_bias, convolve, gemm
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int, product
from fuser.graph.ir import Value

MICROSOFT = "com.microsoft"


# activations ------------------------------------------------------------------------------------


@onnx_op("Gelu", "BiasGelu", domain=MICROSOFT)
def gelu(b: Builder, node: OnnxNode) -> Value:
    return compose.gelu(b, _biased(b, node))


@onnx_op("FastGelu", domain=MICROSOFT)
def fast_gelu(b: Builder, node: OnnxNode) -> Value:
    return compose.gelu_tanh(b, _biased(b, node))


def _biased(b: Builder, node: OnnxNode) -> Value:
    return add_optional(b, node.x, node.optional(1))


def add_optional(b: Builder, x: Value, term: Value | None) -> Value:
    """x + term, or x where the operand is absent."""
    return x if term is None else b.map("add", x, term)


@onnx_op("QuickGelu", domain=MICROSOFT)
def quick_gelu(b: Builder, node: OnnxNode) -> Value:
    scaled = b.map("mul", node.x, node.attr("alpha", 1.702))
    return b.map("mul", node.x, compose.sigmoid(b, scaled))


@onnx_op("BiasAdd", domain=MICROSOFT)
def bias_add(b: Builder, node: OnnxNode) -> Value:
    """x + bias + skip, x [batch, length, channels]."""
    return b.map("add", b.map("add", node.x, node.operand(1)), node.operand(2))


@onnx_op("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(b: Builder, node: OnnxNode) -> Value:
    x = b.map("add", node.x, node.operand(1))
    size, axis = as_int(x.type.shape[-1]), x.type.rank - 1
    left, right = b.slice_axis(x, axis, 0, size // 2), b.slice_axis(x, axis, size // 2, size)
    return b.map("mul", left, compose.gelu(b, right))


def _activation(b: Builder, node: OnnxNode) -> Callable[[Value], Value]:
    """The function that a fused operator applies to its result."""
    name = node.attr("activation", "")
    alpha, *rest = list(node.attr("activation_params", None) or []) + [None, None]
    alpha = node.attr("activation_alpha", alpha)
    beta = node.attr("activation_beta", rest[0])
    match name:
        case "":
            return lambda x: x
        case "Relu":
            return lambda x: b.map("max", x, 0)
        case "Sigmoid":
            return lambda x: compose.sigmoid(b, x)
        case "Tanh":
            return lambda x: b.map("tanh", x)
        case "LeakyRelu":
            slope = 0.01 if alpha is None else alpha
            return lambda x: b.map("select", b.map("lt", x, 0), b.map("mul", x, slope), x)
        case "Clip":
            return lambda x: b.map("min", b.map("max", x, alpha), beta)
        case "HardSigmoid":
            slope, shift = 0.2 if alpha is None else alpha, 0.5 if beta is None else beta
            return lambda x: b.map(
                "min", b.map("max", b.map("add", b.map("mul", x, slope), shift), 0), 1
            )
    raise node.unsupported(f"the activation {name!r}")


# norms and embeddings ---------------------------------------------------------------------------


def _normalized(
    b: Builder, node: OnnxNode, x: Value, gamma: Value, beta: Value | None, simplified: bool
) -> list[Value]:
    """The layer norm of the last axis; its mean and inverse deviation too, unless simplified."""
    wide, axes = compose.stash(b, x), [x.type.rank - 1]
    epsilon = node.attr("epsilon", 1e-5 if simplified else 1e-12)
    if simplified:
        parts = [compose.rms_normalize(b, wide, axes, epsilon)]
    else:
        parts = compose.standardize(b, wide, axes, epsilon)
    y = b.map("mul", b.narrowed(parts[0], x.dtype), gamma)
    statistics = [b.unsqueeze(part, axes) for part in parts[1:]]
    return [add_optional(b, y, beta), *statistics]


@onnx_op("SimplifiedLayerNormalization")
def simplified_layer_norm(b: Builder, node: OnnxNode) -> Value:
    """RMSNormalization over the last axes; ONNX Runtime has it in the standard domain."""
    x, axis = node.x, node.axis(node.attr("axis", -1), node.x.type.rank)
    wide = compose.stash(b, x)
    normal = compose.rms_normalize(b, wide, range(axis, x.type.rank), node.attr("epsilon", 1e-5))
    return b.map("mul", b.narrowed(normal, x.dtype), node.operand(1))


@onnx_op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(b: Builder, node: OnnxNode) -> list[Value | None]:
    """LayerNorm(x + skip + bias): the result, mean, inverse deviation, and the sum."""
    total = _skipped(b, node, 4)
    y, mean, scale = _normalized(b, node, total, node.operand(2), node.optional(3), False)
    return [y, mean, scale, total]


@onnx_op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_norm(b: Builder, node: OnnxNode) -> list[Value | None]:
    total = _skipped(b, node, 3)
    (y,) = _normalized(b, node, total, node.operand(2), None, True)
    if node.uses_output(1) or node.uses_output(2):
        raise node.unsupported("the statistics as results")
    return [y, None, None, total]


def _skipped(b: Builder, node: OnnxNode, bias: int) -> Value:
    x, skip, given = node.x, node.operand(1), node.optional(bias)
    total = b.map("add", x, b.broadcast_to(skip, x.type.shape))
    return add_optional(b, total, given)


@onnx_op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(b: Builder, node: OnnxNode) -> list[Value | None]:
    """LayerNorm(word + position + segment embeddings), how many tokens each row's mask leaves, and
    the sum of the embeddings."""
    ids, segments, words, position_table, kinds = (node.optional(i) for i in range(5))
    gamma, beta, mask, positions = (node.optional(i) for i in range(5, 9))
    if ids is None or words is None or position_table is None or gamma is None or beta is None:
        raise InvalidModelError("an operand is missing", where=node.where)
    batch, length = ids.type.shape
    total = b.emit("gather", words, ids, axis=0)
    if positions is None:
        position_rows = b.slice_axis(position_table, 0, 0, length)
        position_rows = b.broadcast(position_rows, total.type.shape, (1, 2))
    else:
        position_rows = b.emit(
            "gather", position_table, b.broadcast_to(positions, ids.type.shape), axis=0
        )
    total = b.map("add", total, position_rows)
    if segments is not None and kinds is not None:
        total = b.map("add", total, b.emit("gather", kinds, segments, axis=0))
    y = _normalized(b, node, total, gamma, beta, False)[0]
    counts = None
    if mask is not None:
        counts = b.cast(b.reduce("reduce_sum", mask, [1]), dtypes.i32)
    elif node.uses_output(1):
        counts = b.broadcast_to(b.scalar(0, dtypes.i32), (batch,))
    if node.attr("mask_index_type", 1) == 0:
        counts = None
    return [y, counts, total]


@onnx_op("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(b: Builder, node: OnnxNode) -> list[Value | None]:
    """Channels last by default; SkipGroupNorm adds a skip and a bias first, and returns the sum."""
    x, gamma, beta = (node.operand(i) for i in range(3))
    total = x
    if node.op_type == "SkipGroupNorm":
        skip, bias = node.operand(3), node.optional(4)
        if skip.type.rank == 2:
            skip = b.unsqueeze(skip, [1, 2])
        total = b.map("add", x, b.broadcast_to(skip, x.type.shape))
        total = add_optional(b, total, bias)
    last = bool(node.attr("channels_last", 1))
    rank = x.type.rank
    order = (0, rank - 1, *range(1, rank - 1)) if last else tuple(range(rank))
    first = b.transpose(total, order)
    n, channels, *spatial = first.type.shape
    groups = node.required("groups")
    grouped = b.reshape(
        compose.stash(b, first), (n, groups, as_int(channels) // groups * product(spatial))
    )
    normal = compose.standardize(b, grouped, [2], node.attr("epsilon", 1e-5))[0]
    scaled = b.reshape(normal, first.type.shape)
    for op, vector in (("mul", gamma), ("add", beta)):
        scaled = b.map(op, scaled, b.broadcast(vector, scaled.type.shape, (1,)))
    y = b.cast(scaled, x.dtype)
    if node.attr("activation", 0):
        y = b.map("mul", y, compose.sigmoid(b, y))
    back = tuple(int(i) for i in np.argsort(order))
    return [b.transpose(y, back), total]


# matmuls ----------------------------------------------------------------------------------------


@onnx_op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(b: Builder, node: OnnxNode) -> Value:
    return _scaled_matmul(b, node)


@onnx_op("FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul_activation(b: Builder, node: OnnxNode) -> Value:
    return _activation(b, node)(_scaled_matmul(b, node))


def _scaled_matmul(b: Builder, node: OnnxNode) -> Value:
    """alpha * op(A) @ op(B); transBatch moves the first axis after the batch axes."""
    operands = []
    for index, side in enumerate("AB"):
        x = node.operand(index)
        rank = x.type.rank
        if node.attr(f"transBatch{side}", 0) and rank > 2:
            x = b.transpose(x, (*range(1, rank - 1), 0, rank - 1))
        if node.attr(f"trans{side}", 0) and rank > 1:
            x = b.swap(x, rank - 2, rank - 1)
        operands.append(x)
    result = b.matmul(*operands)
    alpha = node.attr("alpha", 1.0)
    return result if alpha == 1.0 else b.map("mul", result, alpha)


@onnx_op("FusedGemm", domain=MICROSOFT)
def fused_gemm(b: Builder, node: OnnxNode) -> Value:
    result = gemm(b, node)
    assert isinstance(result, Value)
    return _activation(b, node)(result)


@onnx_op("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(b: Builder, node: OnnxNode) -> Value:
    result = b.matmul(node.operand(0), node.operand(1))
    return compose.gelu_tanh(b, add_optional(b, result, node.optional(2)))


@onnx_op("FusedConv", domain=MICROSOFT)
def fused_conv(b: Builder, node: OnnxNode) -> Value:
    """Conv, plus the fourth operand, then the activation."""
    result = add_channel_bias(b, convolve(b, node, node.operand(0), node.operand(1)),
                              node.optional(2))  # fmt: skip
    return _activation(b, node)(add_optional(b, result, node.optional(3)))


@onnx_op("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(b: Builder, node: OnnxNode) -> Value:
    """A @ B.T with B [N, K] quantised in blocks along K: codes of 2, 4 or 8 bits, packed in bytes
    from the low bits on, a scale and a zero point for each block."""
    a, packed, scales = (node.operand(i) for i in range(3))
    zeros, groups, bias = (node.optional(i) for i in range(3, 6))
    rows, depth, bits = node.required("N"), node.required("K"), node.attr("bits", 4)
    block = node.required("block_size")
    blocks = -(-depth // block)
    if bits not in (2, 4, 8):
        raise node.unsupported(f"bits={bits}")
    if groups is not None:
        raise node.unsupported("g_idx")
    codes = _unpack(b, packed, (rows, blocks, block), bits)
    wide = (rows, blocks, block)
    if zeros is None:
        centred = b.map("sub", codes, 2.0 ** (bits - 1))
    else:
        if zeros.dtype is dtypes.u8:
            per_row = -(-blocks * bits // 8) * 8 // bits
            zero = b.slice_axis(_unpack(b, zeros, (rows, per_row), bits), 1, 0, blocks)
        else:
            zero = b.cast(b.reshape(zeros, (rows, blocks)), dtypes.f32)
        centred = b.map("sub", codes, b.broadcast(zero, wide, (0, 1)))
    scale = b.cast(b.reshape(scales, (rows, blocks)), dtypes.f32)
    real = b.map("mul", centred, b.broadcast(scale, wide, (0, 1)))
    weight = b.slice_axis(b.reshape(real, (rows, blocks * block)), 1, 0, depth)
    result = b.dot(a, b.cast(weight, a.dtype), ((a.type.rank - 1,), (1,)))
    return add_optional(b, result, bias)


def _unpack(b: Builder, packed: Value, shape: tuple[int, ...], bits: int) -> Value:
    """Codes of `bits` bits out of bytes, the low bits first, as float32 of the given shape."""
    count = 8 // bits
    total = int(np.prod(shape)) // count
    flat = b.reshape(packed, (total,))
    if count > 1:
        spread = b.broadcast(flat, (total, count), (0,))
        shifts = b.map("mul", b.iota((total, count), 1, dtypes.i32), bits)
        shifted = b.map("shift_right", spread, b.cast(shifts, dtypes.u8))
        flat = b.map("bitwise_and", shifted, (1 << bits) - 1)
    return b.reshape(b.cast(flat, dtypes.f32), shape)
