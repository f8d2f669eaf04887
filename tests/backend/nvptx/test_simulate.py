"""The simulator of the GPU IR: it computes what the tile program means, and finds every mutant."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuser.backend.nvptx import gpu_text, lower_to_gpu
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.simulate import SimulationError, simulate
from fuser.base.target import SM_80, SM_90A, SM_100A, Target
from fuser.dtypes import bf16, f16, f32
from fuser.graph.sizes import Sizes
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from tests.backend.nvptx import kernels, language_kernels
from tests.backend.nvptx.random_kernels import (
    as_symbols,
    random_arrays,
    random_kernel,
    random_scalars,
)
from tests.numerics import assert_close

Arrays = dict[str, "np.ndarray[Any, Any]"]

FEW = dataclasses.replace(SM_90A, units=4)
"""A GPU of few multiprocessors, of which some share tiles."""
ONE = dataclasses.replace(SM_100A, units=1)
"""A GPU whose one block runs several programs."""

KERNELS: dict[str, tuple[Callable[[], Kernel], Target]] = {
    "select": (functools.partial(kernels.elementwise, "select", f32, 3), SM_90A),
    "rows": (functools.partial(kernels.reduce_axis, "max", f32, 3, 300, (1, 512), 1), SM_90A),
    "columns": (functools.partial(kernels.reduce_axis, "sum", f32, 70, 9, (128, 16), 0), SM_80),
    "softmax": (functools.partial(kernels.softmax, 2, 250, f16, (1, 256), warps=2), SM_80),
    "cluster": (functools.partial(kernels.softmax, 1, 4096, f16, (1, 4096), cluster=2), SM_90A),
    "transpose": (functools.partial(kernels.transpose, 50, 90, f16, (64, 64)), SM_80),
    "gather": (functools.partial(kernels.gather, 50, 70, 33, f32), SM_90A),
    "atomics": (functools.partial(kernels.accumulate, 40, 70), SM_80),
    "histogram": (language_kernels.histogram, SM_80),
    "published": (language_kernels.published, SM_90A),
    "published halves": (functools.partial(language_kernels.published, f16, 64, 1), SM_80),
    "locked": (functools.partial(language_kernels.locked_sum, 3), SM_90A),
    **{f"locked rows of {dtype}, {block}, {'gathered' if gathered else 'plain'}": (
        functools.partial(language_kernels.locked_rows, 2, dtype, block, gathered=gathered,
                          warps=warps, stages=stages), SM_90A)
        for dtype, block, warps, stages, gathered in (
            (f32, (64, 32, 32), 2, 5, True), (f32, (64, 32, 32), 2, 5, False),
            (f16, (64, 32, 32), 2, 5, True), (f16, (128, 64, 32), 8, 3, False))},
    "scan": (functools.partial(kernels.scan, "sum", f32, 3, 300, (4, 512), True), SM_80),
    "held": (functools.partial(kernels.softmax, 2, 1000, f16, (1, 1024), 1, held=True), SM_90A),
    "merged": (functools.partial(
        kernels.attention, 1, 16, 256, 64, blocks=(16, 64), cluster=2), SM_90A),
    "mma": (functools.partial(kernels.matmul, 40, 36, 130, f16, (32, 32, 32), warps=2), SM_80),
    "tf32": (functools.partial(kernels.matmul, 20, 16, 40, f32, (32, 32, 32)), SM_80),
    "wgmma": (functools.partial(
        kernels.matmul, 64, 64, 576, f16, (64, 64, 64), stages=2, epilogue=False), SM_90A),
    "last rows": (functools.partial(
        kernels.matmul, 72, 104, 192, f16, (64, 64, 64), stages=2, transpose_b=True,
        epilogue=False), SM_90A),
    "three warp groups": (functools.partial(
        kernels.matmul, 200, 200, 192, f16, (192, 192, 64), warps=12, stages=2), SM_90A),
    "odd k": (functools.partial(
        kernels.matmul, 64, 64, 201, f16, (64, 64, 64), stages=2, epilogue=False), SM_90A),
    "split tf32": (functools.partial(
        kernels.matmul, 64, 64, 128, f32, (64, 32, 32), stages=4, wide=True), SM_90A),
    "stream-k": (functools.partial(
        kernels.matmul, 320, 128, 256, f16, (64, 128, 64), stream_k=1, epilogue=False), FEW),
    "ping-pong stream-k": (functools.partial(
        kernels.matmul, 384, 256, 128, bf16, (128, 128, 64), stream_k=1, teams=2,
        epilogue=False), FEW),
    "tensor memory": (functools.partial(
        kernels.matmul, 128, 64, 320, f16, (128, 64, 64), stages=2, epilogue=False), SM_100A),
    "tensor memory, no producer": (functools.partial(
        kernels.matmul, 130, 48, 201, bf16, (128, 48, 64), stages=4, roles=False), SM_100A),
    "persistent tensor memory": (functools.partial(
        kernels.matmul, 256, 64, 128, f16, (128, 64, 64), persistent=True, epilogue=False), ONE),
    "two warp groups and lanes": (functools.partial(
        kernels.matmul, 256, 128, 128, f16, (256, 128, 64), warps=8, transpose_a=True,
        transpose_b=True), SM_100A),
    "gate and up in tensor memory": (functools.partial(
        kernels.gated, 128, 64, 192, blocks=(128, 64, 64), warps=8), SM_100A),
    "operands in tensor memory": (functools.partial(
        kernels.attention, 1, 128, 64, 64, f16, (128, 64)), SM_100A),
    "windows": (functools.partial(kernels.convolution, 2, 6, 64, 64, f16, (64, 64, 64)), SM_90A),
}  # fmt: skip


@functools.cache
def text_of(name: str) -> str:
    make, target = KERNELS[name]
    return gpu_text(make(), target)


def arrays_of(kernel: Kernel, rng: np.random.Generator) -> Arrays:
    arrays = {}
    for buffer in kernel.buffers:
        kind = buffer.dtype.numpy
        drawn = rng.standard_normal if buffer.dtype.is_float else functools.partial(rng.integers, 2)
        if buffer.dtype.name == "i64":
            drawn = functools.partial(rng.integers, 50)
        size: Any = {"size": buffer.size}
        arrays[buffer.name] = np.asarray(drawn(**size)).astype(kind)
        if buffer.role == "output":
            arrays[buffer.name] = np.zeros(buffer.size, kind)
    return arrays


@pytest.mark.parametrize("late", [False, True], ids=["copies soon", "copies late"])
@pytest.mark.parametrize("name", KERNELS)
def test_it_computes_what_the_tile_program_means(
    name: str, late: bool, rng: np.random.Generator
) -> None:
    kernel = KERNELS[name][0]()
    found = arrays_of(kernel, rng)
    want = {key: array.copy() for key, array in found.items()}
    run(kernel, want)
    simulate(parse_program(text_of(name)), found, seed=int(late), late=late)
    for buffer in kernel.buffers:
        if buffer.role == "output":
            assert_close(found[buffer.name], want[buffer.name], buffer.dtype, 256)


def test_masked_lines_leave_the_rest_alone(rng: np.random.Generator) -> None:
    """Numbers of the launch are given; a strip is stored where its mask says so."""
    kernel = language_kernels.masked_store()
    text = gpu_text(kernel, SM_90A)
    assert re.search(r"store_lines .* mask ", text)
    found = {name: rng.standard_normal(8192).astype(np.float16) for name in "abc"}
    want = {name: array.copy() for name, array in found.items()}
    run(kernel, want, scalars={"n": 50}, races=False)
    simulate(parse_program(text), found, scalars=[50])
    assert_close(found["c"], want["c"], f16, 128)
    with pytest.raises(SimulationError, match="the launch gives no number 0"):
        simulate(parse_program(text), found)


@pytest.mark.parametrize("seed", (1, 2, 3, 4, 5, 84))
@pytest.mark.parametrize("symbolic", [False, True], ids=["numbers", "symbols"])
def test_random_kernels_give_the_same_bits(seed: int, symbolic: bool) -> None:
    """Kernels of callers, with numbers of the launch, at open sizes too."""
    kernel, numbers = random_kernel(seed), random_scalars(seed)
    found, want = random_arrays(kernel, seed), random_arrays(kernel, seed)
    with np.errstate(all="ignore"):
        run(kernel, want, scalars=numbers, races=False)
    with Sizes({}) as sizes:
        made = random_kernel(seed, as_symbols(sizes) if symbolic else int)
        program = lower_to_gpu(made, SM_90A if seed % 2 else SM_80)
        simulate(program, found, scalars=[numbers[value.name] for value in made.scalars])
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


MUTANTS = {
    # of a reduction through shared memory
    "no barrier before a read": (
        "softmax", r"\n  barrier(\n  %part4)", r"\1", "what (write|read)_parts of .* may still"),
    "no barrier before an overwrite": (
        "softmax", r"(alloc @1)\n  barrier", r"\1", "what (write|read)_parts of .* may still"),
    "parts at one place": (
        "softmax", r"bits = \(0,\)", "bits = ()", "overwrites what write_parts"),
    # of a cluster
    "no wait for the other blocks": (
        "cluster", r"\n  cluster_wait", "", "send_parts .* uses what expect_parts"),
    "too many bytes expected": ("cluster", r"\{bytes = 8\}", "{bytes = 12}", "deadlock"),
    "too few bytes expected": (
        "cluster", r"\{bytes = 8\}", "{bytes = 4}", "reads what send_parts|deadlock"),
    "the other parity": (
        "cluster", r"(mbarrier_wait %\w+), 0", r"\1, 1", "read_parts .* reads what send_parts"),
    # of copies ahead
    "no wait for copies": (
        "mma", r"\n    wait_copies \{pending = 1\}", "", "mma .* reads what copy_async"),
    "a group too few": ("mma", "pending = 1", "pending = 2", "mma .* reads what copy_async"),
    "no barrier after the wait": (
        "mma", r"(wait_copies \{pending = 1\})\n    barrier", r"\1", "copy_async"),
    "a copy into the stage that is read": (
        "mma", r"select i32 (%[\w.]+), %[\w.]+, (%[\w.]+)\n(?=.*\n    where)",
        r"select i32 \1, 0, \2\n", "copy_async"),
    # of a ring that a producer fills
    "the producer does not wait": (
        "wgmma", r"\n      mbarrier_wait (%\w+), (%\w+)\n(?=.*\n.*\n      mbarrier_expect)", "\n",
        "more arrive on a barrier|fetch .* overwrites what wgmma"),
    "the consumer does not wait": (
        "wgmma", r"\n      mbarrier_wait (%\w+), (%\w+)\n(?=      wgmma_fence)", "\n",
        "reads what fetch|overwrites what wgmma"),
    "two arrivals wanted": ("wgmma", "count = 1}", "count = 2}", "deadlock"),
    "the phase is not flipped": (
        "wgmma", r"(:= xor i32 %\w+), 1\n(?=.*\n      yield)", r"\1, 0\n",
        "deadlock|fetch|more arrive on a barrier"),
    "a stage given back while its product runs": (
        "wgmma", r"(%[\w.]+) := sub i32 (%\w+), 1\n(.*), \d+, \1",
        r"\1 := add i32 \2, 0\n\3, 0, \1", "fetch .* overwrites what wgmma|deadlock"),
    "nobody gives a stage back": (
        "wgmma", r"\n      mbarrier_arrive .*", "", "deadlock"),
    "bytes of one operand expected": (
        "wgmma", r"mbarrier_expect (%\w+), 16384",
        r"mbarrier_expect \1, 8192", "wgmma .* reads what fetch|deadlock"),
    "whole boxes of last rows": (
        "last rows", r", edge = %map\d, beyond = %\w+", "", "phase|deadlock|more bytes"),
    "barriers used before they are made": (
        "wgmma", r"\n  barrier(\n  await_previous)", r"\1", "uses what mbarrier_init|no barrier"),
    # of an operand that threads write themselves, as its rows are not aligned
    "an operand overwritten while a product reads it": (
        "odd k", r"\n      wgmma_wait\n", "\n", "write_tile .* overwrites what wgmma"),
    # of sums in tensor memory
    "sums read before their matmul is committed": (
        "operands in tensor memory", r"\n  tensor_commit .*", "",
        "tensor_load .* reads what tensor_mma"),
    "sums read before the wait for the commit": (
        "operands in tensor memory", r"\n  tensor_wait @\d+(\n.* = tensor_load)", r"\1",
        "tensor_load .* reads what tensor_mma"),
    "the last sums read before the wait": (
        "tensor memory", r"\n    tensor_wait @\d+\n", "\n",
        "tensor_load .* reads what tensor_mma"),
    "a matmul too many in flight": (
        "tensor memory", r"pending = 1", "pending = 2",
        "more groups of matmuls are in flight|fetch .* overwrites what tensor_mma"),
    "a stage given back while its matmul runs": (
        "tensor memory", r"(%[\w.]+) := sub i32 (%\w+), 1\n(.*), \d+, \1",
        r"\1 := add i32 \2, 0\n\3, 0, \1", "fetch .* overwrites what tensor_mma|deadlock"),
    "a matmul before all have waited for the last": (
        "tensor memory", r"\n      barrier \{threads = 128\}", "",
        "tensor_(commit|wait) .* what tensor_(commit|wait)|deadlock"),
    "a matmul over sums that are read": (
        "persistent tensor memory", r"\n        barrier \{threads = 128\}", "",
        "tensor_(mma|load|commit|wait) .* what tensor_(mma|load|commit|wait)|deadlock"),
    "no fence before a matmul": (
        "tensor memory, no producer", r"\n +fence_async", "", "no fence is between"),
    "operands that have not come": (
        "tensor memory", r"\n      mbarrier_wait .*\n(?=      barrier)", "\n",
        "reads what fetch|fetch .* overwrites what tensor_mma"),
    "an operand in tensor memory without a barrier": (
        "operands in tensor memory", r"(tensor_store @.*\n(?:  tensor_store @.*\n)?)  barrier\n",
        r"\1", "tensor_mma .* what tensor_store"),
    "the address before it is there": (
        "tensor memory, no producer", r"(tensor_alloc .*)\n  barrier", r"\1",
        "what tensor_alloc|tensor_alloc .* what tensor_address|what mbarrier_init"),
    "columns that are not allocated": (
        "tensor memory", r"columns = 64", "columns = 32", "beyond the columns"),
    "columns that are not given back": (
        "tensor memory", r"\n +tensor_free .*", "", "ends with columns of tensor memory"),
    "columns given back while they are read": (
        "tensor memory", r"\n +barrier \{threads = 128\}(\n +tensor_free)", r"\1",
        "tensor_free .* overwrites what tensor_load|tensor_load .* is beyond the columns"),
    # of sums that blocks leave for each other
    "nobody leaves sums": ("stream-k", r"\n +leave_sums .*", "", "deadlock"),
    "sums of another part": (
        "stream-k", r"(add_sums \(%\w+,\), %\w+), %\w+", r"\1, 7", "deadlock|sums are left"),
    "sums used in flight": (
        "wgmma", r"(%\w+) = wgmma_wait \{values = \((%[\w.]+),\)\} : .*\n((?:.*\n)*)",
        None, "is used before the wait"),
}  # fmt: skip


def mutated(name: str) -> tuple[str, str, str]:
    """(kernel, text of the mutant, what is to be found)."""
    kernel, old, new, message = MUTANTS[name]
    text = text_of(kernel)
    if new is None:
        match = re.search(old, text)
        assert match
        rest = re.sub(rf"{match[1]}\b", match[2], match[3])
        return kernel, text[: match.start()] + rest, message
    found, count = re.subn(old, new, text)
    assert count, f"{name}: nothing to change"
    return kernel, found, message


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str, rng: np.random.Generator) -> None:
    kernel, text, message = mutated(name)
    program = parse_program(text)
    with pytest.raises(SimulationError, match=message):
        simulate(program, arrays_of(KERNELS[kernel][0](), rng))
