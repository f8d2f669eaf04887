"""Folds across the lanes of a warp."""

from __future__ import annotations

import re

import pytest
from onnx import parser

from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.passes import run_passes
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
@pytest.mark.parametrize(
    "text",
    [
        "(float[8,65536] x) => (float[8,65536] y) { y = Softmax(x) }",
        "(float[64,32] x) => (float[64,1] y) { y = ReduceSumSquare<keepdims=1, "
        "noop_with_empty_axes=0>(x, axes) }",
    ],
    ids=["sums moved to another maximum", "squares, an element a lane"],
)
def test_lanes_get_the_same_bits(text: str, target: Target) -> None:
    """a*b + other in one lane and a'*b' + other' in its neighbour round another product each: the
    lanes would go on with sums that differ, and write them to one place."""
    weights = "<int64[1] axes = {1}>" if "axes)" in text else ""
    head = f'<ir_version: 10, opset_import: ["": 18]> graph {text.split("{")[0]} {weights}'
    model = parser.parse_model(head + "{" + text.split("{", 1)[1])
    cut = partition(run_passes(import_onnx(model)), target)
    for program in emit_programs(cut, target, verify=True):
        code = compile_kernel(program.kernel, target).code.decode()
        moved = set(re.findall(r"shfl\.sync\.bfly\.b32\s+(%\w+)", code))
        fused = re.findall(r"fma\.rn\.\w+\s+(.*);", code)
        assert moved
        assert not [line for line in fused if moved & set(re.findall(r"%\w+", line)[1:])]
