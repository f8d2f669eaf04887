"""Whole small models: every region emitted and interpreted, each fed by the one before."""

from __future__ import annotations

import pytest

import models
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.passes import run_passes
from fuser.partition import partition
from models.feeds import example_feeds
from tests.interpreted import TARGETS, check

DIMS = {"batch": 1, "sequence": 9}


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["mlp", "conv_block", "bert", "gpt2", "llama", "vit"])
def test_model(name: str, dtype: str, target: str) -> None:
    model = models.build(name, dtype, **models.TINY[name])
    feeds = example_feeds(model, DIMS)
    names = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    graph = run_passes(import_onnx(model, {k: v for k, v in DIMS.items() if k in names}))
    regions = partition(graph, TARGETS[target])
    check(regions, feeds, TARGETS[target], tolerance=1e-4 if dtype == "float32" else 2e-2)
