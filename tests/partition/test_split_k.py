"""Deep matmuls of few tiles in front of a norm are cut along k; the norm's kernel adds up."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.backend.nvptx import lower_to_gpu
from fuser.backend.nvptx.ir import ops as gpu
from fuser.base.target import SM_80, SM_90A, Target
from fuser.graph.dims import symbol
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.sizes import Sizes
from fuser.partition import Partition, partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen import ops as tile_ops
from tests import interpreted
from tests.numerics import assert_close
from tests.partition.support import CPU, Net, kinds, ops, random_feeds, run_regions


def normed(rows: int, k: int, n: int, *, transposed: bool = False, norm: bool = True) -> Graph:
    """A matmul, a bias, a residual, which is an output too, and a layer norm."""
    net = Net()
    x = net.input("x", 1, rows, k, dtype=dtypes.f16)
    rest = net.input("rest", 1, rows, n, dtype=dtypes.f16)

    def weights(*shape: int) -> Value:
        array = np.random.default_rng(k).standard_normal(shape) / np.sqrt(k)
        return net.b.constant(array.astype(np.float16))

    if transposed:
        product = net.b.emit(
            "dot_general", x, weights(n, k), lhs_batch=(), rhs_batch=(), lhs_contract=(2,),
            rhs_contract=(1,),
        )  # fmt: skip
    else:
        product = net.b.matmul(x, weights(k, n))
    y = net.b.map("add", net.b.map("add", product, weights(n)), rest)
    if not norm:
        return net.finish(net.b.map("tanh", y))
    wide = net.b.cast(y, dtypes.f32)
    mean = net.b.reduce("reduce_sum", wide, (2,), keep=True)
    less = net.b.map("sub", wide, net.b.map("mul", mean, net.b.scalar(1 / n, dtypes.f32)))
    return net.finish(y, net.b.cast(less, dtypes.f16))


def parts_of(cut: Partition) -> int:
    """Into how many parts the matmul of a cut is cut."""
    (matmul,) = (region for region in cut.regions if region.kind == "contraction")
    shape = matmul.outputs[0].shape
    return int(shape[0]) if len(shape) == 4 else 1


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "k", "n", "parts"),
    [
        (128, 3072, 768, 4),
        (197, 3072, 768, 4),
        (50, 2304, 384, 4),
        (100, 1728, 256, 3),
        (1, 4096, 1024, 2),
        (16, 2048, 1024, 2),
    ],
)
def test_the_norm_adds_parts_up(rows: int, k: int, n: int, parts: int, transposed: bool) -> None:
    """As many kernels, and results within what float16 and another order of sums leave."""
    graph = normed(rows, k, n, transposed=transposed)
    cut = partition(graph, SM_90A)
    assert parts_of(cut) == parts and kinds(cut) == ["contraction", "reduce"]
    assert ops(cut.regions[1]).count("add") == parts - 1 + 2
    feeds = random_feeds(graph)
    found = run_regions(cut, feeds)
    whole = run_regions(partition(graph, CPU), feeds)
    for name, array in whole.items():
        assert_close(found[name], array.astype(np.float64), dtypes.f16, k)


@pytest.mark.parametrize("rows", [1, 16])
def test_parts_of_few_rows_are_copied_as_matrices(rows: int) -> None:
    """A single row is copied ahead of its use, as many are: nothing of it is broadcast."""
    matmul = emit_programs(partition(normed(rows, 2048, 1024), SM_90A), SM_90A)[0].kernel
    found = list(matmul.walk())
    assert [op.shape for op in found if isinstance(op, tile_ops.Load)] == [(16, 256), (256, 32)]
    assert not any(isinstance(op, tile_ops.Broadcast | tile_ops.Cast) for op in found)
    (loop,) = (op for op in lower_to_gpu(matmul, SM_90A).walk() if isinstance(op, gpu.For))
    read = [op for op in loop.body.walk() if isinstance(op, gpu.Load | gpu.WaitCopies)]
    assert [type(op) for op in read] == [gpu.WaitCopies]


@pytest.mark.parametrize(
    ("rows", "k", "n", "norm", "target"),
    [
        (1, 4096, 4096, True, SM_90A),  # streams its weights through blocks enough
        (1, 4096, 512, True, SM_90A),  # through few, even so
        (16, 2048, 2048, True, SM_90A),  # through 128 narrow ones
        (4096, 3072, 768, True, SM_90A),  # has tiles for all multiprocessors
        (512, 3072, 768, True, SM_90A),  # as long to write and read parts
        (128, 768, 768, True, SM_90A),  # short
        (128, 3072, 768, False, SM_90A),  # nobody reads rows behind it
        (128, 3072, 768, True, SM_80),  # whose costs are not known
        (128, 3072, 768, True, CPU),
    ],
)
def test_others_stay_whole(rows: int, k: int, n: int, norm: bool, target: Target) -> None:
    assert parts_of(partition(normed(rows, k, n, norm=norm), target)) == 1


@pytest.mark.parametrize(("axis", "parts"), [(1, 2), (0, 1)])
def test_the_largest_of_a_row_adds_parts_up_too(axis: int, parts: int) -> None:
    """A classifier: what reads whole rows need not be a norm; what reads columns does not do."""
    net = Net()
    x = net.input("x", 4, 2048, dtype=dtypes.f16)
    rng = np.random.default_rng(0)
    weights = net.b.constant((rng.standard_normal((2048, 1000)) / 45).astype("f2"))
    graph = net.finish(net.b.emit("argmax", net.b.matmul(x, weights), axis=axis))
    cut = partition(graph, SM_90A)
    assert cut.regions[0].outputs[0].shape == ((2, 4, 1000) if parts > 1 else (4, 1000))
    feeds = random_feeds(graph)
    found = interpreted.run_partition(cut, feeds, SM_90A)
    for name, array in run_regions(partition(graph, CPU), feeds).items():
        np.testing.assert_array_equal(found[name], array)


def test_a_gate_stays_one_kernel() -> None:
    """Its two matmuls read their operand once, and meet in registers."""
    net = Net()
    x = net.input("x", 128, 3072, dtype=dtypes.f16)
    rng = np.random.default_rng(0)
    one, other = (
        net.b.matmul(x, net.b.constant((rng.standard_normal((3072, 768)) / 64).astype("f2")))
        for _ in range(2)
    )
    y = net.b.map("mul", net.b.map("tanh", one), other)
    graph = net.finish(net.b.reduce("reduce_max", y, (1,)), y)
    gate, _ = partition(graph, SM_90A).regions
    assert ops(gate).count("dot_general") == 2 and gate.outputs[0].shape == (128, 768)


@pytest.mark.parametrize(("example", "parts"), [(128, 1), (7, 2)])
def test_open_rows(example: int, parts: int) -> None:
    """Of few rows, any number; costs of more are those of a number that is known."""
    net = Net()
    with Sizes({"rows": example}):
        x = net.graph.add_input("x", TensorType(dtypes.f16, (symbol("rows"), 3072)))
        y = net.b.matmul(x, net.b.constant(np.ones((3072, 1024), np.float16)))
        graph = net.finish(y, net.b.reduce("reduce_max", y, (1,)))
        shape = partition(graph, SM_90A).regions[0].outputs[0].shape
    assert len(shape) == (3 if parts > 1 else 2) and shape[-2] == symbol("rows")
