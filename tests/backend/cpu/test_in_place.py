"""Results that may take the memory of an operand, and those that may not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from onnx.numpy_helper import from_array

import fuser
from fuser.backend.cpu import compile_kernel
from fuser.dtypes import f16, f32
from fuser.runtime.memory import aligned_copy
from fuser.tilegen import interpret
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value
from tests.backend.cpu import native

M, N, K = 37, 53, 19
TILE = (8, 24)


def residual(case: str, shape: tuple[int, int] = TILE) -> Kernel:
    """out = x @ w + f(res), in tiles that hang over both edges."""
    rows, columns = shape
    b = Builder("residual")
    x, w = b.buffer("x", f32, M * K), b.buffer("w", f32, K * N)
    dtype = f16 if case == "narrow" else f32
    res = b.buffer("res", dtype, N if case == "row" else M * N)
    out = b.buffer("out", f32, M * N, role="output")
    row = index(b.program_id(0, -(-M // rows))) * rows + axis(0, rows)
    column = index(b.program_id(1, -(-N // columns))) * columns + axis(1, columns)
    left = b.load(b.view(x, (M, K)), (row, axis(1, K)), (rows, K))
    right = b.load(b.view(w, (K, N)), (axis(0, K), column), (K, columns))
    acc = b.dot(left, right, b.full(0.0, shape, f32))
    here = b.view(res, (N,) if case == "row" else (M, N))
    at = {
        "row": (column,),
        "next": (row + 1, column),
        "turned": (column, row),
    }.get(case, (row, column))
    if case == "turned":
        here = b.view(res, (N, M))
    mask = b.map("gt", acc, b.full(0.5, shape, f32)) if case == "mask" else None
    extra = b.load(here, at, shape, mask=mask)
    extra = b.cast(extra, f32) if case == "narrow" else extra
    if case == "kept":
        more = b.buffer("more", f32, M * N, role="output")
        b.store(b.view(more, (M, N)), (row, column), b.map("neg", extra))
    if case == "twice":
        extra = b.map("mul", extra, b.load(here, (row, column), shape))
    if case == "again":
        extra = b.map("mul", extra, b.load(here, (row, column - 1), shape))
    b.store(b.view(out, (M, N)), (row, column), b.map("max", b.map("add", acc, extra), acc))
    return b.build()


def test_a_loop_may_store_an_element_again() -> None:
    """The second time it would read what it stored the first time."""
    rows, columns = TILE
    b = Builder("looped")
    x, w = b.buffer("x", f32, rows * K), b.buffer("w", f32, K * columns)
    res = b.view(b.buffer("res", f32, rows * columns), TILE)
    out = b.view(b.buffer("out", f32, rows * columns, role="output"), TILE)
    left = b.load(b.view(x, (rows, K)), (axis(0, rows), axis(1, K)), (rows, K))
    right = b.load(b.view(w, (K, columns)), (axis(0, K), axis(1, columns)), (K, columns))
    at = axis(0, rows), axis(1, columns)

    def body(step: Value, total: Value) -> list[Value]:
        total = b.dot(left, right, total)
        b.store(out, at, b.map("add", total, b.load(res, at, TILE)))
        return [total]

    b.loop(0, 2, 1, [b.full(0.0, TILE, f32)], body)
    assert "in_place" not in compile_kernel(b.build(), native.HOST).facts


def arrays(kernel: Kernel, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        buffer.name: aligned_copy(rng.standard_normal(buffer.size).astype(buffer.dtype.numpy))
        for buffer in kernel.buffers
    }


@pytest.mark.parametrize("shape", [TILE, (5, 16), (37, 53), (1, 64), (40, 64)])
@pytest.mark.parametrize("case", ["plain", "twice"])
def test_one_buffer_for_both(
    case: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:  # fmt: skip
    kernel = residual(case, shape)
    given = arrays(kernel, rng)
    want = {name: array.copy() for name, array in given.items()}
    interpret.run(kernel, want)
    apart = {name: aligned_copy(array.copy()) for name, array in given.items()}
    compiled = native.run_in_place(kernel, apart, threads=2)
    assert compiled.facts["in_place"] == [[2, 3]]
    given["out"] = given["res"]
    native.run_in_place(kernel, given, threads=2, compiled=compiled)
    np.testing.assert_array_equal(given["out"], apart["out"])
    np.testing.assert_allclose(apart["out"], want["out"], 1e-4, 1e-5)


@pytest.mark.parametrize("case", ["row", "next", "turned", "narrow", "mask", "kept", "again"])
def test_others_have_two(case: str) -> None:
    """Where elements are read elsewhere, at another time, or are not as wide."""
    assert "in_place" not in compile_kernel(residual(case), native.HOST).facts


def test_without_a_dot() -> None:
    """Loops over elements are faster where buffers are known to be apart."""
    b = Builder("add")
    x, y = b.buffer("x", f32, 100), b.buffer("y", f32, 100, role="output")
    here = (index(b.program_id(0, 4)) * 32 + axis(0, 32),)
    value = b.load(b.view(x, (100,)), here, (32,))
    b.store(b.view(y, (100,)), here, b.map("neg", value))
    assert "in_place" not in compile_kernel(b.build(), native.HOST).facts


@pytest.mark.parametrize("rows", [7, 130])
def test_residuals_of_a_model(rows: int, rng: np.random.Generator) -> None:
    """Blocks whose input is added to their result: it has the place of the input, but for the
    first, which is the caller's, and the last, which is an output."""
    width, inner, blocks = 40, 72, 4
    body = "".join(
        f"h{i} = MatMul(x{i}, a{i}) r{i} = Relu(h{i}) p{i} = MatMul(r{i}, b{i})"
        f" x{i + 1} = Add(x{i}, p{i}) "
        for i in range(blocks)
    )
    weights = {
        f"{name}{i}": rng.standard_normal(shape, np.float32) / 8
        for i in range(blocks) for name, shape in (("a", (width, inner)), ("b", (inner, width)))
    }  # fmt: skip
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{rows}, {width}] x0) => (float[{rows}, {width}] x{blocks}) {{ {body} }}"""
    )
    model.graph.initializer.extend(from_array(value, name) for name, value in weights.items())
    x = rng.standard_normal((rows, width), np.float32)
    want = x.astype(np.float64)
    for i in range(blocks):
        want = want + np.maximum(want @ weights[f"a{i}"], 0) @ weights[f"b{i}"]
    found = []
    for threads in (1, 2):
        plan = fuser.compile(model, device="cpu", threads=threads)
        both = [len(step.arguments) - len(set(step.arguments)) for step in plan.program.launches]
        assert sum(both) == blocks - 2
        found += [plan.run({"x0": x})[f"x{blocks}"] for _ in range(2)]
    for got in found:
        np.testing.assert_array_equal(got, found[0])
    np.testing.assert_allclose(found[0], want, 1e-4, 1e-4)
