"""Movement whose index grows with every step is written after a few; what cancels is not."""

from __future__ import annotations

from itertools import count, pairwise

import numpy as np
import pytest

from fuser.errors import LoweringError
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.partition import partition
from fuser.partition.tangled import MOST_UNEVEN, cut_anew, fresh, tangled_movement
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.options import CompileOptions
from fuser.report.partition_text import explain
from fuser.tilegen.index import MOST_ATOMS, Index, axis
from tests.partition.support import CPU, SM_90A, Net, check


def chain(steps: int, between: str = "") -> Graph:
    """[6, 4] transposed and read as [6, 4] again, `steps` times, with a map after each."""
    net = Net()
    x = net.input("x", 6, 4)
    for number in range(steps):
        b = net.named(f"step{number}")
        x = b.emit("reshape", b.transpose(x, (1, 0)), shape=(6, 4))
        if between:
            x = b.map(between, x)
    return net.finish(x)


@pytest.mark.parametrize("between", ["", "sin"])
@pytest.mark.parametrize("target", [CPU, SM_90A], ids=["cpu", "cuda"])
def test_tangled_steps_are_cut(between: str, target: object) -> None:
    graph = chain(13, between)
    cut = partition(graph, target)  # type: ignore[arg-type]
    check(graph, cut)
    uneven = MOST_UNEVEN + 1
    assert len(tangled_movement(cut.graph)) == 13 // uneven
    for region in cut.regions:
        # behind the value that is written, and before the next one
        assert sum(node.op == "reshape" for node in region.nodes) <= uneven + MOST_UNEVEN
    assert "tangled-movement" in explain(cut)


@pytest.mark.parametrize("between", ["", "sin"])
def test_long_chains_compile_and_are_right(between: str, rng: np.random.Generator) -> None:
    graph = chain(40, between)
    feeds = {"x": rng.standard_normal((6, 4)).astype(np.float32)}
    (expected,) = evaluate(graph, feeds, float64=True).values()
    (found,) = compile_graph(graph, CompileOptions(device="cpu")).run(feeds).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_windows_of_an_image_stay_one_kernel() -> None:
    """Cut into windows and put together again, rolled in between."""
    net = Net()
    x = net.input("x", 56, 56, 32)
    b = net.named("windows")
    cut = b.transpose(b.reshape(x, (8, 7, 8, 7, 32)), (0, 2, 1, 3, 4))
    rows = b.map("sin", b.reshape(cut, (64, 49, 32)))
    back = b.transpose(b.reshape(rows, (8, 8, 7, 7, 32)), (0, 2, 1, 3, 4))
    graph = net.finish(b.map("cos", b.reshape(back, (56, 56, 32))))
    assert not tangled_movement(graph)
    assert len(partition(graph, CPU).regions) == 1


def test_reshapes_that_cancel_are_even() -> None:
    net = Net()
    x = net.input("x", 4, 6)
    dims = fresh(x, count(), 0).dims
    for shape in ((24,), (3, 8), (2, 2, 6), (6, 4), (8, 3), (4, 6)):
        found = cut_anew(dims, shape)
        assert found is not None
        dims = found
    assert dims == fresh(x, count(), 0).dims
    assert cut_anew(dims[::-1], (6, 4)) == dims[::-1]
    assert cut_anew(dims[::-1], (4, 6)) is None


def test_an_index_does_not_grow_without_end() -> None:
    """Sizes that share no factor double an index at every step."""
    shapes = pairwise([(7 + 2 * i, 6 + 2 * i) for i in range(40)])
    at = (axis(0, 7), axis(1, 6))
    sizes = [Index(0).atoms]
    with pytest.raises(LoweringError, match=str(MOST_ATOMS)):
        for (_, columns), (_, others) in shapes:
            flat = at[1] * columns + at[0]
            at = (flat // others, flat % others)
            sizes.append(at[0].atoms)
    assert sizes == sorted(sizes)
