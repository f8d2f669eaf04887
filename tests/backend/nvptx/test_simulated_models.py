"""Every kernel of the small models on the simulator of the GPU level, beside the interpreter of
tile programs. Shared memory and outputs begin as poison there: what is read of them, shows."""

from __future__ import annotations

from typing import Any

import pytest

from fuser.backend.nvptx import lower_to_gpu
from fuser.backend.nvptx.simulate import simulate
from fuser.base.target import SM_80, SM_90A, Target
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.passes import run_passes
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.ir import Kernel
from fuser.tilegen.text import canonical_text
from models import TINY, build, example_feeds
from tests import interpreted
from tests.numerics import assert_close

SIZES = {"batch": 2, "sequence": 17}
LONGEST = 256
"""Terms of a sum in these models."""


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize("name", [name for name in TINY if name != "minilm"])
def test_kernels_compute_what_their_tile_programs_mean(
    name: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret, seen = interpreted.run, set[str]()

    def run(kernel: Kernel, buffers: dict[str, Any]) -> dict[str, Any]:
        found = {key: array.copy() for key, array in buffers.items()}
        written = interpret(kernel, buffers)
        text = canonical_text(kernel)
        if text not in seen:
            simulate(lower_to_gpu(kernel, target), found, late=True)
            for buffer in kernel.buffers:
                there = written.get(buffer.name)
                if there is not None:
                    have, want = found[buffer.name][there], buffers[buffer.name][there]
                    assert_close(have, want, buffer.dtype, LONGEST)
        seen.add(text)
        return written

    monkeypatch.setattr(interpreted, "run", run)
    model = build(name, "float16", **TINY[name])
    names = {dim.dim_param for item in model.graph.input for dim in item.type.tensor_type.shape.dim}
    sizes = {dim: size for dim, size in SIZES.items() if dim in names}
    feeds = example_feeds(model, sizes)
    cut = partition(run_passes(import_onnx(model, sizes)), target)
    interpreted.run_programs(cut, feeds, list(emit_programs(cut, target)))
    assert seen
