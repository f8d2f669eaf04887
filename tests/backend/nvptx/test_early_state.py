"""Copies of a cache that are asked for before the wait for the previous kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fuser.backend.nvptx import gpu_text, lower_to_gpu
from fuser.backend.nvptx.compile import mechanisms
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.prefetch.early_state import request_state
from fuser.backend.nvptx.prefetch.first_copies import issue_copies_first
from fuser.backend.nvptx.prefetch.launch_overlap import overlap_launches
from fuser.backend.nvptx.simulate import SimulationError, simulate
from fuser.base.target import SM_80, SM_90A, Target
from fuser.errors import FuserError
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.passes import run_passes
from fuser.graph.sizes import Sizes, size_hint
from fuser.partition import partition
from fuser.partition.options import Options
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.text import print_kernel
from models import build

CAPACITY = 256
NAME = "state requested early"


def attention_of_a_step(past: int, batch: int = 1, target: Target = SM_90A) -> Kernel:
    """The attention of a decode step, within the sizes that it was made for."""
    model = build("tiny_llama", "float16", cache=True, layers=1)
    pairs = tuple((f"past_key_values.0.{n}", f"present.0.{n}") for n in ("key", "value"))
    dims = {"batch": batch, "sequence": 1, "past": past}
    cut = partition(run_passes(import_onnx(model, dims)), target, Options(state=pairs))
    kernels = [program.kernel for program in emit_programs(cut, target)]
    return next(kernel for kernel in kernels if any(view.settled for view in kernel.views))


def having(kernel: Kernel, early: bool | None = None) -> Kernel:
    made = parse_kernel(print_kernel(kernel))
    made.schedule = dataclasses.replace(made.schedule, launch_overlap=True, early_constants=early)
    return made


def arrays_of(kernel: Kernel, rng: np.random.Generator) -> dict[str, Any]:
    return {
        b.name: rng.standard_normal(size_hint(b.size)).astype(b.dtype.numpy) for b in kernel.buffers
    }


@pytest.mark.parametrize("past", [15, 31, 64, 100, 200])
def test_results_do_not_change(past: int) -> None:
    """Bit by bit, whether the new row is alone in its stage, the last of it, or in the middle."""
    with Sizes({"state_capacity": CAPACITY}):
        kernel = attention_of_a_step(past, batch=2)
        assert {view.settled[1] for view in kernel.views if view.settled} == {past}
        found = []
        for early in (True, False):
            program = lower_to_gpu(having(kernel, early=early), SM_90A)
            verify(program)
            arrays = arrays_of(kernel, np.random.default_rng(past))
            simulate(program, arrays, seed=1, late=True)
            found.append({b.name: arrays[b.name].tobytes() for b in kernel.buffers})
        assert found[0] == found[1]


def test_a_stage_with_the_new_row_waits() -> None:
    """The simulator finds a row that is asked for early though the previous kernel writes it."""
    with Sizes({"state_capacity": CAPACITY}):
        kernel = having(attention_of_a_step(100))
        program = lower_to_gpu(kernel, SM_90A)
        for view in kernel.views:
            if view.settled:
                view.settled = (1, 50)  # less than what the conditions were made of
        arrays = arrays_of(kernel, np.random.default_rng(0))
        with pytest.raises(SimulationError, match="may still be written"):
            simulate(program, arrays, seed=1)


def test_what_is_decided_is_told() -> None:
    with Sizes({"state_capacity": CAPACITY}):
        kernel = attention_of_a_step(100)
        (told,) = (d for d in mechanisms(having(kernel), SM_90A) if d.mechanism == NAME)
        assert told.applied and "copies" in told.reason
        assert not any(d.mechanism == NAME for d in mechanisms(having(kernel, early=False), SM_90A))
        older = attention_of_a_step(100, target=SM_80)
        assert "settled" not in gpu_text(older, SM_80)


def test_text() -> None:
    """Views of Tile IR, and copies of GPU IR, are read as they are written."""
    with Sizes({"state_capacity": CAPACITY}):
        kernel = having(attention_of_a_step(100))
        text = print_kernel(kernel)
        assert " settled(1, 100)" in text and print_kernel(parse_kernel(text)) == text
        program = gpu_text(kernel, SM_90A)
        assert "{settled = %" in program and print_program(parse_program(program)) == program
        with pytest.raises(FuserError, match="settled has a dim of the view and a count"):
            parse_kernel(text.replace(" settled(1, 100)", " settled(7, 100)"))


LOOP = """gpu @loop sm_90a warps(1) threads(32) launch(1, 1, 1) {
  buffer q: input f16[64]
  buffer k: input f16[4096]
  buffer y: output f16[64]
  slot @0: 128 bytes align 16 at 0
  slot @1: 4096 bytes align 1024 at 0
  layout #l0 = 64 regs 2*(1) lanes (2) (4) (8) (16) (32) warps
  layout #l1 = 16x64 regs 4*(4, 0) 8*(0, 1) lanes (0, 8) (0, 16) (0, 32) (1, 0) (2, 0) warps
  given %n

  %x0 = load &q[#0] of 64 along (0) by 2 {words = true} : f16[64] #l0
  %x1 = cast %x0 : f32[64] #l0
STORE  alloc @1
  %s0 := slt i32 0, %n
  where %s0 body {
    %s1 := slt i32 15, %n
    copy_async &k[#0*64 + #1] of 16x64 along (1, 0) by 8, @1<f16 16x64 inner 1>, #l1 {settled = %s1}
  }
  commit_copies
  for 2, (0,), () body (%s2) {
    wait_copies
    %s3 := add i32 %s2, 1
    yield {scalars = (%s3,)}
  }
}
"""


def opcodes(text: str) -> list[str]:
    program = parse_program(text)
    issue_copies_first(program)
    return [op.opcode for op in program.body.ops]


def test_copies_go_before_what_is_computed() -> None:
    assert opcodes(LOOP.replace("STORE", "")) == [
        "load", "alloc", "integer", "where", "commit_copies", "cast", "for",
    ]  # fmt: skip
    stored = "  store &y[#0] of 64 along (0) by 2, %x0\n"
    assert opcodes(LOOP.replace("STORE", stored)) == [
        "load", "cast", "store", "alloc", "integer", "where", "commit_copies", "for",
    ]  # fmt: skip


def test_copies_are_split_at_the_wait() -> None:
    program = parse_program(LOOP.replace("STORE", ""))
    issue_copies_first(program)
    overlap_launches(program)
    decision = request_state(program)
    assert decision is not None and decision.applied and decision.reason.startswith("1 copies")
    assert [op.opcode for op in program.body.ops] == [
        "alloc", "integer", "where", "await_previous", "load", "where", "commit_copies", "cast",
        "for",
    ]  # fmt: skip
    text = print_program(program)
    assert "%s1.not := xor i1 %s1, 1" in text and text.count("settled = ") == 1
    parse_program(text)


def test_without_a_wait_nothing_comes_early() -> None:
    program = parse_program(LOOP.replace("STORE", ""))
    decision = request_state(program)
    assert decision is not None and not decision.applied
