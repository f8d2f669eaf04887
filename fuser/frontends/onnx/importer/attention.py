"""ONNX Attention and RotaryEmbedding, decomposed into the forms that exporters write by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import InvalidModelError, ShapeError
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.frontends.onnx.importer.types import onnx_dtype
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, as_int, is_decided
from fuser.graph.ir import Value


@dataclass(frozen=True)
class _Scope:
    """What decides which keys a query may see. `offset` counts the keys before the first query:
    a dim, or a Value [batch] for an external cache."""

    queries: Dim
    keys: Dim
    offset: Dim | Value
    shape: tuple[Dim, ...]


def split_heads(b: Builder, x: Value, heads: int) -> Value:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    batch, length, hidden = x.type.shape
    if as_int(hidden) % heads:
        raise ShapeError(f"{x.type} does not divide into {heads} heads")
    return b.swap(b.reshape(x, (batch, length, heads, as_int(hidden) // heads)), 1, 2)


def merge_heads(b: Builder, x: Value) -> Value:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    batch, heads, length, size = x.type.shape
    return b.reshape(b.swap(x, 1, 2), (batch, length, heads * size))


def repeat_heads(b: Builder, x: Value, heads: Dim) -> Value:
    """[batch, groups, length, size] with each head repeated to `heads`, as exporters expand it."""
    batch, groups, length, size = x.type.shape
    if groups == heads:
        return x
    times = as_int(heads) // as_int(groups)
    if times * as_int(groups) != heads:
        raise ShapeError(f"{heads} query heads do not share {groups} key heads")
    wide = b.broadcast(x, (batch, groups, times, length, size), (0, 1, 3, 4))
    return b.reshape(wide, (batch, heads, length, size))


@onnx_op("Attention", since=23)
def attention(b: Builder, node: OnnxNode) -> list[Value | None]:
    """Scaled dot product attention with masks, grouped heads, soft cap and a key-value cache.

    Fully masked rows give 0. Source: the operator page of Attention-24 and its function body.
    """
    q, k, v = (node.operand(i) for i in range(3))
    flat = q.type.rank == 3
    if flat:
        q = split_heads(b, q, node.required("q_num_heads"))
        k, v = (split_heads(b, x, node.required("kv_num_heads")) for x in (k, v))
    past_key, past_value, valid = node.optional(4), node.optional(5), node.optional(6)
    if (past_key is None) != (past_value is None):
        raise InvalidModelError("past_key and past_value go together", where=node.where)
    offset: Dim | Value = 0
    if past_key is not None and past_value is not None:
        offset = past_key.type.shape[2]
        k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
    elif valid is not None:
        queries = q.type.shape[2]
        offset = b.map("sub", valid, queries if isinstance(queries, int) else b.dim(queries))
    present = [k, v]
    scale = node.attr("scale", None)
    if scale is None:
        scale = compose.attention_scale(q.type.shape[3])
    k, v = (repeat_heads(b, x, q.type.shape[1]) for x in (k, v))
    # One operator: scores are float32 up to the weights, and scaled where they are sums.
    scores = b.map("mul", compose.stash(b, b.dot(q, k, ((3,), (3,)), ((0, 1), (0, 1)))), scale)
    scope = _Scope(q.type.shape[2], k.type.shape[2], offset, scores.type.shape)
    capped, biased, masked = _mask_scores(b, node, scores, scope, valid)
    weights = _weights(b, node, biased, masked)
    result = b.dot(b.cast(weights, v.dtype), v, ((3,), (2,)), ((0, 1), (0, 1)))
    stages = {0: scores, 1: capped, 2: biased, 3: weights}
    debug = stages[node.attr("qk_matmul_output_mode", 0)] if node.uses_output(3) else None
    if debug is not None:
        debug = b.cast(debug, q.dtype)
    return [merge_heads(b, result) if flat else result, *present, debug]


def _mask_scores(
    b: Builder, node: OnnxNode, scores: Value, scope: _Scope, valid: Value | None
) -> tuple[Value, Value, bool]:
    """The capped scores, the masked scores, and whether a row may be masked throughout."""
    softcap = node.attr("softcap", 0.0)
    capped = scores
    if softcap:
        capped = b.map("mul", b.map("tanh", b.map("div", scores, softcap)), softcap)
    biased = capped
    mask = node.optional(3)
    if mask is not None:
        biased = _apply_mask(b, biased, mask, scope)
    allowed = _allowed(b, node, scope, valid)
    if allowed is not None:
        biased = b.map("select", allowed, biased, -math.inf)
    may_be_empty = node.attr("left_window_size", -1) >= 0 or isinstance(scope.offset, Value)
    return capped, biased, mask is not None or may_be_empty


def _apply_mask(b: Builder, scores: Value, mask: Value, scope: _Scope) -> Value:
    """A boolean mask selects, any other is added; missing keys at its end are masked."""
    boolean = mask.dtype is dtypes.bool_
    length = mask.type.shape[-1]
    if is_decided(length, scope.keys) and 1 < length < scope.keys:
        high = [0] * (mask.type.rank - 1) + [scope.keys - length]
        mask = b.pad(mask, [0] * mask.type.rank, high, False if boolean else -math.inf)
    if boolean:
        return b.map("select", mask, scores, -math.inf)
    return b.map("add", scores, b.cast(mask, scores.dtype))


def _allowed(b: Builder, node: OnnxNode, scope: _Scope, valid: Value | None) -> Value | None:
    """The keys that causality, the window and the length of the cache leave, as booleans."""
    left, right = node.attr("left_window_size", -1), node.attr("right_window_size", -1)
    conditions = []
    if node.attr("is_causal", 0) or left >= 0 or right >= 0:
        shape = (scope.queries, scope.keys)
        query, key = b.iota(shape, 0), b.iota(shape, 1)
        if isinstance(scope.offset, Value):
            batch = (scope.shape[0], 1, *shape)
            start = b.broadcast(scope.offset, batch, (0,))
            query = b.map("add", b.broadcast_to(query, batch), start)
        elif scope.offset != 0:
            offset = scope.offset if isinstance(scope.offset, int) else b.dim(scope.offset)
            query = b.map("add", query, offset)
        if node.attr("is_causal", 0):
            conditions.append(b.map("le", key, query))
        if left >= 0:
            conditions.append(b.map("ge", b.map("add", key, left), query))
        if right >= 0:
            conditions.append(b.map("le", key, b.map("add", query, right)))
    if valid is not None:
        batch = (scope.shape[0], 1, 1, scope.keys)
        lengths = b.broadcast(valid, batch, (0,))
        conditions.append(b.map("lt", b.iota(batch, 3), lengths))
    if not conditions:
        return None
    result = conditions[0]
    for condition in conditions[1:]:
        result = b.map("logical_and", result, condition)
    return result


def _weights(b: Builder, node: OnnxNode, scores: Value, masked: bool) -> Value:
    precision: DType | None = None
    if node.attr("softmax_precision", 0):
        precision = onnx_dtype(node.attrs["softmax_precision"], node.where)
    wide = scores if precision is None else b.cast(scores, precision)
    weights = compose.softmax(b, wide, [3])
    if masked:
        weights = compose.zero_masked_rows(b, weights)
    return b.cast(weights, scores.dtype)


@onnx_op("RotaryEmbedding", since=23)
def rotary_embedding(b: Builder, node: OnnxNode) -> Value:
    """x * cos + rotate(x) * sin on the first rotary_embedding_dim elements of each head.

    The caches are [positions, dim/2] with position_ids, else [batch, length, dim/2].
    """
    x, cos, sin, positions = *(node.operand(i) for i in range(3)), node.optional(3)
    flat = x.type.rank == 3
    # Work on [batch, heads, length, size], so that 3-D input goes through the usual split.
    wide = split_heads(b, x, node.required("num_heads")) if flat else x
    size = as_int(wide.type.shape[3])
    rotated = node.attr("rotary_embedding_dim", 0) or size
    if positions is not None:
        cos, sin = (b.emit("gather", cache, positions, axis=0) for cache in (cos, sin))
    head = b.slice_axis(wide, 3, 0, rotated)
    result = rotate(b, head, cos, sin, bool(node.attr("interleaved", 0)))
    if rotated != size:
        result = b.concat([result, b.slice_axis(wide, 3, rotated, size)], 3)
    return merge_heads(b, result) if flat else result


def rotate(b: Builder, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """x [batch, heads, length, size] rotated by angles [batch, length, size / 2]."""
    batch, heads, length, size = x.type.shape
    half = as_int(size) // 2
    part = (batch, heads, length, half)
    cos, sin = (b.broadcast(cache, part, (0, 2, 3)) for cache in (cos, sin))
    if interleaved:
        pairs = b.reshape(x, (*part, 2))
        first, second = (b.reshape(b.slice_axis(pairs, 4, i, i + 1), part) for i in (0, 1))
    else:
        first, second = b.slice_axis(x, 3, 0, half), b.slice_axis(x, 3, half, size)
    real = b.map("sub", b.map("mul", first, cos), b.map("mul", second, sin))
    imaginary = b.map("add", b.map("mul", first, sin), b.map("mul", second, cos))
    if interleaved:
        stacked = b.concat([b.unsqueeze(real, [4]), b.unsqueeze(imaginary, [4])], 4)
        return b.reshape(stacked, x.type.shape)
    return b.concat([real, imaginary], 3)
