"""Passes that let copies and matmuls run on under later iterations, on programs as text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser.backend.nvptx import lower_to_gpu, pipeline
from fuser.backend.nvptx.ir.ops import For, Scheduled, WgmmaWait
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.memory.block_barriers import insert_barriers
from fuser.backend.nvptx.schedule.expand_loops import expand_loops
from fuser.backend.nvptx.schedule.wgmma_waits import leave_in_flight
from fuser.backend.nvptx.simulate import simulate
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.base.target import SM_90A
from fuser.dtypes import f16, i8, i32
from fuser.tilegen.ir import Kernel
from tests.backend.nvptx import kernels

HEAD = """gpu @sum sm_80 warps(1) threads(32) launch(1, 1, 1) {
  buffer x: input f16[1280]
  buffer y: output f16[256]
  slot @0: 1536 bytes align 1024 at 0
  layout #l0 = 16x16 regs 8*(0, 1) lanes (0, 8) (1, 0) (2, 0) (4, 0) (8, 0) warps
  given %n

"""
LOOP = """  alloc @0
  %s = full {value = 0} : f16[16x16] #l0
  %y = for STOP, (0,), (%s,) {stages = 3} : f16[16x16] #l0 body (%k in [0, 64] by 16, \
%c: f16[16x16] #l0) {
    copy_async &x[%k*16 + #0*16 + #1] of 16x16 along (1, 0) by 8, @0<f16 16x16 inner 1>, #l0 \
{stage = -2, order = 3}
    commit_copies {stage = -2, order = 3}
    wait_copies
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
  copy_async &x[#0*16 + #1] of 16x16 along (1, 0) by 8, @0<f16 16x16 inner 1>, #l0
  commit_copies
  copy_async &x[#0*16 + #1 + 256] of 16x16 along (1, 0) by 8, @0<f16 16x16 inner 1>[512], #l0
  commit_copies
  %y = for 80, (0, 0), (%s,) : f16[16x16] #l0 body (%k, %k.stage, %c: f16[16x16] #l0) {
    wait_copies {pending = 1}
    %k.0 in [0, 64] by 16 := add i32 %k, 32
    %k.1 := uge i32 %k.stage, 1
    %k.2 := sub i32 %k.stage, 1
    %k.3 := add i32 %k.stage, 2
    %k.4 := select i32 %k.1, %k.2, %k.3
    %k.5 := slt i32 %k.0, 80
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
    %k.9 := eq i32 %k.8, 3
    %k.10 := select i32 %k.9, 0, %k.8
    yield {scalars = (%i, %k.10), values = (%e,)}
  }
  store &y[#0*16 + #1] of 16x16 along (1, 0) by 8, %y
}
"""


WGMMA = """gpu @run sm_90a warps(8) threads(288) launch(1, 1, 1) {
  slot @0: 32768 bytes align 1024 at 0
  slot @1: 8192 bytes align 1024 at 32768
  slot @2: 64 bytes align 16 at 40960
  layout #l0 = 128x64 regs 8*(0, 8) 2*(8, 0) 2*(0, 1) lanes (0, 2) (0, 4) (1, 0) (2, 0) (4, 0) \
warps (16, 0) (32, 0) (64, 0)
  layout #l1 = 64x64 regs 8*(0, 8) lanes (0, 1) (0, 2) (0, 4) (1, 0) (2, 0) warps (4, 0) (8, 0) \
(16, 0)
  given %c: f32[128x64] #l0
  given %w: f16[64x64] #l1
  given %one
  given %turn

"""
ISSUED = """  %a = wgmma f16, @0<f16 128x64 inner 1>, @1<f16 64x64 inner 1> {grid = \
WarpGrid{m = 128, n = 64, warps_m = 8, warps_n = 1, wgmma = true, warps_k = 1, depth = 16, \
run = 0}, k = 64, acc = %sum} : f32[128x64] #l0
"""
WAITED = f"""  alloc @1
  %y = for 512, (0, 0, 0), (%c,) {{certain = true, stages = 4, in_flight = 1}} : f32[128x64] #l0 \
body (%k, %stage, %phase, %sum: f32[128x64] #l0) {{
    write_tile @1<f16 64x64 inner 1>, %w
  {ISSUED}    %b = wgmma_wait {{values = (%a,)}} : f32[128x64] #l0
    %at := mul i32 %stage, 8
    %empty = address @2 {{offset = %at}}
    mbarrier_arrive %empty, %one
    free @1
    %i := add i32 %k, 64
    %next := add i32 %stage, 1
    yield {{scalars = (%i, %next, %phase), values = (%b,)}}
  }}
  mbarrier_arrive %turn, %one
  %z = cast %y : f16[128x64] #l0
}}
"""
FLYING = f"""  alloc @1
  %y.flying = for 512, (0, 0, 0), (%c,) {{certain = true}} : f32[128x64] #l0 \
body (%k, %stage, %phase, %sum: f32[128x64] #l0) {{
    wgmma_wait
    write_tile @1<f16 64x64 inner 1>, %w
  {ISSUED}    %b = wgmma_wait {{values = (%a,), pending = 1}} : f32[128x64] #l0
    %k.0 := ne i32 %k, 0
    %k.1 := eq i32 %stage, 0
    %k.2 := sub i32 %stage, 1
    %k.3 := select i32 %k.1, 3, %k.2
    %at.before := mul i32 %k.3, 8
    %empty.before = address @2 {{offset = %at.before}}
    %k.4 := and i1 %one, %k.0
    mbarrier_arrive %empty.before, %k.4
    %i := add i32 %k, 64
    %next := add i32 %stage, 1
    yield {{scalars = (%i, %next, %phase), values = (%b,)}}
  }}
  mbarrier_arrive %turn, %one
  %y = wgmma_wait {{values = (%y.flying,)}} : f32[128x64] #l0
  free @1
  %z = cast %y : f16[128x64] #l0
}}
"""


def loop(stop: str = "80") -> Program:
    """The sum of tiles, each brought when it is its turn."""
    head = HEAD if stop.startswith("%") else HEAD.replace("  given %n\n", "")
    return parse_program(head + LOOP.replace("STOP", stop))


def test_copies_go_ahead_around_a_ring() -> None:
    program = loop()
    expand_loops(program)
    assert print_program(program).partition("\n\n")[2] == AHEAD


def test_a_range_that_is_not_known_is_asked_for_in_front_of_the_loop() -> None:
    """Each of the first groups is copied where there is such an iteration, and counts anyhow."""
    program = loop("%n")
    expand_loops(program)
    front = print_program(program).partition(" = for ")[0]
    assert front.count("where ") == front.count("copy_async") == 2
    assert front.count("\n  commit_copies") == 2


@pytest.mark.parametrize("ahead", [False, True])
def test_both_forms_are_right(ahead: bool, rng: np.random.Generator) -> None:
    """A loop is a program of its own without the pass, and means the same."""
    program = loop()
    if ahead:
        expand_loops(program)
    insert_barriers(program)
    verify(program)
    verify_protocol(program)
    x = rng.integers(-8, 8, 1280).astype(np.float16)
    arrays = {"x": x, "y": np.zeros(256, np.float16)}
    simulate(program, arrays)
    np.testing.assert_array_equal(arrays["y"], x.reshape(5, 256).sum(0))


def test_matmuls_run_on() -> None:
    """The stage of the iteration before is given back; what threads overwrite is read by then, by
    the other warp group too; the other program may begin before the last matmul is complete."""
    program = parse_program(WGMMA + WAITED)
    leave_in_flight(program)
    expand_loops(program)
    assert print_program(program).partition("\n\n")[2] == FLYING
    insert_barriers(program)
    (loop,) = [op for op in program.body.ops if isinstance(op, For)]
    assert [op.opcode for op in loop.body.ops[:5]] == [
        "wgmma_wait", "barrier", "write_tile", "barrier", "wgmma",
    ]  # fmt: skip


def test_the_last_stage_is_given_back_to_who_waits_for_it() -> None:
    """In another block; where no other program follows, this block's producer does not wait."""
    text = WAITED.replace("%empty, %one", "%empty, %one {block = 1}")
    program = parse_program(WGMMA + text)
    leave_in_flight(program)
    expand_loops(program)
    behind = print_program(program).partition("%y = wgmma_wait")[2].splitlines()[1:-1]
    assert [line.strip() for line in behind[:6]] == [
        "%k.0 := eq i32 %next, 0",
        "%k.1 := sub i32 %next, 1",
        "%k.2 := select i32 %k.0, 3, %k.1",
        "%at.last := mul i32 %k.2, 8",
        "%empty.last = address @2 {offset = %at.last}",
        "mbarrier_arrive %empty.last, %one {block = 1}",
    ]


SCHEDULED = """gpu @sum sm_80 warps(1) threads(32) launch(1, 1, 1) {
  buffer x: input f16[SIZE]
  buffer w: constant f16[SIZE]
  buffer y: output f16[256]
  slot @0: 2048 bytes align 1024 at 0
  layout #l0 = 16x16 regs 8*(0, 1) lanes (0, 8) (1, 0) (2, 0) (4, 0) (8, 0) warps

  %zero := ctaid.x i32
  %n := add i32 %zero, STOP
  alloc @0
  %s = full {value = 0} : f16[16x16] #l0
  %y = for %n, (0,), (%s,) {stages = 4CERTAIN} : f16[16x16] #l0 body (%k in [0, 64] by 16, \
%c: f16[16x16] #l0) {
    %at in [0, 64] by 16 := add i32 %k, 0
    copy_async &x[%at*16 + #0*16 + #1] of 16x16 along (1, 0) by 8, @0<f16 16x16 inner 1>, #l0COPIED
    commit_copiesCOPIED
    wait_copies
    %t = read_tile @0<f16 16x16 inner 1> : f16[16x16] #l0
    %e = map.add (%c, %t) : f16[16x16] #l0
    %w = load &w[%at*16 + #0*16 + #1] of 16x16 along (1, 0) by 8 {constant = trueLOADED} \
: f16[16x16] #l0
    %f = map.add (%e, %w) : f16[16x16] #l0
    %i := add i32 %k, 16
    yield {scalars = (%i,), values = (%f,)}
  }
  store &y[#0*16 + #1] of 16x16 along (1, 0) by 8, %y
}
"""


@pytest.mark.parametrize("copied", [-3, -1, 0])
@pytest.mark.parametrize("loaded", ["-1", "-3, order = 9", "-2, where = 1", "0"])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_copies_and_loads_of_any_stages(
    count: int, loaded: str, copied: int, rng: np.random.Generator
) -> None:
    """Each of them so many iterations ahead, in one loop: of fewer iterations too. Nobody reads
    past the last one."""
    size = max(8, 256 * count)
    text = SCHEDULED.replace("SIZE", f"{size}").replace("STOP", f"{16 * count}")
    text = text.replace("CERTAIN", ", certain = true" if count else "")
    text = text.replace("COPIED", f" {{stage = {copied}, order = 4}}" if copied else "")
    text = text.replace("LOADED", f", stage = {loaded}")
    program = parse_program(text)
    expand_loops(program)
    assert not any(isinstance(op, Scheduled) and op.stage for op in program.walk())
    insert_barriers(program)
    verify(program)
    verify_protocol(program)
    x, w = (rng.integers(-8, 8, size).astype(np.float16) for _ in range(2))
    arrays = {"x": x, "w": w, "y": np.zeros(256, np.float16)}
    simulate(parse_program(print_program(program)), arrays, late=True)
    want = (x + w)[: 256 * count].reshape(count, 256).sum(0)
    np.testing.assert_array_equal(arrays["y"], want)


KERNELS: dict[str, Callable[[], Kernel]] = {
    "copies": lambda: kernels.matmul(128, 128, 512, f16, (64, 64, 64), roles=False),
    "ring": lambda: kernels.matmul(128, 128, 512, f16, (64, 64, 64)),
    "group": lambda: kernels.gated(256, 256, 512, warps=4),
    "odd k": lambda: kernels.matmul(64, 64, 201, f16, (64, 64, 64), epilogue=False),
    "odd k, copies": lambda: kernels.matmul(
        256, 128, 513, f16, (128, 64, 64), warps=8, roles=False, epilogue=False),
    "inner k": lambda: kernels.matmul(
        256, 128, 512, i8, (128, 64, 64), warps=8, roles=False, epilogue=False, out=i32),
    "persistent": lambda: kernels.matmul(
        4096, 4096, 768, f16, (128, 128, 64), persistent=True, teams=2),
    "neighbours": lambda: kernels.matmul(
        1000, 1000, 1000, f16, (64, 128, 64), neighbours=(2, 1), transpose_b=True),
}  # fmt: skip


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_hold_with_and_without(
    name: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded is right as it stands. (A past bug, "odd k, copies" and "inner k": an
    operand was overwritten that the other warp group's matmul still read.)"""
    if plain:
        left_out = ("expand loops", "wgmma waits")
        kept = [item for item in pipeline.PASSES if item.name not in left_out]
        monkeypatch.setattr(pipeline, "PASSES", kept)
    program = lower_to_gpu(KERNELS[name](), SM_90A)
    assert plain != any(isinstance(op, WgmmaWait) and op.pending for op in program.walk())
    verify(program)
    verify_protocol(program)
