"""Which stores of one loop nest are known to write different elements."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.cpu.analysis.kernel_facts import apart
from fuser.base.target import X86_64_V3
from fuser.dtypes import f32
from fuser.tilegen import interpret, ops
from fuser.tilegen.index import Index, axis
from fuser.tilegen.ir import Buffer, View
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.value import TileType, Value
from tests.backend.cpu import native

BUFFER = Buffer("out", f32, 1 << 20, "output")
VALUE = Value(TileType(f32, (8,)), "v")


def store(shape: tuple[int, ...], strides: tuple[int, ...], *indices: Index) -> ops.Store:
    return ops.Store(view=View("w", BUFFER, shape, strides), indices=indices, value=VALUE)


AT = axis(0, 8)


@pytest.mark.parametrize(
    ("shape", "strides", "left", "right", "wanted"),
    [
        ((6, 8), (8, 1), (Index(0), AT), (Index(5), AT), True),
        ((6, 8), (8, 1), (Index(2), AT), (Index(2), AT), False),
        ((32, 8), (8, 1), (AT * 4 + 1, AT), (AT * 4 + 3, AT), True),
        ((32, 8), (8, 1), (AT * 4 + 1, AT), (AT * 2 + 3, AT), False),  # 4 a + 1 = 2 b + 3
        ((9, 8), (8, 1), (AT, AT), (AT + 1, AT), False),
        ((6, 9), (8, 1), (Index(0), AT), (Index(1), AT), False),  # rows overlap
        ((8, 6), (1, 0), (AT, Index(0)), (AT, Index(1)), False),  # a guard moves nothing
    ],
)
def test_apart(
    shape: tuple[int, ...], strides: tuple[int, ...], left: tuple[Index, ...],
    right: tuple[Index, ...], wanted: bool,
) -> None:  # fmt: skip
    a, b = store(shape, strides, *left), store(shape, strides, *right)
    assert apart(a, b) is wanted
    assert apart(b, a) is wanted


def test_other_buffers_are_apart() -> None:
    other = View("x", Buffer("other", f32, 8, "output"), (8,), (1,))
    assert apart(store((8,), (1,), AT), ops.Store(view=other, indices=(AT,), value=VALUE))


WRITTEN_ON_THE_WAY = """kernel @k grid(1) {
  buffer a: input i8[130]
  buffer b: input i8[130]
  buffer c: input i8[10]
  buffer w: input i64[130]
  buffer top: output i64[13]
  buffer out: output i8[130]
  view &a: a[10, 13] strides(13, 1)
  view &b: b[10, 13] strides(13, 1)
  view &c: c[10] strides(1)
  view &w: w[10, 13] strides(13, 1)
  view &top: top[13] strides(1)
  view &out: out[10, 13] strides(13, 1)

  %i0 = index #1 : tile<10x13xi32>
  %i1 = index #0 : tile<10x13xi32>
  %seen = map.le(%i0, %i1) : tile<10x13xbool>
  %x = load &a, [#0, #1] {pad = none} : tile<10x13xi8>
  %y = load &b, [#0, #1] {pad = none} : tile<10x13xi8>
  %xy = map.mul(%x, %y) : tile<10x13xi8>
  %z = load &c, [#0] {pad = none} : tile<10xi8>
  %nz = map.neg(%z) : tile<10xi8>
  %zz = broadcast %nz {axes = (0,)} : tile<10x13xi8>
  %sum = map.add(%xy, %zz) : tile<10x13xi8>
  %wide = cast %sum : tile<10x13xi64>
  %other = load &w, [#0, #1] {pad = none} : tile<10x13xi64>
  %chosen = map.select(%seen, %wide, %other) : tile<10x13xi64>
  %r = reduce.max %chosen {axis = 0} : tile<13xi64>
  store &top, [#0], %r
  %less = map.sub(%sum, %y) : tile<10x13xi8>
  store &out, [#0, #1], %less
}
"""


def test_values_written_by_a_fold_that_drops_them(rng: np.random.Generator) -> None:
    """A fold writes the sum on its way, for the store behind it: also where positions decide that
    its own select does not take it."""
    kernel = parse_kernel(WRITTEN_ON_THE_WAY)
    arrays = {
        buffer.name: rng.integers(-9, 9, buffer.size).astype(buffer.dtype.numpy)
        for buffer in kernel.buffers
    }
    want = {name: array.copy() for name, array in arrays.items()}
    interpret.run(kernel, want)
    native.run(kernel, arrays)
    for name in ("top", "out"):
        np.testing.assert_array_equal(arrays[name], want[name], err_msg=name)


@pytest.mark.parametrize("narrow", ["i8", "i16", "u16"])
@pytest.mark.parametrize("columns", [1, 2])
def test_few_lanes_of_narrow_elements(narrow: str, columns: int) -> None:
    """LLVM 22 stores 32 bits where it knows that one lane is left: over the element behind."""
    kernel = parse_kernel(f"""kernel @k grid(1) {{
  schedule(blocks = ((m, 8), (n, 16), (k, 3)))
  buffer in0: input {narrow}[24]
  buffer const0: constant {narrow}[48]
  buffer out0: output {narrow}[{8 * columns}]
  view &in0: in0[8, 3] strides(3, 1)
  view &const0: const0[3, 16] strides(16, 1)
  view &out0: out0[8, {columns}] strides({columns}, 1)

  %x = load &in0, [#0, #1] {{pad = none}} : tile<8x3x{narrow}>
  %w = load &const0, [#0, #1] {{pad = none}} : tile<3x16x{narrow}>
  %zero = full {{value = 0}} : tile<8x16xi32>
  %sum = dot %x, %w, %zero : tile<8x16xi32>
  %y = cast %sum : tile<8x16x{narrow}>
  store &out0, [#0, #1], %y
}}
""")
    dtype = kernel.buffers[0].dtype.numpy
    x, w = np.arange(24).astype(dtype) % 5, np.arange(48).astype(dtype) % 3
    given = {"in0": x, "const0": w, "out0": np.full(8 * columns, 99, dtype)}
    want = (x.reshape(8, 3) @ w.reshape(3, 16))[:, :columns]
    for target in (native.HOST, X86_64_V3):
        loaded = native.Loaded(kernel, given, target)
        loaded.run()
        np.testing.assert_array_equal(loaded.buffers["out0"].array, want.reshape(-1))
        loaded.check_guards()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("rows", "columns"), [(9, 7), (7, 9), (5, 3), (16, 7), (9, 8)])
def test_odd_blocks_turned(dtype: str, rows: int, columns: int) -> None:
    """LLVM ends the process at odd vectors of bfloat that are taken apart one by one."""
    kernel = parse_kernel(f"""kernel @k grid(3) {{
  schedule(blocks = ((rows, {rows}), (columns, {columns})))
  buffer x: input {dtype}[{3 * rows * columns}]
  buffer y: output {dtype}[{3 * rows * columns}]
  view &x: x[{3 * columns}, {rows}] strides({rows}, 1)
  view &y: y[{3 * rows}, {columns}] strides({columns}, 1)

  %0 = program_id {{axis = 0}} : index
  %1 = load &x, [%0*{columns} + #1, #0] {{pad = none}} : tile<{rows}x{columns}x{dtype}>
  store &y, [%0*{rows} + #0, #1], %1
}}
""")
    x = (np.arange(3 * rows * columns) % 251).astype(kernel.buffers[0].dtype.numpy)
    given = {"x": x, "y": np.zeros_like(x)}
    native.run(kernel, given)
    want = x.reshape(3, columns, rows).transpose(0, 2, 1)
    np.testing.assert_array_equal(given["y"].view(np.uint16), want.reshape(-1).view(np.uint16))
