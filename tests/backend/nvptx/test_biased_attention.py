"""Attention with a bias of each key, through the rings of a producer."""

from __future__ import annotations

import dataclasses

import onnx
import pytest

from fuser.backend.nvptx import lower_to_gpu
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.base.target import SM_90A
from fuser.frontends.onnx.model import open_model
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs


@pytest.mark.parametrize("causal", [0, 1])
def test_biases_of_keys_give_their_stages_back(causal: int) -> None:
    """A bias of 16 bits goes through a ring of its own, whose stages every iteration gives back:
    else the producer waits for ever."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> biased (bfloat16[1,2,1024,128] q,'
        " bfloat16[1,2,1024,128] k, bfloat16[1,2,1024,128] v, bfloat16[1,1,1,1024] b)"
        f" => (bfloat16[1,2,1024,128] y) {{ y = Attention<is_causal={causal}>(q, k, v, b) }}"
    )
    target = dataclasses.replace(SM_90A, units=4)
    cut = partition(open_model(model).graph({}), target)
    (program,) = emit_programs(cut, target)
    found = lower_to_gpu(program.kernel, target)
    assert any(isinstance(op, ops.Fetch) and op.into.shape == (128,) for op in found.body.walk())
    verify_protocol(found)
