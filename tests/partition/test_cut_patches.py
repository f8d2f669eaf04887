"""Convolutions over patches that do not overlap are matmuls of a copy, where channels are few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser import dtypes
from fuser.base.target import SM_80, SM_90A, Target
from fuser.graph.ir import Graph
from fuser.partition import partition
from tests.numerics import assert_close
from tests.partition.support import CPU, Net, kinds, random_feeds, run_regions


def convolution(
    image: tuple[int, ...], outputs: int, window: tuple[int, ...], **given: Any
) -> Graph:
    net = Net()
    x = net.input("x", *image, dtype=dtypes.f16)
    count = len(window)
    shape = (outputs, image[1] // given.get("groups", 1), *window)
    array = np.random.default_rng(1).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    attrs = {
        "strides": window, "padding": ((0, 0),) * count, "dilation": (1,) * count, "groups": 1,
    } | given  # fmt: skip
    y = net.b.emit("conv", x, net.b.constant(array.astype(np.float16)), **attrs)
    bias = net.b.constant(np.ones((outputs, *(1 for _ in window)), np.float16))
    return net.finish(net.b.map("add", y, bias))


@pytest.mark.parametrize(
    ("image", "outputs", "window"),
    [
        ((1, 3, 32, 48), 96, (16, 16)),
        ((2, 3, 20, 12), 64, (4, 4)),
        ((3, 4, 160), 80, (16,)),
        ((1, 1, 4, 8, 12), 64, (2, 4, 4)),
    ],
)
def test_patches_are_rows(
    image: tuple[int, ...], outputs: int, window: tuple[int, ...]
) -> None:  # fmt: skip
    graph = convolution(image, outputs, window)
    cut = partition(graph, SM_90A)
    assert kinds(cut) == ["map", "contraction"]
    (copy,) = cut.regions[0].outputs
    assert copy.shape[-1] == image[1] * int(np.prod(window))
    feeds = random_feeds(graph)
    found, whole = run_regions(cut, feeds), run_regions(partition(graph, CPU), feeds)
    for name, array in whole.items():
        assert_close(found[name], array.astype(np.float64), dtypes.f16, copy.shape[-1])


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"strides": (8, 8)}, SM_90A),  # patches overlap
        ({"padding": ((0, 0), (8, 8))}, SM_90A),
        ({"image": (1, 3, 40, 48)}, SM_90A),  # and are not whole
        ({"image": (1, 8, 32, 48)}, SM_90A),  # pixels that the copy engine fetches
        ({"outputs": 16}, SM_90A),
        ({}, SM_80),
        ({}, CPU),
    ],
)
def test_others_stay_convolutions(given: dict[str, Any], target: Target) -> None:
    image, outputs = given.pop("image", (1, 3, 32, 48)), given.pop("outputs", 96)
    cut = partition(convolution(image, outputs, (16, 16), **given), target)
    assert "conv" in kinds(cut)
