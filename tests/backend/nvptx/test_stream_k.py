"""Stream-K: when it is given up, and what the code says. Who does which iterations of which tile:
test_tile_scheduler.py."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A
from fuser.dtypes import bf16, f16, i8, i32
from fuser.tilegen.ir import Kernel
from fuser.tilegen.rules.gpu.matmul import dot_schedule
from fuser.tilegen.rules.problem import Problem
from tests.backend.nvptx import kernels


def stream_k(kernel: Kernel, units: int = 7, blocks: int = 1, arch: str = "sm_90a") -> Any:
    target = dataclasses.replace(SM_90A if arch == "sm_90a" else SM_80, units=units)
    kernel.schedule = dataclasses.replace(kernel.schedule, stream_k=blocks)
    return compile_kernel(kernel, target)


def test_flags_and_memory() -> None:
    """Each warp that leaves sums has a flag, which is raised after and lowered again."""
    kernel = kernels.matmul(512, 640, 512, bf16, (128, 128, 64), warps=8)
    found = stream_k(kernel)  # 20 tiles: 14 whole, 6 cut, whose rest one block would have
    assert found.facts["stream_k"] == 1 and found.launch == (7, 1, 1)
    assert found.workspace_bytes == 6 * 128 * 128 * 4
    ptx = found.code.decode()
    assert re.search(r"stream_k_flags\[192\]|stream_k_flags\[48\]", ptx)  # 6 tiles, 8 warps
    assert ptx.count("st.release.gpu") == 1 and ptx.count("ld.acquire.gpu") == 1
    assert ptx.index("st.release.gpu") < ptx.index("ld.acquire.gpu") < ptx.index("st.relaxed.gpu")
    whole = stream_k(kernel, blocks=0)
    assert whole.workspace_bytes == 0 and "stream_k" not in whole.code.decode()


def test_given_up() -> None:
    """Where nothing is left over, loops do more than add up products, or sizes are open."""

    def shared(kernel: Kernel, units: int = 7, **more: Any) -> int:
        return int(stream_k(kernel, units, **more).facts["stream_k"])

    def product() -> Kernel:
        return kernels.matmul(512, 640, 512, bf16, (128, 128, 64), warps=8)

    assert shared(product()) == 1 and shared(product(), arch="sm_80") == 1
    assert shared(product(), units=10) == 0
    narrow = kernels.matmul(512, 640, 512, bf16, (64, 64, 64), warps=4)
    assert shared(narrow, units=10, blocks=3) == 3
    assert shared(kernels.matmul(512, 640, 64, bf16, (128, 128, 64), warps=8)) == 0
    assert shared(kernels.attention(3, 320, 320, 64, f16)) == 0
    assert shared(kernels.softmax(77, 4096, f16, (1, 4096))) == 0
    whole = kernels.matmul(
        512, 640, 512, i8, (128, 128, 64), transpose_b=True, epilogue=False, out=i32
    )
    assert shared(whole) == 1
    cluster = kernels.matmul(256, 512, 4096, f16, (128, 128, 64), warps=8, cluster=4)
    assert shared(cluster) == 0


@pytest.mark.parametrize("teams", [False, True])
def test_blocks_that_move_registers_stand_alone(teams: bool) -> None:
    """A second block of a multiprocessor would wait for registers that the first one has."""
    more: dict[str, Any] = {"warps": 4, "teams": 2} if teams else {"warps": 8}
    found = stream_k(kernels.matmul(512, 640, 512, bf16, (128, 128, 64), **more), blocks=2)
    assert "setmaxnreg" in found.code.decode() and found.facts["stream_k"] == 1
    assert found.launch == (7, 1, 1)


def test_rules() -> None:
    """Cut where it takes less time (docs/lab/gpu-stream-k.md): a few tiles beyond whole turns, few
    tiles of a long k."""

    def rule(m: int, n: int, k: int, **more: Any) -> tuple[tuple[int, int], int, int]:
        found = dot_schedule(SM_90A, Problem(m, n, k, 16, folded=False, **more))
        return (found.block("m"), found.block("n")), found.stream_k, found.cluster

    assert rule(2048, 11008, 4096) == ((128, 128), 1, 1)  # 10.4 turns
    assert rule(2560, 2560, 2560) == ((128, 128), 1, 1)  # 3.03 turns
    assert rule(1536, 1536, 4096) == ((64, 192), 1, 1)
    assert rule(4096, 4096, 4096)[1] == 0  # 7.8: four tiles a block would be cut
    assert rule(1536, 1536, 768)[1] == 0  # sums take longer than what they save
    assert rule(512, 512, 8192) == ((64, 128), 1, 1)
    assert rule(96, 4096, 11008) == ((128, 64), 1, 1)
    assert rule(64, 4096, 4096) == ((64, 64), 0, 1)  # half of the processors stream the weights
    assert rule(128, 768, 3072) == ((64, 64), 0, 4)  # parts too short, a cluster has them
    assert rule(64, 1024, 4096) == ((64, 64), 0, 8)
    problem = Problem(5000, 5000, 5000, 16, folded=False, misaligned=(True, True))
    found = dot_schedule(SM_90A, problem)
    assert (found.stream_k, found.neighbours) == (1, (2, 1))
