"""Kernel counts of full-depth models. Their width is small: counts come from the structure."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.ir import Graph
from fuser.graph.passes import run_passes
from fuser.partition import partition
from fuser.partition.partition import Options
from models import MODELS
from tests.partition.support import TARGETS, check, kinds
from tests.test_growth import counted

DIMS = {"batch": 2, "sequence": 16}
MOST_CALLS = 500
"""Of Python functions, a node; 120 to 240 are made."""


def model_graph(name: str, **options: Any) -> Graph:
    model = MODELS[name](**options)
    used = {
        dim.dim_param
        for value in model.graph.input
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }
    return run_passes(import_onnx(model, {name: DIMS[name] for name in used}))


SMALL = dict(hidden=64, heads=4, vocabulary=100)
LLAMA = dict(layers=16, kv_heads=2, intermediate=96, **SMALL)


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        ("bert", dict(layers=12, **SMALL), 90),
        ("gpt2", dict(layers=12, **SMALL), 90),
        ("llama", LLAMA, 120),
        ("llama", dict(modern=True, **LLAMA), 120),
        ("vit", dict(layers=12, hidden=64, heads=4, image=32, patch=8), 95),
        ("resnet50", dict(layers=50, hidden=8, image=64, classes=10), 60),
        ("bert", dict(layers=12, dtype="float16", **SMALL), 90),
        ("llama", dict(dtype="float16", **LLAMA), 120),
    ],
)
def test_kernel_counts(name: str, options: dict[str, Any], most: int) -> None:
    graph = model_graph(name, **options)
    for where, target in TARGETS.items():
        cut = partition(graph, target)
        assert counted(partial(partition, graph, target)) < MOST_CALLS * len(graph.nodes), where
        assert len(cut.regions) <= most, where
        assert "host" not in kinds(cut), where
        if name != "resnet50":
            assert kinds(cut).count("attention") == options["layers"], where


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bert", dict(layers=2, **SMALL)),
        ("gpt2", dict(layers=2, **SMALL)),
        ("llama", dict(layers=2, kv_heads=2, intermediate=96, **SMALL)),
        ("vit", dict(layers=2, hidden=64, heads=4, image=32, patch=8)),
        ("resnet50", dict(layers=14, hidden=8, image=32, classes=10)),
    ],
)
def test_regions_compute_the_model(name: str, options: dict[str, Any], target: str) -> None:
    graph = model_graph(name, **options)
    check(graph, partition(graph, TARGETS[target]), tolerance=1e-3)
    check(graph, partition(graph, TARGETS[target], Options(no_fusion=True)), tolerance=1e-3)


def test_a_transformer_layer_is_seven_kernels() -> None:
    """The norm, Q K V, attention, the output, the norm, up, down: with all between them inside."""
    counts = [
        len(partition(model_graph("bert", layers=layers, **SMALL), TARGETS["cuda"]).regions)
        for layers in (1, 2, 3)
    ]
    assert counts[1] - counts[0] == counts[2] - counts[1] == 7
