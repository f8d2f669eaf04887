"""Each kind of region, from the smallest graph that has it."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.dtypes import DType, bf16, f16, f32
from fuser.graph import compose
from fuser.graph.ir import TensorType, Value
from fuser.graph.linear_index import gather_along
from fuser.graph.numerics import using
from fuser.partition import Options, Partition, partition
from tests.interpreted import check as check_emitted
from tests.partition.support import CPU, SM_90A, Net, check, kinds, ops, random_feeds


def cut_of(net: Net, *outputs: Value) -> Partition:
    graph = net.finish(*outputs)
    for target in (CPU, SM_90A):
        cut = partition(graph, target)
        check(graph, cut)
    return cut


def test_a_chain_of_maps_is_one_region() -> None:
    net = Net()
    x = net.input("x", 8, 16)
    y = net.b.map("mul", net.b.map("tanh", net.b.map("add", x, 1.0)), x)
    assert kinds(cut_of(net, y)) == ["map"]


def test_maps_fuse_through_movement_that_keeps_every_element() -> None:
    net = Net()
    x = net.input("x", 8, 16)
    y = net.b.transpose(net.b.map("exp", x), (1, 0))
    z = net.b.reshape(net.b.map("neg", y), (128,))
    cut = cut_of(net, net.b.map("tanh", z))
    assert kinds(cut) == ["map"]


def test_a_value_and_its_transpose_meet_in_two_regions() -> None:
    """exp(x) at (i, j) and at (j, i): one element needs two, so exp(x) is written or repeated."""
    net = Net()
    x = net.input("x", 512, 512)
    e = net.b.map("exp", net.b.map("sin", net.b.map("tan", net.b.map("exp", x))))
    cut = cut_of(net, net.b.map("add", e, net.b.transpose(e, (1, 0))))
    assert kinds(cut) == ["map", "map"]


def test_softmax_is_one_region() -> None:
    net = Net()
    x = net.input("x", 8, 16)
    cut = cut_of(net, compose.softmax(net.b, net.b.map("mul", x, 0.5), [1]))
    assert kinds(cut) == ["reduce"]
    assert cut.regions[0].inputs == (x,)
    assert len(cut.regions[0].anchors) == 2


@pytest.mark.parametrize("axes", [(2,), (1, 2), (1,)])
def test_layer_norm_with_its_residual_is_one_region(axes: tuple[int, ...]) -> None:
    net = Net()
    x, r = net.input("x", 2, 6, 16), net.input("r", 2, 6, 16)
    total = net.b.map("add", x, r)
    y, *_ = compose.standardize(net.b, total, axes, 1e-5)
    cut = cut_of(net, net.b.map("mul", y, net.weights(16)), total)
    assert kinds(cut) == ["reduce"]
    assert len(cut.regions[0].outputs) == 2


def test_rms_norm_in_float32_of_half_precision_is_one_region() -> None:
    net = Net()
    x = net.input("x", 4, 16, dtype=dtypes.f16)
    wide = net.b.cast(x, dtypes.f32)
    y = net.b.cast(compose.rms_normalize(net.b, wide, [1], 1e-6), dtypes.f16)
    assert kinds(partition(net.finish(y), SM_90A)) == ["reduce"]


def test_statistics_of_one_operand_share_their_rows() -> None:
    """E[x^2] - E[x]^2: two reductions that meet in a row."""
    net = Net()
    x = net.input("x", 8, 16)
    mean = net.b.mean(x, [1])
    square = net.b.mean(net.b.map("mul", x, x), [1])
    cut = cut_of(net, net.b.map("sub", square, net.b.map("mul", mean, mean)))
    assert kinds(cut) == ["reduce"]
    assert cut.regions[0].inputs == (x,)


def test_embeddings_are_loads_of_the_norm() -> None:
    net = Net()
    ids = net.input("ids", 2, 8, dtype=dtypes.i64)
    words = net.b.emit("gather", net.weights(10, 16), ids, axis=0)
    total = net.b.map("add", words, net.weights(8, 16))
    y, *_ = compose.standardize(net.b, total, [2], 1e-5)
    assert kinds(cut_of(net, y)) == ["reduce"]


def test_a_gather_alone() -> None:
    net = Net()
    ids = net.input("ids", 5, dtype=dtypes.i64)
    y = net.b.emit("gather", net.weights(10, 16), ids, axis=0)
    assert kinds(cut_of(net, net.b.map("mul", y, 2.0))) == ["gather"]


def test_bias_activation_and_residual_follow_the_product() -> None:
    net = Net()
    x, r = net.input("x", 4, 16), net.input("r", 4, 8)
    y = net.b.map("add", compose.gelu(net.b, net.linear(x, 8, bias=True)), r)
    cut = cut_of(net, y)
    assert kinds(cut) == ["contraction"]
    assert cut.regions[0].outputs[0].node is cut.regions[0].nodes[-1]


def test_split_heads_follow_the_product_when_they_are_an_output() -> None:
    net = Net()
    x = net.input("x", 2, 6, 16)
    y = net.b.transpose(net.b.reshape(net.linear(x, 8), (2, 6, 2, 4)), (0, 2, 1, 3))
    cut = cut_of(net, y)
    assert kinds(cut) == ["contraction"]
    assert cut.regions[0].outputs[0].shape == (2, 2, 6, 4)


def test_a_cast_is_a_prologue() -> None:
    net = Net()
    x = net.input("x", 256, 256, dtype=dtypes.f16)
    cut = partition(net.finish(net.linear(net.b.cast(x, dtypes.f32), 64)), SM_90A)
    assert kinds(cut) == ["contraction"]
    assert "cast" in ops(cut.regions[0])


def test_an_expensive_prologue_is_a_kernel() -> None:
    net = Net()
    x = net.input("x", 4096, 1024)
    cut = partition(net.finish(net.linear(net.b.map("erf", x), 4096)), SM_90A)
    assert kinds(cut) == ["map", "contraction"]
    assert cut.refusals[0].code == "recompute"


def test_scalar_factors_move_behind_the_product() -> None:
    with using("fast"):
        net = Net()
    x, y = net.input("x", 2, 4, 8), net.input("y", 2, 6, 8)
    dot = net.b.dot(net.b.map("mul", x, 0.5), net.b.map("mul", y, 0.25), ((2,), (2,)), ((0,), (0,)))
    cut = cut_of(net, dot)
    assert kinds(cut) == ["contraction"]
    assert ops(cut.regions[0])[-1] == "mul"
    scalars = [n.attrs["value"] for n in cut.regions[0].nodes if n.op == "constant"]
    assert scalars == [np.float32(0.125)]


@pytest.mark.parametrize(("dtype", "moves"), [(f16, True), (bf16, False), (f32, False)])
def test_scalar_factors_move_where_no_sum_overflows(dtype: DType, moves: bool) -> None:
    net = Net()
    x, y = (net.graph.add_input(name, TensorType(dtype, (4, 8))) for name in "xy")
    dot = net.b.dot(net.b.map("mul", x, 0.5), y, ((1,), (1,)))
    found = ops(cut_of(net, dot).regions[0])
    assert (found.index("mul") > found.index("dot_general")) is moves


def test_parallel_products_are_merged() -> None:
    net = Net()
    x = net.input("x", 4, 16)
    sizes = (8, 4, 4)
    parts = [net.linear(x, size, bias=size == 8) for size in sizes]
    # each is read by another product, so each would be written
    outs = [net.b.dot(part, part, ((0,), (0,))) for part in parts]
    cut = cut_of(net, *outs)
    assert kinds(cut) == ["contraction"] * 4
    merged = cut.regions[0].outputs[0]
    assert merged.shape == (4, 16)
    assert kinds(partition(net.graph, CPU, Options(merge=False))) == ["contraction"] * 6


def test_products_with_activations_of_their_own_stay_apart() -> None:
    net = Net()
    x = net.input("x", 4, 16)
    parts = [compose.gelu(net.b, net.linear(x, 8)) for _ in range(2)]
    cut = cut_of(net, *[net.linear(part, 4) for part in parts])
    assert kinds(cut) == ["contraction"] * 4


@pytest.mark.parametrize("gate_first", [True, False])
def test_a_gate_is_one_region_with_two_anchors(gate_first: bool) -> None:
    net = Net()
    x = net.input("x", 4, 16)
    first, second = net.linear(x, 8), net.linear(x, 8)
    gate, up = (first, second) if gate_first else (second, first)
    silu = net.b.map("mul", gate, compose.sigmoid(net.b, gate))
    cut = cut_of(net, net.linear(net.b.map("mul", silu, up), 16))
    assert kinds(cut) == ["contraction", "contraction"]
    assert len(cut.regions[0].anchors) == 2


def conv(net: Net, x: Value, channels: int, window: int = 3) -> Value:
    return net.b.emit(
        "conv", x, net.weights(channels, x.shape[1], window, window), strides=(1, 1),
        padding=((window // 2,) * 2,) * 2, dilation=(1, 1), groups=1,
    )  # fmt: skip


def relu(net: Net, x: Value) -> Value:
    return net.b.map("max", x, 0.0)


def pool(net: Net, x: Value) -> Value:
    return net.b.emit(
        "reduce_window", x, fn="max", window=(1, 1, 2, 2), strides=(1, 1, 2, 2),
        padding=((0, 0),) * 4, dilation=(1,) * 4,
    )  # fmt: skip


def test_convolutions_take_bias_residual_and_activation_and_channels_come_last() -> None:
    net = Net()
    x = net.input("x", 1, 3, 8, 8)
    stem = relu(net, conv(net, x, 4))
    bias = net.b.broadcast(net.weights(4), (1, 4, 8, 8), (1,))
    branch = relu(net, net.b.map("add", conv(net, stem, 4), bias))
    joined = relu(net, net.b.map("add", conv(net, branch, 4), stem))
    small = pool(net, joined)
    mean = net.b.mean(small, [2, 3])
    cut = cut_of(net, net.linear(mean, 2))
    assert kinds(cut) == ["conv", "conv", "conv", "window", "reduce", "contraction"]
    between = [region.outputs[0] for region in cut.regions[:4]]
    assert all(cut.layouts[value] == (0, 2, 3, 1) for value in between)
    assert x not in cut.layouts
    assert cut.strides(between[0]) == (256, 1, 32, 4)


def test_a_convolution_that_is_an_output_keeps_its_layout() -> None:
    net = Net()
    x = net.input("x", 1, 3, 8, 8)
    cut = cut_of(net, conv(net, relu(net, x), 4))
    assert cut.layouts == {}


def test_a_moved_input_is_copied() -> None:
    net = Net()
    x = net.input("x", 4, 6)
    cut = cut_of(net, net.b.transpose(x, (1, 0)))
    assert kinds(cut) == ["map"]


def test_an_input_or_a_constant_that_is_an_output_is_copied() -> None:
    net = Net()
    x = net.input("x", 4, 6)
    cut = cut_of(net, x, net.weights(3), x)
    assert kinds(cut) == ["map", "map"]


def test_sort_runs_alone() -> None:
    net = Net()
    x = net.input("x", 4, 6)
    ordered = net.b.emit("sort", net.b.map("exp", x), axis=1)
    cut = cut_of(net, net.b.map("neg", ordered))
    assert kinds(cut) == ["map", "sort", "map"]
    assert {refusal.code for refusal in cut.refusals} == {"opaque", "different-space"}


def test_an_outer_product_is_a_map() -> None:
    """positions times frequencies: rotary tables are one region with two outputs."""
    net = Net()
    x, y = net.input("x", 2, 8, 1), net.input("y", 2, 1, 4)
    angles = net.b.dot(x, y, ((2,), (1,)), ((0,), (0,)))
    cut = cut_of(net, net.b.map("cos", angles), net.b.map("sin", angles))
    assert kinds(cut) == ["map"]
    assert len(cut.regions[0].outputs) == 2


def test_masks_are_computed_where_they_are_read() -> None:
    net = Net()
    mask, x = net.input("mask", 2, 8, dtype=dtypes.i64), net.input("x", 2, 4, 8, 8)
    dropped = net.b.map("mul", net.b.map("sub", 1.0, net.b.cast(mask, dtypes.f32)), -1e9)
    wide = net.b.broadcast(dropped, x.shape, (0, 3))
    cut = cut_of(net, *(compose.softmax(net.b, net.b.map("add", x, wide), [a]) for a in (2, 3)))
    assert kinds(cut) == ["reduce", "reduce"]


@pytest.mark.parametrize("bias", [False, True])
def test_a_gate_written_as_one_matrix_is_split(bias: bool) -> None:
    net = Net()
    both = net.linear(net.input("x", 4, 16), 24, bias)
    up, gate = net.b.slice_axis(both, 1, 0, 12), net.b.slice_axis(both, 1, 12, 24)
    cut = cut_of(net, net.linear(net.b.map("mul", compose.gelu(net.b, gate), up), 16))
    assert kinds(cut) == ["contraction", "contraction"]
    assert [a.output.shape for a in cut.regions[0].anchors] == [(4, 12), (4, 12)]


def test_parts_of_a_product_that_do_not_meet_stay_one_product() -> None:
    net = Net()
    whole = net.linear(net.input("x", 4, 16), 24)
    parts = [net.b.slice_axis(whole, 1, start, start + 8) for start in (0, 8, 16)]
    cut = cut_of(net, *(net.b.dot(part, part, ((0,), (0,))) for part in parts))
    assert kinds(cut) == ["contraction"] * 4


def test_siblings_share_their_input() -> None:
    """The largest and the least of a row meet nowhere, and are still one pass over it."""
    net = Net()
    x = net.input("x", 512, 512)
    cut = cut_of(net, *(net.b.reduce(f"reduce_{op}", x, [1]) for op in ("max", "min")))
    assert kinds(cut) == ["reduce"]


def test_large_maps_with_nothing_in_common_stay_apart() -> None:
    net = Net()
    x, y = net.input("x", 4096, 2048), net.input("y", 4096, 2048)
    graph = net.finish(net.b.map("exp", x), net.b.map("exp", y))
    assert kinds(partition(graph, SM_90A)) == kinds(partition(graph, CPU)) == ["map", "map"]


def test_small_maps_share_a_launch() -> None:
    net = Net()
    x, y = net.input("x", 8, 8), net.input("y", 8, 8)
    assert kinds(cut_of(net, net.b.map("exp", x), net.b.map("exp", y))) == ["map"]


def test_a_map_that_depends_on_the_other_is_no_sibling() -> None:
    net = Net()
    x = net.input("x", 8, 8)
    y = net.b.map("exp", x)
    z = net.b.map("add", y, net.b.transpose(y, (1, 0)))
    assert kinds(cut_of(net, y, z)) == ["map", "map"]


def test_a_value_and_its_activation_are_both_written_by_their_product() -> None:
    """Pre-activation residuals: the sum goes on, its activation feeds a window of the next."""
    net = Net()
    x = net.input("x", 1, 32, 112, 112)
    y = net.b.map("add", conv(net, x, 32), x)
    z = conv(net, compose.gelu(net.b, y), 32)
    cut = partition(net.finish(net.b.map("add", z, y)), SM_90A)
    assert kinds(cut) == ["conv", "conv"]
    assert len(cut.regions[0].outputs) == 2


def test_an_output_that_its_reader_can_compute_is_not_written() -> None:
    """Masked mean: the masked rows are read along another axis, the rows themselves are kept."""
    net = Net()
    x, mask = net.input("x", 2, 64, 32), net.input("mask", 2, 64)
    y, *_ = compose.standardize(net.b, x, [2], 1e-5)
    masked = net.b.map("mul", y, net.b.broadcast(mask, y.shape, (0, 1)))
    cut = cut_of(net, y, net.b.reduce("reduce_sum", masked, [1]))
    assert kinds(cut) == ["reduce", "reduce"]
    assert len(cut.regions[0].outputs) == 1
    assert "mul" in ops(cut.regions[1])


def test_padding_is_zero_whatever_the_prologue_makes_of_zero() -> None:
    net = Net()
    x, y = net.input("x", 1, 3, 6, 6), net.input("y", 1, 2, 6, 6)
    joined = net.b.concat([net.b.map("add", x, 1.0), y], 1)
    cut = cut_of(net, conv(net, joined, 4))
    check_emitted(cut, random_feeds(net.graph), SM_90A, tolerance=1e-4)


def test_tensors_without_elements_need_no_kernel() -> None:
    net = Net()
    x, y = net.input("x", 3, 0), net.input("y", 2, 4)
    total = net.b.reduce("reduce_sum", x, [1])
    product = net.b.dot(x, net.b.reshape(x, (0, 3)), ((1,), (0,)))
    joined = net.b.concat([net.b.reshape(x, (0, 4)), net.b.map("neg", y)], 0)
    cut = cut_of(net, total, product, net.b.map("exp", joined))
    assert set(kinds(cut)) == {"map"}
    assert all(value.type.size for region in cut.regions for value in region.inputs)


def test_what_one_reader_takes_little_of_is_not_written() -> None:
    """Log-softmax before a loss: its gather computes the elements that it takes."""
    net = Net()
    x, labels = net.input("x", 37, 530), net.input("labels", 37, dtype=dtypes.i64)
    top = net.b.restore(net.b.reduce("reduce_max", x, [1]), x, [1])
    gap = net.b.map("sub", x, top)
    total = net.b.map("log", net.b.reduce("reduce_sum", net.b.map("exp", gap), [1]))
    scores = net.b.map("sub", gap, net.b.restore(total, x, [1]))
    taken = gather_along(net.b, scores, net.b.reshape(labels, (37, 1)), 1)
    graph = net.finish(net.b.reduce("reduce_sum", taken, [0, 1]), total)
    feeds = {"x": np.linspace(-3, 5, 37 * 530, dtype=np.float32).reshape(37, 530) ** 2}
    feeds["labels"] = np.arange(37) * 13
    for target in (CPU, SM_90A):
        cut = partition(graph, target)
        assert all(v.type.size < x.type.size for r in cut.regions for v in r.outputs)
        check_emitted(cut, feeds, target)
