"""Sums in tensor memory: which dots have them, what the pass makes of a program, what ptxas takes.

What the programs compute and how they break is in test_simulate.py and test_gpu_verify.py.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel, gpu_text, lower_to_gpu, mechanisms
from fuser.backend.nvptx.emit.tensor_memory import instruction_descriptor
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.layouts.tensor_grid import tensor_grid
from fuser.backend.nvptx.memory.tensor_memory import move_sums
from fuser.backend.nvptx.simulate import simulate
from fuser.base.target import SM_90A, SM_100A, Target
from fuser.dtypes import DType, bf16, f16, f32, i8, i32
from fuser.errors import LoweringError
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value
from tests.backend.nvptx import kernels, language_kernels
from tests.backend.nvptx.test_layout import assert_covers
from tests.numerics import assert_close
from tests.tilegen_emit.graphs import Model

ONE = dataclasses.replace(SM_100A, units=1)
MATMULS: dict[str, tuple[Callable[[], Kernel], Target]] = {
    "f16": (functools.partial(kernels.matmul, 256, 128, 256, f16, (128, 128, 64)), SM_100A),
    "bf16, turned": (functools.partial(
        kernels.matmul, 130, 96, 201, bf16, (128, 96, 32), transpose_a=True, transpose_b=True,
        stages=4), SM_100A),
    "no producer": (functools.partial(
        kernels.matmul, 256, 256, 256, f16, (256, 128, 64), warps=8, roles=False), SM_100A),
    "wide": (functools.partial(
        kernels.matmul, 128, 256, 256, f16, (128, 256, 64), warps=8, epilogue=False), SM_100A),
    "persistent": (functools.partial(
        kernels.matmul, 256, 128, 256, bf16, (128, 128, 64), persistent=True), ONE),
    "gate and up": (functools.partial(kernels.gated, 128, 64, 256), SM_100A),
    "split over a cluster": (functools.partial(
        kernels.matmul, 128, 64, 256, f16, (128, 64, 64), cluster=2, epilogue=False), SM_100A),
    "windows": (functools.partial(kernels.convolution, 2, 8, 64, 64, f16, (128, 64, 64)), SM_100A),
    "one block of keys": (functools.partial(
        kernels.attention, 1, 128, 64, 64, f16, (128, 64)), SM_100A),
}  # fmt: skip


@functools.cache
def ptxas() -> str | None:
    """The path of a ptxas that knows sm_100a."""
    found = shutil.which("ptxas")
    if found is None:
        return None
    told = subprocess.run([found, "--help"], capture_output=True, text=True, check=False).stdout
    return found if "sm_100a" in told else None


@pytest.mark.parametrize(
    ("m", "n", "warps", "registers"),
    [(128, 16, 4, 16), (128, 128, 4, 128), (128, 256, 8, 128), (256, 64, 4, 128),
     (256, 128, 8, 128), (256, 48, 8, 48), (512, 64, 16, 64)],
)  # fmt: skip
def test_a_row_is_a_lane(m: int, n: int, warps: int, registers: int) -> None:
    """Each warp has the lanes that it reaches, and all elements have one owner."""
    grid = tensor_grid(m, n, 64, warps)
    assert grid is not None
    layout = grid.accumulator()
    assert_covers(layout, (m, n))
    assert len(layout.regs) == registers
    assert layout.lanes == ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0))
    assert layout.warps[:2] == ((32, 0), (64, 0))
    assert all(row % 128 == 0 for row, _ in (*layout.regs, *layout.warps[2:]))
    assert_covers(grid.left_fragment(32), (m, 32))


@pytest.mark.parametrize(
    ("m", "n", "k", "warps"),
    [(64, 64, 64, 4), (128, 24, 64, 4), (128, 64, 24, 4), (128, 64, 64, 2), (384, 64, 64, 12),
     (128, 256, 64, 4), (128, 512, 64, 16), (512, 256, 64, 16)],
)  # fmt: skip
def test_what_is_no_whole_instruction_has_no_grid(m: int, n: int, k: int, warps: int) -> None:
    assert tensor_grid(m, n, k, warps) is None


def unit_of(kernel: Kernel, target: Target) -> str:
    return str(compile_kernel(kernel, target).facts["dot"])


def test_dots_go_where_they_fit() -> None:
    """128 rows of 16 bits to tcgen05; fewer rows, other dtypes and sums that a loop looks at, by
    mma.sync; the same kernels on Hopper by wgmma."""
    fits = kernels.matmul(128, 64, 128, f16, (128, 64, 64))
    assert unit_of(fits, SM_100A) == "tcgen05" and unit_of(fits, SM_90A) == "wgmma"
    (unit, *_) = mechanisms(fits, SM_100A)
    assert unit.reason == "tcgen05: [128, 64] x [64, 64] of f16"
    assert unit_of(kernels.matmul(64, 64, 128, f16, (64, 64, 64)), SM_100A) == "mma"
    assert unit_of(kernels.matmul(128, 64, 128, f32, (128, 64, 32)), SM_100A) == "tf32"
    bytes_ = kernels.matmul(
        128, 64, 128, i8, (128, 64, 64), transpose_b=True, epilogue=False, out=i32
    )
    assert unit_of(bytes_, SM_100A) == "mma"
    carried = language_kernels.matmul(128, 64, 64, f16, style="while")
    assert unit_of(carried, SM_100A) == "mma"
    in_order = dataclasses.replace(fits, row_order=True)
    assert unit_of(in_order, SM_100A) == "mma"  # as for any number of rows
    online = kernels.attention(1, 128, 128, 64, f16, (128, 64))
    assert unit_of(online, SM_100A) == "mma"
    reason = mechanisms(online, SM_100A)[0].reason
    assert "mma.sync" in reason and "tcgen05 takes sums of 128 rows" in reason


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1)])
def test_an_instruction_descriptor_says_what_is_multiplied(
    dtype: DType, turned: tuple[int, int]
) -> None:
    """Fields as PTX lists them: (first bit, how many, what is there)."""
    word = instruction_descriptor(dtype.name, 96, *turned)
    kind = 0 if dtype is f16 else 1
    fields = [(0, 4, 0), (4, 2, 1), (6, 1, 0), (7, 3, kind), (10, 3, kind), (13, 2, 0),
              (15, 1, turned[0]), (16, 1, turned[1]), (17, 6, 96 >> 3), (23, 1, 0),
              (24, 5, 128 >> 4), (29, 3, 0)]  # fmt: skip
    assert sum(count for _, count, _ in fields) == 32
    for first, count, value in fields:
        assert word >> first & (1 << count) - 1 == value


@pytest.mark.parametrize(
    ("depth", "swizzle", "stride"), [(64, 2, 1024), (32, 4, 512), (16, 6, 256)]
)
def test_a_shared_memory_descriptor_says_how_rows_lie(
    depth: int, swizzle: int, stride: int
) -> None:
    """The high half: the stride from 8 rows to the next in 16 bytes, the version, the swizzle."""
    kernel = kernels.matmul(128, 64, 128, f16, (128, 64, depth), transpose_b=True, epilogue=False)
    code = compile_kernel(kernel, SM_100A).code.decode()
    high = stride >> 4 | 1 << 14 | swizzle << 29
    assert re.search(rf"mov\.b32\s+%r\d+, {high - (high >> 31 << 32)};", code)
    assert "tcgen05.mma.cta_group::1.kind::f16" in code and "wgmma" not in code


@pytest.mark.parametrize("name", MATMULS)
def test_ptxas_assembles_it(name: str, tmp_path: Path) -> None:
    make, target = MATMULS[name]
    code = compile_kernel(make(), target).code.decode()
    assert ".target sm_100a" in code and code.count("tcgen05.alloc") == 1
    assert code.count("tcgen05.dealloc") == 1 and "tcgen05.relinquish_alloc_permit" in code
    assert ".local" not in code  # counts of groups are in registers
    tool = ptxas()
    if tool is None:
        pytest.skip("no ptxas that knows sm_100a")
    (tmp_path / "kernel.ptx").write_text(code)
    command = [tool, "-arch=sm_100a", "kernel.ptx", "-o", "kernel.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:500]


@pytest.mark.parametrize("name", MATMULS)
def test_columns_are_had_before_the_next_kernel_may_start(name: str) -> None:
    """A block that waits for columns while one of the next kernel has them, which waits for the
    block, would wait for ever."""
    make, target = MATMULS[name]
    program = lower_to_gpu(make(), target)
    every = list(program.body.walk())
    alloc = next(n for n, op in enumerate(every) if isinstance(op, ops.TensorAlloc))
    free = next(n for n, op in enumerate(every) if isinstance(op, ops.TensorFree))
    waits = [n for n, op in enumerate(every)
             if isinstance(op, ops.AwaitPrevious | ops.LaunchDependents)]  # fmt: skip
    assert all(alloc < n < free for n in waits)
    barriers = [n for n, op in enumerate(every) if isinstance(op, ops.Barrier)]
    assert not waits or any(alloc < n < waits[0] for n in barriers)


# the pass -----------------------------------------------------------------------------------------


BEFORE = """gpu @sums sm_100a warps(4) threads(128) launch(1, 1, 1) {
  slot @0: 16384 bytes align 1024 at 0
  slot @1: 8192 bytes align 1024 at 16384
  layout #l0 = 128x64 regs 64*(0, 1) lanes (1, 0) (2, 0) (4, 0) (8, 0) (16, 0) warps (32, 0) (64, 0)

  alloc @0
  alloc @1
  %zero = full {value = 0.0} : f32[128x64] #l0
  %y = for 512, (0,), (%zero,) {certain = true} : f32[128x64] #l0 body (%k, %sum: f32[128x64] #l0) {
    wgmma_fence
    %a = wgmma f16, @0<f16 128x64 inner 1>, @1<f16 64x64 inner 1> {grid = GRID, k = 64, acc = %sum} : f32[128x64] #l0
    wgmma_commit
    %b = wgmma_wait {values = (%a,)} : f32[128x64] #l0
    %following := add i32 %k, 64
    yield {scalars = (%following,), values = (%b,)}
  }
  keep %y
}
""".replace("GRID", (  # noqa: E501
    "TensorGrid{m = 128, n = 64, warps_m = 4, warps_n = 1, wgmma = false, warps_k = 1,"
    " depth = 16, run = 0}"
))  # fmt: skip


def moved(text: str) -> list[Op]:
    program = parse_program(text)
    move_sums(program)
    again = print_program(program)
    assert print_program(parse_program(again)) == again
    return list(program.body.walk())


def kinds(every: list[Op]) -> list[str]:
    """The opcodes of ops that have to do with sums."""
    wanted = re.compile("tensor_|wgmma|for|full|keep")
    return [op.opcode for op in every if wanted.match(op.opcode)]


def test_a_loop_carries_sums_no_more() -> None:
    """They are read once, after it; its first matmul ignores what was there."""
    every = moved(BEFORE)
    assert kinds(every) == [
        "tensor_alloc", "tensor_address", "full", "for", "tensor_mma", "tensor_commit",
        "tensor_wait", "tensor_load", "keep", "tensor_free",
    ]  # fmt: skip
    (loop,) = [op for op in every if isinstance(op, ops.For)]
    (mma,) = [op for op in every if isinstance(op, ops.TensorMma)]
    assert not loop.params and not loop.results and mma.keeps in loop.body.ops[0].names
    (alloc,) = [op for op in every if isinstance(op, ops.TensorAlloc)]
    assert alloc.columns == 64


def test_sums_that_start_from_something_are_written_first() -> None:
    """As those of a loop that may have no iteration."""
    for text in (
        BEFORE.replace("value = 0.0", "value = 1.0"), BEFORE.replace(" {certain = true}", "")
    ):  # fmt: skip
        every = moved(text)
        assert kinds(every)[:5] == [
            "tensor_alloc", "tensor_address", "full", "tensor_store", "for",
        ]  # fmt: skip
        (mma,) = [op for op in every if isinstance(op, ops.TensorMma)]
        assert mma.keeps == 1


def test_sums_that_a_loop_looks_at_stay_in_its_registers() -> None:
    """They are written before the matmul and read after it, in each iteration."""
    text = BEFORE.replace("    wgmma_fence\n", "    keep %sum\n    wgmma_fence\n")
    every = moved(text)
    assert kinds(every)[2:9] == [
        "full", "for", "keep", "tensor_store", "tensor_mma", "tensor_commit", "tensor_wait",
    ]  # fmt: skip
    (loop,) = [op for op in every if isinstance(op, ops.For)]
    assert [tile.name for tile in loop.params] == ["%sum"]
    assert isinstance(loop.body.ops[-3], ops.TensorLoad)


def test_other_programs_stay_as_they_are() -> None:
    text = gpu_text(kernels.matmul(128, 64, 128, f16, (128, 64, 64)), SM_90A)
    program = parse_program(text)
    move_sums(program)
    assert print_program(program) == text


def test_consumer_groups_are_refused() -> None:
    kernel = kernels.matmul(
        256, 128, 256, f16, (128, 128, 64), persistent=True, teams=2, epilogue=False
    )
    with pytest.raises(LoweringError, match="consumer groups"):
        lower_to_gpu(kernel, ONE)


# what the rest of the compiler makes of it --------------------------------------------------------


def nested(rows: int, inner: int) -> Kernel:
    """y = sum over i of relu(a[i] @ b[i]) + 1: sums of a matmul that start again in each iteration
    of a loop, and from ones."""
    b = Builder("nested", Schedule(warps=4, stages=2))
    m, n, k = 128, 32, 32
    a = b.view(b.buffer("x0", f16, rows * m * inner * k), (rows, m, inner * k))
    w = b.view(b.buffer("x1", f16, rows * inner * k * n), (rows, inner * k, n))

    def outer(i: Value, total: Value) -> list[Value]:
        def step(j: Value, acc: Value) -> list[Value]:
            at = index(j)
            left = b.load(a, (index(i), axis(0, m), at + axis(1, k)), (m, k))
            right = b.load(w, (index(i), at + axis(0, k), axis(1, n)), (k, n))
            return [b.dot(left, right, acc)]

        (acc,) = b.loop(0, inner * k, k, [b.full(1.0, (m, n), f32)], step)
        return [b.map("add", total, b.map("max", acc, b.full(0.0, (m, n), f32)))]

    (total,) = b.loop(0, rows, 1, [b.full(0.0, (m, n), f32)], outer)
    y = b.buffer("y", f32, m * n, role="output")
    b.store(b.view(y, (m, n)), (axis(0, m), axis(1, n)), total)
    return b.build()


@pytest.mark.parametrize("late", [False, True], ids=["copies soon", "copies late"])
@pytest.mark.parametrize("seed", range(3))
def test_sums_start_again_in_each_iteration(seed: int, late: bool) -> None:
    kernel, rng = nested(3, 3), np.random.default_rng(seed)
    found = {b.name: rng.standard_normal(b.size).astype(b.dtype.numpy) for b in kernel.buffers}
    want = {name: array.copy() for name, array in found.items()}
    run(kernel, want)
    program = lower_to_gpu(kernel, SM_100A)
    assert any(isinstance(op, ops.TensorStore) for op in program.body.walk())
    verify(program)
    simulate(program, found, seed=seed, late=late)
    assert_close(found["y"], want["y"], f32, 3 * 96)


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("style", ["plain", "masked", "computed", "turned"])
def test_kernels_of_callers_are_exact(style: str, warps: int, rng: np.random.Generator) -> None:
    """Whole numbers, with loops that may have no iteration."""
    kernel = language_kernels.matmul(128, 64, 64, f16, style=style, warps=warps)
    program = lower_to_gpu(kernel, SM_100A)
    assert any(isinstance(op, ops.TensorMma) for op in program.body.walk())
    verify(program)
    for depth in (192, 0):
        found = {b.name: rng.integers(-3, 4, 1 << 17).astype(b.dtype.numpy) for b in kernel.buffers}
        want = {name: array.copy() for name, array in found.items()}
        run(kernel, want, scalars={"K": depth}, races=False)
        simulate(program, found, scalars=[depth], late=True)
        np.testing.assert_array_equal(found["c"], want["c"])


def test_a_graph_of_large_matmuls_has_them(tmp_path: Path) -> None:
    """Through the partitioner and the schedule rules, as a model comes."""
    m = Model(f16)
    hidden = m.b.map("max", m.dot(m.input(2048, 512), m.weight(512, 2048), (1, 0)), 0.0)
    m.output(m.dot(hidden, m.weight(2048, 512), (1, 0)))
    programs = emit_programs(partition(m.graph, SM_100A), SM_100A)
    made = [compile_kernel(program.kernel, SM_100A) for program in programs]
    used = [found for found in made if found.facts["dot"] == "tcgen05"]
    assert used and all(found.facts["copies"] == "tma" for found in used)
    tool = ptxas()
    for found in made if tool is not None else ():
        (tmp_path / "kernel.ptx").write_bytes(found.code)
        command = [str(tool), "-arch=sm_100a", "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:500]
