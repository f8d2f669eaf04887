"""What the emitters write for whole models verifies, round-trips and survives the passes."""

from __future__ import annotations

import pytest

import models
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.passes import run_passes as run_graph_passes
from fuser.partition import partition
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.text import canonical_text, print_kernel
from fuser.tilegen.verify import verify
from models.feeds import example_feeds
from tests import interpreted

DIMS = {"batch": 1, "sequence": 9}


def run_and_check_passes(kernel: Kernel) -> None:
    """Stands in for the verifier of tests/interpreted.py, so that the passes run before it."""
    run_passes(kernel, verify=True)
    text = print_kernel(kernel)
    parsed = parse_kernel(text)
    verify(parsed)
    assert print_kernel(parsed) == text
    run_passes(parsed)
    assert canonical_text(parsed) == canonical_text(kernel)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["conv_block", "bert", "gpt2", "llama"])
def test_model(name: str, dtype: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "verify", run_and_check_passes)
    model = models.build(name, dtype, **models.TINY[name])
    feeds = example_feeds(model, DIMS)
    names = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    dims = {key: size for key, size in DIMS.items() if key in names}
    graph = run_graph_passes(import_onnx(model, dims))
    where = interpreted.TARGETS[target]
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    interpreted.check(partition(graph, where), feeds, where, tolerance=tolerance)
