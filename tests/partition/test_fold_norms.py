"""Norms that matmuls apply themselves: what is folded, what is not, and how exact it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser import dtypes
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import DType
from fuser.graph import compose
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, Value
from fuser.partition import Options, Partition, partition
from fuser.partition.passes.scaled_weights import scaled_rows
from tests.interpreted import run_partition
from tests.partition.support import CPU, Net, kinds

Array = np.ndarray[Any, Any]
FOLD = Options(fold_norms=True)
WORSE = 1.5
"""Of the error without the fold, against float64, that the fold may have."""


class Half(Net):
    """A graph of 16-bit floats."""

    def __init__(self, dtype: DType = dtypes.f16) -> None:
        super().__init__()
        self.dtype = dtype

    def half(self, name: str, *shape: int) -> Value:
        return self.input(name, *shape, dtype=self.dtype)

    def constant(self, array: Array) -> Value:
        return self.b.constant(array.astype(self.dtype.numpy))

    def matrix(self, k: int, n: int) -> Value:
        return self.constant(self._rng.standard_normal((k, n)) / np.sqrt(k))

    def vector(self, n: int, at: float = 1.0) -> Value:
        return self.constant(at + 0.3 * self._rng.standard_normal(n))

    def rms(self, x: Value, epsilon: float = 1e-5) -> Value:
        wide = self.b.cast(x, dtypes.f32)
        last = x.type.rank - 1
        normal = compose.rms_normalize(self.b, wide, [last], epsilon)
        return self.b.map("mul", self.b.cast(normal, self.dtype), self.vector(x.shape[-1]))

    def layer(self, x: Value, epsilon: float = 1e-5) -> Value:
        wide = self.b.cast(x, dtypes.f32)
        normal, *_ = compose.standardize(self.b, wide, [x.type.rank - 1], epsilon)
        scaled = self.b.map("mul", self.b.cast(normal, self.dtype), self.vector(x.shape[-1]))
        return self.b.map("add", scaled, self.vector(x.shape[-1], 0.0))


def errors(graph: Graph, feeds: dict[str, Array], target: Target = SM_90A) -> tuple[float, float]:
    """Of the plan without and with the fold, against float64: the norm of the difference over that
    of the result."""
    (want,) = evaluate(graph, feeds, float64=True).values()
    found = []
    for options in (Options(), FOLD):
        (have,) = run_partition(partition(graph, target, options), feeds, target).values()
        found.append(float(np.linalg.norm(have.astype(np.float64) - want) / np.linalg.norm(want)))
    return found[0], found[1]


def drawn(graph: Graph, mean: float = 0.0, scale: float = 1.0) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {
        v.name: (mean + scale * rng.standard_normal(v.shape)).astype(v.dtype.numpy)
        for v in graph.inputs
    }


def block(net: Half, rows: int, k: int, n: int, layer: bool = False) -> Graph:
    """A residual sum, its norm, a gated matmul of it; the sum is read behind, too."""
    x, r = net.half("x", rows, k), net.half("r", rows, k)
    total = net.b.map("add", net.b.matmul(x, net.matrix(k, k)), r)
    normal = net.layer(total) if layer else net.rms(total)
    gate, up = (net.b.matmul(normal, net.matrix(k, n)) for _ in range(2))
    product = net.b.map("mul", net.b.map("tanh", gate), up)
    last = net.b.map("add", net.b.matmul(product, net.matrix(n, k)), total)
    return net.finish(last)


@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
@pytest.mark.parametrize("rows, k, n", [(1, 128, 96), (3, 200, 72), (13, 72, 136)])
def test_a_norm_goes_into_the_matmuls_behind_it(
    rows: int, k: int, n: int, dtype: DType, layer: bool
) -> None:
    graph = block(Half(dtype), rows, k, n, layer)
    assert kinds(partition(graph, SM_90A))[1] == "reduce"
    assert kinds(partition(graph, SM_90A, FOLD)) == ["contraction"] * 3
    plain, folded = errors(graph, drawn(graph))
    assert folded <= WORSE * plain


def alone(net: Half, rows: int, k: int, n: int, layer: bool) -> Graph:
    """A norm of an input, its matmul and a bias."""
    x = net.half("x", rows, k)
    normal = net.layer(x, 1e-12) if layer else net.rms(x)
    return net.finish(net.b.map("add", net.b.matmul(normal, net.matrix(k, n)), net.vector(n)))


@pytest.mark.parametrize("mean", [0.0, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("layer", [False, True])
def test_a_mean_far_from_zero_costs_no_precision(layer: bool, mean: float) -> None:
    graph = alone(Half(), 5, 200, 120, layer)
    assert kinds(partition(graph, SM_90A, FOLD)) == ["contraction"]
    plain, folded = errors(graph, drawn(graph, mean))
    assert folded <= WORSE * plain


@pytest.mark.parametrize("scale", [1e-3, 1.0, 2e3])
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=["sm_80", "sm_90a"])
def test_large_and_small_rows_are_as_exact(scale: float, target: Target) -> None:
    """Sums in front of the factors of rows may leave float16."""
    graph = alone(Half(), 2, 264, 72, layer=False)
    feeds = drawn(graph, scale=scale)
    plain, folded = errors(graph, feeds, target)
    assert folded <= WORSE * plain


def test_long_rows() -> None:
    graph = alone(Half(), 9, 2300, 16, layer=True)
    assert kinds(partition(graph, SM_90A, FOLD)) == ["contraction"]
    plain, folded = errors(graph, drawn(graph, 1.0))
    assert folded <= WORSE * plain


def test_statistics_of_batched_rows() -> None:
    net = Half()
    x = net.half("x", 2, 3, 72)
    normal = net.b.reshape(net.rms(x), (6, 72))
    graph = net.finish(net.b.matmul(normal, net.matrix(72, 40)))
    assert kinds(partition(graph, SM_90A, FOLD)) == ["contraction"]
    plain, folded = errors(graph, drawn(graph))
    assert folded <= WORSE * plain


def test_many_rows_keep_their_norm() -> None:
    """Each block would sum its rows up again."""
    graph = alone(Half(), 4096, 512, 2048, layer=False)
    assert kinds(partition(graph, SM_90A, FOLD)) == ["reduce", "contraction"]
    assert not folds(partition(graph, SM_90A, FOLD))


def folds(cut: Partition) -> bool:
    return any("result" in node.attrs for node in cut.graph.nodes)


def test_norms_that_others_read_stay() -> None:
    net = Half()
    x = net.half("x", 4, 64)
    normal = net.rms(x)
    graph = net.finish(net.b.map("add", net.b.matmul(normal, net.matrix(64, 64)), normal))
    assert not folds(partition(graph, SM_90A, FOLD))


def test_weights_that_are_no_constants_stay() -> None:
    net = Half()
    x, w = net.half("x", 4, 64), net.half("w", 64, 32)
    graph = net.finish(net.b.matmul(net.rms(x), w))
    assert not folds(partition(graph, SM_90A, FOLD))


def test_only_gpus_fold_and_only_where_it_is_asked_for() -> None:
    graph = alone(Half(), 4, 64, 32, layer=False)
    assert folds(partition(graph, SM_90A, FOLD))
    assert not folds(partition(graph, SM_90A))
    assert not folds(partition(graph, CPU, FOLD))


def test_a_norm_and_a_matmul_that_are_to_stay_apart() -> None:
    net = Half()
    x = net.half("x", 4, 64)
    net.named("norm")
    normal = net.rms(x)
    net.named("matmul")
    graph = net.finish(net.b.matmul(normal, net.matrix(64, 32)))
    cut = partition(graph, SM_90A, Options(fold_norms=True, forbid=(("norm", "matmul"),)))
    assert not folds(cut)
    assert kinds(cut) == ["reduce", "contraction"]


@pytest.mark.parametrize("gain, good", [(1.0, True), (0.02, True), (1e-4, False), (1e6, False)])
def test_weights_keep_their_precision(gain: float, good: bool) -> None:
    """Times a gain, weights must neither leave the normal numbers of float16 nor its range."""
    weights = np.random.default_rng(0).standard_normal((96, 40)).astype(np.float16)
    factors = np.full(96, gain, np.float32)
    found = scaled_rows(weights * np.float16(0.05), factors, 0)
    assert (found is not None) == good
    other = scaled_rows((weights * np.float16(0.05)).T.copy(), factors, 1)
    assert (other is not None) == good
    if found is not None and other is not None:
        np.testing.assert_array_equal(found, other.T)


def test_the_product_of_weights_and_gain_is_made_once() -> None:
    """Kernels for other sizes have the same array, as long as somebody has it."""
    weights = np.random.default_rng(0).standard_normal((70, 40)).astype(np.float16)
    gain = np.linspace(0.5, 2, 70, dtype=np.float32)
    found = scaled_rows(weights, gain, 0)
    assert found is not None and scaled_rows(weights, gain, 0) is found
    assert scaled_rows(weights.copy(), gain, 0) is not found
    assert scaled_rows(weights, 2 * gain, 0) is not found


@pytest.mark.parametrize("mean", [0.0, 1.0, 300.0])
@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("rows, k, n", [(70, 200, 136), (128, 768, 64)])
def test_tall_blocks_take_sums_beside_their_dots(
    rows: int, k: int, n: int, layer: bool, mean: float
) -> None:
    graph = alone(Half(), rows, k, n, layer)
    assert kinds(partition(graph, SM_90A, FOLD)) == ["contraction"]
    plain, folded = errors(graph, drawn(graph, mean))
    assert folded <= WORSE * plain


@pytest.mark.parametrize("first", [0.0, 100.0, -3e4])
def test_a_variance_about_any_element_is_exact(first: float) -> None:
    """The first element of a row may be the one that is far from all others."""
    graph = alone(Half(), 40, 768, 32, layer=True)
    feeds = drawn(graph)
    feeds["x"][:, 0] = first
    plain, folded = errors(graph, feeds)
    assert folded <= WORSE * plain
    feeds["x"][:] = first
    feeds["x"][:, 5::7] = first + 1
    plain, folded = errors(graph, feeds)
    assert folded <= WORSE * plain or first < -1e4  # its neighbours in float16 are 16 apart


def test_what_cannot_be_summed_in_one_pass_keeps_its_kernel() -> None:
    """A sum of absolute distances from the mean needs the mean."""
    net = Half()
    x = net.half("x", 64, 128)
    wide = net.b.cast(x, dtypes.f32)
    mean = net.b.map("mul", net.b.reduce("reduce_sum", wide, (1,), keep=True), 1 / 128)
    off = net.b.map("sub", wide, mean)
    far = net.b.reduce("reduce_sum", net.b.map("abs", off), (1,), keep=True)
    normal = net.b.cast(net.b.map("div", off, far), dtypes.f16)
    graph = net.finish(net.b.matmul(normal, net.matrix(128, 64)))
    cut = partition(graph, SM_90A, FOLD)
    assert kinds(cut) == ["reduce", "contraction"] and folds(cut)
    plain, folded = errors(graph, drawn(graph))
    assert folded <= WORSE * plain
