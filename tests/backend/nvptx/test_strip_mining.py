"""Strip mining: the plan of a kernel as text, what is recorded by it, and the numbers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from fuser.backend.nvptx import gpu_text
from fuser.backend.nvptx.lowering.builder import Attempt
from fuser.backend.nvptx.lowering.lower import Lowering
from fuser.backend.nvptx.tiling.resident_rows import plan_resident_rows
from fuser.backend.nvptx.tiling.strip_mined_epilogue import plan_epilogue
from fuser.backend.nvptx.tiling.strip_mining import StripMining
from fuser.base.target import SM_90A
from fuser.dtypes import f16, f32
from fuser.tilegen import ops
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from tests.backend.nvptx import kernels
from tests.backend.nvptx.simulated import simulated
from tests.numerics import assert_close

MATMUL = """kernel @matmul grid(2) {
  schedule(blocks = ((m, 64), (n, 128), (k, 32)), stages = 3)
  buffer a: input f32[4096]
  buffer b: input f32[4096]
  buffer bias: input f32[128]
  buffer scale: input f32[128]
  buffer y: output f32[16384]
  view &a: a[128, 32] strides(32, 1)
  view &b: b[32, 128] strides(128, 1)
  view &bias: bias[128] strides(1)
  view &scale: scale[128] strides(1)
  view &y: y[128, 128] strides(128, 1)

  %0 = program_id {axis = 0} : index
  %1 = load &a, [%0*64 + #0, #1] {pad = none} : tile<64x32xf32>
  %2 = load &b, [#0, #1] {pad = none} : tile<32x128xf32>
  %3 = full {value = 0.0} : tile<64x128xf32>
  %4 = dot %1, %2, %3 : tile<64x128xf32>
  %5 = load &bias, [#0] {pad = none} : tile<128xf32>
  %6 = broadcast %5 {axes = (1,)} : tile<64x128xf32>
  %7 = map.add(%4, %6) : tile<64x128xf32>
  %8 = load &scale, [%0*64 + #0] {pad = none} : tile<64xf32>
  %9 = map.mul(%8, %8) : tile<64xf32>
  %10 = broadcast %9 {axes = (0,)} : tile<64x128xf32>
  %11 = map.mul(%7, %10) : tile<64x128xf32>
  store &y, [%0*64 + #0, #1], %11
}
"""
ROWS = """kernel @rows grid(2) {
  schedule(warps = 1)
  buffer x: input f32[4096]
  buffer w: input f32[1024]
  buffer y: output f32[4096]
  view &x: x[4, 1024] strides(1024, 1)
  view &w: w[1024] strides(1)
  view &y: y[4, 1024] strides(1024, 1)

  %0 = program_id {axis = 0} : index
  %1 = load &x, [%0*2 + #0, #1] {pad = none} : tile<2x1024xf32>
  %2 = map.mul(%1, %1) : tile<2x1024xf32>
  %3 = reduce.sum %2 {axis = 1} : tile<2xf32>
  %4 = map.rsqrt(%3) : tile<2xf32>
  %5 = broadcast %4 {axes = (0,)} : tile<2x1024xf32>
  %6 = map.mul(%1, %5) : tile<2x1024xf32>
  %7 = load &w, [#0] {pad = none} : tile<1024xf32>
  %8 = broadcast %7 {axes = (1,)} : tile<2x1024xf32>
  %9 = map.mul(%6, %8) : tile<2x1024xf32>
  store &y, [%0*2 + #0, #1], %9
}
"""


RESIDENT = """kernel @resident grid(2) {
  schedule(warps = 1, resident_rows = true)
  buffer x: input f32[2048]
  buffer y: output f32[2048]
  view &x: x[2, 1024] strides(1024, 1)
  view &y: y[2, 1024] strides(1024, 1)

  %0 = program_id {axis = 0} : index
  %1 = load &x, [%0, #1] {pad = none} : tile<1x1024xf32>
  %2 = reduce.max %1 {axis = 1} : tile<1xf32>
  %3 = broadcast %2 {axes = (0,)} : tile<1x1024xf32>
  %4 = map.sub(%1, %3) : tile<1x1024xf32>
  %5 = map.exp(%4) : tile<1x1024xf32>
  %6 = reduce.sum %5 {axis = 1} : tile<1xf32>
  %7 = broadcast %6 {axes = (0,)} : tile<1x1024xf32>
  %8 = map.div(%5, %7) : tile<1x1024xf32>
  store &y, [%0, #1], %8
}
"""
BOTH_AXES = """kernel @both grid(1) {
  schedule(warps = 4)
  buffer a: input f32[2048]
  buffer b: input f32[2048]
  buffer c: input f32[64]
  buffer y: output f32[4096]
  view &a: a[64, 32] strides(32, 1)
  view &b: b[32, 64] strides(64, 1)
  view &c: c[64] strides(1)
  view &y: y[64, 64] strides(64, 1)

  %1 = load &a, [#0, #1] {pad = none} : tile<64x32xf32>
  %2 = load &b, [#0, #1] {pad = none} : tile<32x64xf32>
  %3 = full {value = 0.0} : tile<64x64xf32>
  %4 = dot %1, %2, %3 : tile<64x64xf32>
  %5 = load &c, [#0] {pad = none} : tile<64xf32>
  %6 = broadcast %5 {axes = (0,)} : tile<64x64xf32>
  %7 = broadcast %5 {axes = (1,)} : tile<64x64xf32>
  %8 = map.add(%4, %6) : tile<64x64xf32>
  %9 = map.mul(%8, %7) : tile<64x64xf32>
  store &y, [#0, #1], %9
}
"""


def planned(kernel: Kernel) -> tuple[Lowering, StripMining | None]:
    low = Lowering(kernel, SM_90A, Attempt(kernel.schedule.stages))
    return low, plan_resident_rows(low) or plan_epilogue(low)


def inside(kernel: Kernel) -> str:
    """What is recorded once a strip, by the names that the text has."""
    _, plan = planned(kernel)
    assert plan is not None
    return " ".join(op.results[0].name for op in kernel.body.ops if op in plan.inside)


def events(kernel: Kernel, *wanted: str) -> list[str]:
    """Ops of the recorded kernel that are among these, in order, as they were found."""
    return re.findall("|".join(map(re.escape, wanted)), gpu_text(kernel, SM_90A))


@pytest.mark.parametrize("text", [MATMUL, ROWS, RESIDENT])
def test_strips_are_parts_of_a_tile_that_overlap_nowhere(text: str) -> None:
    kernel = parse_kernel(text)
    low, plan = planned(kernel)
    assert plan is not None and len(plan.tables) > 1
    store = kernel.body.ops[-1]
    assert isinstance(store, ops.Store) and store in plan.sinks
    parts = [table[store.value].regs for table in plan.tables]
    assert sorted(sum(parts, ())) == sorted(low.layout(store.value).regs)


def test_what_all_strips_need_is_outside() -> None:
    """The bias of all columns, as these strips are of other rows; what is one number a row."""
    assert inside(parse_kernel(MATMUL)) == "6 7 8 9 10 11"
    assert inside(parse_kernel(ROWS)) == "5 6 7 8 9"
    assert inside(parse_kernel(RESIDENT)) == "1 3 4 5 7 8"


def test_a_strip_is_requested_one_ahead() -> None:
    """The bias, which is the same for all, once before the first."""
    found = events(parse_kernel(MATMUL), "load &bias", "load &scale", "store &y", "seam")
    assert found[:3] == ["load &bias", "load &scale", "load &scale"]
    strip = ["store &y", "load &scale", "seam"]
    assert found[3:] == [*strip, *strip, "store &y", "seam", "store &y"]


def test_what_rows_share_is_computed_once() -> None:
    found = events(parse_kernel(ROWS), "map.rsqrt", "load &w", "store &y", "seam")
    assert found[:3] == ["map.rsqrt", "load &w", "load &w"]
    assert found[3:] == [*["store &y", "load &w"] * 6, "store &y", "store &y"]


def test_each_pass_reads_resident_rows_again() -> None:
    """Both reductions are one pass, and the store is the second."""
    wanted = ("copy_own", "reread", "read_own", "shuffle", "fold_lanes", "store &y")
    found = [key for key, _ in itertools.groupby(events(parse_kernel(RESIDENT), *wanted))]
    assert found == [
        "copy_own", "reread", "read_own", "fold_lanes", "reread",
        *["read_own", "store &y"] * 2,
    ]  # fmt: skip


def test_broadcasts_are_requested_before_the_sums_are_exchanged() -> None:
    kernel = kernels.layernorm(2, 1024, f16, (1, 1024), 1, held=True)
    found = [key for key, _ in itertools.groupby(events(kernel, "load &x1", "shuffle", "store &y"))]
    assert found == ["load &x1", "shuffle", "store &y", "load &x1", "store &y"]


def test_a_row_that_is_needed_as_a_whole_is_not_cut() -> None:
    """A reduction along the other axis, of what a strip would compute."""
    text = RESIDENT.replace(
        "  view &x", "  buffer z: output f32[1024]\n  view &z: z[1024] strides(1)\n  view &x"
    )
    text = text.replace(
        "  store", "  %9 = reduce.max %5 {axis = 0} : tile<1024xf32>\n  store &z, [#0], %9\n  store"
    )
    low, plan = planned(parse_kernel(text))
    assert plan is None
    assert "something needs the row as a whole" in str(list(low.decisions)[-1])


def masked(value: str) -> str:
    """MATMUL with a store of what is positive in a value."""
    store = "store &y, [%0*64 + #0, #1], %11"
    mask = f"%12 = map.gt({value}, %3) : tile<64x128xbool>"
    return MATMUL.replace(store, f"{mask}\n  {store}, mask %12")


def test_a_mask_of_what_is_inside_is_not_cut() -> None:
    """Of what comes from outside, a mask is one for all strips."""
    assert planned(parse_kernel(masked("%11")))[1] is None
    assert inside(parse_kernel(masked("%4"))) == inside(parse_kernel(MATMUL))


@pytest.mark.parametrize("text", [MATMUL, ROWS, RESIDENT, BOTH_AXES, masked("%4"), masked("%11")])
def test_numbers(text: str, rng: np.random.Generator) -> None:
    """BOTH_AXES needs other parts of one tile for rows and for columns."""
    kernel = parse_kernel(text)
    found = {b.name: rng.standard_normal(b.size).astype(np.float32) for b in kernel.buffers}
    want = {name: array.copy() for name, array in found.items()}
    run(kernel, want)
    simulated(kernel, found)
    assert_close(found["y"], want["y"], f32, 1024)
