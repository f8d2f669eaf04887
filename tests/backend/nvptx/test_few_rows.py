"""Operands of fewer rows than a tile: the copy engine fetches those, and no zeros for the rest."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import TensorProto, helper

from fuser.backend.module import CompiledKernel
from fuser.backend.nvptx import compile_kernel, mechanisms
from fuser.backend.nvptx.schedule.warp_specialization_plan import _rows_stay_apart
from fuser.base.target import SM_90A
from fuser.dtypes import f16
from fuser.frontends.onnx.model import open_model
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.rules.gpu.matmul import dot_schedule
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule
from tests.backend.nvptx import kernels

BF16 = TensorProto.BFLOAT16


def product(m: int, n: int, k: int, *, right: bool = False) -> CompiledKernel:
    """[m, k] x [k, n], or with transposed weights (`right`)."""
    nodes = [helper.make_node("MatMul", ["a", "w"], ["y"])]
    if right:
        nodes = [
            helper.make_node("Transpose", ["b"], ["w"], perm=[1, 0]),
            helper.make_node("MatMul", ["a", "w"], ["y"]),
        ]
    inputs = [
        helper.make_tensor_value_info("a", BF16, (m, k)),
        helper.make_tensor_value_info("b" if right else "w", BF16, (n, k) if right else (k, n)),
    ]
    y = helper.make_tensor_value_info("y", BF16, (m, n))
    graph = helper.make_graph(nodes, "product", inputs, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    programs = emit_programs(partition(open_model(model).graph({}), SM_90A), SM_90A)
    return compile_kernel(programs[0].kernel, SM_90A)


def expected_bytes(kernel: CompiledKernel) -> list[int]:
    """What the producer announces for a stage."""
    ptx = kernel.code.decode()
    names = re.findall(r"expect_tx\S* \S+ \[\S+\], (\S+);", ptx)
    return [
        int(name) if name.isdigit() else int(value)
        for name in names
        for value in ([name] if name.isdigit() else re.findall(rf"mov\.b32\s+{name}, (\d+);", ptx))
    ]


@pytest.mark.parametrize("right", [False, True])
def test_only_rows_that_are_there(right: bool) -> None:
    """A box of the rows of the operand, and a stage that waits for as many bytes."""
    kernel = product(24, 5120, 5120, right=right)
    assert [record.box for record in kernel.tensor_maps] == [(64, 24), (64, 64)]
    assert expected_bytes(kernel) == [(24 + 64) * 64 * 2]
    tall = product(96, 5120, 5120, right=right)
    assert [record.box for record in tall.tensor_maps] == [(64, 96), (64, 64)]
    assert expected_bytes(tall) == [(96 + 64) * 64 * 2]


@pytest.mark.parametrize("right", [False, True])
def test_a_box_of_its_own_for_the_last_tile(right: bool) -> None:
    """It has fewer rows; the others are whole."""
    several = product(160, 5120, 5120, right=right)
    boxes = [record.box for record in several.tensor_maps]
    assert boxes == [(64, 64), (64, 128 if right else 64), (64, 32)]
    ptx = several.code.decode()
    announced = re.findall(r"selp\.b32\s+\S+, (\d+), (\d+), ", ptx)
    whole, last = ((rows + 128) * 64 * 2 for rows in (64, 32))
    assert (str(last), str(whole)) in announced
    even = product(128, 5120, 5120, right=right)
    assert len(even.tensor_maps) == 2 and "selp.b64" not in even.code.decode()


def test_open_rows_and_shared_boxes_are_whole() -> None:
    """Where the last tile is not known, or a box goes to several blocks."""
    shared = compile_kernel(
        kernels.matmul(168, 128, 192, f16, (64, 64, 64), stages=2, neighbours=(1, 2)), SM_90A
    )
    assert (64, 40) not in [record.box for record in shared.tensor_maps]


@pytest.mark.parametrize("kind", [ops.Reduce, ops.Scan, ops.AtomicAdd])
def test_rows_that_meet_others_are_zeros(kind: type[Op]) -> None:
    """Rows that are not fetched hold anything: nothing may add them up."""
    stream: Any = SimpleNamespace(quiet=True)

    def low(*found: Op) -> Any:
        return SimpleNamespace(kernel=SimpleNamespace(walk=lambda: found))

    store = object.__new__(ops.Store)
    assert _rows_stay_apart(low(store), stream)
    assert not _rows_stay_apart(low(store, object.__new__(kind)), stream)
    stream.quiet = False
    assert not _rows_stay_apart(low(store), stream)


def test_tiles_of_streamed_products() -> None:
    """What was fastest, or within 4 % of it, of five to ten schedules on an H200."""

    def found(m: int, n: int, k: int) -> tuple[int, int, int, int]:
        s: Schedule = dot_schedule(SM_90A, Problem(m, n, k, 16, folded=False))
        return s.block("m"), s.block("n"), s.stages, s.stream_k

    for n, k in ((4096, 4096), (5120, 5120)):
        assert found(24, n, k) == (64, 64, 13, 0)
    assert found(24, 11008, 4096) == (
        64,
        128,
        9,
        0,
    )  # one wave; 64x64 in two 1 % slower by the cost
    assert found(32, 2048, 2048) == (64, 32, 18, 0)  # 64x64 1 % slower by the cost
    assert found(96, 5120, 5120) == found(96, 8192, 8192)
    assert found(96, 5120, 2048) == found(96, 5120, 5120) == (128, 64, 9, 0)
    assert found(96, 4096, 11008) == (128, 64, 9, 1)
    assert found(192, 4096, 14336) == (64, 192, 6, 1)
    assert found(192, 8192, 8192) == found(256, 5120, 5120) == (64, 192, 6, 0)
    assert found(384, 4096, 4096) == (64, 192, 6, 0)
    assert found(256, 4096, 4096) == (64, 128, 9, 0)
    assert found(96, 4096, 4096) == (128, 64, 9, 0) and found(160, 4096, 4096) == (64, 128, 9, 0)
    assert found(384, 5120, 5120)[:2] == (128, 128)
    # one wave of three warp groups, but for a short k, and where two waves are no fewer tiles
    assert found(6304, 768, 3072) == (192, 192, 4, 0)
    assert found(6304, 768, 768)[:2] == found(4096, 768, 768)[:2] == (64, 192)
    assert found(4096, 768, 3072)[:2] == (128, 192)


def test_schedules_of_a_short_k() -> None:
    """What was fastest inside of models of that width on an H200 (docs/lab/gpu-one-wave.md)."""

    def found(m: int, n: int, k: int = 768) -> tuple[int, int, int, int]:
        s: Schedule = dot_schedule(SM_90A, Problem(m, n, k, 16))
        return s.block("m"), s.block("n"), s.stages, s.warps

    assert found(128, 768) == (64, 32, 12, 4)
    assert found(197, 2304) == found(197, 3072) == (64, 128, 9, 8)
    assert found(512, 2304) == found(512, 3072) == (64, 192, 6, 4)
    assert found(128, 3072) == (64, 64, 12, 4)


def test_blocks_that_share_a_multiprocessor_share_its_memory() -> None:
    """One block has it for itself, two have half each; with three, or few second ones, a third."""
    rings = {}
    for n in (16384, 20480, 32000, 48000):
        found = dot_schedule(SM_90A, Problem(1, n, 4096, 16))
        blocks = -(-n // found.block("n"))
        stage = 2 * found.block("k") * (found.block("m") + found.block("n"))
        rings[blocks] = found.stages * stage
    assert list(rings) == [128, 160, 250, 375]
    assert 2 * rings[250] <= 228 << 10 < 3 * rings[250]
    assert all(3 * rings[blocks] <= 228 << 10 for blocks in (160, 375))


def test_gates_of_a_short_k_stay_wgmma() -> None:
    """Two accumulators of 64 columns have too few of them for two warp groups."""
    s: Schedule = dot_schedule(SM_90A, Problem(128, 3072, 768, 16, 2))
    assert (s.block("m"), s.block("n"), s.stages, s.warps) == (64, 64, 9, 4)
    kernel = kernels.gated(128, 3072, 768, blocks=(64, 64, 64), warps=s.warps, stages=s.stages)
    found = {item.mechanism: str(item) for item in mechanisms(kernel, SM_90A)}
    assert found["matrix unit"].startswith("matrix unit: yes, wgmma")


def test_tiles_that_fill_the_registers_start_early() -> None:
    """96 registers of sums leave room for the pointers that go through the wait; more do not."""
    assert product(512, 2304, 768).pdl
    assert not product(2048, 2048, 2048).pdl  # 128 of them
