"""Winograd's convolutions: padding, sizes that squares hang over, both memory orders, epilogues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from fuser import dtypes
from fuser.base.target import SM_90A, cpu_target
from fuser.graph.numerics import using
from fuser.tilegen.emit import winograd
from fuser.tilegen.program import Packing
from fuser.tilegen.rules import RULES
from fuser.tilegen.rules.cpu import CPU_RULES
from fuser.tilegen.rules.cpu.winograd import winograd_side
from tests.interpreted import CPU, check, one_region
from tests.tilegen_emit.graphs import Model


@pytest.fixture(autouse=True)
def fast() -> Iterator[None]:
    """The numerics that allow it."""
    with using("fast"):
        yield


CASES = {  # batch, channels, outputs, height, width, padding
    "whole squares": (1, 8, 16, 8, 12, ((1, 1), (1, 1))),
    "odd sizes, two images": (2, 5, 18, 7, 9, ((1, 1), (1, 1))),
    "no padding": (1, 16, 3, 10, 6, ((0, 0), (0, 0))),
    "uneven padding": (1, 4, 33, 5, 6, ((2, 0), (0, 1))),
    "smaller than a square": (3, 7, 9, 3, 2, ((1, 1), (1, 1))),
}


@pytest.fixture(params=[2, 4])
def side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of squares of outputs, wherever they can be used."""
    fixed = replace(CPU_RULES, winograd_side=lambda *_: request.param)
    monkeypatch.setitem(RULES, "cpu", fixed)
    return int(request.param)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_winograd(side: int, channels_last: bool, case: str) -> None:
    n, c, o, h, w, padding = CASES[case]
    m = Model()
    x = m.input(n, c, h, w)
    y = _conv(m, x, m.weight(o, c, 3, 3), padding)
    y = m.b.map("max", m.b.map("add", y, m.weight(o, 1, 1)), 0.0)
    m.output(m.b.map("add", y, m.input(*y.shape)))
    nhwc = (0, 2, 3, 1)
    layouts = dict.fromkeys((x, m.graph.outputs[0], m.graph.inputs[1]), nhwc)
    partition = one_region(m.graph, "conv", layouts if channels_last else {})
    assert winograd.choose(partition.regions[0], CPU) is winograd.WAYS[side]
    check(partition, m.feeds, CPU)


@pytest.mark.usefixtures("side")
@pytest.mark.parametrize(
    "change",
    [{"strides": (2, 2)}, {"dilation": (2, 2)}, {"groups": 2}, {"dtype": dtypes.f16}, {"k": 5}],
    ids=str,
)
def test_what_it_leaves_alone(change: dict[str, object]) -> None:
    attrs = dict(change)
    m = Model(attrs.pop("dtype", dtypes.f32))  # type: ignore[arg-type]
    k, groups = attrs.pop("k", 3), attrs.get("groups", 1)
    weights = m.weight(8, 8 // groups, k, k)  # type: ignore[operator,arg-type]
    m.output(_conv(m, m.input(1, 8, 9, 9), weights, ((1, 1), (1, 1)), **attrs))
    assert winograd.choose(one_region(m.graph, "conv").regions[0], CPU) is None


@pytest.mark.usefixtures("side")
def test_weights_that_are_not_constant_and_gpus() -> None:
    m = Model()
    m.output(_conv(m, m.input(1, 8, 9, 9), m.input(8, 8, 3, 3), ((1, 1), (1, 1))))
    assert winograd.choose(one_region(m.graph, "conv").regions[0], CPU) is None
    m = Model()
    m.output(_conv(m, m.input(1, 8, 9, 9), m.weight(8, 8, 3, 3), ((1, 1), (1, 1))))
    assert winograd.choose(one_region(m.graph, "conv").regions[0], SM_90A) is None


@pytest.mark.parametrize(
    ("channels", "size", "batch", "side"),
    [(64, 56, 1, 4), (128, 28, 1, 4), (256, 14, 1, 2), (256, 14, 8, 4), (512, 7, 1, 0),
     (512, 7, 8, 4), (3, 224, 1, 0)],
)  # fmt: skip
def test_where_it_pays(channels: int, size: int, batch: int, side: int) -> None:
    """In layers of ResNet: smaller squares, or none, where transformed weights are more than the
    image."""
    target = cpu_target("sapphirerapids", "", units=2, vector_bits=512)
    outputs = max(channels, 64)
    assert winograd_side(target, channels, outputs, (batch, size, size)) == side


@pytest.mark.parametrize("way", winograd.WAYS.values(), ids=lambda way: f"{way.side}")
def test_filters_are_mixed_in_double_precision(way: winograd.Filtering) -> None:
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    mix = winograd.both_ways(way.filter)
    packed = Packing(mix=mix, reshape=(way.inputs, way.inputs, 4, 3)).apply(w)
    g = np.array(way.filter)
    expected = np.einsum("ia,ocab,jb->ijoc", g, w.astype(np.float64), g)
    assert packed.dtype == np.float32
    np.testing.assert_allclose(packed, expected, rtol=1e-6, atol=1e-7)


def _conv(m: Model, x, w, padding, **change):  # type: ignore[no-untyped-def]
    attrs = {"strides": (1, 1), "dilation": (1, 1), "groups": 1, **change}
    return m.b.emit("conv", x, w, padding=padding, **attrs)
