"""Whole small models on a GPU, kernel by kernel: what the emitters write, through this back end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import models
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.passes import run_passes
from fuser.partition import partition
from fuser.tilegen.ir import Kernel
from models.feeds import example_feeds
from tests import interpreted
from tests.backend.cuda_launch import context, run_on_device

pytestmark = pytest.mark.cuda

DIMS = {"batch": 2, "sequence": 33}
NAMES = ["mlp", "softmax", "layernorm", "attention", "conv_block", "bert", "gpt2", "llama", "vit",
         "resnet50"]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
def test_model(name: str, dtype: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    if context() is None:
        pytest.skip("no NVIDIA GPU")

    def run(kernel: Kernel, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = run_on_device(kernel, compile_kernel(kernel, target), dict(arrays))
        for buffer in kernel.buffers:
            if buffer.role in ("output", "workspace"):
                arrays[buffer.name][...] = found[buffer.name]
        return {}  # poison shows what was not written

    monkeypatch.setattr(interpreted, "run", run)
    model = models.build(name, dtype, **models.TINY[name])
    names = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    dims = {k: v for k, v in DIMS.items() if k in names}
    feeds = example_feeds(model, dims)
    regions = partition(run_passes(import_onnx(model, dims)), target)
    interpreted.check(regions, feeds, target, tolerance=1e-4 if dtype == "float32" else 2e-2)
