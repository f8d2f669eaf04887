"""Reductions over windows, in their canonical form, beside the plain one."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.ops.reduction import window_extent
from fuser.graph.windows import _Line, reduce_windows

# size, window, stride, padding, dilation of each axis
CASES = [
    ([(5, 3, 2, (1, 1), 1)], 1),
    ([(2, 320, 320, (0, 318), 1), (3, 320, 320, (0, 317), 1)], 0),
    ([(4, 9, 1, (5, 0), 1)], 0),
    ([(4, 4, 1, (3, 0), 2)], 1),
    ([(6, 20, 3, (20, 14), 1)], 1),
    ([(40, 33, 1, (2, 2), 1), (40, 9, 2, (0, 1), 1)], 2),
    ([(4, 4, 4, (0, 0), 1), (5, 2, 1, (0, 0), 1)], 1),
]


@pytest.mark.parametrize("fn", ["sum", "max"])
@pytest.mark.parametrize(("lines", "count"), CASES)
def test_same_as_the_plain_window(
    lines: list[tuple[int, int, int, tuple[int, int], int]], count: int, fn: str,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """count: reduce_window primitives of the canonical form."""
    sizes, window, strides, padding, dilation = zip(*lines, strict=True)
    graph = Graph("windows")
    x = graph.add_input("x", TensorType(dtypes.f32, (2, *sizes)))
    b = Builder(graph)
    short = reduce_windows(b, fn, x, window, strides, padding, dilation)
    found = [node.op for node in graph.nodes].count("reduce_window")
    plain = b.emit(
        "reduce_window", x, fn=fn, window=(1, *window), strides=(1, *strides),
        padding=((0, 0), *padding), dilation=(1, *dilation),
    )  # fmt: skip
    assert short.type == plain.type
    assert found == count
    graph.outputs, graph.output_names = [short, plain], ["short", "plain"]
    feeds = {"x": rng.standard_normal((2, *sizes)).astype(np.float32)}
    outputs = evaluate(graph, feeds, float64=True)
    np.testing.assert_allclose(outputs["short"], outputs["plain"], rtol=1e-12)


def test_the_taps_that_read_something_are_those_of_counting() -> None:
    """By arithmetic, for axes of any length, what going through all outputs finds."""
    rng = np.random.default_rng(0)
    met = 0
    for _ in range(3000):
        window, stride, dilation = (int(rng.integers(1, high)) for high in (9, 6, 5))
        low, high, size = (int(rng.integers(0, 8)) for _ in range(3))
        line = _Line(window, stride, low, high, dilation)
        count = window_extent(size, window, stride, low, high, dilation)
        assert isinstance(count, int)
        if count < 1:
            continue
        starts = [i * stride - low for i in range(count)]
        taps = [tap for tap in range(window) if any(0 <= s + tap * dilation < size for s in starts)]
        assert line._useful_taps(size, count) == ((taps[0], taps[-1]) if taps else None)
        met += bool(taps)
    assert met > 1000


def test_windows_over_a_huge_axis_are_trimmed_at_once() -> None:
    size = 1 << 40
    line = _Line(5, 3, 1 << 20, 2, 1).trimmed(size)
    assert line.window == 5
    assert _Line(5, 1, 2, 2, 1).trimmed(1) == _Line(1, 1, 0, 0, 1)
