"""com.microsoft: attention operators, written out in the forms that the partitioner knows.

Attention projects its input itself; MultiHeadAttention takes queries, keys and values;
GroupQueryAttention shares heads and keeps rows of different lengths in one cache, right-padded.
Source: the page of contrib operators in ONNX Runtime's documentation.
"""

from __future__ import annotations

import itertools
import math

from fuser import dtypes
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.attention import (
    merge_heads,
    repeat_heads,
    rotate,
    split_heads,
)
from fuser.frontends.onnx.importer.contrib import MICROSOFT
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, as_int
from fuser.graph.ir import Value
from fuser.graph.sizes import same


def _attend(b: Builder, node: OnnxNode, q: Value, k: Value, v: Value, bias: list[Value],
            allowed: Value | None, past: Dim) -> Value:  # fmt: skip
    """softmax(q k / sqrt(size) + bias) v over [batch, heads, length, size]; what is not allowed, or
    comes after the query where the node is unidirectional, counts as nothing."""
    scale = node.attr("scale", 0.0) or compose.attention_scale(q.type.shape[3])
    # One operator: scores are float32 up to the weights, and scaled where they are sums.
    scores = b.map("mul", compose.stash(b, b.dot(q, k, ((3,), (3,)), ((0, 1), (0, 1)))), scale)
    softcap = node.attr("softcap", 0.0)
    if softcap:
        scores = b.map("mul", b.map("tanh", b.map("div", scores, softcap)), softcap)
    for term in bias:
        scores = b.map("add", scores, b.cast(term, scores.dtype))
    if node.attr("unidirectional", 0):
        shape = (q.type.shape[2], k.type.shape[2])
        query = b.iota(shape, 0)
        if past != 0:
            query = b.map("add", query, past if isinstance(past, int) else b.dim(past))
        scores = b.map("select", b.map("le", b.iota(shape, 1), query), scores, -math.inf)
    if allowed is not None:
        scores = b.map("select", allowed, scores, -math.inf)
    weights = compose.softmax(b, scores, [3])
    return b.dot(b.cast(weights, v.dtype), v, ((3,), (2,)), ((0, 1), (0, 1)))


def _mask_bias(b: Builder, node: OnnxNode, mask: Value, batch: Dim, keys: Dim) -> Value:
    """What a mask of one of the integer forms adds to the scores [batch, heads, queries, keys].

    [batch]: how many keys each row has; [2 * batch]: their ends, then their beginnings;
    [batch, keys], [batch, queries, keys] and [batch, 1, queries, keys]: zero hides a key.
    """
    if mask.type.rank == 1:
        position = b.iota((batch, keys), 1, mask.dtype)
        count = mask.type.shape[0]
        ends = mask if count == batch else b.slice_axis(mask, 0, 0, batch)
        seen = b.map("lt", position, b.broadcast(ends, (batch, keys), (0,)))
        if count != batch:
            if count != 2 * as_int(batch):
                raise node.unsupported(f"a mask of shape {list(mask.type.shape)}")
            begins = b.slice_axis(mask, 0, batch, count)
            after = b.map("ge", position, b.broadcast(begins, (batch, keys), (0,)))
            seen = b.map("logical_and", seen, after)
    else:
        seen = b.map("ne", mask, 0)
    if seen.type.rank < 4:
        seen = b.unsqueeze(seen, [1, 2] if seen.type.rank == 2 else [1])
    hidden = node.attr("mask_filter_value", -10000.0)
    zero = b.broadcast_to(b.scalar(0, dtypes.f32), seen.type.shape)
    return b.map("select", seen, zero, hidden)


@onnx_op("Attention", domain=MICROSOFT)
def attention(b: Builder, node: OnnxNode) -> list[Value | None]:
    """Attention of one projection of the input; the cache is [2, batch, heads, length, size]."""
    x, weights, bias = node.operand(0), node.operand(1), node.optional(2)
    mask, past, extra = node.optional(3), node.optional(4), node.optional(5)
    heads = node.required("num_heads")
    if node.attr("do_rotary", 0) or node.attr("past_present_share_buffer", 0):
        raise node.unsupported("do_rotary or a shared cache")
    width = as_int(weights.type.shape[1])
    sizes = list(node.attr("qkv_hidden_sizes", None) or [width // 3] * 3)
    projected = b.matmul(x, weights)
    if bias is not None:
        projected = b.map("add", projected, bias)
    ends = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    q, k, v = (
        split_heads(b, b.slice_axis(projected, 2, begin, end), heads)
        for begin, end in itertools.pairwise(ends)
    )
    length: Dim = 0
    if past is not None:
        length = past.type.shape[3]
        before = [b.squeeze(b.slice_axis(past, 0, i, i + 1), [0]) for i in (0, 1)]
        k, v = b.concat([before[0], k], 2), b.concat([before[1], v], 2)
    terms = []
    if mask is not None:
        terms.append(_mask_bias(b, node, mask, x.type.shape[0], k.type.shape[2]))
    if extra is not None:
        terms.append(extra)
    result = _attend(b, node, q, k, v, terms, None, length)
    present = None
    if node.uses_output(1):
        present = b.concat([b.unsqueeze(k, [0]), b.unsqueeze(v, [0])], 0)
    return [merge_heads(b, result), present]


@onnx_op("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(b: Builder, node: OnnxNode) -> list[Value | None]:
    """Queries, keys and values apart or packed, biases, a padding mask, a cache."""
    heads = node.required("num_heads")
    q, k, v = _heads(b, node, heads)
    mask, extra = node.optional(4), node.optional(5)
    past_key, past_value = node.optional(6), node.optional(7)
    length: Dim = 0
    if past_key is not None and past_value is not None:
        if node.optional(8) is not None:
            raise node.unsupported("past_sequence_length")
        length = past_key.type.shape[2]
        k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
    terms = []
    if mask is not None:
        terms.append(_mask_bias(b, node, mask, q.type.shape[0], k.type.shape[2]))
    if extra is not None:
        terms.append(extra)
    if node.uses_output(3):
        raise node.unsupported("the scores as a result")
    return [merge_heads(b, _attend(b, node, q, k, v, terms, None, length)), k, v]


def _heads(b: Builder, node: OnnxNode, heads: int) -> tuple[Value, Value, Value]:
    """q, k and v [batch, heads, length, size] with their biases, from any of the layouts."""
    query, key, value, bias = node.operand(0), *(node.optional(i) for i in (1, 2, 3))
    if query.type.rank == 5:  # [batch, length, heads, 3, size]
        parts = [b.swap(_pick(b, query, i), 1, 2) for i in range(3)]
    elif key is None:
        raise InvalidModelError("the keys are missing", where=node.where)
    elif key.type.rank == 5:  # [batch, length, heads, 2, size]
        parts = [split_heads(b, query, heads), *(b.swap(_pick(b, key, i), 1, 2) for i in (0, 1))]
    elif value is None:
        raise InvalidModelError("the values are missing", where=node.where)
    else:
        parts = [x if x.type.rank == 4 else split_heads(b, x, heads) for x in (query, key, value)]
    if bias is not None:
        begin = 0
        for index, part in enumerate(parts):
            size = as_int(part.type.shape[1]) * as_int(part.type.shape[3])
            row = b.reshape(b.slice_axis(bias, 0, begin, begin + size),
                            (part.type.shape[1], part.type.shape[3]))  # fmt: skip
            begin += size
            ready = index and key is not None and key.type.rank == 4  # of a cache: has its bias
            if not ready:
                parts[index] = b.map("add", part, b.broadcast(row, part.type.shape, (1, 3)))
    return parts[0], parts[1], parts[2]


def _pick(b: Builder, packed: Value, index: int) -> Value:
    return b.squeeze(b.slice_axis(packed, 3, index, index + 1), [3])


@onnx_op("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(b: Builder, node: OnnxNode) -> Value:
    """Positions are one offset, or [batch, length]; caches [positions, half of what is rotated]."""
    x, positions, cos, sin = (node.operand(i) for i in range(4))
    rotated = node.attr("rotary_embedding_dim", 0)
    wide = x
    if x.type.rank == 3:
        heads = node.attr("num_heads", 0) or as_int(x.type.shape[2]) // (
            2 * as_int(cos.type.shape[1])
        )
        wide = split_heads(b, x, heads)
    batch, _, length, _ = wide.type.shape
    if positions.type.rank == 1:
        position = b.iota((batch, length), 1, positions.dtype)
        positions = b.map(
            "add", position, b.broadcast_to(b.reshape(positions, ()), position.type.shape)
        )
    result = _rotate_at(b, wide, positions, cos, sin, bool(node.attr("interleaved", 0)), rotated)
    return merge_heads(b, result) if x.type.rank == 3 else result


def _rotate_at(
    b: Builder,
    x: Value,
    positions: Value,
    cos: Value,
    sin: Value,
    interleaved: bool,
    rotated: int = 0,
) -> Value:
    """x [batch, heads, length, size] rotated by its positions [batch, length]."""
    size = as_int(x.type.shape[3])
    rotated = rotated or 2 * as_int(cos.type.shape[1])
    rows = [b.emit("gather", cache, positions, axis=0) for cache in (cos, sin)]
    head = x if rotated == size else b.slice_axis(x, 3, 0, rotated)
    result = rotate(b, head, rows[0], rows[1], interleaved)
    if rotated != size:
        result = b.concat([result, b.slice_axis(x, 3, rotated, size)], 3)
    return result


@onnx_op("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(b: Builder, node: OnnxNode) -> list[Value | None]:
    """Causal attention with shared heads. Row r of the batch has seqlens_k[r] + 1 keys in all; the
    new ones follow those of the cache that count, and what follows them is padding."""
    heads, groups = node.required("num_heads"), node.required("kv_num_heads")
    query, key, value = node.operand(0), node.optional(1), node.optional(2)
    past_key, past_value = node.optional(3), node.optional(4)
    if any(node.optional(i) is not None for i in range(11, len(node.inputs))):
        raise node.unsupported("operands after attention_bias")
    for name in ("smooth_softmax", "k_quant_type", "qk_output"):
        if node.attr(name, 0) not in (0, -1, "NONE"):
            raise node.unsupported(name)
    if key is None or value is None:
        size = as_int(query.type.shape[2]) // (heads + 2 * groups)
        ends = [heads * size, (heads + groups) * size, (heads + 2 * groups) * size]
        query, key, value = (
            b.slice_axis(query, 2, begin, end) for begin, end in itertools.pairwise([0, *ends])
        )
    q, k, v = (
        split_heads(b, query, heads),
        split_heads(b, key, groups),
        split_heads(b, value, groups),
    )
    batch, _, new, _ = q.type.shape
    (total,) = b.read_dims(node.operand(6), "the total sequence length")
    known = 0 if past_key is None else past_key.type.shape[2]
    keys: Dim = total
    if isinstance(known, int) and isinstance(total, int):
        keys = max(known, total)
    prompt = total == new
    past = b.broadcast_to(b.scalar(0, dtypes.i64), (batch,))
    # One row alone has the longest row's keys in all: nothing is padding, the cache just grows.
    grows = isinstance(batch, int) and batch == 1 and not prompt and same(known, total - new)
    if grows:
        past = b.broadcast_to(b.scalar(known, dtypes.i64) if isinstance(known, int)
                              else b.dim(known), (batch,))  # fmt: skip
    elif not prompt:
        counts = b.map("add", b.cast(b.reshape(node.operand(5), (batch,)), dtypes.i64), 1)
        past = b.map("sub", counts, new if isinstance(new, int) else b.dim(new))
    query_position = b.map("add", b.iota((batch, new), 1), b.broadcast(past, (batch, new), (0,)))
    if node.attr("do_rotary", 0):
        cos, sin, given = node.operand(7), node.operand(8), node.optional(9)
        rotary_positions = query_position if given is None else given
        interleaved = bool(node.attr("rotary_interleaved", 0))
        q, k = (_rotate_at(b, x, rotary_positions, cos, sin, interleaved) for x in (q, k))
    if grows and past_key is not None and past_value is not None:
        k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
    elif not prompt or keys != new:
        k, v = (_append(b, cache, x, past, keys) for cache, x in ((past_key, k), (past_value, v)))
    wide = (batch, new, keys)
    position, query_row = b.iota(wide, 2), b.broadcast(query_position, wide, (0, 1))
    allowed = b.map("le", position, query_row)
    window = node.attr("local_window_size", -1)
    if window >= 0:
        near = b.map("gt", b.map("add", position, window), query_row)
        allowed = b.map("logical_and", allowed, near)
    extra = node.optional(10)
    all_k, all_v = (repeat_heads(b, x, heads) for x in (k, v))
    terms = [] if extra is None else [extra]
    result = _attend(b, node, q, all_k, all_v, terms, b.unsqueeze(allowed, [1]), 0)
    return [merge_heads(b, result), k, v]


def _append(b: Builder, cache: Value | None, new: Value, past: Value, keys: Dim) -> Value:
    """[batch, groups, keys, size]: past[r] entries of the cache, then the new ones; the rest 0."""
    batch, groups, count, size = new.type.shape
    shape = (batch, groups, keys, size)
    position = b.iota((batch, keys), 1)
    begin = b.broadcast(past, (batch, keys), (0,))
    since = b.map("sub", position, begin)
    last = count - 1 if isinstance(count, int) else b.map("sub", b.dim(count), 1)
    inner = b.map("min", b.map("max", since, 0), last)
    step = count if isinstance(count, int) else b.dim(count)
    row = b.map("add", b.map("mul", b.iota((batch, keys), 0), step), inner)
    # One row a token, so that each row of the batch may be shifted by an amount of its own.
    flat = b.reshape(b.swap(new, 1, 2), (batch * count, groups, size))
    moved = b.swap(b.emit("gather", flat, row, axis=0), 1, 2)
    zero = b.broadcast_to(b.scalar(0, new.dtype), shape)
    fresh = b.map("logical_and", b.map("ge", since, 0),
                  b.map("le", since, b.broadcast_to(last, since.type.shape)
                        if isinstance(last, Value) else last))  # fmt: skip
    result = b.map("select", b.broadcast(fresh, shape, (0, 2)), moved, zero)
    if cache is None or cache.type.shape[2] == 0:
        return result
    length = cache.type.shape[2]
    padded = cache
    if length != keys:
        padded = b.pad(cache, [0] * 4, [0, 0, as_int(keys) - as_int(length), 0], 0)
    old = b.broadcast(b.map("lt", position, begin), shape, (0, 2))
    return b.map("select", old, padded, result)
