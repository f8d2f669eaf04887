"""Kernels of users in functions of fuser.jit and fuser.trace."""

from __future__ import annotations

import numpy as np
import pytest

import fuser
import fuser.triton as triton
from fuser.dtypes import f32
from fuser.errors import TraceError, UnsupportedError
from fuser.graph.evaluate import evaluate
from fuser.graph.text import parse_graph, print_graph
from tests.kernel_calls.kernels import (
    Array,
    add_in_place,
    add_scaled,
    attention,
    attention_of,
    blocks,
    first_half,
    int8_matmul,
    int8_matmul_of,
    rms_norm,
    rms_norm_of,
    sum_and_product,
)
from tests.numerics import assert_close

RNG = np.random.default_rng(7)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def norm(x: Array, w: Array) -> Array:
    out, inverse = np.empty_like(x), np.empty((x.shape[0],), np.float32, like=x)
    rms_norm[(x.shape[0],)](x, w, out, inverse, x.shape[1], 1e-5, BLOCK=64)
    return out


def attend(q: Array, k: Array, v: Array) -> Array:
    out = np.empty_like(q)
    heads, rows, depth = q.shape
    keys = k.shape[1]
    grid = (triton.cdiv(rows, 16), heads)
    attention[grid](
        q, k, v, out, rows, keys, depth**-0.5, rows * depth, depth, keys * depth, depth,
        rows * depth, depth, D=depth, M=16, N=32,
    )  # fmt: skip
    return out


def multiply(x: Array, codes: Array, scale: Array) -> Array:
    rows, depth = x.shape
    columns = codes.shape[1]
    out = np.empty((rows, columns), np.float32, like=x)
    grid = (triton.cdiv(rows, 16), triton.cdiv(columns, 32))
    int8_matmul[grid](
        x, codes, scale, out, rows, columns, depth, M=16, N=32, K=32, TRANSPOSED=False
    )
    return out


def test_a_norm() -> None:
    x, w = floats(7, 45), floats(45)
    assert_close(fuser.jit(norm)(x, w), rms_norm_of(x, w, 1e-5), f32, 45)


def test_an_attention() -> None:
    q, k, v = floats(3, 19, 16), floats(3, 41, 16), floats(3, 41, 16)
    assert_close(fuser.jit(attend)(q, k, v), attention_of(q, k, v, 0.25), f32, 41 * 16)


def test_a_quantised_matmul() -> None:
    x, scale = floats(5, 70), floats(37)
    codes = RNG.integers(-127, 128, (70, 37)).astype(np.int8)
    found = fuser.jit(multiply)(x, codes, scale)
    assert_close(found, int8_matmul_of(x, codes, scale), f32, 70)


def test_three_kernels_and_what_is_between_them() -> None:
    x, w, k, v = floats(2, 23, 16), floats(16), floats(2, 29, 16), floats(2, 29, 16)
    codes, scale = RNG.integers(-127, 128, (16, 33)).astype(np.int8), floats(33)

    def block(x: Array, w: Array, k: Array, v: Array) -> Array:
        q = norm(x.reshape(46, 16), w).reshape(2, 23, 16)
        y = attend(np.tanh(q), k, v) + x
        return multiply(y.reshape(46, 16), codes, scale) * 2.0

    q = np.tanh(rms_norm_of(x, w, 1e-5))
    y = attention_of(q, k, v, 0.25) + x.astype(np.float64)
    want = int8_matmul_of(y.reshape(46, 16), codes, scale) * 2
    assert_close(fuser.jit(block)(x, w, k, v), want, f32, 16 * 29)
    graph = fuser.trace(block, x, w, k, v).graph
    assert sum(node.op == "kernel_call" for node in graph.nodes) == 3
    found = evaluate(graph, {"x": x, "w": w, "k": k, "v": v})
    assert_close(next(iter(found.values())), want, f32, 16 * 29)
    constants: dict[str, Array] = {}
    text = print_graph(graph, constants)
    assert print_graph(parse_graph(text, constants)) == text


def test_what_it_reads_and_writes_is_found() -> None:
    x = floats(6, 31)

    def f(x: Array) -> tuple[Array, Array]:
        y, n = np.exp(x), x.size
        total, product = np.empty_like(x), np.empty_like(x)
        sum_and_product[blocks(n, 64)](x, y, total, product, n, BLOCK=64)
        return total, product

    total, product = fuser.jit(f)(x)
    wide = x.astype(np.float64)
    assert_close(total, wide + np.exp(wide), f32, 2)
    assert_close(product, wide * np.exp(wide), f32, 2)
    (node,) = (n for n in fuser.trace(f, x).graph.nodes if n.op == "kernel_call")
    assert len(node.inputs) == 2 and len(node.outputs) == 2  # no old contents


def test_in_place_keeps_the_value_that_others_read() -> None:
    x = floats(5, 9)

    def f(x: Array) -> tuple[Array, Array]:
        y = x * 2
        before = y.copy()
        add_in_place[blocks(x.size, 32)](y, x.size, 1.0, BLOCK=32)
        return y, before + y

    changed, both = fuser.jit(f)(x)
    np.testing.assert_array_equal(changed, x * 2 + 1)
    np.testing.assert_array_equal(both, x * 2 + (x * 2 + 1))


def test_what_is_not_written_keeps_its_contents() -> None:
    x = floats(40)

    def f(x: Array) -> Array:
        out = x * 3
        first_half[blocks(20, 16)](x, out, 20, BLOCK=16)
        return out

    np.testing.assert_array_equal(fuser.jit(f)(x), np.r_[x[:20], x[20:] * 3])


def test_one_array_as_two_arguments() -> None:
    x = floats(50)

    def f(x: Array) -> Array:
        y = x + 1
        add_scaled[blocks(50, 16)](y, y, y, 50, 3.0, BLOCK=16)
        return y

    assert_close(fuser.jit(f)(x), (x.astype(np.float64) + 1) * 4, f32, 2)


def test_two_in_a_row() -> None:
    x = floats(33)

    def f(x: Array) -> Array:
        y = x.copy()
        add_in_place[blocks(33, 16)](y, 33, 1.0, BLOCK=16)
        add_in_place[blocks(33, 16)](y, 33, 2.0, BLOCK=16)
        return y

    np.testing.assert_array_equal(fuser.jit(f)(x), x + np.float32(1) + np.float32(2))


def test_a_view_is_written_through() -> None:
    x = floats(4, 10)

    def f(x: Array) -> Array:
        y = x.copy()
        row = y[2]
        add_in_place[blocks(10, 16)](row, 10, 5.0, BLOCK=16)
        return y

    want = x.copy()
    want[2] += 5
    np.testing.assert_array_equal(fuser.jit(f)(x), want)


def test_an_autotuned_kernel() -> None:
    configs = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})]
    tuned = triton.autotune(configs, key=["n"])(add_in_place)
    x = floats(33)

    def f(x: Array) -> Array:
        y = x * 1.0
        tuned[lambda meta: (triton.cdiv(33, meta["BLOCK"]),)](y, 33, 1.0)
        return y

    np.testing.assert_array_equal(fuser.jit(f)(x), x + 1)


@pytest.mark.parametrize("kind", ["argument", "array", "shared", "number"])
def test_refusals(kind: str) -> None:
    def f(x: Array, n: int) -> Array:
        y = x.copy()
        if kind == "argument":
            add_in_place[blocks(8, 8)](x, 8, 1.0, BLOCK=8)
        elif kind == "array":
            add_scaled[blocks(8, 8)](x, x, np.zeros(8, np.float32), 8, 1.0, BLOCK=8)
        elif kind == "shared":
            add_scaled[blocks(4, 8)](y[:4], y[4:], y, 4, 1.0, BLOCK=8)
        else:
            add_in_place[(1,)](y, n, 1.0, BLOCK=8)
        return y

    words = {
        "argument": "changed in place", "array": "not traced", "shared": "shares its memory",
        "number": "not known while the function is traced",
    }  # fmt: skip
    with pytest.raises(TraceError, match=words[kind]):
        fuser.jit(f)(floats(8), 8)


def test_a_kernel_that_prints_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="prints or asserts"):
        fuser.jit(_printing)(floats(8))


def _printing(x: Array) -> Array:
    y = x.copy()
    shown[(1,)](y)
    return y


@triton.jit
def shown(x):
    triton.language.device_print("x", triton.language.load(x))
