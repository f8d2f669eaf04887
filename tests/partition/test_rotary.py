"""Rotary embeddings follow the projection of their heads, in every spelling of halves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser.graph import compose
from fuser.graph.ir import Graph, Value
from fuser.partition import partition
from tests.interpreted import check as check_emitted
from tests.partition.support import CPU, SM_90A, Net, check, kinds, ops, random_feeds

BATCH, LENGTH, SIZE = 2, 6, 8
Rotate = Callable[[Net, Value, Value, Value], Value]


def tables(net: Net, width: int) -> tuple[Value, Value]:
    angles = np.arange(LENGTH)[:, None] * 0.3 ** np.arange(width)
    return (
        net.b.constant(np.cos(angles).astype(np.float32)),
        net.b.constant(np.sin(angles).astype(np.float32)),
    )


def rotate_half(net: Net, x: Value, cos: Value, sin: Value) -> Value:
    """x * cos + concat(-high, low) * sin. x: [b, h, s, d]."""
    low, high = net.b.slice_axis(x, 3, 0, SIZE // 2), net.b.slice_axis(x, 3, SIZE // 2, SIZE)
    turned = net.b.concat([net.b.map("neg", high), low], 3)
    return net.b.map("add", net.b.map("mul", x, cos), net.b.map("mul", turned, sin))


def rotate_parts(net: Net, x: Value, cos: Value, sin: Value) -> Value:
    """concat(low * cos - high * sin, high * cos + low * sin), with tables of half the width."""
    low, high = net.b.slice_axis(x, 3, 0, SIZE // 2), net.b.slice_axis(x, 3, SIZE // 2, SIZE)
    first = net.b.map("sub", net.b.map("mul", low, cos), net.b.map("mul", high, sin))
    second = net.b.map("add", net.b.map("mul", high, cos), net.b.map("mul", low, sin))
    return net.b.concat([first, second], 3)


def heads(net: Net, x: Value, count: int, bias: bool = False) -> Value:
    split = net.b.reshape(net.linear(x, count * SIZE, bias), (BATCH, LENGTH, count, SIZE))
    return net.b.transpose(split, (0, 2, 1, 3))


def self_attention(net: Net, q: Value, k: Value, v: Value) -> Value:
    groups = k.shape[1]
    if groups != q.shape[1]:
        wide = (BATCH, groups, q.shape[1] // groups, LENGTH, SIZE)
        k, v = (net.b.reshape(net.b.broadcast(x, wide, (0, 1, 3, 4)), q.shape) for x in (k, v))
    scores = net.b.dot(q, k, ((3,), (3,)), ((0, 1), (0, 1)))
    weights = compose.softmax(net.b, net.b.map("mul", scores, SIZE**-0.5), [3])
    return net.b.dot(weights, v, ((3,), (2,)), ((0, 1), (0, 1)))


def model(rotate: Rotate, key_heads: int = 4, bias: bool = False) -> Graph:
    net = Net()
    x = net.input("x", BATCH, LENGTH, 16)
    q, k, v = (heads(net, x, count, bias) for count in (4, key_heads, key_heads))
    cos, sin = tables(net, SIZE if rotate is rotate_half else SIZE // 2)
    return net.finish(self_attention(net, rotate(net, q, cos, sin), rotate(net, k, cos, sin), v))


@pytest.mark.parametrize("rotate", [rotate_half, rotate_parts])
@pytest.mark.parametrize(("key_heads", "bias"), [(4, False), (2, False), (1, True)])
def test_the_rotation_is_an_epilogue(rotate: Rotate, key_heads: int, bias: bool) -> None:
    graph = model(rotate, key_heads, bias)
    for target in (CPU, SM_90A):
        cut = partition(graph, target)
        check(graph, cut)
        check_emitted(cut, random_feeds(graph), target, tolerance=1e-4)
        assert kinds(cut) == ["contraction", "attention"]
        projection, attention = cut.regions
        assert len(projection.anchors) == 2
        assert [value.shape for value in projection.outputs] == [
            (BATCH, LENGTH, 4 + 2 * key_heads, SIZE)
        ]
        assert attention.inputs == projection.outputs
        assert "concat" not in ops(attention)


def test_queries_alone_are_rotated_too() -> None:
    net = Net()
    x = net.input("x", BATCH, LENGTH, 16)
    cos, sin = tables(net, SIZE)
    y = rotate_half(net, heads(net, x, 4), cos, sin)
    graph = net.finish(net.b.dot(y, y, ((3,), (3,)), ((0, 1), (0, 1))))
    cut = partition(graph, SM_90A)
    check(graph, cut)
    assert kinds(cut) == ["contraction", "contraction"]


def test_different_rotations_are_not_joined() -> None:
    net = Net()
    x = net.input("x", BATCH, LENGTH, 16)
    q, k, v = (heads(net, x, 4) for _ in range(3))
    cos, sin = tables(net, SIZE)
    rotated = rotate_half(net, q, cos, sin), rotate_half(net, k, sin, cos)
    graph = net.finish(self_attention(net, *rotated, v))
    cut = partition(graph, CPU)
    check(graph, cut)
    assert all(len(region.anchors) < 2 for region in cut.regions if region.kind == "contraction")


def test_a_table_for_each_head_is_not_an_epilogue_of_all() -> None:
    net = Net()
    x = net.input("x", BATCH, LENGTH, 16)
    q, k, v = (heads(net, x, 4) for _ in range(3))
    cos, sin = (net.b.broadcast(net.weights(4, SIZE), q.shape, (1, 3)) for _ in range(2))
    rotated = rotate_half(net, q, cos, sin), rotate_half(net, k, cos, sin)
    graph = net.finish(self_attention(net, *rotated, v))
    cut = partition(graph, CPU)
    check(graph, cut)
    assert all(len(region.anchors) < 2 for region in cut.regions if region.kind == "contraction")


def test_rotated_keys_that_are_an_output_are_written_as_they_are() -> None:
    net = Net()
    x = net.input("x", BATCH, LENGTH, 16)
    q, k, v = (heads(net, x, 4) for _ in range(3))
    cos, sin = tables(net, SIZE)
    key = rotate_half(net, k, cos, sin)
    out = self_attention(net, rotate_half(net, q, cos, sin), key, v)
    graph = net.finish(out, key)
    for target in (CPU, SM_90A):
        cut = partition(graph, target)
        check(graph, cut)
        check_emitted(cut, random_feeds(graph), target, tolerance=1e-4)
        assert "attention" in kinds(cut)


def test_a_table_that_is_computed_later_in_the_graph() -> None:
    """The values are split before the angles are known: the order of nodes has to change."""
    net = Net()
    x = net.input("x", BATCH, LENGTH, 16)
    v = heads(net, x, 4)
    early = net.b.map("tanh", net.b.reshape(v, (BATCH, LENGTH * 4 * SIZE)))
    q, k = heads(net, x, 4), heads(net, x, 4)
    angles = net.b.map("mul", net.input("angles", LENGTH, SIZE), 0.5)
    cos, sin = net.b.map("cos", angles), net.b.map("sin", angles)
    out = self_attention(net, rotate_half(net, q, cos, sin), rotate_half(net, k, cos, sin), v)
    graph = net.finish(out, early)
    cut = partition(graph, SM_90A)
    cut.graph.verify()
    check(graph, cut)


@pytest.mark.parametrize(("layers", "written"), [(1, False), (6, True)])
def test_angles_that_many_layers_read_are_computed_once(layers: int, written: bool) -> None:
    """Sines and cosines of positions are long chains for the few threads of a GPU's block, more so
    where every head's block computes them; of a layer alone they are less than a kernel."""
    net = Net()
    x = net.input("x", BATCH, LENGTH, 4 * SIZE)
    positions = net.input("positions", LENGTH, 1)
    rates = net.b.constant(0.3 ** np.arange(SIZE, dtype=np.float32)[None])
    angles = net.b.map("mul", positions, rates)
    cos, sin = net.b.map("cos", angles), net.b.map("sin", angles)
    for _ in range(layers):
        q, k, v = heads(net, x, 4), heads(net, x, 4), heads(net, x, 4)
        turned = (rotate_half(net, value, cos, sin) for value in (q, k))
        found = self_attention(net, *turned, v)
        x = net.b.reshape(net.b.transpose(found, (0, 2, 1, 3)), (BATCH, LENGTH, 4 * SIZE))
    graph = net.finish(x)
    cut = partition(graph, SM_90A)
    check(graph, cut)
    computing = [region for region in cut.regions if "sin" in ops(region)]
    assert {region.kind == "map" for region in computing} == {written}
    assert not written or [len(region.outputs) for region in computing] == [2]
