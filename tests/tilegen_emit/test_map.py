"""Elementwise code and movement, against the graph's own meaning."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.graph.evaluate import evaluate
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.emit import emit
from fuser.tilegen.schedule import Schedule
from tests.interpreted import CPU, TARGETS, check, one_region, run_programs
from tests.tilegen_emit.graphs import Model

ALL = pytest.mark.parametrize("target", TARGETS)


@ALL
@pytest.mark.parametrize("shape", [(7,), (3, 17), (2, 5, 100), (129, 3), (4, 1, 33), (1, 1)])
def test_bias_and_scale(target: str, shape: tuple[int, ...]) -> None:
    m = Model()
    x, bias = m.input(*shape), m.input(shape[-1])
    m.output(m.b.map("add", m.b.map("mul", x, 2.0), bias))
    check(one_region(m.graph, "map"), m.feeds, TARGETS[target])


def test_same_shapes_are_flat() -> None:
    m = Model()
    x, y = m.input(4, 5, 6), m.input(4, 5, 6)
    m.output(m.b.map("add", x, y))
    partition = one_region(m.graph, "map")
    (program,) = emit(partition.regions[0], partition, CPU)
    assert [view.shape for view in program.kernel.views] == [(120,)] * 3


@ALL
@pytest.mark.parametrize("perm", [(1, 2, 0), (0, 2, 1), (2, 1, 0)])
def test_transpose(target: str, perm: tuple[int, ...]) -> None:
    m = Model(dtypes.f16)
    z = m.b.map("exp", m.b.transpose(m.input(9, 34, 20), perm))
    m.output(z, m.b.reshape(z, (9 * 34 * 20,)))
    check(one_region(m.graph, "map"), m.feeds, TARGETS[target])


def test_what_bounds_the_frame_bounds_turned_results() -> None:
    """257 rows hang over blocks of 64; a reshape that hides it says nothing on top of that."""
    m = Model()
    z = m.b.map("exp", m.input(257, 3))
    turned = m.b.reshape(m.b.transpose(z, (1, 0)), (257, 3))
    m.output(z, m.b.reshape(m.b.transpose(turned, (1, 0)), (771,)))
    partition = one_region(m.graph, "map")
    (program,) = emit(partition.regions[0], partition, TARGETS["sm_80"])
    assert [view.shape for view in program.kernel.views][-1] == (771, 257, 3)
    check(partition, m.feeds, TARGETS["sm_80"])


@ALL
def test_movement_chain(target: str) -> None:
    m = Model()
    x, y = m.input(3, 8, 10), m.input(3, 2, 10)
    joined = m.b.emit("concat", x, y, axis=1)
    cut = m.b.emit("slice", joined, starts=(0, 9, 1), limits=(3, 0, 10), strides=(1, -2, 3))
    wide = m.b.emit("pad", cut, low=(0, 1, -1), high=(1, 0, 2), value=0.5)
    flat = m.b.reshape(m.b.map("tanh", wide), (wide.type.size,))
    m.output(flat, m.b.map("mul", flat, 3.0))
    check(one_region(m.graph, "map"), m.feeds, TARGETS[target])


@ALL
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather(target: str, axis: int) -> None:
    m = Model()
    data = m.input(6, 7, 8)
    indices = m.integers(-6, 6, 2, 5)
    taken = m.b.emit("gather", data, indices, axis=axis)
    m.output(m.b.map("add", taken, 1.0))
    check(one_region(m.graph, "gather"), m.feeds, TARGETS[target])


@ALL
def test_masks_from_positions(target: str) -> None:
    m = Model()
    x = m.input(5, 19, 19)
    rows, columns = m.b.iota((19, 19), 0), m.b.iota((19, 19), 1)
    causal = m.b.map("ge", rows, columns)
    m.output(m.b.map("select", m.b.broadcast_to(causal, (5, 19, 19)), x, -1.0))
    check(one_region(m.graph, "map"), m.feeds, TARGETS[target])


@ALL
def test_casts_and_logic(target: str) -> None:
    m = Model()
    x, n = m.input(33), m.integers(0, 3, 33)
    whole = m.b.cast(m.b.map("mul", x, 10.0), dtypes.i32)
    flag = m.b.map("logical_and", m.b.cast(n, dtypes.bool_), m.b.map("gt", x, 0.0))
    half = m.b.cast(m.b.map("exp", x), dtypes.f16)
    m.output(whole, flag, half, m.b.map("mul", n, n))
    check(one_region(m.graph, "map"), m.feeds, TARGETS[target], tolerance=1e-3)


@ALL
@pytest.mark.parametrize("fn", ["max", "sum"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_pooling(target: str, fn: str, channels_last: bool) -> None:
    m = Model()
    x = m.input(2, 17, 9, 9)
    z = m.b.emit(
        "reduce_window", x, fn=fn, window=(1, 1, 3, 3), strides=(1, 1, 2, 2),
        padding=((0, 0), (0, 0), (1, 1), (1, 0)), dilation=(1, 1, 1, 1),
    )  # fmt: skip
    m.output(m.b.map("tanh", z))
    layouts = {x: (0, 2, 3, 1), m.graph.outputs[0]: (0, 2, 3, 1)} if channels_last else {}
    check(one_region(m.graph, "window", layouts), m.feeds, TARGETS[target])


@ALL
@pytest.mark.parametrize("seed", range(4))
def test_random_blocks(target: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(d) for d in random.integers(1, 20, 3))
    m = Model(seed=seed)
    x = m.input(*shape)
    z = m.b.map("add", m.b.transpose(x, (2, 0, 1)), m.input(shape[1]))
    m.output(z, m.b.map("exp", z))
    blocks = Schedule(blocks=(("rows", int(random.integers(1, 9))), ("columns", 8)))
    check(one_region(m.graph, "map"), m.feeds, TARGETS[target], blocks)


@ALL
@pytest.mark.parametrize("fn", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_of_large_integers(target: str, fn: str) -> None:
    """Of an integer of 64 bits nothing is known, whatever it is compared with."""
    for dtype, number in ((dtypes.u64, (1 << 62) + 1), (dtypes.i64, -(1 << 62) - 1)):
        m = Model(dtype)
        x = m.integers(0, 2, 5, dtype=dtype)
        limit = m.b.constant(np.array(number, dtype.numpy))
        m.output(m.b.emit(fn, x, m.b.emit("broadcast", limit, shape=(5,), axes=())))
        info = np.iinfo(dtype.numpy)
        m.feeds["x0"][:] = [info.min, number - 1, number, number + 1, info.max]
        cut = one_region(m.graph, "map")
        want = evaluate(m.graph, m.feeds)
        found = run_programs(cut, m.feeds, emit_programs(cut, TARGETS[target]))
        np.testing.assert_array_equal(found["y0"], want["y0"])
