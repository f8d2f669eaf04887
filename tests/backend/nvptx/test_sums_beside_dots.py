"""Sums of rows that a loop takes beside its dots, of the operand that these read."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel, gpu_text, lower_to_gpu
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.simulate import simulate
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import f16
from fuser.graph.ir import Graph
from fuser.partition import Options, partition
from fuser.tilegen.emit import emit
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.rules.common import blocks_of
from fuser.tilegen.schedule import Schedule
from tests.backend.nvptx.test_simulate import arrays_of
from tests.numerics import assert_close
from tests.partition.test_fold_norms import Half, alone


def kernel_of(graph: Graph, target: Target, schedule: Schedule | None = None) -> Kernel:
    cut = partition(graph, target, Options(fold_norms=True))
    (region,) = cut.regions
    (program,) = emit(region, cut, target, schedule)
    run_passes(program.kernel)
    return program.kernel


def gated(rows: int, k: int, n: int) -> Graph:
    net = Half()
    normal = net.layer(net.half("x", rows, k))
    gate, up = (net.b.matmul(normal, net.matrix(k, n)) for _ in range(2))
    return net.finish(net.b.map("mul", net.b.map("tanh", gate), up))


@pytest.mark.parametrize("late", [False, True], ids=["copies soon", "copies late"])
@pytest.mark.parametrize("form", ["rms", "layer", "gated"])
@pytest.mark.parametrize("rows, k, n, stages", [(70, 200, 72, 3), (64, 328, 64, 2)])
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=["sm_80", "sm_90a"])
def test_the_kernel_computes_what_the_tile_program_means(
    target: Target, rows: int, k: int, n: int, stages: int, form: str, late: bool,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Read from the tile that the dots read, under their matmuls, and given back by each warp."""
    graph = gated(rows, k, n) if form == "gated" else alone(Half(), rows, k, n, form == "layer")
    schedule = blocks_of(m=64, n=64, k=64, warps=4, stages=stages, group=8)
    kernel = kernel_of(graph, target, schedule)
    text = gpu_text(kernel, target)
    assert re.search(r"read_tile @\d+<f16 64x64 inner 1>\[", text)
    found = arrays_of(kernel, rng)
    want = {key: array.copy() for key, array in found.items()}
    run(kernel, want)
    simulate(parse_program(text), found, seed=int(late), late=late)
    for buffer in kernel.buffers:
        if buffer.role == "output":
            assert_close(found[buffer.name], want[buffer.name], f16, k)


@pytest.mark.parametrize("late", [False, True], ids=["copies soon", "copies late"])
@pytest.mark.parametrize("layer", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("rows, k, n", [(1, 520, 40), (3, 264, 72)])
def test_few_rows(
    rows: int, k: int, n: int, layer: bool, late: bool, rng: np.random.Generator
) -> None:
    kernel = kernel_of(alone(Half(), rows, k, n, layer), SM_90A)
    found = arrays_of(kernel, rng)
    want = {key: array.copy() for key, array in found.items()}
    run(kernel, want)
    simulate(parse_program(gpu_text(kernel, SM_90A)), found, seed=int(late), late=late)
    for buffer in kernel.buffers:
        if buffer.role == "output":
            assert_close(found[buffer.name], want[buffer.name], f16, k)


@pytest.mark.parametrize("rows, k, n", [(1, 2048, 5632), (8, 2048, 1024), (16, 4096, 512)])
def test_barriers_of_decode_steps(rows: int, k: int, n: int) -> None:
    verify_protocol(lower_to_gpu(kernel_of(alone(Half(), rows, k, n, False), SM_90A), SM_90A))


@pytest.mark.parametrize("rows, k, n", [(128, 768, 2304), (197, 768, 3072), (512, 768, 2304)])
@pytest.mark.parametrize("layer", [False, True], ids=["rms", "layer"])
def test_kernels_of_encoders(rows: int, k: int, n: int, layer: bool) -> None:
    """One copy of the operand, by TMA; no barrier of the block in the loop."""
    kernel = kernel_of(alone(Half(), rows, k, n, layer), SM_90A)
    program = lower_to_gpu(kernel, SM_90A)
    verify_protocol(program)
    text = gpu_text(kernel, SM_90A)
    loop = text[text.rindex(" = for ") : text.index("read_tile")]
    assert "wgmma " in loop and "barrier {threads" not in loop
    assert compile_kernel(kernel, SM_90A).facts["copies"] == "tma"
