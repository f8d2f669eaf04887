"""RMSNorm between two matmuls of few rows: no kernel of its own, and as exact as with one."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import DType
from fuser.graph.dims import symbol
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.sizes import Sizes
from fuser.partition import Options, Partition, partition
from fuser.pipeline.kernels import emit_programs
from tests.interpreted import run_partition
from tests.partition.support import CPU, kinds, ops
from tests.partition.test_fold_norms import Array, Half, block, drawn

WORSE = 1.5
"""Of the error of kernels of their own, against float64, that these may have."""


def is_taken(cut: Partition) -> bool:
    """Whether the first matmul writes sums of panels, and the second adds them up."""
    made = [region for region in cut.regions if any(v.dtype is dtypes.f32 for v in region.outputs)]
    return [region.kind for region in made] == ["contraction"] and "reduce" not in kinds(cut)


def errors(graph: Graph, feeds: dict[str, Array]) -> tuple[float, float]:
    """Against float64, of the plan in question and of one with kernels for its norms."""
    (want,) = evaluate(graph, feeds, float64=True).values()
    found = []
    for target in (SM_90A, SM_80):
        cut = partition(graph, target)
        assert ("reduce" in kinds(cut)) == (target is SM_80)
        (have,) = run_partition(cut, feeds, target).values()
        found.append(float(np.linalg.norm(have.astype(np.float64) - want) / np.linalg.norm(want)))
    return found[0], found[1]


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_the_kernel_of_the_norm_is_gone(rows: int, dtype: DType) -> None:
    """Behind residuals: %x, its sums and %x times the gain are outputs of one matmul."""
    cut = partition(block(Half(dtype), rows, 1024, 512), SM_90A)
    assert kinds(cut) == ["contraction"] * 3
    first, second, _ = cut.regions
    assert [value.shape for value in first.outputs] == [(rows, 1024), (rows, 64), (rows, 1024)]
    assert is_taken(cut) and ops(second).count("reduce_sum") == 1


@pytest.mark.parametrize(
    ("k", "panel"), [(1024, 16), (2048, 16), (2560, 32), (3072, 24), (4096, 32), (5120, 40)]
)
def test_a_block_a_multiprocessor(k: int, panel: int) -> None:
    """As few columns as that takes, which divide all columns."""
    cut = partition(block(Half(), 1, k, 64), SM_90A)
    assert is_taken(cut) and cut.regions[0].outputs[1].shape == (1, k // panel)
    program, *_ = emit_programs(cut, SM_90A)
    assert program.kernel.schedule.block("n") == panel


def test_every_norm_of_many_layers() -> None:
    """All residuals meet in one stream: what is looked for lies near its end each time."""
    net = Half()
    x = net.half("x", 1, 1024)
    for _ in range(12):
        y = net.b.matmul(net.rms(x), net.matrix(1024, 1024))
        x = net.b.map("add", net.b.matmul(net.b.map("tanh", y), net.matrix(1024, 1024)), x)
    cut = partition(net.finish(net.b.matmul(net.rms(x), net.matrix(1024, 256))), SM_90A)
    assert kinds(cut) == ["reduce", *["contraction"] * 25]


def test_a_matmul_between_two_norms() -> None:
    """It stands behind the one, and in front of the other."""
    net = Half()
    x = net.b.map("add", net.b.matmul(net.half("x", 2, 1024), net.matrix(1024, 1024)),
                  net.half("r", 2, 1024))  # fmt: skip
    for _ in range(2):
        x = net.b.map("add", net.b.matmul(net.rms(x), net.matrix(1024, 1024)), x)
    graph = net.finish(net.b.matmul(net.rms(x), net.matrix(1024, 256)))
    cut = partition(graph, SM_90A)
    assert kinds(cut) == ["contraction"] * 4
    now, before = errors(graph, drawn(graph))
    assert now < WORSE * before


@pytest.mark.parametrize(
    ("rows", "k", "target", "options", "layer"),
    [
        (17, 1024, SM_90A, Options(), False),  # not few
        (1, 512, SM_90A, Options(), False),  # 32 panels: too few blocks
        (1, 1004, SM_90A, Options(), False),  # no whole panels
        (1, 1024, SM_80, Options(), False),
        (1, 1024, CPU, Options(), False),
        (1, 1024, SM_90A, Options(no_fusion=True), False),
        (1, 1024, SM_90A, Options(), True),  # a mean, too
    ],
)
def test_others_keep_it(rows: int, k: int, target: Target, options: Options, layer: bool) -> None:
    cut = partition(block(Half(), rows, k, 512, layer), target, options)
    assert "reduce" in kinds(cut) and not is_taken(cut)


def test_a_norm_that_others_read_stays() -> None:
    net = Half()
    total = net.b.map("add", net.b.matmul(net.half("x", 2, 1024), net.matrix(1024, 1024)),
                      net.half("r", 2, 1024))  # fmt: skip
    normal = net.rms(total)
    cut = partition(net.finish(net.b.matmul(normal, net.matrix(1024, 256)), normal), SM_90A)
    assert "reduce" in kinds(cut)


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
@pytest.mark.parametrize(("rows", "scale"), [(1, 1.0), (5, 300.0), (16, 0.01)])
def test_it_is_as_exact(rows: int, scale: float, dtype: DType) -> None:
    """Interpreted, against float64, beside the plan with a kernel for the norm."""
    graph = block(Half(dtype), rows, 1024, 512)
    now, before = errors(graph, drawn(graph, scale=scale))
    assert now < WORSE * before


def test_large_gains_do_not_overflow() -> None:
    """Elements near the largest float16, and gains of up to 30000: their product is no float16."""
    net = Half()
    x, r = net.half("x", 2, 1024), net.half("r", 2, 1024)
    total = net.b.map("add", net.b.matmul(x, net.matrix(1024, 1024)), r)
    wide = net.b.cast(total, dtypes.f32)
    squares = net.b.reduce("reduce_sum", net.b.map("mul", wide, wide), (1,), keep=True)
    mean = net.b.map("mul", squares, net.b.scalar(1 / 1024, dtypes.f32))
    normal = net.b.map("mul", wide, net.b.map("rsqrt", mean))
    gain = net.b.constant(np.geomspace(1e-2, 3e4, 1024).astype(np.float32))
    scaled = net.b.cast(net.b.map("mul", normal, gain), dtypes.f16)
    small = net.constant(net._rng.standard_normal((1024, 512)) / 1e5)
    graph = net.finish(net.b.matmul(scaled, small))
    cut = partition(graph, SM_90A)
    assert is_taken(cut)
    feeds = drawn(graph, scale=100.0)
    feeds["r"] = (feeds["r"].astype(np.float32) * 150).astype(np.float16)
    (have,) = run_partition(cut, feeds, SM_90A).values()
    (want,) = evaluate(graph, feeds, float64=True).values()
    assert np.isfinite(have).all()
    assert np.linalg.norm(have - want) < 2e-3 * np.linalg.norm(want)


def test_an_open_number_of_sequences() -> None:
    """They are few by the example."""
    net = Half()
    batch = symbol("batch")
    with Sizes({"batch": 4}):
        x = net.graph.add_input("x", TensorType(dtypes.f16, (batch, 1, 1024)))
        r = net.graph.add_input("r", TensorType(dtypes.f16, (batch, 1, 1024)))
        total = net.b.map("add", net.b.matmul(x, net.matrix(1024, 1024)), r)
        y = net.b.matmul(net.rms(total), net.matrix(1024, 512))
        cut = partition(net.finish(y, total), SM_90A)
        assert is_taken(cut)
        assert len(emit_programs(cut, SM_90A)) == 2
