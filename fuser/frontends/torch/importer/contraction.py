"""ATen's matmuls and attention."""

from __future__ import annotations

from typing import Any

from fuser import dtypes
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.normalization import layer_norm
from fuser.frontends.torch.importer.registry import aten
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import Value


@aten("mm", "bmm", "matmul", "mv", "dot")
def matmul(b: Builder, x: Value, y: Value, **_: Any) -> Value:
    return b.matmul(x, y)


def _scaled(b: Builder, x: Value, factor: Any) -> Value:
    """In float32 for 16-bit floats: the factor keeps its digits."""
    return x if factor == 1 else b.map("mul", compose.stash(b, x), factor)


@aten("addmm", "baddbmm", "addmv")
def addmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    product = _scaled(b, b.matmul(x, y), alpha)
    if beta == 0:
        return b.cast(product, x.dtype)
    addend = _scaled(b, bias, beta)
    if product.dtype is not addend.dtype:
        product, addend = compose.stash(b, product), compose.stash(b, addend)
    return b.cast(b.map("add", product, addend), x.dtype)


@aten("linear")
def linear(b: Builder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    product = b.dot(x, weight, ((x.type.rank - 1,), (weight.type.rank - 1,)))
    return product if bias is None else b.map("add", product, bias)


@aten("scaled_dot_product_attention")
def attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    """softmax(q k^T scale + mask) v over [..., length, features]."""
    if dropout:
        raise UnsupportedError("attention with dropout")
    if q.type.rank > 3 and k.shape[-3] != q.shape[-3]:  # enable_gqa
        k, v = (_repeat_heads(b, x, q.shape[-3] // k.shape[-3]) for x in (k, v))
    scores = b.matmul(q, b.swap(k, q.type.rank - 2, q.type.rank - 1))
    factor = compose.attention_scale(q.shape[-1]) if scale is None else scale
    scores = b.map("mul", compose.stash(b, scores), factor)
    weights = _attention_weights(b, scores, mask, is_causal)
    return b.matmul(b.cast(weights, v.dtype), v)


@aten("attention")
def whole_attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None, causal: bool,
    scale: float | None, grouped: bool,
) -> Value:  # fmt: skip
    """`fuser.attention` (frontends/torch/attention.py)."""
    return attention(b, q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped)


def _attention_weights(b: Builder, scores: Value, mask: Value | None, is_causal: bool) -> Value:
    """softmax(scores + mask) over the last axis."""
    rank, wide = scores.type.rank, scores
    if is_causal:
        shape = scores.shape[-2:]
        seen = b.map("ge", b.iota(shape, 0), b.iota(shape, 1))
        seen = b.broadcast(seen, scores.type.shape, (rank - 2, rank - 1))
        wide = b.map("select", seen, wide, b.scalar(float("-inf"), wide.dtype))
    if mask is not None and mask.dtype is dtypes.bool_:
        lowest = b.scalar(float("-inf"), wide.dtype)
        wide = b.map("select", b.broadcast_to(mask, wide.type.shape), wide, lowest)
    elif mask is not None:
        wide = b.map("add", wide, b.cast(mask, wide.dtype))
    weights = compose.softmax(b, wide, [rank - 1])
    return weights if mask is None else compose.zero_masked_rows(b, weights)


@aten("attention_backward")
def attention_backward(
    b: Builder, grad: Value, out: Value, q: Value, k: Value, v: Value, mask: Value | None,
    causal: bool, scale: float | None, grouped: bool,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """The gradients of q, k, v (`fuser.attention_backward`, frontends/torch/attention.py): those
    of softmax are p (dp - sum(p dp)), and sum(p dp) = sum(out grad). [length, length] matrices are
    rounded to the dtype of v where matmuls read them; what lies between is float32."""
    rank, narrow = q.type.rank, v.dtype
    factor = compose.attention_scale(q.shape[-1]) if scale is None else scale
    heads = k.shape[-3] if rank > 2 else 1
    times = q.shape[-3] // heads if grouped and rank > 2 else 1
    if times != 1:
        k, v = (_repeat_heads(b, x, times) for x in (k, v))

    def turned(x: Value) -> Value:
        return b.swap(x, rank - 2, rank - 1)

    scores = b.map("mul", _wide_matmul(b, q, turned(k)), factor)
    p = b.cast(_attention_weights(b, scores, mask, causal), narrow)
    dp = _wide_matmul(b, grad, turned(v))
    products = b.map("mul", compose.stash(b, grad), compose.stash(b, out))
    common = b.broadcast_to(b.reduce("reduce_sum", products, [rank - 1], keep=True), dp.shape)
    ds = b.map("mul", compose.stash(b, p), b.map("sub", dp, common))
    ds = b.cast(b.map("mul", ds, factor), narrow)
    dk, dv = b.matmul(turned(ds), q), b.matmul(turned(p), grad)
    if times != 1:
        dk, dv = (_sum_heads(b, x, times) for x in (dk, dv))
    return b.matmul(ds, k), dk, dv


def _wide_matmul(b: Builder, x: Value, y: Value) -> Value:
    """A matmul of 16-bit floats whose sums stay float32."""
    product = b.matmul(compose.stash(b, x), compose.stash(b, y))
    if product.dtype is not x.dtype and product.node is not None:
        product.node.attrs["operands"] = x.dtype.name
    return product


def _sum_heads(b: Builder, x: Value, times: int) -> Value:
    """[..., heads * times, length, features] summed over groups of so many heads."""
    *outer, heads, length, features = x.shape
    apart = b.reshape(compose.stash(b, x), (*outer, heads // times, times, length, features))
    return b.cast(b.reduce("reduce_sum", apart, [len(outer) + 1]), x.dtype)


def _repeat_heads(b: Builder, x: Value, times: int) -> Value:
    *outer, heads, length, features = x.shape
    wide = (*outer, heads, times, length, features)
    n = len(outer)
    kept = [*range(n + 1), n + 2, n + 3]
    return b.reshape(b.broadcast(x, wide, kept), (*outer, heads * times, length, features))


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    b: Builder, q: Value, k: Value, v: Value, dropout: float = 0.0, is_causal: bool = False, *,
    attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value, None]:  # fmt: skip
    return attention(b, q, k, v, attn_mask, dropout, is_causal, scale=scale), None


@aten("_scaled_dot_product_flash_attention")
def gpu_flash_attention(
    b: Builder, q: Value, k: Value, v: Value, dropout: float = 0.0, is_causal: bool = False,
    debug: bool = False, *, scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    """Beside the result, what the backward pass and debugging would read."""
    return attention(b, q, k, v, None, dropout, is_causal, scale=scale), *[None] * 8


@aten("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
def gpu_masked_attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None, statistics: bool,
    dropout: float = 0.0, is_causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    return attention(b, q, k, v, mask, dropout, is_causal, scale=scale), *[None] * 8


@aten("_cdist_forward")
def cdist(b: Builder, x: Value, y: Value, p: float, mode: Any = None) -> Value:
    """Distances of all pairs of rows, from differences: products cancel for near rows."""
    if p not in (1.0, 2.0):
        raise UnsupportedError(f"distances of order {p}")
    gap = b.map("sub", b.unsqueeze(x, [x.type.rank - 1]), b.unsqueeze(y, [y.type.rank - 2]))
    rank = gap.type.rank - 1
    if p == 1.0:
        return b.reduce("reduce_sum", b.map("abs", gap), [rank])
    return b.map("sqrt", b.reduce("reduce_sum", b.map("mul", gap, gap), [rank]))


def _heads(b: Builder, x: Value, heads: int) -> Value:
    """[batch, length, features] as [batch, heads, length, features of one]."""
    batch, length, features = x.shape
    return b.transpose(b.reshape(x, (batch, length, heads, features // heads)), (0, 2, 1, 3))


def _self_attention(
    b: Builder, x: Value, heads: int, qkv: tuple[Value, Value], out: tuple[Value, Value],
    mask: Value | None, mask_type: int | None,
) -> Value:  # fmt: skip
    batch, length, features = x.shape
    joined = linear(b, x, *qkv)
    q, k, v = (
        _heads(b, b.slice_axis(joined, 2, i * features, (i + 1) * features), heads)
        for i in range(3)
    )
    if mask is not None and mask_type == 1:  # one value a key; true means hidden
        mask = b.reshape(mask, (batch, 1, 1, length))
    if mask is not None and mask.dtype is dtypes.bool_:
        mask = b.map("logical_not", mask)
    mixed = b.transpose(attention(b, q, k, v, mask), (0, 2, 1, 3))
    return linear(b, b.reshape(mixed, (batch, length, features)), *out)


@aten("_native_multi_head_attention")
def multi_head_attention(
    b: Builder, q: Value, k: Value, v: Value, features: int, heads: int, qkv_weight: Value,
    qkv_bias: Value, out_weight: Value, out_bias: Value, mask: Value | None = None,
    need_weights: bool = True, average: bool = True, mask_type: int | None = None,
) -> tuple[Value, None]:  # fmt: skip
    """The fused self-attention that `nn.MultiheadAttention` calls in inference."""
    if need_weights or not q is k is v:
        raise UnsupportedError("_native_multi_head_attention with weights or with several inputs")
    qkv, out = (qkv_weight, qkv_bias), (out_weight, out_bias)
    return _self_attention(b, q, heads, qkv, out, mask, mask_type), None


@aten("_transformer_encoder_layer_fwd")
def encoder_layer(
    b: Builder, x: Value, features: int, heads: int, qkv_weight: Value, qkv_bias: Value,
    out_weight: Value, out_bias: Value, use_gelu: bool, norm_first: bool, epsilon: float,
    norm_weight_1: Value, norm_bias_1: Value, norm_weight_2: Value, norm_bias_2: Value,
    up_weight: Value, up_bias: Value, down_weight: Value, down_bias: Value,
    mask: Value | None = None, mask_type: int | None = None,
) -> Value:  # fmt: skip
    """The fused layer that `nn.TransformerEncoderLayer` calls in inference."""

    def norm(value: Value, weight: Value, bias: Value) -> Value:
        return layer_norm(b, value, [features], weight, bias, epsilon)[0]

    def attend(value: Value) -> Value:
        qkv, out = (qkv_weight, qkv_bias), (out_weight, out_bias)
        return _self_attention(b, value, heads, qkv, out, mask, mask_type)

    def feed(value: Value) -> Value:
        inner = linear(b, value, up_weight, up_bias)
        inner = compose.gelu(b, inner) if use_gelu else b.map("max", inner, 0)
        return linear(b, inner, down_weight, down_bias)

    if norm_first:
        x = b.map("add", x, attend(norm(x, norm_weight_1, norm_bias_1)))
        return b.map("add", x, feed(norm(x, norm_weight_2, norm_bias_2)))
    x = norm(b.map("add", x, attend(x)), norm_weight_1, norm_bias_1)
    return norm(b.map("add", x, feed(x)), norm_weight_2, norm_bias_2)
