"""Sums in two steps: which have parts, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.partition import partition
from fuser.partition.passes.split_contractions import split_contractions
from fuser.partition.passes.split_sums import split_sums
from tests.interpreted import check as check_emitted
from tests.partition.support import CPU, SM_90A, Net, kinds


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((8, 128, 300), (0, 1), dtypes.bf16),  # the rows of a norm
        ((6, 5, 105, 100), (0, 2, 3), dtypes.f32),  # the channels of images
        ((3, 2000, 50), (1,), dtypes.f32),
    ],
)
def test_large_sums_have_parts(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: dtypes.DType
) -> None:
    net = Net()
    x, y = net.input("x", *shape, dtype=dtype), net.input("y", *shape, dtype=dtype)
    product = net.b.map("mul", x, y)
    graph = net.finish(
        net.b.reduce("reduce_sum", product, axes), net.b.reduce("reduce_sum", x, axes)
    )
    cut = partition(graph, SM_90A)
    assert kinds(cut) == ["reduce", "reduce"]  # both sums together, in parts and then of these
    assert kinds(partition(graph, CPU)).count("reduce") == len(partition(graph, CPU).regions)
    parts = cut.regions[0].outputs
    assert all(
        v.dtype is dtypes.f32 and v.type.size > 4 * graph.outputs[0].type.size for v in parts
    )
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(shape).astype(dtype.numpy) for v in graph.inputs}
    check_emitted(cut, feeds, SM_90A)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((512, 4096), (1,)), ((4, 131072), (1,)), ((1, 1 << 19), (1,)), ((1 << 19,), (0,)),
        ((64, 128), (0,)), ((64, 30000), (0,)), ((8, 4, 256, 256), (2, 3)), ((262147, 3), (0,)),
    ],
)  # fmt: skip
def test_sums_that_stay(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Along rows, small ones, of many columns, and of a prime number of rows."""
    net = Net()
    graph = net.finish(net.b.reduce("reduce_sum", net.input("x", *shape), axes))
    assert split_sums(graph, SM_90A) is graph


def test_matmuls_of_few_tiles_and_long_sums_have_parts() -> None:
    """The gradient of a convolution's weights, and one that stays: there are tiles enough."""
    net = Net()
    x, y = (net.input(name, 16, 24, 36, 40, dtype=dtypes.bf16) for name in "xy")
    graph = net.finish(net.b.dot(x, y, ((0, 2, 3), (0, 2, 3))))
    cut = partition(graph, SM_90A)
    assert kinds(cut) == ["contraction", "reduce"]
    (parts,) = cut.regions[0].outputs
    assert parts.dtype is dtypes.f32 and parts.shape[1:] == (24, 24) and parts.shape[0] > 8
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    check_emitted(cut, feeds, SM_90A)
    net = Net()
    x, y = (net.input(name, 16, 640, 36, 40, dtype=dtypes.bf16) for name in "xy")
    graph = net.finish(net.b.dot(x, y, ((0, 2, 3), (0, 2, 3))))
    assert split_contractions(graph, SM_90A) is graph
