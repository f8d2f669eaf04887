"""Copies with aligned rows: which products get them, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.base.target import SM_80, Target
from fuser.graph.ir import Value
from fuser.partition import Partition, partition
from fuser.partition.passes import align_rows
from fuser.tilegen.emit import emit
from tests.interpreted import check as check_emitted
from tests.partition.support import CPU, SM_90A, Net, kinds


def cut_of(
    m: int, n: int, k: int, left: str = "mk", right: str = "kn", target: Target = SM_90A
) -> tuple[Partition, Net]:
    """A bfloat16 product of operands stored in the given orders."""
    net = Net()
    sizes = {"m": m, "n": n, "k": k}
    operands: list[Value] = []
    for name, stored, wanted in (("a", left, "mk"), ("b", right, "kn")):
        value = net.input(name, *(sizes[axis] for axis in stored), dtype=dtypes.bf16)
        operands.append(value if stored == wanted else net.b.transpose(value, (1, 0)))
    graph = net.finish(net.b.matmul(*operands))
    return partition(graph, target), net


@pytest.mark.parametrize(
    ("shape", "left", "right", "pads"),
    [
        ((37, 43, 29), "mk", "kn", {(37, 32), (32, 48)}),
        ((37, 43, 29), "mk", "nk", {(37, 32), (43, 32)}),
        ((37, 43, 29), "km", "kn", {(29, 48)}),
        ((37, 40, 29), "mk", "kn", {(37, 32), (32, 40)}),
        ((37, 43, 32), "mk", "kn", {(32, 48)}),
        ((37, 43, 29), "km", "nk", {(32, 48), (43, 32)}),
    ],
)
def test_rows_of_copies(
    shape: tuple[int, int, int], left: str, right: str, pads: set[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What is summed over is as long on both sides; other dims grow where they are a row."""
    monkeypatch.setitem(align_rows.__globals__, "LOADS", 1.0)  # the module has its name
    cut, _ = cut_of(*shape, left, right)
    made = {r.outputs[0].shape for r in cut.regions[:-1]}
    assert made == pads
    assert kinds(cut) == ["map"] * (len(cut.regions) - 1) + ["contraction"]
    product = emit(cut.regions[-1], cut, SM_90A)[0].kernel
    assert all(view.strides[0] % 8 == 0 for view in product.views[:2])
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in cut.graph.inputs}
    check_emitted(cut, feeds, SM_90A)
    assert cut.refusals[0].code == "aligned-rows"


def test_copies_only_where_they_pay() -> None:
    """Large products of odd rows on GPUs; not small ones, even rows, constants or batches."""
    assert kinds(cut_of(4095, 4097, 129)[0]) == ["map", "map", "contraction"]
    assert kinds(cut_of(4095, 4097, 129, target=SM_80)[0]) == ["map", "map", "contraction"]
    assert kinds(cut_of(512, 512, 1025)[0]) == ["map", "map", "contraction"]  # waits of 16 trips
    for shape in ((4096, 4096, 128), (255, 257, 129), (1, 4097, 4097), (512, 512, 65)):
        assert kinds(cut_of(*shape)[0]) == ["contraction"], shape
    assert kinds(cut_of(4095, 4097, 129, target=CPU)[0]) == ["contraction"]
    net = Net()
    x = net.input("x", 4095, 4097)
    assert kinds(partition(net.finish(net.linear(x, 4097)), SM_90A)) == ["contraction"]
    net = Net()
    a, b = (net.input(name, 8, 1025, 1025, dtype=dtypes.bf16) for name in "ab")
    assert kinds(partition(net.finish(net.b.matmul(a, b)), SM_90A)) == ["contraction"]


def test_products_of_one_operand_share_its_copy() -> None:
    net = Net()
    a, b, c = (net.input(name, 2047, 2047, dtype=dtypes.f16) for name in "abc")
    cut = partition(net.finish(net.b.matmul(a, b), net.b.matmul(a, c)), SM_90A)
    made = [v for r in cut.regions if r.kind == "map" for v in r.outputs]
    assert sorted(v.shape for v in made) == [(2047, 2048), (2048, 2048), (2048, 2048)]


def test_what_maps_make_is_stored_with_longer_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient of a loss over an odd vocabulary, which two products and a sum read."""
    monkeypatch.setitem(align_rows.__globals__, "LOADS", 1.0)
    m, n = 60, 121
    net = Net()
    x = net.input("x", m, n, dtype=dtypes.bf16)
    labels = net.input("labels", m, dtype=dtypes.i64)
    left, right = net.input("left", n, 32, dtype=dtypes.bf16), net.input("right", m, 32)
    b, wide = net.b, net.b.cast(x, dtypes.f32)
    hit = b.map("eq", b.iota((m, n), 1), b.broadcast(labels, (m, n), (0,)))
    one = b.map("select", hit, b.full(0.5, wide.type), b.full(0, wide.type))
    total = b.broadcast(b.reduce("reduce_sum", one, [1]), (m, n), (0,))
    made = b.cast(b.map("sub", b.map("mul", b.map("exp", wide), total), one), dtypes.bf16)
    apart = b.reshape(b.reshape(made, (3, 20, n)), (m, n))
    products = b.matmul(apart, left), b.matmul(b.transpose(made, (1, 0)), b.cast(right, made.dtype))
    cut = partition(net.finish(*products, b.reduce("reduce_sum", made, [0])), SM_90A)
    large = [v.shape for r in cut.regions for v in r.outputs if v.type.size >= m * n]
    assert large == [(m, 128)]
    rng = np.random.default_rng(0)
    feeds = {
        v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy)
        for v in cut.graph.inputs if v is not labels
    }  # fmt: skip
    check_emitted(cut, feeds | {"labels": rng.integers(0, n, m)}, SM_90A)
