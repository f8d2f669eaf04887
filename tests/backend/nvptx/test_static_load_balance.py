"""Programs of different lengths are shared out over the blocks of a persistent kernel."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel, gpu_text, lower_to_llvm
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.simulate import simulate
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.backend.nvptx.tile_scheduler import static_load_balance
from fuser.backend.nvptx.tile_scheduler.raster import ProgramOrder, growing_axes
from fuser.base.target import SM_90A
from fuser.dtypes import bf16
from fuser.tilegen.emit import emit
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.schedule import Schedule
from tests.backend.nvptx.test_simulate import arrays_of
from tests.interpreted import one_region
from tests.numerics import assert_close
from tests.tilegen_emit.test_attention import Case, model_of

WINDOW: Case = (4, 20, 20, 700, 1152, 128, 128, "capped window biases")
CAUSAL: Case = (4, 20, 20, 700, 700, 128, 128, "causal")
PADDED: Case = (4, 20, 20, 700, 700, 128, 128, "padding")


def kernel_of(case: Case) -> Kernel:
    """Persistent attention in blocks of 128 queries and 128 keys."""
    blocks = (("m", 128), ("n", 128))
    partition = one_region(model_of(case, bf16).graph, "attention")
    schedule = Schedule(blocks=blocks, warps=8, stages=2, persistent=True)
    (program,) = emit(partition.regions[0], partition, SM_90A, schedule)
    run_passes(program.kernel)
    return program.kernel


def trip_count(kernel: Kernel) -> list[int] | None:
    return static_load_balance.iterations_of_programs(
        kernel, ProgramOrder(kernel.grid, 0, growing_axes(kernel))
    )


def test_lengths_of_programs() -> None:
    """In the order of the raster, which begins with the longest of a head."""
    causal, window = trip_count(kernel_of(CAUSAL)), trip_count(kernel_of(WINDOW))
    assert causal == [6, 5, 4, 3, 2, 1] * 80
    # the rows from 128 i on see the keys from 68 + 128 i to 579 + 128 i, but no more than 1152
    assert window == [4, 5, 5, 5, 5, 5] * 80
    assert trip_count(kernel_of(PADDED)) is None


@pytest.mark.parametrize("blocks", [1, 7, 132])
def test_shares_are_even(blocks: int) -> None:
    """Every program once, and no block has more than a short program above the mean."""
    iterations = ([9] * 24 + [8, 7, 6, 5, 4, 3, 2, 1]) * 64
    numbers = static_load_balance.longest_first(iterations, blocks)
    listed = [numbers[block::blocks] for block in range(blocks)]
    assert sorted(n for n in numbers if n < len(iterations)) == list(range(len(iterations)))
    costs = []
    for share in listed:
        own = [number for number in share if number < len(iterations)]
        assert share == own + [len(iterations)] * (len(share) - len(own)) and len(own) < len(share)
        costs.append(sum(iterations[number] + static_load_balance.BETWEEN for number in own))
    assert max(costs) - min(costs) <= 1 + static_load_balance.BETWEEN


def test_few_programs_leave_blocks_without() -> None:
    assert static_load_balance.longest_first([1, 3], 3) == [1, 0, 2, 2, 2, 2]


def test_the_table_is_in_constant_memory() -> None:
    """Of programs that differ; others are numbered by the raster."""
    text = lower_to_llvm(kernel_of(CAUSAL), SM_90A)
    found = re.search(r"@programs = internal addrspace\(4\) constant \[(\d+) x i32\]", text)
    assert found and int(found[1]) % SM_90A.units == 0
    assert "ld.const" in compile_kernel(kernel_of(CAUSAL), SM_90A).code.decode()
    assert "@programs" not in lower_to_llvm(kernel_of(PADDED), SM_90A)


def test_blocks_run_the_programs_of_the_table(rng: np.random.Generator) -> None:
    """Simulated from its text, which has the table, on a GPU of few multiprocessors; the protocol
    of its barriers is that of the programs that the table gives."""
    kernel, target = kernel_of((1, 2, 2, 384, 384, 64, 64, "causal")), replace(SM_90A, units=4)
    program = parse_program(gpu_text(kernel, target))
    (numbers,) = program.tables.values()
    assert sorted(n for n in numbers if n < 6) == list(range(6))
    assert any(isinstance(op, ops.ReadTable) for op in program.body.walk())
    verify_protocol(program)
    found = arrays_of(kernel, rng)
    want = {name: array.copy() for name, array in found.items()}
    run(kernel, want)
    simulate(program, found)
    assert_close(found["out0"], want["out0"], bf16, 384)
