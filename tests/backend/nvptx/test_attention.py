"""Attention on a GPU as the emitters write it: keys shared out and merged, grouped heads, masks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from fuser import dtypes
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import DType
from fuser.tilegen.ir import Kernel
from fuser.tilegen.schedule import Schedule
from tests import interpreted
from tests.backend.cuda_launch import context, run_on_device
from tests.tilegen_emit.test_attention import Case, model_of

pytestmark = pytest.mark.cuda

CASES: dict[str, tuple[Case, Schedule | None]] = {
    "one query": ((1, 5, 5, 1, 1000, 64, 64, None), None),
    "one query, odd": ((1, 3, 3, 1, 777, 40, 56, "padding"), None),
    "one query of grouped heads": ((2, 12, 2, 1, 2048, 128, 128, "padding"), None),
    "few queries, causal": ((1, 4, 2, 5, 600, 64, 64, "causal"), None),
    "empty first keys": ((1, 2, 2, 20, 300, 64, 64, "late"), None),
    "shared out, rotated": (
        (1, 2, 2, 128, 1024, 128, 128, "causal"),
        Schedule(blocks=(("m", 64), ("n", 64)), warps=4, stages=2, split_k=5),
    ),
    "cluster": (
        (2, 6, 2, 1, 1000, 128, 128, "padding"),
        Schedule(blocks=(("m", 16), ("n", 32)), warps=1, stages=3, cluster=8),
    ),
    "cluster, fewer trips than blocks": (
        (1, 3, 3, 4, 100, 64, 40, "causal"),
        Schedule(blocks=(("m", 16), ("n", 32)), warps=1, stages=3, cluster=8),
    ),
    "cluster, empty first keys": (
        (1, 2, 2, 20, 300, 64, 64, "late"),
        Schedule(blocks=(("m", 32), ("n", 16)), warps=2, stages=2, cluster=4),
    ),
    "cluster, mask": (
        (1, 2, 2, 40, 333, 64, 64, "table"),
        Schedule(blocks=(("m", 64), ("n", 64)), warps=4, stages=2, cluster=2),
    ),
    "cluster, window": (
        (1, 2, 2, 100, 900, 64, 64, "capped window"),
        Schedule(blocks=(("m", 64), ("n", 64)), warps=4, stages=2, cluster=4),
    ),
    "cluster, rotated": (
        (1, 2, 2, 128, 1024, 128, 128, "causal"),
        Schedule(blocks=(("m", 64), ("n", 64)), warps=4, stages=2, cluster=4),
    ),
    "cluster, rotated, two groups of warps": (
        (1, 2, 2, 128, 1000, 128, 128, None),
        Schedule(blocks=(("m", 128), ("n", 64)), warps=8, stages=2, cluster=8),
    ),
    "mask": ((1, 2, 2, 200, 333, 64, 64, "table"), None),
    "mask beside the keys": (
        (2, 3, 3, 256, 512, 64, 64, "table"),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2),
    ),
    "mask beside the keys, odd": (
        (1, 2, 2, 200, 328, 128, 128, "table"),
        Schedule(blocks=(("m", 128), ("n", 64)), warps=8, stages=2),
    ),
    "mask beside the keys, not rotated": (
        (1, 2, 2, 200, 328, 64, 64, "table"),
        Schedule(blocks=(("m", 64), ("n", 64)), warps=4, stages=2),
    ),
    "window, rotated": (
        (1, 2, 2, 512, 1000, 64, 64, "capped window"),
        Schedule(blocks=(("m", 128), ("n", 64)), warps=8, stages=2),
    ),
    "narrow window, rotated": (
        (1, 2, 2, 300, 300, 64, 64, "capped window"),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2),
    ),
    "persistent": (
        (3, 12, 12, 512, 512, 128, 128, None),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2, persistent=True),
    ),
    "persistent, odd": (
        (2, 40, 40, 500, 392, 64, 64, "padding"),
        Schedule(blocks=(("m", 192), ("n", 128)), warps=12, stages=2, persistent=True),
    ),
    "persistent, causal": (
        (1, 60, 30, 390, 390, 64, 64, "causal"),
        Schedule(blocks=(("m", 128), ("n", 64)), warps=8, stages=3, persistent=True),
    ),
    "persistent, empty first keys": (
        (2, 50, 50, 200, 400, 64, 64, "late"),
        Schedule(blocks=(("m", 128), ("n", 64)), warps=8, stages=2, persistent=True),
    ),
    "persistent, mask": (
        (1, 70, 70, 256, 256, 64, 64, "table"),
        Schedule(blocks=(("m", 128), ("n", 64)), warps=8, stages=3, persistent=True),
    ),
    "capped": (
        (1, 2, 2, 600, 640, 128, 128, "capped"),
        Schedule(blocks=(("m", 192), ("n", 64)), warps=12, stages=2),
    ),
    "capped, odd": (
        (1, 3, 3, 333, 500, 64, 64, "capped late"),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2),
    ),
    "capped window": (
        (2, 2, 2, 600, 704, 128, 128, "capped window"),
        Schedule(blocks=(("m", 192), ("n", 64)), warps=12, stages=2),
    ),
    "capped, cluster": (
        (1, 2, 2, 100, 900, 64, 64, "capped late"),
        Schedule(blocks=(("m", 64), ("n", 64)), warps=4, stages=2, cluster=4),
    ),
    "capped, one query": ((1, 4, 4, 1, 1000, 64, 64, "capped late"), None),
    "capped, biases": (
        (2, 2, 2, 512, 512, 128, 128, "capped biases"),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2),
    ),
    "capped, biases, odd": (
        (2, 2, 2, 333, 333, 64, 64, "capped biases"),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2),
    ),
    "capped window, biases": (
        (2, 2, 2, 520, 1152, 128, 128, "capped window biases"),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2),
    ),
    "capped window, biases, three groups": (
        (2, 2, 2, 520, 1088, 128, 128, "capped window biases"),
        Schedule(blocks=(("m", 192), ("n", 64)), warps=12, stages=2),
    ),
    "capped window, biases, persistent": (
        (3, 20, 20, 700, 1152, 128, 128, "capped window biases"),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2, persistent=True),
    ),
    "bias of keys": (
        (1, 2, 2, 300, 520, 128, 128, "padding"),
        Schedule(blocks=(("m", 128), ("n", 128)), warps=8, stages=2),
    ),
}


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
def test_attention(
    name: str, dtype: DType, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    case, schedule = CASES[name]
    if schedule is not None and (dtype.bits != 16 or target.sm < 90):
        pytest.skip("the schedule is for wgmma")

    def run(kernel: Kernel, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        compiled = compile_kernel(kernel, target)
        first = run_on_device(kernel, compiled, dict(arrays))
        again = run_on_device(kernel, compiled, dict(arrays))
        for buffer in kernel.buffers:
            if buffer.role in ("output", "workspace"):
                assert first[buffer.name].tobytes() == again[buffer.name].tobytes()
                arrays[buffer.name][...] = first[buffer.name]
        return {}  # poison shows what was not written

    monkeypatch.setattr(interpreted, "run", run)
    m = model_of(case, dtype)
    partition = interpreted.one_region(m.graph, "attention")
    limit = {"f32": 1e-4, "f16": 2e-3, "bf16": 1e-2}[dtype.name]
    interpreted.check(partition, m.feeds, target, schedule, tolerance=limit)
