"""What is computed inside of kernels of users, and what stays outside, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.triton as triton
import fuser.triton.language as tl
from fuser import Fusion, dtypes
from fuser.base.target import SM_90A, X86_64_V3
from fuser.graph.evaluate import evaluate
from fuser.partition import Options, Partition, partition
from fuser.pipeline.kernels import emit_programs
from tests import interpreted
from tests.backend.nvptx.simulated import simulated
from tests.kernel_calls.kernels import (
    Array,
    add_in_place,
    add_scaled,
    attention_of,
    blocks,
    rms_norm_of,
)
from tests.kernel_calls.test_traced import attend, floats, norm
from tests.numerics import assert_close


@triton.jit
def pick(x, at, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + tl.load(at + i, mask=mask), mask=mask), mask=mask)


@triton.jit
def row_sums(x, out, columns, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * stride + at, mask=at < columns, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(v, axis=0))


@triton.jit
def twice_every_other(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + 2 * at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def scaled(x: Array, y: Array) -> Array:
    out = np.empty_like(x)
    add_scaled[blocks(x.size, 64)](x, y, out, x.size, 2.5, BLOCK=64)
    return out


def sums(x: Array) -> Array:
    out = np.empty(x.shape[:1], x.dtype, like=x)
    row_sums[(x.shape[0],)](x, out, x.shape[1], x.shape[1], BLOCK=64)
    return out


def kinds(function: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """The kinds of the kernels of a function, in order."""
    report = fuser.trace(function, *args, **options).report().to_dict()
    return [launch["kind"] for launch in report["launches"]]


def cut(function: Callable[..., Any], *args: Any, **options: Any) -> Partition:
    return partition(fuser.trace(function, *args).graph, X86_64_V3, Options(**options))


def test_maps_on_both_sides_are_one_kernel() -> None:
    def f(x: Array, y: Array) -> Array:
        return np.abs(scaled(np.exp(x), y)) + y

    x, y = floats(5, 37), floats(5, 37)
    want = np.abs(np.exp(x.astype(np.float64)) * 2.5 + y) + y
    for fusion, wanted in ((True, ["kernel"]), (False, ["map", "kernel", "map", "map"])):
        assert kinds(f, x, y, fusion=fusion) == wanted
        assert_close(fuser.jit(f, fusion=fusion)(x, y), want, dtypes.f32, 4)


def test_a_norm_between_a_residual_and_a_bias() -> None:
    """Lanes that a mask cuts off hold what the load says, whatever is computed of them."""

    def f(x: Array, r: Array, w: Array, b: Array) -> tuple[Array, Array]:
        y = np.exp(x) + r
        return np.tanh(norm(y, w) + b), y

    x, r, w, b = floats(7, 45), floats(7, 45), floats(45), floats(45)
    y = np.exp(x.astype(np.float64)) + r
    found, sum_ = fuser.jit(f)(x, r, w, b)
    assert_close(found, np.tanh(rms_norm_of(y, w, 1e-5) + b), dtypes.f32, 45)
    assert_close(sum_, y, dtypes.f32, 2)
    assert kinds(lambda *a: f(*a)[0], x, r, w, b) == ["kernel"]


def test_attention_takes_its_query_and_what_follows() -> None:
    def f(q: Array, k: Array, v: Array, x: Array) -> Array:
        return attend(np.tanh(q), k, v) + x

    q, k, v, x = floats(3, 19, 16), floats(3, 41, 16), floats(3, 41, 16), floats(3, 19, 16)
    want = attention_of(np.tanh(q), k, v, 0.25) + x
    assert_close(fuser.jit(f)(q, k, v, x), want, dtypes.f32, 41 * 16)
    assert kinds(f, q, k, v, x) == ["kernel"]


def test_rows_beyond_the_end_are_padded() -> None:
    x = floats(3, 45)
    assert kinds(lambda x: sums(np.cos(x)), x) == ["kernel"]
    want = np.cos(x.astype(np.float64)).sum(1)
    assert_close(fuser.jit(lambda x: sums(np.cos(x)))(x), want, dtypes.f32, 45)


@pytest.mark.parametrize("shape", [(6, 31), (33,), (2, 3, 4, 5), (1, 1), (1, 70)])
def test_broadcasts_and_transposes(shape: tuple[int, ...]) -> None:
    def f(x: Array, row: Array) -> tuple[Array, Array]:
        flipped = x.T
        made = scaled(flipped * 2, np.broadcast_to(row, flipped.shape))
        return made.T.copy(), made.reshape(-1) - 1

    x = floats(*shape)
    row = floats(x.T.shape[-1])
    want = 2.5 * 2 * x.T.astype(np.float64) + row
    found, flat = fuser.jit(f)(x, row)
    assert_close(found, want.T, dtypes.f32, 2)
    assert_close(flat, want.reshape(-1) - 1, dtypes.f32, 2)


def test_a_result_that_is_wanted_itself_is_stored_too() -> None:
    def f(x: Array, y: Array) -> tuple[Array, Array]:
        made = scaled(x, y)
        return made, np.abs(made)

    x, y = floats(40), floats(40)
    made, size = fuser.jit(f)(x, y)
    assert_close(made, x.astype(np.float64) * 2.5 + y, dtypes.f32)
    np.testing.assert_array_equal(size, np.abs(made))
    assert kinds(f, x, y) == ["kernel"]


def test_a_map_that_follows_nothing_is_no_output_of_the_kernel() -> None:
    def f(x: Array, y: Array) -> tuple[Array, Array]:
        doubled = y + y
        return scaled(x, y) + doubled, doubled

    x, y = floats(2, 15), floats(2, 15)
    total, doubled = fuser.jit(f)(x, y)
    np.testing.assert_array_equal(doubled, y + y)
    assert_close(total, x.astype(np.float64) * 2.5 + 3 * y, dtypes.f32, 2)


def test_halves_are_rounded_where_the_graph_rounds_them() -> None:
    def f(x: Array, y: Array) -> Array:
        return scaled(np.exp(x), y) * y

    x, y = floats(45).astype(np.float16), floats(45).astype(np.float16)
    assert kinds(f, x, y) == ["kernel"]
    np.testing.assert_array_equal(fuser.jit(f)(x, y), fuser.jit(f, fusion=False)(x, y))


def test_what_is_not_finite() -> None:
    def f(x: Array, y: Array) -> Array:
        return scaled(1 / x, y) - y

    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], np.float32)
    y = np.array([1.0, 1.0, -0.0, np.inf, 0.0, np.inf], np.float32)
    with np.errstate(all="ignore"):
        want = (1 / x) * np.float32(2.5) + y - y
    np.testing.assert_array_equal(fuser.jit(f)(x, y), want)


def test_where_data_decides_the_edge_is_refused() -> None:
    def f(x: Array, at: Array) -> Array:
        out = np.empty(at.shape, x.dtype, like=x)
        pick[blocks(at.size, 32)](np.exp(x), at, out, at.size, BLOCK=32)
        return out

    x, at = floats(50), np.random.default_rng(1).integers(0, 50, 21).astype(np.int32)
    assert_close(fuser.jit(f)(x, at), np.exp(x.astype(np.float64))[at], dtypes.f32)
    (refusal,) = cut(f, x, at).refusals
    assert refusal.code == "gathered" and "data decides which elements of x" in refusal.reason


def test_what_is_stored_in_part_is_followed_by_nothing() -> None:
    def f(x: Array) -> Array:
        out = np.zeros((2 * x.size,), x.dtype, like=x)
        twice_every_other[blocks(x.size, 16)](x, out, x.size, BLOCK=16)
        return np.exp(out)

    x = floats(21)
    want = np.zeros(42)
    want[::2] = 2 * x.astype(np.float64)
    assert_close(fuser.jit(f)(x), np.exp(want), dtypes.f32)
    (refusal,) = cut(f, x).refusals
    assert refusal.code == "different-space"


def test_what_is_loaded_often_is_computed_once() -> None:
    def f(q: Array, k: Array, v: Array) -> Array:
        return attend(q, np.sinh(k) / np.arctan(k), v)

    given = floats(2, 900, 16), floats(2, 900, 16), floats(2, 900, 16)
    assert [item.code for item in cut(f, *given).refusals] == ["recompute"]


def test_the_user_may_forbid_it() -> None:
    def f(x: Array, y: Array) -> Array:
        return np.sin(scaled(np.exp(x), y))

    x, y = floats(40), floats(40)
    names = [node.origin[0] for node in fuser.trace(f, x, y).graph.nodes]
    assert names == ["exp_1", "add_scaled_1", "sin_1"]
    for pairs, count in (((names[:2],), 2), ((names[1:],), 2), ((names[:2], names[1:]), 3)):
        forbid = tuple((one, other) for one, other in pairs)
        assert len(kinds(f, x, y, fusion=Fusion(forbid=forbid))) == count
        refused = cut(f, x, y, forbid=forbid).refusals
        assert {item.code for item in refused} == {"forbidden"}


def test_a_value_that_nobody_reads_afterwards_is_changed_where_it_is() -> None:
    def f(x: Array, w: Array) -> Array:
        y = x @ w
        add_in_place[blocks(y.size, 32)](y, y.size, 1.0, BLOCK=32)
        add_in_place[blocks(y.size, 32)](y, y.size, 2.0, BLOCK=32)
        return y

    x, w = floats(6, 20), floats(20, 9)
    assert kinds(f, x, w) == ["contraction", "kernel", "kernel"]
    want = x.astype(np.float64) @ w + 3
    assert_close(fuser.jit(f)(x, w), want, dtypes.f32, 20)

    def g(x: Array, w: Array) -> tuple[Array, Array]:
        before = x @ w
        y = before.copy()
        add_in_place[blocks(y.size, 32)](y, y.size, 1.0, BLOCK=32)
        return y, before

    assert kinds(g, x, w) == ["contraction", "kernel", "kernel"]  # a copy, and the kernel
    changed, before = fuser.jit(g)(x, w)
    assert_close(before, want - 3, dtypes.f32, 20)
    np.testing.assert_array_equal(changed, before + np.float32(1))


def test_maps_before_a_kernel_that_changes_its_array_are_the_copy() -> None:
    def f(x: Array) -> Array:
        y = np.exp(x)
        add_in_place[blocks(y.size, 32)](y, y.size, 1.0, BLOCK=32)
        return y

    assert len(kinds(f, floats(45))) == 2
    x = floats(45)
    assert_close(fuser.jit(f)(x), np.exp(x.astype(np.float64)) + 1, dtypes.f32)


def layer(x: Array, w: Array, k: Array, v: Array) -> Array:
    q = np.tanh(norm(np.exp(x).reshape(46, 16), w).reshape(2, 23, 16))
    y = attend(q, k, v) + x
    add_in_place[blocks(y.size, 64)](y, y.size, 1.0, BLOCK=64)
    return y


@pytest.mark.parametrize("target", [SM_90A, X86_64_V3], ids=["gpu", "cpu"])
def test_without_a_back_end(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tile programs in the interpreter, and GPU code in its simulator."""
    if target.is_cuda:
        monkeypatch.setattr(interpreted, "run", simulated)
    given = floats(2, 23, 16), floats(16), floats(2, 29, 16), floats(2, 29, 16)
    graph = fuser.trace(layer, *given).graph
    feeds = {value.name: array for value, array in zip(graph.inputs, given, strict=True)}
    made = partition(graph, target)
    assert [region.kind for region in made.regions] == ["kernel"] * 3
    found = interpreted.run_programs(made, feeds, emit_programs(made, target))
    (want,) = evaluate(graph, feeds).values()
    # products of a GPU have the digits of tf32
    dtype = dtypes.bf16 if target.is_cuda else dtypes.f32
    assert_close(next(iter(found.values())), want.astype(np.float64), dtype, 16)
