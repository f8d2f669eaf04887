"""Passes that let copies and matmuls run on under later iterations, on programs as text."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.passes.multistage_pipeline import pipeline_loops
from fuser.backend.nvptx.simulate import simulate
from fuser.backend.nvptx.simulate.protocol import verify_protocol

HEAD = """gpu @sum sm_80 warps(1) threads(32) launch(1, 1, 1) {
  buffer x: input f16[1280]
  buffer y: output f16[256]
  slot @0: 1536 bytes align 1024 at 0
  layout #l0 = 16x16 regs 8*(0, 1) lanes (0, 8) (1, 0) (2, 0) (4, 0) (8, 0) warps
  given %n

"""
LOOP = """  alloc @0
  %s = full {value = 0} : f16[16x16] #l0
  %y = for STOP, (0,), (%s,) {stages = 3, ahead = 2} : f16[16x16] #l0 body (%k in [0, 64] by 16, \
%c: f16[16x16] #l0) {
    barrier
    copy_async &x[%k*16 + #0*16 + #1] of 16x16 along (1, 0) by 8, @0<f16 16x16 inner 1>, #l0
    commit_copies
    wait_copies
    barrier
    %t = read_tile @0<f16 16x16 inner 1> : f16[16x16] #l0
    %e = map.add (%c, %t) : f16[16x16] #l0
    %i := add i32 %k, 16
    yield {scalars = (%i,), values = (%e,)}
  }
  store &y[#0*16 + #1] of 16x16 along (1, 0) by 8, %y
}
"""
AHEAD = """  alloc @0
  %s = full {value = 0} : f16[16x16] #l0
  barrier
  copy_async &x[#0*16 + #1] of 16x16 along (1, 0) by 8, @0<f16 16x16 inner 1>, #l0
  commit_copies
  copy_async &x[#0*16 + #1 + 256] of 16x16 along (1, 0) by 8, @0<f16 16x16 inner 1>[512], #l0
  commit_copies
  %y = for 80, (0, 0), (%s,) : f16[16x16] #l0 body (%k, %k.stage, %c: f16[16x16] #l0) {
    wait_copies {pending = 1}
    barrier
    %k.0 in [0, 64] by 16 := add i32 %k, 32
    %k.1 := icmp uge i32 %k.stage, 1
    %k.2 := sub i32 %k.stage, 1
    %k.3 := add i32 %k.stage, 2
    %k.4 := select i1 %k.1, i32 %k.2, i32 %k.3
    %k.5 := icmp slt i32 %k.0, 80
    where %k.5 body {
      %k.6 := mul i32 %k.4, 512
      copy_async &x[%k.0*16 + #0*16 + #1] of 16x16 along (1, 0) by 8, \
@0<f16 16x16 inner 1>[%k.6], #l0
    }
    commit_copies
    %k.7 := mul i32 %k.stage, 512
    %t = read_tile @0<f16 16x16 inner 1>[%k.7] : f16[16x16] #l0
    %e = map.add (%c, %t) : f16[16x16] #l0
    %i := add i32 %k, 16
    %k.8 := add i32 %k.stage, 1
    %k.9 := icmp eq i32 %k.8, 3
    %k.10 := select i1 %k.9, i32 0, i32 %k.8
    yield {scalars = (%i, %k.10), values = (%e,)}
  }
  store &y[#0*16 + #1] of 16x16 along (1, 0) by 8, %y
}
"""


def loop(stop: str = "80") -> Program:
    """The sum of tiles, each brought when it is its turn."""
    head = HEAD if stop.startswith("%") else HEAD.replace("  given %n\n", "")
    return parse_program(head + LOOP.replace("STOP", stop))


def test_copies_go_ahead_around_a_ring() -> None:
    program = loop()
    pipeline_loops(program)
    assert print_program(program).partition("\n\n")[2] == AHEAD


def test_a_range_that_is_not_known_is_asked_for_in_front_of_the_loop() -> None:
    """Each of the first groups is copied where there is such an iteration, and counts anyhow."""
    program = loop("%n")
    pipeline_loops(program)
    front = print_program(program).partition(" = for ")[0]
    assert front.count("where ") == front.count("copy_async") == 2
    assert front.count("\n  commit_copies") == 2


@pytest.mark.parametrize("ahead", [False, True])
def test_both_forms_are_right(ahead: bool, rng: np.random.Generator) -> None:
    """A loop is a program of its own without the pass, and means the same."""
    program = loop()
    if ahead:
        pipeline_loops(program)
    verify(program)
    verify_protocol(program)
    x = rng.integers(-8, 8, 1280).astype(np.float16)
    arrays = {"x": x, "y": np.zeros(256, np.float16)}
    simulate(program, arrays)
    np.testing.assert_array_equal(arrays["y"], x.reshape(5, 256).sum(0))
