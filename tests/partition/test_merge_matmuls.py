"""Parallel matmuls of one operand are one, which writes parts that are outputs by themselves."""

from __future__ import annotations

import pytest

from fuser.base.target import SM_90A, Target
from fuser.graph.ir import Graph
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
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


def test_few_rows_of_float32_keep_their_blocks() -> None:
    """The two matmuls of turned heads have as many blocks as one of all columns."""
    cut = partition(cached(1, 512), SM_90A)
    program, *_ = emit_programs(cut, SM_90A)
    assert (
        program.kernel.schedule.block("n") == 16 and program.kernel.grid[-1] == 6 * 512 // 2 // 16
    )


@pytest.mark.parametrize(("rows", "width"), [(1, 32), (100, 128), (4096, 512)])
def test_keys_and_values_are_written_where_they_are_projected(rows: int, width: int) -> None:
    """The key is turned there, too; what attention reads is one more output."""
    graph = cached(rows, width)
    cut = partition(graph, SM_90A)
    if rows < 4096:
        check(graph, cut)
    assert kinds(cut) == ["contraction", "contraction"]
    assert cut.regions[0].outputs[1:] == tuple(cut.graph.outputs[1:])
    assert "neg" in ops(cut.regions[0])


def plain(rows: int, width: int) -> Graph:
    """A query, a key and a value, the last of which is an output; nothing is turned."""
    net = Net()
    x = net.input("x", rows, 48)
    query, key, value = net.linear(x, width), net.linear(x, width), net.linear(x, width)
    scores = net.b.matmul(query, net.b.transpose(key, (1, 0)))
    return net.finish(scores, net.b.reshape(value, (rows, 2, width // 2)))


def test_a_small_value_joins_query_and_key() -> None:
    graph = plain(5, 32)
    cut = partition(graph, SM_90A)
    check(graph, cut)
    assert kinds(cut) == ["contraction", "contraction"]
    assert [value.shape for value in cut.regions[0].outputs] == [(5, 96), (5, 2, 16)]


def test_a_large_value_keeps_its_kernel() -> None:
    """As part of what is merged it would be written twice."""
    cut = partition(plain(4096, 512), SM_90A)  # 8 MB: longer on its way than a launch
    assert kinds(cut).count("contraction") == 3


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
