"""What a kernel loads for its epilogue alone comes under the first copies of its loop."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel, gpu_text, lower_to_gpu
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.simulate import simulate
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.dtypes import f16
from fuser.partition import Options, partition
from fuser.target import SM_80, SM_90A, Target
from fuser.tilegen.emit import emit
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from tests.backend.nvptx.test_simulate import arrays_of
from tests.numerics import assert_close
from tests.partition.test_fold_norms import Half, alone


def kernel_of(rows: int, k: int, n: int, target: Target, layer: bool = False) -> Kernel:
    cut = partition(alone(Half(), rows, k, n, layer), target, Options(fold_norms=True))
    (region,) = cut.regions
    (program,) = emit(region, cut, target, None)
    return program.kernel


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize("rows", [1, 5])
def test_statistics_wait_for_the_first_copies(rows: int, target: Target) -> None:
    text = gpu_text(kernel_of(rows, 2048, 2304, target), target)
    loop = text.index(" = for ")
    assert text.index("copy_async &const0") < text.index("fold_lanes.sum") < loop
    assert compile_kernel(kernel_of(rows, 2048, 2304, target), target).code


@pytest.mark.parametrize("late", [False, True], ids=["copies soon", "copies late"])
@pytest.mark.parametrize("layer", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("rows, k, n", [(1, 520, 40), (3, 264, 72)])
def test_the_kernel_computes_what_the_tile_program_means(
    rows: int, k: int, n: int, layer: bool, late: bool, rng: np.random.Generator
) -> None:
    kernel = kernel_of(rows, k, n, SM_90A, layer)
    found = arrays_of(kernel, rng)
    want = {key: array.copy() for key, array in found.items()}
    run(kernel, want)
    simulate(parse_program(gpu_text(kernel, SM_90A)), found, seed=int(late), late=late)
    for buffer in kernel.buffers:
        if buffer.role == "output":
            assert_close(found[buffer.name], want[buffer.name], f16, k)


@pytest.mark.parametrize("rows, k, n", [(1, 2048, 5632), (8, 2048, 1024), (4, 4096, 512)])
def test_its_barriers_hold(rows: int, k: int, n: int) -> None:
    verify_protocol(lower_to_gpu(kernel_of(rows, k, n, SM_90A), SM_90A))
