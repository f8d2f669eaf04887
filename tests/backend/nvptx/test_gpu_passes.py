"""Passes over the GPU IR, each on a program as text."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fuser.backend.nvptx import gpu_text, lower_to_llvm
from fuser.backend.nvptx.ir.cse import merge_common
from fuser.backend.nvptx.ir.layout_text import layout_text
from fuser.backend.nvptx.ir.ops import (
    AwaitPrevious,
    Barrier,
    ConvertLayout,
    For,
    WarpRoles,
    Where,
    While,
)
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.ir.unused_integers import drop_unused
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.layouts.expand_conversions import expand_conversions
from fuser.backend.nvptx.layouts.layout import blocked
from fuser.backend.nvptx.memory.block_barriers import insert_barriers
from fuser.backend.nvptx.memory.proxy_fences import fence_proxies
from fuser.backend.nvptx.memory.shared_allocation import place_slots
from fuser.backend.nvptx.prefetch.launch_overlap import overlap_launches
from fuser.backend.nvptx.prefetch.register_staging import stage_through_registers
from fuser.backend.nvptx.schedule.group_reductions import group_reductions
from fuser.backend.nvptx.schedule.wgmma_groups import close_groups
from fuser.backend.nvptx.simulate import simulate
from fuser.base.target import SM_80, SM_90A
from fuser.dtypes import f16, f32
from fuser.errors import VerifyError
from tests.backend.nvptx import kernels

SLOTS = """gpu @slots sm_90a warps(1) threads(32) launch(1, 1, 1) {
  slot @0: 20090 bytes align 16 at 0
  slot @1: 4096 bytes align 128 at 0
  slot @2: 2048 bytes align 16 at 0
  slot @3: 1040 bytes align 16 at 0

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
    %tid := tid.x i32
    %s0 := ctaid.x i32
    %s1 := and i32 %tid, 31
    %s2 := eq i32 %s1, 0
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
    assert [slot.offset for slot in program.slots] == [0, 20096, 0, 0]
    assert program.shared_bytes == 20096 + 4096


def test_what_is_written_from_outside_keeps_its_room() -> None:
    """A slot that other blocks may write before it is allocated here overlaps none."""
    program = parse_program(re.sub("(@3: 1040 bytes align 16 at 0)", r"\1 early", SLOTS))
    place_slots(program)
    three = program.slots[3]
    assert all(three.offset >= o.offset + o.bytes or o.offset >= three.offset + 1040
               for o in program.slots[:3])  # fmt: skip


def test_what_a_loop_frees_and_has_again_keeps_its_room() -> None:
    """@0 is there in the next iteration too; @2 is made anew in each."""
    text = SLOTS.replace(
        "  free @0\n  alloc @2\n",
        """\
  for 4, (0,), () body (%i) {
    free @0
    alloc @2
    free @2
    %j := add i32 %i, 1
    yield {scalars = (%j,)}
  }
""",
    ).replace("  free @1\n  free @2\n", "  free @1\n")
    program = parse_program(text)
    place_slots(program)
    assert [slot.offset for slot in program.slots] == [0, 20096, 24192, 20096]
    assert "free @0" not in print_program(program)


REDUCTIONS = """gpu @reductions sm_90a warps(2) threads(64) launch(1, 1, 1) {
  slot @0: 8 bytes align 16 at 0
  slot @1: 8 bytes align 16 at 0
  slot @2: 8 bytes align 16 at 0
  layout #l0 = regs lanes () () () () () warps ()

  %x0 = full {value = 1.0} : f32[] #l0
  alloc @0
  write_parts @0, (%x0,) {bits = (0,)}
  %p1, %p2 = read_parts @0 {parts = (0, 1), count = 1} : f32[] #l0, f32[] #l0
  free @0
  %a3 = fold_parts.sum (%p1, %p2) : f32[] #l0
  %y4 = map.mul (%x0, %x0) : f32[] #l0
  alloc @1
  write_parts @1, (%y4,) {bits = (0,)}
  %p5, %p6 = read_parts @1 {parts = (0, 1), count = 1} : f32[] #l0, f32[] #l0
  free @1
  %z7 = map.sub (%x0, %a3) : f32[] #l0
  alloc @2
  write_parts @2, (%z7,) {bits = (0,)}
  %p8, %p9 = read_parts @2 {parts = (0, 1), count = 1} : f32[] #l0, f32[] #l0
  free @2
}
"""


def test_reductions_cross_the_block_together_where_neither_needs_the_other() -> None:
    """That of y goes up to that of x; that of z, which needs what that gives, to that of y."""
    program = parse_program(REDUCTIONS)
    group_reductions(program)
    order = re.findall(r"(write|read)_parts @(\d)", print_program(program))
    assert ["".join(item) for item in order] == [
        "write0", "write1", "read0", "write2", "read1", "read2",
    ]  # fmt: skip
    place_slots(program)
    insert_barriers(program)
    assert print_program(program).count("barrier") == 3  # of five: @2 lies where @0 was


def test_the_wait_is_behind_the_barriers() -> None:
    """Barriers of stages are made before the previous kernel has ended; constants need no wait."""
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


ROLES = {"x": "input", "y": "output", "z": "output"}


def converting(body: str) -> str:
    """A program of a tile x of 16 rows and 32 columns. Layout #l0 has lanes along its rows, #l1
    along its columns, and #l2 is #l0 of the same elements in one row."""
    lines = [
        "gpu @converting sm_90a warps(2) threads(64) launch(1, 1, 1) {",
        *(f"  buffer {name}: {role} f32[512]" for name, role in ROLES.items()),
        f"  layout #l0 = {layout_text(blocked((16, 32), 2, (1, 0), 1))}",
        f"  layout #l1 = {layout_text(blocked((16, 32), 2, (0, 1), 1))}",
        f"  layout #l2 = {layout_text(blocked((512,), 2, (0,), 1))}",
        "  head {\n    %tid := tid.x i32\n  }",
        "  %x = load &x[#0*32 + #1] of 16x32 along (1, 0) by 1 : f32[16x32] #l0",
        *(f"  {line}" for line in body.splitlines()),
        "}",
    ]
    return "\n".join(lines) + "\n"


def stored(name: str, tile: str) -> str:
    return f"store &{name}[#0*32 + #1] of 16x32 along (1, 0) by 1, {tile}"


def opcodes(program: Program) -> list[str]:
    return [op.opcode for op in program.body.walk()]


def run_through(text: str, window: int = 0) -> dict[str, np.ndarray]:
    """What a program that changes layouts leaves in memory, after the passes that it takes."""
    program = parse_program(text)
    verify(program)
    merge_common(program)
    expand_conversions(program, window)
    place_slots(program)
    insert_barriers(program)
    verify(program)
    arrays = {"x": np.arange(512, dtype=np.float32)}
    arrays |= {b.name: np.zeros(512, np.float32) for b in program.buffers if b.name != "x"}
    simulate(program, arrays, seed=1, late=True)
    return arrays


def test_equal_conversions_are_merged_where_the_first_is_done() -> None:
    """In the blocks inside of the one that has it, not in those beside that."""
    convert = "= convert_layout %x : f32[16x32] #l1"
    body = f"""\
%c := slt i32 %tid, 64
if %c then {{
  %a {convert}
  {stored("y", "%a")}
  yield
}} other {{
  %b {convert}
  where %c body {{
    %d {convert}
    {stored("y", "%d")}
  }}
  yield
}}
%e {convert}
{stored("z", "%e")}"""
    program = parse_program(converting(body))
    merge_common(program)
    assert opcodes(program).count("convert_layout") == 3
    text = print_program(program)
    assert stored("y", "%b") in text and stored("z", "%e") in text
    verify(program)


def test_conversions_of_what_a_loop_finds_are_done_before_it() -> None:
    """Also out of loops in loops, and once for those that follow; not of what an iteration makes,
    nor out of a branch, which may not be taken."""
    body = f"""\
%n := slt i32 %tid, 32
%r = for 2, (0,), (%x,) : f32[16x32] #l0 body (%i, %p: f32[16x32] #l0) {{
  for 2, (0,), () body (%k) {{
    %a = convert_layout %x : f32[16x32] #l1
    %b = convert_layout %p : f32[16x32] #l1
    %s = map.add (%a, %b) : f32[16x32] #l1
    {stored("y", "%s")}
    where %n body {{
      %c = convert_layout %x {{flat = true}} : f32[512] #l2
      store &z[#0] of 512 along (0) by 1, %c
    }}
    %l := add i32 %k, 1
    yield {{scalars = (%l,)}}
  }}
  %q = map.add (%p, %x) : f32[16x32] #l0
  %j := add i32 %i, 1
  yield {{scalars = (%j,), values = (%q,)}}
}}
%d = convert_layout %x : f32[16x32] #l1
{stored("z", "%d")}"""
    program = parse_program(converting(body))
    merge_common(program)
    outer = next(op for op in program.body.ops if isinstance(op, For))
    inner = next(op for op in outer.body.ops if isinstance(op, For))
    for block, names in ((program.body, ["%a"]), (outer.body, ["%b"]), (inner.body, [])):
        assert [op.tile.name for op in block.ops if isinstance(op, ConvertLayout)] == names
    verify(program)
    found = run_through(converting(body))
    np.testing.assert_array_equal(found["y"], 3 * found["x"])
    np.testing.assert_array_equal(found["z"], found["x"])


def test_the_body_of_a_while_loop_converts_what_its_head_makes() -> None:
    body = f"""\
while (), (), () head {{
  %h = map.add (%x, %x) : f32[16x32] #l0
  condition 0
}} body {{
  %a = convert_layout %h : f32[16x32] #l1
  {stored("y", "%a")}
  yield
}}"""
    program = parse_program(converting(body))
    merge_common(program)
    loop = program.body.ops[-1]
    assert isinstance(loop, While)
    assert [op.opcode for op in loop.body.ops] == ["convert_layout", "store", "yield"]


def test_a_conversion_before_a_loop_serves_its_iterations() -> None:
    """And what is made of equal ones is equal."""
    body = f"""\
%a = convert_layout %x : f32[16x32] #l1
%s = map.mul (%a, %a) : f32[16x32] #l1
for 2, (0,), () body (%i) {{
  %b = convert_layout %x : f32[16x32] #l1
  %t = map.mul (%b, %b) : f32[16x32] #l1
  {stored("y", "%t")}
  %j := add i32 %i, 1
  yield {{scalars = (%j,)}}
}}
{stored("z", "%s")}"""
    program = parse_program(converting(body))
    merge_common(program)
    assert opcodes(program) == [
        "load", "convert_layout", "map", "for", "store", "integer", "yield", "store",
    ]  # fmt: skip
    found = run_through(converting(body))
    np.testing.assert_array_equal(found["y"], found["x"] ** 2)
    np.testing.assert_array_equal(found["z"], found["x"] ** 2)


@pytest.mark.parametrize(
    "one, other",
    [
        ("full {value = 0.0} : f32", "full {value = -0.0} : f32"),
        ("full {value = 1} : i32", "full {value = 1} : i64"),
        ("map.add (%x, %x) : f32", "map.mul (%x, %x) : f32"),
        ("map.sub (%x, %w) : f32", "map.sub (%w, %x) : f32"),
    ],
)
def test_what_differs_is_not_merged(one: str, other: str) -> None:
    body = f"""\
%w = map.exp (%x,) : f32[16x32] #l0
%a = {one}[16x32] #l0
%b = {other}[16x32] #l0
%c = {one}[16x32] #l0"""
    program = parse_program(converting(body))
    merge_common(program)
    assert [op.tile.name for op in program.body.ops] == ["%x", "%w", "%a", "%b"]


def test_conversions_become_what_they_are() -> None:
    """Registers are renamed where every thread has what it needs; else a tile goes through a slot
    of its own, in vectors, or element by element where its shape changes."""
    body = f"""\
%a = convert_layout %x : f32[16x32] #l1
%b = convert_layout %a : f32[16x32] #l0
%c = convert_layout %b {{flat = true}} : f32[512] #l2
%d = convert_layout %a {{flat = true}} : f32[512] #l2
%e = map.add (%c, %d) : f32[512] #l2
store &y[#0] of 512 along (0) by 1, %e
{stored("z", "%b")}"""
    program = parse_program(converting(body))
    expand_conversions(program)
    through = ["alloc", "write_shared", "read_shared", "free"]
    dense = ["alloc", "write_dense", "read_dense", "free"]
    assert opcodes(program) == [
        "load", *through, *through, "relabel", *dense, "map", "store", "store",
    ]  # fmt: skip
    assert [slot.number for slot in program.slots] == [0, 1, 2]
    found = run_through(converting(body))
    np.testing.assert_array_equal(found["y"], 2 * found["x"])
    np.testing.assert_array_equal(found["z"], found["x"])


@pytest.mark.parametrize("window, count", [(4 * 512, 1), (4 * 100, 6)])
def test_conversions_go_by_windows_where_memory_is_short(window: int, count: int) -> None:
    """As many elements at a time as have room, and the same result; what is in registers stays."""
    body = f"""\
%a = convert_layout %x : f32[16x32] #l1
%b = convert_layout %x {{flat = true}} : f32[512] #l2
{stored("y", "%a")}
store &z[#0] of 512 along (0) by 1, %b"""
    program = parse_program(converting(body))
    expand_conversions(program, window)
    windows = ["write_window", "read_window"] * count
    assert opcodes(program) == [
        "load", "alloc", *windows, "free", "relabel", "store", "store",
    ]  # fmt: skip
    assert program.slots[0].bytes == window + 4
    found = run_through(converting(body), window)
    np.testing.assert_array_equal(found["y"], found["x"])
    np.testing.assert_array_equal(found["z"], found["x"])


def test_slots_of_conversions_are_in_order_of_allocation() -> None:
    """Offsets are chosen in that order, so it is part of what a program is."""
    body = """\
alloc @7
free @7
%a = convert_layout %x : f32[16x32] #l1
alloc @4
free @4"""
    text = converting(body).replace("  layout #l0", "  slot @4: 64 bytes align 16 at 0\n"
                                    "  slot @7: 32 bytes align 16 at 0\n  layout #l0")  # fmt: skip
    program = parse_program(text)
    expand_conversions(program)
    assert [slot.bytes for slot in program.slots[::2]] == [32, 64]
    assert [slot.number for slot in program.slots] == [0, 1, 2]


def test_consumer_groups_convert_apart() -> None:
    """Groups with a program each have a slot each."""
    text = converting("""\
warp_roles {threads = 128, warps = 1, registers = none} producer {
} consumer {
  %a = convert_layout %x : f32[16x32] #l1
}""").replace("threads(64)", "threads(160)")
    program = parse_program(text)
    expand_conversions(program)
    (slot,) = program.slots
    assert slot.copies == 2 and slot.size >= 2 * slot.bytes


@pytest.mark.parametrize("made", ["f16[16x32] #l1", "f32[32x16] #l1"])
def test_a_conversion_gives_the_same_elements(made: str) -> None:
    program = parse_program(converting(f"%a = convert_layout %x : {made}"))
    with pytest.raises(VerifyError, match="%x has other elements than the result"):
        verify(program)


TILE = """gpu @tile sm_90a warps(4) threads(128) launch(1, 1, 1) {
  slot @0: 8192 bytes align 1024 at 0
  slot @1: 8192 bytes align 1024 at 8192
  layout #l0 = 64x64 regs 8*(0, 8) 2*(8, 0) 2*(0, 1) lanes (0, 2) (0, 4) (1, 0) (2, 0) (4, 0) \
warps (16, 0) (32, 0)

  alloc @0
  alloc @1
  wait_copies
  %x0 = full {value = 0} : f16[64x64] #l0
  write_tile @0<f16 64x64 inner 1>, %x0
  barrier
  write_tile @0<f16 64x64 inner 1>, %x0
  barrier
  %a = wgmma f16, @0<f16 64x64 inner 1>, @1<f16 64x64 inner 0> GRID : f32[64x64] #l0
  %b = wgmma f16, @0<f16 64x64 inner 1>, @1<f16 64x64 inner 0> GRID : f32[64x64] #l0
  %c = wgmma f16, @0<f16 64x64 inner 1>, @1<f16 64x64 inner 0> GRID : f32[64x64] #l0
  %x, %y = wgmma_wait {values = (%a, %b), pending = 1} : f32[64x64] #l0, f32[64x64] #l0
  %z = wgmma_wait {values = (%c,)} : f32[64x64] #l0
}
""".replace("\\\n", "").replace(
    "GRID",
    "{grid = WarpGrid{m = 64, n = 64, warps_m = 4, warps_n = 1, wgmma = true, warps_k = 1, "
    "depth = 16}, k = 64}",
)


def words(text: str) -> list[str]:
    """The opcodes of a program's body, in order."""
    lines = [line.strip().split(" {")[0] for line in text.partition("alloc @1\n")[2].splitlines()]
    return [
        re.sub(r"^(%\w+(, )?)+ = ", "", line).split()[0] for line in lines if line[:1] not in "}"
    ]


def test_what_one_wait_gives_is_a_group() -> None:
    """One fence before both groups, which follow each other; a commit after each."""
    program = parse_program(TILE)
    close_groups(program)
    assert words(print_program(program))[6:] == [
        "wgmma_fence", "wgmma", "wgmma", "wgmma_commit", "wgmma", "wgmma_commit", "wgmma_wait",
        "wgmma_wait",
    ]  # fmt: skip


def test_writes_are_shown_to_matrix_units() -> None:
    """After a wait for copies, and after the last write to a slot; not without such units."""
    program = parse_program(TILE)
    fence_proxies(program)
    assert words(print_program(program))[:8] == [
        "wait_copies", "fence_async", "full", "write_tile", "barrier", "write_tile", "fence_async",
        "barrier",
    ]  # fmt: skip
    alone = parse_program(re.sub(r".* = wgmma.*\n", "", TILE))
    fence_proxies(alone)
    assert "fence_async" not in print_program(alone)


@pytest.mark.parametrize("name", ["gated", "chained", "odd k"])
def test_fences_and_commits_of_kernels_are_those_of_the_passes(name: str) -> None:
    """Taken out of a kernel, they come back where they were."""
    text = gpu_text({
        "gated": lambda: kernels.gated(256, 256, 512, warps=4),
        "chained": lambda: kernels.attention(2, 512, 512, 64),
        "odd k": lambda: kernels.matmul(64, 64, 201, blocks=(64, 64, 64), epilogue=False),
    }[name](), SM_90A)  # fmt: skip
    bare = re.sub(r" +(wgmma_fence|wgmma_commit|fence_async)\b.*\n", "", text)
    program = parse_program(bare)
    close_groups(program)
    fence_proxies(program)
    found = print_program(program)

    def plain(text: str) -> list[str]:
        return [line.partition("    #")[0] for line in text.splitlines()]

    assert plain(found) == plain(text) and bare.count("\n") < text.count("\n") - 1


def test_copies_go_through_registers() -> None:
    """A ring's copies are loads with the condition of their iteration, written after the matmul;
    those before the loop are written at once, and nobody waits for copies."""
    kernel = kernels.matmul(40, 36, 130, blocks=(32, 32, 32), warps=2, epilogue=False)
    program = parse_program(gpu_text(kernel, SM_80))
    stage_through_registers(program)
    text = print_program(program)
    assert not re.search("copy_async|commit_copies|wait_copies", text)
    front, _, loop = text.partition(" for ")
    assert front.count(" = load ") == front.count("write_tile") == 4
    body = loop.partition("    }")[0]
    order = re.findall(r"^    (?:%\w+ = )?(barrier|load|mma|write_tile|yield)", body, re.M)
    assert order == ["barrier", "load", "load", "mma", "write_tile", "write_tile", "yield"]
    assert len(re.findall(r"load .*where = %\w+", body)) == 2


@pytest.mark.parametrize("name", ["wide", "matmul"])
def test_roles_are_chosen_by_whole_warps(name: str) -> None:
    """The branch is by a number that ptxas knows to be the same in a warp: else descriptors of
    matmuls are moved from the registers of threads."""
    kernel = (
        kernels.matmul(1024, 1024, 1024, f32, (64, 64, 32), stages=4, wide=True)
        if name == "wide"
        else kernels.matmul(1024, 1024, 1024, f16, (128, 128, 64), warps=8)
    )
    text = lower_to_llvm(kernel, SM_90A)
    branch = re.search(r"br i1 (%\S+), label %producer\S+, label %consumer", text)
    assert branch is not None
    chosen = re.search(rf"{re.escape(branch[1])} = icmp uge i32 (%\S+), (\d+)\n", text)
    assert chosen is not None and int(chosen[2]) == kernel.schedule.warps
    assert re.search(rf"{re.escape(chosen[1])} = call i32 @llvm.nvvm.shfl.sync.idx.i32", text)
