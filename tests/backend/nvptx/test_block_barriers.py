"""Where the pass over the GPU IR sets barriers of the block, on programs as text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fuser.backend.nvptx import gpu_text
from fuser.backend.nvptx.ir.op import Block
from fuser.backend.nvptx.ir.ops import Barrier, Where
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.memory import block_barriers
from fuser.backend.nvptx.memory.block_barriers import insert_barriers
from fuser.base.target import SM_90A
from fuser.dtypes import f32, i32
from fuser.errors import LoweringError
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index, axis, index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value
from tests.backend.nvptx import language_kernels
from tests.backend.nvptx.test_language import KERNELS as OF_CALLERS
from tests.backend.nvptx.test_simulate import KERNELS, text_of

HEAD = """gpu @order sm_80 warps(2) threads(64) launch(1, 1, 1) {
  buffer x: input f16[4096]
  buffer y: output f32[4096]
  slot @0: 256 bytes align 16 at 0
  slot @1: 256 bytes align 16 at AT
  slot @2: 4096 bytes align 1024 at 1024
  layout #l0 = 64 regs lanes (1) (2) (4) (8) (16) warps (32)
  layout #l1 = 32x32 regs 8*(0, 1) 2*(16, 0) lanes (0, 8) (0, 16) (1, 0) (2, 0) (4, 0) warps (8, 0)
  given %w

  alloc @0
  alloc @1
  alloc @2
  %x = full {value = 1} : f32[64] #l0
  %t = full {value = 1} : f16[32x32] #l1
"""
WRITE, READ = "write_dense @{0}, %x {{steps = (4,)}}", "%r{1} = read_dense @{0} : f32[64] #l0"


def order(body: str, at: int = 256) -> str:
    """The ops after the head, those that do something to memory, by their names; barriers where
    the pass has set them. A line `w0` writes slot 0, `r1` reads slot 1."""
    number = iter(range(100))
    lines = re.sub(
        r"\b([wr])([01])$",
        lambda found: (WRITE if found[1] == "w" else READ).format(found[2], next(number)),
        body, flags=re.M,
    )  # fmt: skip
    program = parse_program(HEAD.replace("AT", str(at)) + lines + "\n}\n")
    insert_barriers(program)

    def words(block: Block) -> str:
        found = []
        for op in block.ops:
            slots = "".join(str(slot.number) for slot in op.slots())
            inner = " ".join(f"({words(other)})" for other in op.blocks())
            word = "|" if isinstance(op, Barrier) else f"{op.opcode[0]}{slots}{inner}"
            if word == "|" or slots or inner or op.opcode in ("load", "store"):
                found.append(word)
        return " ".join(found)

    return words(program.body).removeprefix("a0 a1 a2").strip()


def test_reads_and_writes_of_one_slot() -> None:
    """What was written is read, and what was read or written is overwritten, after a barrier."""
    assert order("w0\nr0\nr0\nw0\nw0\nr0") == "w0 | r0 r0 | w0 | w0 | r0"


def test_slots_at_one_place_are_one() -> None:
    assert order("w0\nr0\nw1\nr1") == "w0 | r0 w1 | r1"
    assert order("w0\nr0\nw1\nr1", at=128) == "w0 | r0 | w1 | r1"


def test_one_barrier_serves_all_that_is_pending() -> None:
    assert order("w0\nw1\nr0\nr1\nw0\nw1") == "w0 w1 | r0 r1 | w0 w1"


LOOP = "for 4, (0,), () body (%k) {{\n{0}\n%n := add i32 %k, 1\nyield {{scalars = (%n,)}}\n}}"


def test_an_iteration_meets_the_one_before() -> None:
    assert order(LOOP.format("w0\nr0")) == "f(| w0 | r0)"
    assert order(LOOP.format("w0")) == "f(| w0)"
    assert order(LOOP.format("r0")) == "f(r0)"


def test_what_the_loop_does_not_do_again_is_met_in_front_of_it() -> None:
    assert order("w0\n" + LOOP.format("r0")) == "w0 | f(r0)"
    assert order("w0\n" + LOOP.format("w1\nr1")) == "w0 f(| w1 | r1)"
    assert order("w0\n" + LOOP.format("w1\nr0\nr1")) == "w0 f(| w1 r0 | r1)"
    assert order(LOOP.format("w0\nr0") + "\nw0") == "f(| w0 | r0) | w0"


def test_where_not_all_threads_come_there_is_none() -> None:
    """It is before what they do; integers stay with that."""
    assert order("w0\n%c := eq i32 %w, 0\nwhere %c body {\nr0\n}") == "w0 | w(r0)"
    with pytest.raises(LoweringError, match="where not all threads come"):
        order("%c := eq i32 %w, 0\nwhere %c body {\nw0\nr0\n}")


def test_both_ways_of_a_branch_count() -> None:
    branch = "%c := eq i32 %w, 0\nif %c then {\n{0}\nyield\n} other {\n{1}\nyield\n}\n"
    take = branch.replace("{0}", "w0").replace("{1}", "r1")
    assert order(take + "r0") == "i(w0) (r1) | r0"
    assert order(take + "w1") == "i(w0) (r1) | w1"
    assert order(take + "r1") == "i(w0) (r1) r1"


COPY = "copy_async &x[#0*32 + #1] of 32x32 along (1, 0) by 8, @2<f16 32x32 inner 1>{0}, #l1"
TILE = "%t{1} = read_tile @2<f16 32x32 inner 1>{0} : f16[32x32] #l1"


def test_copies_count_from_the_wait() -> None:
    copy, read = COPY.format(""), TILE.format("", 0)
    assert order(f"{copy}\ncommit_copies\nw0\nr0\nwait_copies\n{read}") == "c2 w0 | r0 | r2"


@pytest.mark.parametrize("other, due", [("xor i32 %s, 1", 1), ("add i32 %s, 0", 2)])
def test_stages_of_a_ring_are_told_apart(other: str, due: int) -> None:
    """What is written is not what is read, for every stage that the loop goes through."""
    body = f"""for 8, (0, 0), () body (%k, %s) {{
    %a := mul i32 %s, 2048
    {TILE.format("[%a]", 1)}
    %o := {other}
    %b := mul i32 %o, 2048
    write_tile @2<f16 32x32 inner 1>[%b], %t
    %n := add i32 %k, 1
    %f := xor i32 %s, 1
    yield {{scalars = (%n, %f)}}
    }}"""
    assert order(body).count("|") == due


GLOBAL = "{0} = load &y[{1}] of 64 along (0) by 1 : f32[64] #l0"
STORE = "store &y[{0}] of 64 along (0) by 1, %x"


def test_threads_meet_their_own_elements_without_a_barrier() -> None:
    assert order(STORE.format("#0") + "\n" + GLOBAL.format("%a", "#0")) == "s l"
    assert order(STORE.format("#0") + "\n" + GLOBAL.format("%a", "#0 + 1")) == "s | l"


@pytest.mark.parametrize("step, found", [(64, "f(l s)"), (63, "f(| l s)")])
def test_iterations_that_move_on_do_not_meet(step: int, found: str) -> None:
    at = f"%k*{step} + #0"
    assert order(LOOP.format(GLOBAL.format("%a", at) + "\n" + STORE.format(at))) == found


@pytest.mark.parametrize("name", [*KERNELS, *OF_CALLERS])
def test_text_has_all_that_is_needed(name: str) -> None:
    """Nothing more is due in a program that is read back; and in one of plain threads, whose
    barriers are left out, the same ones are set again."""
    try:
        text = text_of(name) if name in KERNELS else gpu_text(OF_CALLERS[name](), SM_90A)
    except LoweringError:
        pytest.skip("another target")
    program = parse_program(text)
    insert_barriers(program)
    assert print_program(program) == text
    if "mbarrier_init" in text:
        return
    for op in program.body.walk():
        for block in op.blocks():
            block.ops[:] = [inner for inner in block.ops if not isinstance(inner, Barrier)]
    program.body.ops[:] = [op for op in program.body.ops if not isinstance(op, Barrier)]
    insert_barriers(program)
    assert print_program(program) == text
    inside = [op for op in program.body.walk() if isinstance(op, Where)]
    assert not any(isinstance(op, Barrier) for where in inside for op in where.body.walk())


@pytest.mark.parametrize("depth", [3, 6])
def test_loops_in_loops_do_not_multiply_the_work(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop is asked what its body leaves by all loops around it: it answers equal questions
    once. Without that, iterations were 6**depth."""
    walked = 0
    original = block_barriers._Barriers.iteration

    def counted(self: Any, op: Any, pending: Any) -> Any:
        nonlocal walked
        walked += 1
        return original(self, op, pending)

    monkeypatch.setattr(block_barriers._Barriers, "iteration", counted)
    gpu_text(nested(depth), SM_90A)
    assert depth <= walked <= 8 * depth**3


def nested(depth: int) -> Kernel:
    """Loops in each other, of a caller's number of iterations; the innermost one reads what other
    threads have stored in the iteration before."""
    b = Builder("nested", Schedule(warps=4))
    x, y = language_kernels.pointer(b, "x", f32), language_kernels.pointer(b, "y", f32, "output")
    n = b.scalar("n", i32)

    def inside(left: int, at: Index, acc: Value) -> Value:
        if left:
            (total,) = b.loop(
                0, index(n), 1, [acc],
                lambda i, carried: [inside(left - 1, at + index(i) * 128, carried)],
            )  # fmt: skip
            return total
        total = b.reduce("sum", b.load(x, (at + axis(0, 128),), (128,)), 0)
        b.store(y, (at + axis(0, 128),), b.map("add", acc, b.broadcast(total, (128,), ())))
        return b.map("add", acc, b.load(y, (at + 127 - axis(0, 128),), (128,)))

    b.store(y, (axis(0, 128),), inside(depth, Index(0), b.full(0, (128,), f32)))
    return b.build()
