"""Reductions over windows, in their canonical form, beside the plain one."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.windows import reduce_windows

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
