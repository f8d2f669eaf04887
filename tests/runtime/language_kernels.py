"""Kernels built by hand as a block language would: open sizes, one grid symbol an axis."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.module import CompiledKernel
from fuser.dtypes import f32
from fuser.graph.dims import symbol
from fuser.graph.sizes import Sizes
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel

BLOCK = 128
Compile = Callable[[Kernel], CompiledKernel]


def vector_add(compile_kernel: Compile, fn: str = "add") -> CompiledKernel:
    """out = x + y on n elements; the grid is the caller's."""
    with Sizes({"n": 1000, "grid0": 8}):
        n, blocks = symbol("n"), symbol("grid0")
        b = Builder("vector_add")
        x, y = b.buffer("x", f32, n), b.buffer("y", f32, n)  # type: ignore[arg-type]
        out = b.buffer("out", f32, n, role="output")  # type: ignore[arg-type]
        at = index(b.program_id(0, blocks)) * BLOCK + axis(0, BLOCK)  # type: ignore[arg-type]
        first = b.load(b.view(x, (n,)), (at,), (BLOCK,))  # type: ignore[arg-type]
        second = b.load(b.view(y, (n,)), (at,), (BLOCK,))  # type: ignore[arg-type]
        b.store(b.view(out, (n,)), (at,), b.map(fn, first, second))  # type: ignore[arg-type]
        return compile_kernel(b.build())


def add_columns(compile_kernel: Compile) -> CompiledKernel:
    """out[i, j] = x[i, j] + y[i, j] by programs (row, block of columns); the grid is computed."""
    with Sizes({"rows": 10, "columns": 300}):
        rows, columns = symbol("rows"), symbol("columns")
        blocks = -(-columns // BLOCK)
        b = Builder("add_columns")
        size = rows * columns
        buffers = [b.buffer(name, f32, size) for name in ("x", "y")]  # type: ignore[arg-type]
        out = b.buffer("out", f32, size, role="output")  # type: ignore[arg-type]
        shape = (rows, columns)
        row = index(b.program_id(0, rows))  # type: ignore[arg-type]
        at = index(b.program_id(1, blocks)) * BLOCK + axis(1, BLOCK)  # type: ignore[arg-type]
        loads = [
            b.load(b.view(item, shape), (row, at), (1, BLOCK))  # type: ignore[arg-type]
            for item in buffers
        ]
        result = b.map("add", *loads)
        b.store(b.view(out, shape), (row, at), result)  # type: ignore[arg-type]
        return compile_kernel(b.build())
