"""Passes over the GPU IR, each on a program as text."""

from __future__ import annotations

import re

from fuser.backend.nvptx.ir.ops import AwaitPrevious, Barrier, WarpRoles, Where
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.passes.launch_overlap import overlap_launches
from fuser.backend.nvptx.passes.shared_allocation import place_slots
from fuser.backend.nvptx.passes.unused_integers import drop_unused

SLOTS = """gpu @slots sm_90a warps(1) threads(32) launch(1, 1, 1) {
  slot @0: 500 bytes align 16 at 0
  slot @1: 256 bytes align 128 at 0
  slot @2: 64 bytes align 16 at 0
  slot @3: 32 bytes align 16 at 0

  alloc @0
  alloc @1
  free @0
  alloc @2
  free @1
  free @2
  alloc @3
}
"""
PRODUCER = """gpu @producer sm_90a warps(4) threads(160) launch(1, 1, 1) {
  buffer x: input f16[4096]
  buffer w: constant f16[4096]
  slot @0: 16 bytes align 16 at 0

  head {
    %tid := call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
    %s0 := call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
    %s1 := and i32 %tid, 31
    %s2 := icmp eq i32 %s1, 0
  }
  alloc @0
  where %s2 body {
    %b = address @0
    mbarrier_init %b {count = 1}
  }
  barrier
  warp_roles {threads = 128, warps = 1, registers = none} producer {
  } consumer {
  }
}
"""


def test_slots_share_room_that_is_free() -> None:
    """@2 begins where @0 was, as @1 is still live; @3 where all is free again."""
    program = parse_program(SLOTS)
    place_slots(program)
    assert [slot.offset for slot in program.slots] == [0, 512, 0, 0]
    assert program.shared_bytes == 512 + 256


def test_what_is_written_from_outside_keeps_its_room() -> None:
    """A slot that other blocks may write before it is allocated here overlaps none."""
    program = parse_program(re.sub("(@3: 32 bytes align 16 at 0)", r"\1 early", SLOTS))
    place_slots(program)
    three = program.slots[3]
    assert all(three.offset >= o.offset + o.bytes or o.offset >= three.offset + 32
               for o in program.slots[:3])  # fmt: skip


def test_the_wait_is_behind_the_barriers() -> None:
    """Barriers of stages are made before the kernel in front has ended; constants need no wait."""
    program = parse_program(PRODUCER)
    overlap_launches(program)
    kinds = [type(op) for op in program.body.ops][1:]
    assert kinds == [Where, Barrier, AwaitPrevious, WarpRoles]
    wait = program.body.ops[3]
    assert isinstance(wait, AwaitPrevious) and [b.name for b in wait.buffers] == ["x"]


def test_integers_that_nothing_reads_go() -> None:
    """What others are made of stays."""
    program = parse_program(PRODUCER)
    drop_unused(program)
    assert [op.names[0] for op in program.head.ops] == ["%tid", "%s1", "%s2"]
