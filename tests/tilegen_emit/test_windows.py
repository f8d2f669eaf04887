"""Windows of any length: short ones are unrolled, long ones are loops."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import fuser
from fuser import dtypes
from fuser.graph.windows import reduce_windows
from fuser.tilegen.emit import emit
from fuser.tilegen.emit.primitives import MOST_UNROLLED
from fuser.tilegen.text import print_kernel
from tests.interpreted import CPU, TARGETS, check, one_region
from tests.numerics import assert_close
from tests.tilegen_emit.graphs import Model

ALL = pytest.mark.parametrize("target", TARGETS)


@ALL
@pytest.mark.parametrize("fn", ["max", "sum"])
@pytest.mark.parametrize(
    ("window", "strides", "padding", "dilation", "shape"),
    [
        ((33,), (1,), ((0, 0),), (1,), (50,)),  # taps are left after whole trips
        ((40,), (16,), ((7, 39),), (1,), (90,)),
        ((64,), (3,), ((20, 20),), (2,), (150,)),
        ((7, 9), (1, 2), ((3, 3), (0, 8)), (1, 1), (9, 20)),  # nested loops
        ((13, 3), (2, 1), ((6, 6), (1, 1)), (1, 1), (11, 5)),  # rows of the window unrolled
        ((3, 4, 5), (1, 1, 1), ((1, 1), (0, 0), (4, 4)), (1, 1, 1), (4, 5, 6)),
    ],
)
def test_long_windows(
    target: str,
    fn: str,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    shape: tuple[int, ...],
) -> None:
    m = Model()
    x = m.b.map("sin", m.input(2, *shape))
    z = m.b.emit(
        "reduce_window", x, fn=fn, window=(1, *window), strides=(1, *strides),
        padding=((0, 0), *padding), dilation=(1, *dilation),
    )  # fmt: skip
    m.output(m.b.map("mul", z, 0.5))
    check(one_region(m.graph, "window"), m.feeds, TARGETS[target])


@pytest.mark.parametrize("length", [MOST_UNROLLED, 300, 4000])
def test_a_window_is_no_longer_than_a_short_one(length: int) -> None:
    """The text of a kernel does not grow with the window."""
    m = Model()
    x = m.input(1, 2 * length)
    m.output(reduce_windows(m.b, "max", x, [length], [length], [(0, 0)], [1]))
    partition = one_region(m.graph, "window")
    (program,) = emit(partition.regions[0], partition, CPU)
    assert print_kernel(program.kernel).count(" load ") <= MOST_UNROLLED


@pytest.mark.parametrize(
    ("node", "x", "w"),
    [
        ("AveragePool<kernel_shape=[1023], strides=[256]>", (1, 2, 3000), None),
        ("MaxPool<kernel_shape=[1367, 2], pads=[1, 1, 1, 1]>", (1, 1, 1365, 1), None),
        (
            "AveragePool<kernel_shape=[301, 300], pads=[150, 149, 150, 149]>",
            (1, 1, 9, 8),
            None,
        ),
        (
            "AveragePool<kernel_shape=[260, 255], pads=[127, 127, 127, 127], "
            "count_include_pad=1>",
            (1, 3, 290, 1),
            None,
        ),
        ("Conv<kernel_shape=[400], strides=[160]>", (1, 1, 2000), (8, 1, 400)),
        ("ConvTranspose<kernel_shape=[400], strides=[160]>", (1, 8, 12), (8, 1, 400)),
        ("Conv<kernel_shape=[31, 31], group=2, pads=[15, 15, 15, 15]>", (1, 2, 12, 9),
         (2, 1, 31, 31)),
    ],
)  # fmt: skip
def test_models_with_long_windows(
    node: str, x: tuple[int, ...], w: tuple[int, ...] | None, rng: np.random.Generator
) -> None:
    def declared(name: str, shape: tuple[int, ...]) -> str:
        return f"float[{', '.join(map(str, shape))}] {name}"

    inputs = {"x": x} if w is None else {"x": x, "w": w}
    signature = ", ".join(declared(name, shape) for name, shape in inputs.items())
    outputs = f"float[{', '.join('abcd'[: len(x)])}] y"
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({signature}) => ({outputs}) '
        f"{{ y = {node}({', '.join(inputs)}) }}"
    )
    feeds = {name: rng.standard_normal(s).astype(np.float32) for name, s in inputs.items()}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, feeds)
    found = fuser.compile(model, device="cpu").run(feeds)["y"]
    assert_close(found, expected, dtypes.f32, 2000)


def test_a_window_beyond_an_image_of_doubles(rng: np.random.Generator) -> None:
    """Wider than the image with its padding on one axis, and nearly as long on the other: each
    average is the exact sum of what the window meets, up to the roundings of 1,194 additions."""
    rows, window, padding = 1365, (1194, 510), 255
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (double[1, 2, {rows}, 1] x) => '
        "(double[a, b, c, d] y) { y = AveragePool <count_include_pad = 1, kernel_shape = "
        f"[{window[0]}, {window[1]}], pads = [{padding}, {padding}, {padding}, {padding}]> (x) }}"
    )
    x = rng.standard_normal((1, 2, rows, 1))
    found = fuser.compile(model, device="cpu").run({"x": x})["y"]
    assert found.shape == (1, 2, 682, 2)
    area = window[0] * window[1]
    for channel, row in [(c, r) for c in range(2) for r in (0, 1, 200, 255, 300, 427, 680, 681)]:
        met = x[0, channel, max(0, row - padding) : row - padding + window[0], 0]
        error = np.abs(found[0, channel, row] - math.fsum(met) / area)
        assert (error <= len(met) * 2.0**-53 * np.abs(met).sum() / area).all()
