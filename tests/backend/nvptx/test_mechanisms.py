"""What is said of the mechanisms of a kernel: which apply, and why the others do not."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from fuser.backend.nvptx import mechanisms
from fuser.base.target import SM_75, SM_80, SM_90A, Target
from fuser.dtypes import bf16, f16, f32
from fuser.tilegen.ir import Kernel
from tests.backend.nvptx import kernels

matmul = functools.partial(kernels.matmul, 1024, 1024, 1024, f16, (64, 128, 64))
CASES: dict[str, tuple[Callable[[], Kernel], Target, str]] = {
    "a unit": (matmul, SM_90A, "matrix unit: yes, wgmma: [64, 64] x [64, 128] of f16"),
    "no unit": (functools.partial(kernels.matmul, 64, 64, 64, bf16), SM_75,
        "matrix unit: no, sm_75 has none for bf16"),
    "roles": (matmul, SM_90A, "warp specialisation: yes, a producer warp fetches"),
    "no boxes": (functools.partial(kernels.matmul, 1000, 1001, 1001, f16, (64, 128, 64)), SM_90A,
        "warp specialisation: no, "),
    "one iteration": (functools.partial(kernels.matmul, 512, 512, 64, f16, (64, 128, 64)), SM_90A,
        "warp specialisation: no, its loop has one iteration"),
    "no roles": (functools.partial(matmul, roles=False), SM_90A,
        "warp specialisation: no, the schedule says so"),
    "pipeline": (matmul, SM_80,
        "multistage pipeline: yes, 2 loads of 3 stages go 2 iterations ahead by cp.async"),
    "registers": (matmul, SM_75,
        "multistage pipeline: yes, 2 loads of 2 stages go 1 iteration ahead by registers"),
    "one stage": (functools.partial(matmul, stages=1), SM_80,
        "multistage pipeline: no, 1 stages let nothing run ahead"),
    "persistent": (functools.partial(matmul, persistent=True), SM_90A,
        "persistent blocks: no, 128 programs all run at once"),
    "stream-k": (functools.partial(kernels.softmax, 77, 4096, f16, (1, 4096), cluster=3), SM_90A,
        "programs shared by clusters: no, 3 blocks of 4 warps are no powers of two"),
    "no clusters": (functools.partial(kernels.softmax, 77, 4096, f16, (1, 4096), cluster=2), SM_80,
        "programs shared by clusters: no, sm_80 has no clusters"),
    "short for a cluster": (functools.partial(
        kernels.matmul, 64, 64, 128, f16, (64, 64, 64), cluster=4), SM_90A,
        "programs shared by clusters: no, a short loop"),
    "multicast": (functools.partial(
        kernels.matmul, 192, 1024, 512, f16, (64, 128, 64), neighbours=(2, 1)), SM_90A,
        "multicast: no, a grid of 3 x 8 does not divide by 2 x 1"),
    "nothing to cut": (functools.partial(
        kernels.matmul, 1056, 1024, 512, f16, (64, 128, 64), stream_k=1), SM_90A, "stream-k: "),
    "held": (functools.partial(kernels.softmax, 2, 100, f32, (1, 128), 4, held=True), SM_90A,
        "shared-memory-resident rows: no, a row is one strip"),
    "overlap": (matmul, SM_80, "launch overlap: no, sm_80 has no programmatic launch"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_mechanisms_say_why(name: str) -> None:
    make, target, line = CASES[name]
    found = mechanisms(make(), target)
    assert any(str(item).startswith(line) for item in found), [*map(str, found)]
    assert len({item.mechanism for item in found}) == len(found)
    assert all(item.reason for item in found)
