"""Parallel matmuls of one operand are one; small outputs are copied out by a kernel beside."""

from __future__ import annotations

import pytest

from fuser.graph.ir import Graph
from fuser.partition import partition
from fuser.target import SM_90A, Target
from tests.partition.support import CPU, Net, check, kinds, ops


def cached(rows: int, width: int, *, keys: bool = True) -> Graph:
    """A query, a rotated key and a value, the last two of which go into a cache."""
    net = Net()
    x = net.input("x", rows, 48)
    query, value = net.linear(x, 4 * width), net.linear(x, width)
    other = net.input("other", 4 * width, rows)
    outputs = [net.b.matmul(query, other)] if keys else []
    heads, half = (rows, 2, width // 2), width // 4
    key = net.b.reshape(net.linear(x, width), heads)
    low, high = (net.b.slice_axis(key, 2, start, start + half) for start in (0, half))
    turned = net.b.concat([net.b.map("neg", high), low], 2)
    outputs.append(net.b.map("add", turned, key) if keys else key)
    outputs.append(net.b.reshape(value, heads))
    return net.finish(*outputs)


def test_a_small_value_joins_query_and_key() -> None:
    """The kernel that turns the key copies the value."""
    graph = cached(1, 32)
    cut = partition(graph, SM_90A)
    check(graph, cut)
    assert kinds(cut).count("contraction") == 2 and kinds(cut).count("map") == 1
    (beside,) = (region for region in cut.regions if region.kind == "map")
    assert len(beside.outputs) == 2 and "neg" in ops(beside)


def test_a_large_value_is_written_where_it_is_computed() -> None:
    large = cached(4096, 512)  # 8 MB: longer on its way than a launch
    cut = partition(large, SM_90A)
    assert kinds(cut).count("contraction") == 3
    (beside,) = (region for region in cut.regions if region.kind == "map")
    assert len(beside.outputs) == 1


def test_a_launch_of_a_cpu_is_no_reason() -> None:
    graph = cached(1, 32)
    cut = partition(graph, CPU)
    check(graph, cut)
    assert kinds(cut).count("contraction") == 3


@pytest.mark.parametrize("target", [SM_90A, CPU], ids=lambda target: target.name)
def test_outputs_alone_are_not_merged(target: Target) -> None:
    """Nothing is saved: a kernel would have to take each of them out again."""
    graph = cached(1, 32, keys=False)
    cut = partition(graph, target)
    check(graph, cut)
    assert set(kinds(cut)) == {"contraction"}
