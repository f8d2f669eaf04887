"""Every kernel of the models assembles: no errors, no spills, no wgmma serialisation (ptxas C75xx).

Small models always; models of full width and depth 1 are marked slow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import models
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.passes import run_passes
from fuser.partition import partition
from fuser.tilegen.emit import emit
from fuser.tilegen.text import print_kernel
from tests.backend.nvptx.test_ptx import PTXAS, assemble

pytestmark = pytest.mark.skipif(PTXAS is None, reason="no ptxas")

SMALL = {"batch": 2, "sequence": 33}
FULL: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "bert": ({"layers": 1}, {"batch": 32, "sequence": 128}),
    "gpt2": ({"layers": 1}, {"batch": 1, "sequence": 512}),
    "llama": ({"layers": 1}, {"batch": 1, "sequence": 512}),
    "vit": ({"layers": 1}, {"batch": 32}),
    "resnet50": ({}, {"batch": 1}),
}
NAMES = ["mlp", "softmax", "layernorm", "attention", "conv_block", "bert", "gpt2", "llama", "vit"]


def check(
    name: str,
    dtype: str,
    target: Target,
    sizes: Mapping[str, int],
    dims: Mapping[str, int],
    folder: Path,
) -> None:
    """Compile and assemble every distinct kernel of a model."""
    model = models.build(name, dtype, **sizes)
    symbols = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    graph = run_passes(import_onnx(model, {k: v for k, v in dims.items() if k in symbols}))
    regions = partition(graph, target)
    seen: set[bytes] = set()
    for region in regions.regions:
        for program in emit(region, regions, target):
            compiled = compile_kernel(program.kernel, target)
            code = compiled.code.replace(compiled.entry.encode(), b"kernel")
            if code in seen:
                continue
            seen.add(code)
            log = assemble(compiled.code, target, folder)
            context = f"{print_kernel(program.kernel)}\n{log}"
            assert not re.search(r"C75\d\d|warning", log), context
            assert all(int(n) == 0 for n in re.findall(r"(\d+) bytes spill", log)), context
    assert seen


@pytest.mark.parametrize(
    "target, dtype", [(SM_80, "float32"), (SM_90A, "float16")], ids=["sm_80", "sm_90a"]
)
@pytest.mark.parametrize("name", NAMES)
def test_small_models(name: str, target: Target, dtype: str, tmp_path: Path) -> None:
    check(name, dtype, target, models.TINY[name], SMALL, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FULL)
def test_full_models(name: str, dtype: str, target: Target, tmp_path: Path) -> None:
    sizes, dims = FULL[name]
    check(name, dtype, target, sizes, dims, tmp_path)
