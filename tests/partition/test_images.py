"""Copies of inputs with their channels last: which convolutions get them, and how many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fuser import dtypes
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Value
from fuser.partition import Options, Partition, partition
from tests.partition.support import CPU, SM_90A, Net, kinds

TILES = replace(CPU, features="+amx-tile,+amx-bf16")
ROUNDED = Options(operands=dtypes.bf16)


def convolution(net: Net, x: Value, window: int, groups: int = 1, pad: int = 1) -> Value:
    weights = net.weights(16, x.shape[1] // groups, window, window)
    return net.b.emit(
        "conv", x, weights, strides=(1, 1), padding=((pad, pad), (pad, pad)), dilation=(1, 1),
        groups=groups,
    )  # fmt: skip


def test_one_copy_for_equal_padding() -> None:
    """Shared, rounded once, with the padding in it; the numbers are those of the model."""
    net = Net()
    x = net.input("x", 2, 16, 6, 5)
    y = [convolution(net, x, 3), convolution(net, x, 3), convolution(net, x, 3, pad=2)]
    graph = net.finish(*y)
    cut = partition(graph, TILES, ROUNDED)
    assert kinds(cut).count("map") == 2 and kinds(cut).count("conv") == 3
    assert {value.shape for value in cut.narrow} == {(2, 16, 8, 7), (2, 16, 10, 9)}
    assert all(cut.layouts[value] == (0, 2, 3, 1) for value in cut.narrow)
    assert {refusal.code for refusal in cut.refusals} == {"channels-last"}
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 16, 6, 5)).astype(np.float32)}
    want = evaluate(partition(graph, CPU, ROUNDED).graph, feeds, float64=True)
    for name, array in evaluate(cut.graph, feeds, float64=True).items():
        np.testing.assert_array_equal(array, want[name])


def _copies(cut: Partition) -> int:
    return kinds(cut).count("map")


@pytest.mark.parametrize("window,groups", [(1, 1), (3, 4)])
def test_what_reads_no_channel_twice_gets_none(window: int, groups: int) -> None:
    net = Net()
    graph = net.finish(convolution(net, net.input("x", 2, 16, 6, 5), window, groups))
    assert _copies(partition(graph, TILES, ROUNDED)) == 0


def test_only_for_units_that_want_rows_of_channels() -> None:
    """Not for float32 products, plain vectors or a GPU, nor what another kernel writes."""
    net = Net()
    graph = net.finish(convolution(net, net.input("x", 2, 16, 6, 5), 3))
    assert _copies(partition(graph, TILES, ROUNDED)) == 1
    for target, options in ((TILES, Options()), (CPU, ROUNDED), (SM_90A, Options())):
        assert _copies(partition(graph, target, options)) == 0
    net = Net()
    inner = convolution(net, net.input("x", 2, 16, 6, 5), 1)
    assert _copies(partition(net.finish(convolution(net, inner, 3)), TILES, ROUNDED)) == 0


@pytest.mark.parametrize(
    ("channels", "outputs", "window", "dilation", "copied"),
    [(3, 64, 7, 1, 1), (3, 32, 3, 1, 0), (32, 64, 7, 1, 0), (3, 64, 7, 2, 0)],
)
def test_float32_windows_of_many_taps_and_few_channels(
    channels: int, outputs: int, window: int, dilation: int, copied: int
) -> None:
    """Their rows are one run in the copy; the numbers are those of the model."""
    net = Net()
    edge = window // 2
    y = net.b.emit(
        "conv", net.input("x", 1, channels, 45, 39), net.weights(outputs, channels, window, window),
        strides=(2, 2), padding=((edge, edge), (edge, edge)), dilation=(dilation, dilation),
        groups=1,
    )  # fmt: skip
    graph = net.finish(y)
    cut = partition(graph, CPU)
    assert _copies(cut) == copied
    assert _copies(partition(graph, CPU, ROUNDED)) == 0
    feeds = {"x": np.random.default_rng(2).standard_normal((1, channels, 45, 39))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    (want,) = evaluate(graph, feeds, float64=True).values()
    (found,) = evaluate(cut.graph, feeds, float64=True).values()
    np.testing.assert_array_equal(found, want)
