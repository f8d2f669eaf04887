"""Which loops the blocks of a cluster may share, and that the merge of their parts is the whole."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel
from fuser.backend.nvptx.cluster.reduction_merge import ReductionMerge, mergeable_loop
from fuser.base.target import SM_80, SM_90A
from fuser.dtypes import f32
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value
from tests.backend.nvptx import kernels

ROWS, KEYS, WIDTH, BLOCK = 16, 96, 8, 16


def softmax_state(start: int = 0, stop: int = KEYS, change: str = "") -> Kernel:
    """Maximum, sum and product with values of rows of scores, over a range of keys; or with one
    thing about it changed."""
    b = Builder("state")
    scores = b.view(b.buffer("x0", f32, ROWS * KEYS), (ROWS, KEYS))
    values = b.view(b.buffer("x1", f32, KEYS * WIDTH), (KEYS, WIDTH))
    tile, wide = (ROWS, BLOCK), (ROWS, WIDTH)

    def body(i: Value, top: Value, total: Value, out: Value) -> list[Value]:
        at = index(i)
        score = b.load(scores, (axis(0, ROWS), at + axis(1, BLOCK)), tile)
        if change == "scores of the carried":
            score = b.map("add", score, b.broadcast(total, tile, (0,)))
        higher = b.map("max", top, b.reduce("max", score, 1))
        none = b.map("eq", higher, b.full(-np.inf, (ROWS,), f32))
        finite = b.map("select", none, b.full(0.0, (ROWS,), f32), higher)
        base = top if change == "older maximum" else finite
        weight = b.map("exp", b.map("sub", score, b.broadcast(base, tile, (0,))))
        if change == "rows meet":
            weight_sum = b.reduce("sum", weight, 0)
        else:
            weight_sum = b.reduce("sum", weight, 1)
        if change == "squared":
            weight = b.map("mul", weight, weight)
        fade = b.map("exp", b.map("sub", top, finite))
        total = b.map("add", b.map("mul", total, fade), weight_sum)
        if change == "not faded":
            out_before = out
        else:
            out_before = b.map("mul", out, b.broadcast(fade, wide, (0,)))
        value = b.load(values, (at + axis(0, BLOCK), axis(1, WIDTH)), (BLOCK, WIDTH))
        return [higher, total, b.dot(weight, value, out_before)]

    first = 1.0 if change == "starts from 1" else 0.0
    inits = [
        b.full(-np.inf, (ROWS,), f32), b.full(first, (ROWS,), f32), b.full(0.0, wide, f32)
    ]  # fmt: skip
    results = b.loop(start, index(stop), BLOCK, inits, body)
    for number, result in enumerate(results):
        y = b.buffer(f"y{number}", f32, result.type.size, role="output")
        at = tuple(axis(i, dim) for i, dim in enumerate(result.shape))
        b.store(b.view(y, result.shape), at, result)
    return b.build()


def test_softmax_state_is_shared() -> None:
    found = mergeable_loop(softmax_state())
    assert found is not None
    assert found[1] == (
        ReductionMerge("max"),
        ReductionMerge("sum", 0, (0,)),
        ReductionMerge("sum", 0, (0,)),
    )


@pytest.mark.parametrize(
    "change",
    [
        "scores of the carried", "older maximum", "rows meet", "squared", "not faded",
        "starts from 1",
    ],
)  # fmt: skip
def test_others_are_not(change: str) -> None:
    assert mergeable_loop(softmax_state(change=change)) is None


def test_folds_are_shared() -> None:
    found = mergeable_loop(kernels.gated(256, 128, 256))
    assert found is not None and found[1] == (ReductionMerge("sum"), ReductionMerge("sum"))


def test_merged_parts_are_the_whole(rng: np.random.Generator) -> None:
    """Parts of two, one and three trips, the second without a key that is seen in half of the rows,
    merged as the records say."""
    scores = rng.normal(size=(ROWS, KEYS)).astype(np.float32) * 4
    scores[::2, 32:48] = -np.inf
    scores[0] = -np.inf
    values = rng.normal(size=(KEYS, WIDTH)).astype(np.float32)

    def state(start: int, stop: int) -> list[np.ndarray]:
        arrays = {"x0": scores.ravel(), "x1": values.ravel()}
        shapes = ((ROWS,), (ROWS,), (ROWS, WIDTH))
        for number, shape in enumerate(shapes):
            arrays[f"y{number}"] = np.zeros(int(np.prod(shape)), np.float32)
        run(softmax_state(start, stop), arrays)
        return [arrays[f"y{number}"].reshape(shape) for number, shape in enumerate(shapes)]

    found = mergeable_loop(softmax_state())
    assert found is not None
    parts = [state(0, 32), state(32, 48), state(48, 96)]
    for position, (merge, whole) in enumerate(zip(found[1], state(0, KEYS), strict=True)):
        items = np.stack([part[position] for part in parts])
        if merge.top is None:
            merged = {"max": items.max, "sum": items.sum}[merge.fn](0)
        else:
            tops = np.stack([part[merge.top] for part in parts])
            best = tops.max(0)
            weight = np.exp(tops - np.where(best == -np.inf, 0, best))
            weight = weight.reshape(weight.shape + (1,) * (items.ndim - 1 - len(merge.axes)))
            merged = (items * weight).sum(0)
        np.testing.assert_allclose(merged, whole, rtol=1e-5, atol=1e-5)


def test_blocks_of_a_cluster_share_the_keys() -> None:
    """Each block takes a range of the trips; one barrier of the cluster, then every block reads the
    parts of all. Without clusters one block takes all trips."""
    kernel = kernels.attention(2, 3, 600, 64, blocks=(16, 32), warps=1, stages=3, cluster=4)
    found = compile_kernel(kernel, SM_90A)
    ptx = found.code.decode()
    assert (found.cluster, found.launch) == (4, (4, 2, 1)) and "%cluster_ctarank" in ptx
    assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait") == 2
    # maximum, sum and output: a block each of four
    assert ptx.count("mapa") == 3 * 4 and "ld.shared::cluster.v4" in ptx
    assert compile_kernel(kernel, SM_80).cluster == 1
