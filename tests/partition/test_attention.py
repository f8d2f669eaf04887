"""Attention is found by what it computes, in every spelling of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser import dtypes
from fuser.graph import compose
from fuser.graph.ir import Value
from fuser.graph.numerics import using
from fuser.partition import Options, Partition, Region, partition
from tests.interpreted import check as check_emitted
from tests.partition.support import CPU, SM_90A, Net, check, codes, kinds, ops, random_feeds

BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 4, 5, 7, 8
Score = Callable[[Net, Value], Value]


def inputs(net: Net, key_heads: int = HEADS) -> tuple[Value, Value, Value]:
    return (
        net.input("q", BATCH, HEADS, QUERIES, SIZE),
        net.input("k", BATCH, key_heads, KEYS, SIZE),
        net.input("v", BATCH, key_heads, KEYS, SIZE),
    )


def products(net: Net, q: Value, k: Value) -> Value:
    return net.b.dot(q, k, ((3,), (3,)), ((0, 1), (0, 1)))


def values(net: Net, weights: Value, v: Value) -> Value:
    return net.b.dot(weights, v, ((3,), (2,)), ((0, 1), (0, 1)))


def one_attention(net: Net, *outputs: Value) -> Region:
    """The only region of the cut, which is attention, computes the same and can be emitted."""
    graph = net.finish(*outputs)
    for target in (CPU, SM_90A):
        cut = partition(graph, target)
        check(graph, cut)
        assert kinds(cut) == ["attention"]
        check_emitted(cut, random_feeds(graph), target, tolerance=1e-4)
    return cut.regions[0]


def causal(net: Net, scores: Value) -> Value:
    rows, columns = (net.b.iota((QUERIES, KEYS), axis) for axis in (0, 1))
    return net.b.map("select", net.b.map("le", columns, rows), scores, -np.inf)


def added_mask(net: Net, scores: Value) -> Value:
    return net.b.map("add", scores, net.input("mask", BATCH, 1, QUERIES, KEYS))


def padding(net: Net, scores: Value) -> Value:
    mask = net.b.cast(net.input("mask", BATCH, KEYS, dtype=dtypes.i64), dtypes.f32)
    dropped = net.b.map("mul", net.b.map("sub", 1.0, mask), -1e9)
    return net.b.map("add", scores, net.b.broadcast(dropped, scores.shape, (0, 3)))


def boolean_mask(net: Net, scores: Value) -> Value:
    mask = net.input("mask", BATCH, KEYS, dtype=dtypes.i64)
    keep = net.b.broadcast(net.b.cast(mask, dtypes.bool_), scores.shape, (0, 3))
    return net.b.map("select", keep, scores, -1e9)


def soft_cap(net: Net, scores: Value) -> Value:
    return net.b.map("mul", net.b.map("tanh", net.b.map("div", scores, 20.0)), 20.0)


def alibi(net: Net, scores: Value) -> Value:
    rows, columns = (net.b.iota((QUERIES, KEYS), axis, dtypes.f32) for axis in (0, 1))
    distance = net.b.broadcast(net.b.map("sub", columns, rows), scores.shape, (2, 3))
    slopes = net.b.broadcast(net.weights(HEADS), scores.shape, (1,))
    return net.b.map("add", scores, net.b.map("mul", distance, slopes))


def window(net: Net, scores: Value) -> Value:
    rows, columns = (net.b.iota((QUERIES, KEYS), axis) for axis in (0, 1))
    near = net.b.map("lt", net.b.map("abs", net.b.map("sub", rows, columns)), 3)
    return net.b.map("select", near, scores, -np.inf)


def relative_bias(net: Net, scores: Value) -> Value:
    return net.b.map("add", scores, net.b.broadcast(net.weights(HEADS, QUERIES, KEYS),
                     scores.shape, (1, 2, 3)))  # fmt: skip


@pytest.mark.parametrize(
    "score", [causal, added_mask, padding, boolean_mask, soft_cap, alibi, window, relative_bias]
)
def test_any_pointwise_code_may_change_the_scores(score: Score) -> None:
    net = Net()
    q, k, v = inputs(net)
    scores = score(net, net.b.map("mul", products(net, q, k), SIZE**-0.5))
    region = one_attention(net, values(net, compose.softmax(net.b, scores, [3]), v))
    assert region.facts["qk"].op == region.facts["pv"].op == "dot_general"
    assert region.facts["kv"] == KEYS
    assert region.facts["scores"].shape == (BATCH, HEADS, QUERIES, KEYS)
    assert not region.facts["empty_rows"]


@pytest.mark.parametrize("where", ["q", "k", "both", "scores", "divided"])
def test_the_scale_may_be_anywhere(where: str) -> None:
    with using("fast"):
        net = Net()
    q, k, v = inputs(net)
    if where in ("q", "both"):
        q = net.b.map("mul", q, 0.5)
    if where in ("k", "both"):
        k = net.b.map("mul", k, 0.5)
    scores = products(net, q, k)
    if where == "scores":
        scores = net.b.map("mul", scores, 0.25)
    if where == "divided":
        scores = net.b.map("div", scores, 4.0)
    region = one_attention(net, values(net, compose.softmax(net.b, scores, [3]), v))
    before = ops(region)[: ops(region).index("dot_general")]
    assert "mul" not in before, "scales belong after the matmul"


def test_a_scaled_operand_of_float32_is_part_of_attention() -> None:
    """Its sums might overflow without the scale: it stays where it is, in the same region."""
    net = Net()
    q, k, v = inputs(net)
    scores = products(net, net.b.map("mul", q, 0.3), k)
    region = one_attention(net, values(net, compose.softmax(net.b, scores, [3]), v))
    assert ops(region).index("mul") < ops(region).index("dot_general")


def test_heads_are_split_and_merged_by_index_maps() -> None:
    """[b, s, h*d] in and out, K transposed before the product, as exporters write it."""
    net = Net()
    q, k, v = (net.input(name, BATCH, n, HEADS * SIZE) for name, n in
               (("q", QUERIES), ("k", KEYS), ("v", KEYS)))  # fmt: skip
    q, k, v = (
        net.b.transpose(net.b.reshape(x, (BATCH, x.shape[1], HEADS, SIZE)), (0, 2, 1, 3))
        for x in (q, k, v)
    )
    k = net.b.transpose(k, (0, 1, 3, 2))
    scores = net.b.dot(q, k, ((3,), (2,)), ((0, 1), (0, 1)))
    out = values(net, compose.softmax(net.b, scores, [3]), v)
    out = net.b.reshape(net.b.transpose(out, (0, 2, 1, 3)), (BATCH, QUERIES, HEADS * SIZE))
    assert one_attention(net, out).outputs[0].shape == (BATCH, QUERIES, HEADS * SIZE)


def test_merged_heads_are_written_for_the_next_product() -> None:
    net = Net()
    q, k, v = inputs(net)
    out = values(net, compose.softmax(net.b, products(net, q, k), [3]), v)
    merged = net.b.reshape(net.b.transpose(out, (0, 2, 1, 3)), (BATCH, QUERIES, HEADS * SIZE))
    cut = partition(net.finish(net.linear(merged, 6)), SM_90A)
    assert kinds(cut) == ["attention", "contraction"]
    assert cut.regions[0].outputs[0].shape == (BATCH, QUERIES, HEADS * SIZE)


def test_grouped_heads_expanded_for_the_product() -> None:
    net = Net()
    q, k, v = inputs(net, key_heads=2)
    wide = (BATCH, 2, HEADS // 2, KEYS, SIZE)
    k, v = (
        net.b.reshape(net.b.broadcast(x, wide, (0, 1, 3, 4)), (BATCH, HEADS, KEYS, SIZE))
        for x in (k, v)
    )
    region = one_attention(net, values(net, compose.softmax(net.b, products(net, q, k), [3]), v))
    assert [x.shape for x in region.inputs if x.name == "k"] == [(BATCH, 2, KEYS, SIZE)]


def test_grouped_heads_as_an_axis_of_the_product() -> None:
    net = Net()
    q, k, v = inputs(net, key_heads=2)
    q = net.b.reshape(q, (BATCH, 2, HEADS // 2, QUERIES, SIZE))
    scores = net.b.dot(q, k, ((4,), (3,)), ((0, 1), (0, 1)))
    weights = compose.softmax(net.b, scores, [4])
    graph = net.finish(net.b.dot(weights, v, ((4,), (2,)), ((0, 1), (0, 1))))
    cut = partition(graph, SM_90A)
    check(graph, cut)
    assert kinds(cut) == ["attention"]


def test_heads_folded_into_the_batch() -> None:
    net = Net()
    q = net.input("q", 8, QUERIES, SIZE)
    k, v = (net.input(name, 8, KEYS, SIZE) for name in "kv")
    scores = net.b.dot(q, k, ((2,), (2,)), ((0,), (0,)))
    mask = net.input("mask", 2, 1, QUERIES, KEYS)
    split = net.b.map("add", net.b.reshape(scores, (2, 4, QUERIES, KEYS)), mask)
    weights = compose.softmax(net.b, net.b.reshape(split, scores.shape), [2])
    one_attention(net, net.b.dot(weights, v, ((2,), (1,)), ((0,), (0,))))


def test_products_written_from_the_right() -> None:
    """(v^T p^T)^T with scores k q^T: the same attention, all operands on the other side."""
    net = Net()
    q, k, v = inputs(net)
    scores = net.b.transpose(products(net, k, q), (0, 1, 3, 2))
    weights = compose.softmax(net.b, scores, [3])
    out = net.b.dot(v, weights, ((2,), (3,)), ((0, 1), (0, 1)))
    graph = net.finish(out)
    cut = partition(graph, SM_90A)
    check(graph, cut)
    assert kinds(cut) == ["attention"]
    facts = cut.regions[0].facts
    assert (facts["key_side"], facts["value_side"]) == (0, 0)
    assert facts["q"].name == "q"


def test_softmax_in_float32_between_half_precision_products() -> None:
    net = Net()
    q, k, v = (net.b.cast(x, dtypes.f16) for x in inputs(net))
    scores = net.b.cast(products(net, q, k), dtypes.f32)
    weights = net.b.cast(compose.softmax(net.b, scores, [3]), dtypes.f16)
    cut = partition(net.finish(values(net, weights, v)), SM_90A)
    assert kinds(cut) == ["attention"]
    assert cut.regions[0].facts["probabilities"] is cut.regions[0].facts["pv"].inputs[0]


@pytest.mark.parametrize("spelling", ["is_nan", "not_equal", "inverted"])
def test_rows_without_keys_are_cleaned(spelling: str) -> None:
    net = Net()
    q, k, v = inputs(net)
    p = compose.softmax(net.b, causal(net, products(net, q, k)), [3])
    if spelling == "is_nan":
        p = compose.zero_masked_rows(net.b, p)
    elif spelling == "not_equal":
        p = net.b.map("select", net.b.map("ne", p, p), 0.0, p)
    else:
        p = net.b.map("select", net.b.map("logical_not", net.b.map("is_nan", p)), p, 0.0)
    assert one_attention(net, values(net, p, v)).facts["empty_rows"]


def test_a_constant_mask_behind_the_softmax_is_no_cleaning() -> None:
    """select(constant, p, 0): its condition reads nothing that could be p."""
    net = Net()
    q, k, v = inputs(net)
    weights = compose.softmax(net.b, products(net, q, k), [3])
    mask = net.b.constant(np.arange(BATCH * HEADS * QUERIES * KEYS).reshape(weights.shape) % 3 == 0)
    graph = net.finish(values(net, net.b.map("select", mask, weights, 0.0), v))
    for target in (CPU, SM_90A):
        cut = partition(graph, target)
        check(graph, cut)
        assert "attention" not in kinds(cut)
        check_emitted(cut, random_feeds(graph), target, tolerance=1e-4)


def test_a_quotient_may_be_a_product_with_a_reciprocal() -> None:
    net = Net()
    q, k, v = inputs(net)
    scores = products(net, q, k)
    peak = net.b.restore(net.b.reduce("reduce_max", scores, [3]), scores, [3])
    powers = net.b.map("exp", net.b.map("sub", scores, peak))
    total = net.b.map("reciprocal", net.b.reduce("reduce_sum", powers, [3]))
    weights = net.b.map("mul", powers, net.b.restore(total, scores, [3]))
    one_attention(net, values(net, weights, v))


def rotate(net: Net, x: Value, cos: Value, sin: Value) -> Value:
    half = x.shape[3] // 2
    low, high = net.b.slice_axis(x, 3, 0, half), net.b.slice_axis(x, 3, half, 2 * half)
    turned = net.b.concat([net.b.map("neg", high), low], 3)
    return net.b.map("add", net.b.map("mul", x, cos), net.b.map("mul", turned, sin))


def test_rotary_positions_are_computed_inside_when_that_is_cheap() -> None:
    net = Net()
    q, k, v = inputs(net)
    q = rotate(net, q, net.weights(QUERIES, SIZE), net.weights(QUERIES, SIZE))
    k = rotate(net, k, net.weights(KEYS, SIZE), net.weights(KEYS, SIZE))
    one_attention(net, values(net, compose.softmax(net.b, products(net, q, k), [3]), v))


def long_rotary(batch: int) -> Partition:
    net = Net()
    shape = (batch, 32, 4096, 64)
    q, k, v = (net.input(name, *shape, dtype=dtypes.f16) for name in "qkv")
    cos, sin = (net.input(name, 4096, 64, dtype=dtypes.f16) for name in ("cos", "sin"))
    q, k = rotate(net, q, cos, sin), rotate(net, k, cos, sin)
    return partition(
        net.finish(values(net, compose.softmax(net.b, products(net, q, k), [3]), v)), SM_90A
    )


def test_rotary_keys_of_long_sequences_are_a_kernel() -> None:
    """Every block of queries would rotate all keys again; the query is rotated once anyway."""
    cut = long_rotary(batch=4)
    assert kinds(cut) == ["map", "attention"]
    assert {value.name for value in cut.regions[0].inputs} == {"k", "cos", "sin"}
    assert "recompute" in codes(cut)


def test_self_attention_is_three_kernels() -> None:
    """Q, K and V in one product, attention, the output projection with the residual."""
    net = Net()
    x = net.input("x", BATCH, QUERIES, 32)
    q, k, v = (
        net.b.transpose(
            net.b.reshape(net.linear(x, 32, bias=True), (BATCH, QUERIES, HEADS, SIZE)),
            (0, 2, 1, 3),
        )
        for _ in range(3)
    )
    scores = products(net, net.b.map("mul", q, SIZE**-0.5), k)
    out = values(net, compose.softmax(net.b, scores, [3]), v)
    merged = net.b.reshape(net.b.transpose(out, (0, 2, 1, 3)), (BATCH, QUERIES, 32))
    graph = net.finish(net.b.map("add", net.linear(merged, 32, bias=True), x))
    for target in (CPU, SM_90A):
        cut = partition(graph, target)
        check(graph, cut)
        assert kinds(cut) == ["contraction", "attention", "contraction"]
        assert cut.regions[1].inputs[0] is cut.regions[0].outputs[0]


# what is not attention ----------------------------------------------------------------------------


def test_probabilities_that_are_read_elsewhere_are_written() -> None:
    net = Net()
    q, k, v = inputs(net)
    weights = compose.softmax(net.b, products(net, q, k), [3])
    graph = net.finish(values(net, weights, v), weights)
    cut = partition(graph, SM_90A)
    check(graph, cut)
    assert kinds(cut) == ["contraction", "reduce", "contraction"]
    assert "probabilities-escape" in codes(cut)


def test_softmax_over_the_queries_is_not_attention() -> None:
    net = Net()
    q, k, v = inputs(net)
    weights = compose.softmax(net.b, products(net, q, k), [2])
    cut = partition(net.finish(values(net, weights, v)), SM_90A)
    assert kinds(cut) == ["contraction", "reduce", "contraction"]


def test_a_product_over_the_queries_is_not_attention() -> None:
    net = Net()
    q, k, _ = inputs(net)
    weights = compose.softmax(net.b, products(net, q, k), [3])
    out = net.b.dot(weights, q, ((2,), (2,)), ((0, 1), (0, 1)))
    assert kinds(partition(net.finish(out), SM_90A)) == ["contraction", "reduce", "contraction"]


def test_a_head_too_wide_for_the_registers() -> None:
    net = Net()
    q, k = (net.input(name, 1, 1, 16, 1024) for name in "qk")
    v = net.input("v", 1, 1, 16, 1024)
    weights = compose.softmax(net.b, products(net, q, k), [3])
    cut = partition(net.finish(values(net, weights, v)), SM_90A)
    assert "attention" not in kinds(cut)
    assert "head-too-wide" in codes(cut)


def test_attention_can_be_turned_off() -> None:
    net = Net()
    q, k, v = inputs(net)
    weights = compose.softmax(net.b, products(net, q, k), [3])
    cut = partition(net.finish(values(net, weights, v)), SM_90A, Options(attention=False))
    assert kinds(cut) == ["contraction", "reduce", "contraction"]
