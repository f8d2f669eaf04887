"""Bytes through kernels' boundaries equal a count by hand."""

from __future__ import annotations

import onnx
import pytest

from fuser.base.target import SM_90A, X86_64_V4, Target
from fuser.frontends.onnx.model import open_model
from fuser.partition import Options, partition
from fuser.pipeline.kernels import emit_programs
from fuser.pipeline.outline import Alternative, outline
from fuser.report.build import Planned, report_on
from fuser.runtime.plan_report import Report
from fuser.tilegen.coverage.reach import reach
from fuser.tilegen.parse import parse_kernel


def report_of(text: str, target: Target) -> Report:
    """The report of a graph in ONNX's text form, without code for its kernels."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    graph = open_model(proto).graph({})
    cut = partition(graph, target)
    programs = emit_programs(cut, target)
    fused = Planned(cut, programs, outline(cut, programs, target))
    return report_on(fused, Alternative.unfused(graph, target, Options()).planned(), {}, 0.0, 0)


F = 4  # bytes of a float
I = 8  # noqa: E741  # of an index

CASES = {
    "map": (
        "agraph (float[64, 48] a, float[64, 48] b) => (float[64, 48] y) { y = Add(a, b) }",
        3 * 64 * 48 * F, 3 * 64 * 48 * F, 3 * 64 * 48 * F,
    ),
    "chain": (
        "agraph (float[64, 48] a) => (float[64, 48] y) { b = Relu(a)  y = Neg(b) }",
        4 * 64 * 48 * F, 2 * 64 * 48 * F, 2 * 64 * 48 * F,
    ),
    "broadcast": (
        "agraph (float[64, 48] a, float[48] b) => (float[64, 48] y) { y = Add(a, b) }",
        *3 * ((2 * 64 * 48 + 48) * F,),
    ),
    "gather of few rows": (
        "agraph (float[1000, 16] t, int64[7] i) => (float[7, 16] y) { y = Gather <axis=0> (t, i) }",
        *3 * (7 * I + 2 * 7 * 16 * F,),
    ),
    "gather of more rows than there are": (
        "agraph (float[3, 16] t, int64[50] i) => (float[50, 16] y) { y = Gather <axis=0> (t, i) }",
        *3 * (50 * I + (3 + 50) * 16 * F,),
    ),
    "slice": (
        "agraph (float[100, 32] x) => (float[16, 16] y)"
        " <int64[2] s = {10, 0}, int64[2] e = {26, 32}, int64[2] a = {0, 1}, int64[2] d = {1, 2}>"
        " { z = Slice(x, s, e, a, d)  y = Relu(z) }",
        *3 * (2 * 256 * F,),
    ),
    "concat": (
        "agraph (float[4, 8] a, float[4, 24] b) => (float[4, 32] y) { y = Concat <axis=1> (a, b) }",
        *3 * (2 * 4 * 32 * F,),
    ),
    "two results": (
        "agraph (float[64, 48] x) => (float[64, 48] y, float[64, 48] z)"
        " { y = Relu(x)  z = Neg(x) }",
        4 * 64 * 48 * F, 3 * 64 * 48 * F, 3 * 64 * 48 * F,
    ),
    "reduction": (
        "agraph (float[32, 64] x) => (float[32, 1] y) <int64[1] a = {1}>"
        " { y = ReduceMax <keepdims=1> (x, a) }",
        *3 * ((32 * 64 + 32) * F,),
    ),
    "transpose": (
        "agraph (float[24, 40] x) => (float[40, 24] y) { y = Transpose <perm=[1, 0]> (x) }",
        *3 * (2 * 24 * 40 * F,),
    ),
    "window": (
        "agraph (float[1, 16, 9, 9] x) => (float[1, 16, 4, 4] y)"
        " { y = MaxPool <kernel_shape=[2, 2], strides=[2, 2]> (x) }",
        *3 * ((16 * 64 + 16 * 16) * F,),
    ),
    "window with gaps": (
        "agraph (float[1, 16, 9, 9] x) => (float[1, 16, 5, 5] y)"
        " { y = MaxPool <kernel_shape=[1, 1], strides=[2, 2]> (x) }",
        *3 * (2 * 16 * 25 * F,),
    ),
    "convolution": (
        "agraph (float[1, 16, 10, 10] x, float[32, 16, 3, 3] w) => (float[1, 32, 10, 10] y)"
        " { y = Conv <pads=[1, 1, 1, 1]> (x, w) }",
        *3 * ((16 * 100 + 32 * 16 * 9 + 32 * 100) * F,),
    ),
    "convolution with gaps": (
        "agraph (float[1, 16, 9, 9] x, float[32, 16, 1, 1] w) => (float[1, 32, 5, 5] y)"
        " { y = Conv <strides=[2, 2]> (x, w) }",
        *3 * ((16 * 25 + 32 * 16 + 32 * 25) * F,),
    ),
    "split": (
        "agraph (float[6, 8] x) => (float[2, 8] y, float[4, 8] z) <int64[2] s = {2, 4}>"
        " { y, z = Split <axis=0> (x, s) }",
        *3 * (2 * 48 * F,),
    ),
    "scatter, whose places are made valid first": (
        "agraph (float[64, 16] x, int64[5, 1] i, float[5, 16] u) => (float[64, 16] y)"
        " { y = ScatterND (x, i, u) }",
        *2 * (3 * 5 * I + 133 * 16 * F,), 5 * I + 133 * 16 * F,
    ),
    "attention": (
        "agraph (float[2, 4, 32, 16] q, float[2, 4, 16, 32] k, float[2, 4, 32, 16] v)"
        " => (float[2, 4, 32, 16] y)"
        " { s = MatMul(q, k)  p = Softmax <axis=-1> (s)  y = MatMul(p, v) }",
        (4 * 4096 + 4 * 8192) * F, 4 * 4096 * F, 4 * 4096 * F,
    ),
    "matmul": (
        "agraph (float[64, 32] a, float[32, 96] b) => (float[64, 96] y) { y = MatMul(a, b) }",
        *3 * ((64 * 32 + 32 * 96 + 64 * 96) * F,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", [X86_64_V4, SM_90A], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_boundary_bytes_are_those_counted_by_hand(name: str, target: Target) -> None:
    text, *counts = CASES[name]
    found = report_of(str(text), target).boundary
    assert [found.before, found.after, found.floor] == counts


KERNELS = {
    # Eight rows of blocks share the columns of b, four columns of blocks the rows of a.
    "matmul": (
        """kernel @matmul grid(8, 4) {
  buffer a: input f16[32768]
  buffer b: input f16[16384]
  buffer y: output f16[65536]
  view &a: a[512, 64] strides(64, 1)
  view &b: b[64, 128] strides(128, 1)
  view &y: y[512, 128] strides(128, 1)
  %m = program_id {axis = 0} : index
  %n = program_id {axis = 1} : index
  %zero = full {value = 0.0} : tile<64x32xf32>
  %sum = for 0, 64, (%zero) {step = 16} : tile<64x32xf32> (%k: index, %acc: tile<64x32xf32>) {
    %left = load &a, [%m*64 + #0, %k + #1] : tile<64x16xf16>
    %right = load &b, [%k + #0, %n*32 + #1] : tile<16x32xf16>
    %next = dot %left, %right, %acc : tile<64x32xf32>
    yield(%next)
  }
  %y = cast %sum : tile<64x32xf16>
  store &y, [%m*64 + #0, %n*32 + #1], %y
}""",
        {"a": (512 * 64, 4 * 512 * 64), "b": (64 * 128, 8 * 64 * 128), "y": (512 * 128,) * 2},
    ),
    # Four parts of a sum, each in a place of its own.
    "parts of a sum": (
        """kernel @parts grid(4) {
  buffer x: input f32[4096]
  buffer part: workspace f32[64]
  view &x: x[4096] strides(1)
  view &part: part[4] strides(16)
  %p = program_id {axis = 0} : index
  %x = load &x, [%p*1024 + #0] : tile<1024xf32>
  %s = reduce.sum %x {axis = 0} : f32
  store &part, [%p], %s
}""",
        {"x": (4096, 4096), "part": (4, 4)},
    ),
    # Rows r and r + 1 of a table with a row more, one column of two: rows are met twice.
    "windows": (
        """kernel @windows grid(16) {
  buffer x: input f32[1088]
  buffer y: output f32[512]
  view &x: x[17, 64] strides(64, 1)
  view &y: y[16, 32] strides(32, 1)
  %p = program_id {axis = 0} : index
  %a = load &x, [%p, #0*2] : tile<32xf32>
  %b = load &x, [%p + 1, #0*2] : tile<32xf32>
  %c = map.add(%a, %b) : tile<32xf32>
  store &y, [%p, #0], %c
}""",
        {"x": (17 * 32, 2 * 16 * 32), "y": (512, 512)},
    ),
    "diagonal": (
        """kernel @diagonal grid(1) {
  buffer x: input f32[256]
  buffer y: output f32[16]
  view &x: x[16, 16] strides(16, 1)
  view &y: y[16] strides(1)
  %x = load &x, [#0, #0] : tile<16xf32>
  store &y, [#0], %x
}""",
        {"x": (16, 16), "y": (16, 16)},
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_reach_of_a_kernel(name: str) -> None:
    """(distinct elements, elements asked for) of each buffer."""
    text, counts = KERNELS[name]
    found = reach(parse_kernel(text))
    assert {
        buffer.name: (met.elements, met.fetched) for (buffer, _), met in found.items()
    } == counts
