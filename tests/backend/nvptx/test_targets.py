"""One graph for every GPU target: its kernels compute in the simulator what it means, and ptxas,
where there is one, takes their PTX."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel, lower_to_gpu
from fuser.backend.nvptx.ir.ops import Barrier, For, Load, Mma, WriteTile
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.simulate import simulate
from fuser.base.target import SM_75, SM_80, TARGETS, Target
from fuser.dtypes import DType, bf16, f16, f32, i8, i32, u8
from fuser.errors import LoweringError
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.rules.gpu.matmul import dot_schedule
from fuser.tilegen.rules.gpu.tiles import has_room
from fuser.tilegen.rules.problem import Problem
from tests import interpreted
from tests.backend.nvptx import kernels
from tests.tilegen_emit.graphs import Model
from tests.tilegen_emit.test_attention import model_of

PTXAS = shutil.which("ptxas")
ARCHES = ("sm_75", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


def matmul(dtype: DType) -> Model:
    m = Model(dtype)
    product = m.dot(m.input(40, 136), m.weight(136, 48), (1, 0))
    m.output(m.b.map("max", product, 0.0))
    return m


def rows(of: Callable[[Model], Callable[..., object]]) -> Callable[[DType], Model]:
    def make(dtype: DType) -> Model:
        m = Model(dtype)
        m.output(of(m)(m.input(6, 200)))  # type: ignore[arg-type]
        return m

    return make


def convolution(dtype: DType) -> Model:
    m = Model(dtype)
    m.output(m.b.emit(
        "conv", m.input(1, 16, 5, 5), m.weight(24, 16, 3, 3), strides=(1, 1),
        padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1,
    ))  # fmt: skip
    return m


GRAPHS: dict[str, tuple[Callable[[DType], Model], DType]] = {
    "matmul f16": (matmul, f16),
    "matmul bf": (matmul, bf16),
    "matmul f32": (matmul, f32),
    "softmax f16": (rows(lambda m: m.softmax), f16),
    "norm f16": (rows(lambda m: m.norm), f16),
    "norm bf": (rows(lambda m: m.norm), bf16),
    "attention f16": (lambda dtype: model_of((1, 1, 1, 20, 40, 32, 32, "causal"), dtype), f16),
    "convolution f16": (convolution, f16),
}


@pytest.mark.parametrize(
    ("arch", "name"),
    [(arch, name) for arch in ARCHES for name in GRAPHS if "f16" in name or arch == "sm_75"],
)
def test_every_target_computes_it(
    arch: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make, dtype = GRAPHS[name]
    model, target = make(dtype), TARGETS[arch]

    def simulated(
        kernel: Kernel, buffers: dict[str, interpreted.Array]
    ) -> dict[str, interpreted.Array]:
        program = lower_to_gpu(kernel, target)
        verify(program)
        simulate(program, buffers)
        assembles(kernel, target, tmp_path)
        return {}

    monkeypatch.setattr(interpreted, "run", simulated)
    interpreted.check(partition(model.graph, target), model.feeds, target)


def assembles(kernel: Kernel, target: Target, tmp_path: Path) -> str:
    """The PTX, which ptxas takes."""
    code = compile_kernel(kernel, target).code
    if PTXAS:
        (tmp_path / "kernel.ptx").write_bytes(code)
        command = [PTXAS, f"-arch={target.arch}", "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:500]
    return code.decode()


def test_turing_multiplies_by_its_own_instructions(tmp_path: Path) -> None:
    """16 bytes of k an instruction, of floats 16 rows and of bytes 8; nothing is under way."""
    half = assembles(kernels.matmul(100, 72, 130, f16, (64, 64, 32)), SM_75, tmp_path)
    assert "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32" in half
    assert "m16n8k16" not in half and "cp.async" not in half and "ldmatrix" in half
    bytes_ = kernels.matmul(
        64, 64, 128, i8, (64, 64, 64), transpose_b=True, epilogue=False, out=i32
    )
    assert "mma.sync.aligned.m8n8k16" in assembles(bytes_, SM_75, tmp_path)
    assert "mma.sync" not in assembles(kernels.matmul(64, 64, 64, bf16), SM_75, tmp_path)
    with pytest.raises(LoweringError, match="sm_75 does not multiply f8e4m3fn"):
        lower_to_gpu(
            kernels.matmul(64, 64, 64, u8, transpose_b=True, out=bf16, codes="f8e4m3fn"), SM_75
        )


@pytest.mark.parametrize("code", [i8, u8])
def test_turing_multiplies_bytes_exactly(code: DType, rng: np.random.Generator) -> None:
    kernel = kernels.matmul(
        40, 24, 80, code, (32, 32, 64), transpose_b=True, epilogue=False, out=i32
    )
    found = {
        b.name: np.zeros(b.size, np.int32) if b.role == "output"
        else rng.integers(0, 100, b.size).astype(code.numpy) for b in kernel.buffers
    }  # fmt: skip
    want = {name: array.copy() for name, array in found.items()}
    run(kernel, want)
    simulate(lower_to_gpu(kernel, SM_75), found)
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_tile_travels_while_another_is_multiplied() -> None:
    """Through registers: loaded before the matmul, written after it, with one barrier."""
    program = lower_to_gpu(kernels.matmul(64, 64, 512, f16, (64, 64, 32), stages=4), SM_75)
    (loop,) = [op for op in program.body.walk() if isinstance(op, For)]
    kinds = [type(op) for op in loop.body.ops if isinstance(op, Barrier | Load | Mma | WriteTile)]
    assert kinds == [Load, Load, Barrier, Mma, WriteTile, WriteTile]
    ahead = lower_to_gpu(kernels.matmul(64, 64, 512, f16, (64, 64, 32), stages=4), SM_80)
    assert program.shared_bytes == ahead.shared_bytes // 2  # two stages, where copies have four


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("width", [128, 192, 256])
def test_wide_heads_fit_shared_memory(arch: str, width: int) -> None:
    target = TARGETS[arch]
    graph = model_of((4, 8, 8, 512, 512, width, width, None), f16).graph
    (program,) = emit_programs(partition(graph, target), target)
    assert 0 < lower_to_gpu(program.kernel, target).shared_bytes <= target.shared_bytes


def test_sums_fit_what_a_block_has() -> None:
    """128 x 128 sums are turned over in 66 KiB, which Turing has not."""
    assert not has_room(SM_75, 128, 128) and has_room(SM_75, 64, 128)
    assert has_room(TARGETS["sm_86"], 128, 128) and not has_room(TARGETS["sm_120a"], 128, 192)
    assert has_room(TARGETS["sm_90a"], 128, 256)
    found = dot_schedule(SM_75, Problem(4096, 4096, 4096, 16))
    assert (found.block("m"), found.block("n")) != (128, 128)
