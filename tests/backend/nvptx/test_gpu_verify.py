"""The verifier of the GPU IR: every kernel passes, and what is broken is told."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from fuser.backend.nvptx import gpu_text, lower_to_gpu
from fuser.backend.nvptx.ir.ops import WarpRoles
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.backend.nvptx.tile_scheduler import stream_k_plan
from fuser.base.target import SM_90A
from fuser.dtypes import bf16, f16, f32
from fuser.errors import VerifyError
from fuser.graph.sizes import size_hint
from fuser.tilegen.ir import Kernel
from tests.backend.nvptx import kernels
from tests.backend.nvptx.test_simulate import KERNELS, MUTANTS, mutated, text_of


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_pass(name: str) -> None:
    verify(parse_program(text_of(name)))


BROKEN = {
    "a map of two layouts": (
        "softmax", r"(map\.sub .*) #l0", r"\1 #l1", "has another layout than the result"),
    "elements of other threads": (
        "softmax", r"(layout #l1 = 1 regs) lanes", r"\1 from (1) lanes", "a thread has no element"),
    "a slot that nobody allocates": ("softmax", r"  alloc @0\n", "", "@0 is not allocated"),
    "a slot that is free": (
        "softmax", r"(  write_parts @0.*\n)", r"\1  free @0\n  alloc @0\n  free @0\n",
        "@0 is free again"),
    "slots at one place": (
        "softmax", r"  free @0\n", "", "@1 lies where @0 is still live"),
    "a tile that its slot has no room for": (
        "mma", r"slot @0: \d+ bytes", "slot @0: 1024 bytes", "bytes of @0"),
    "copies that nobody waits for": (
        "mma", r" +wait_copies .*\n", "", "no wait for copies after the copies into @0"),
    "copies of other threads": (
        "mma", r"(wait_copies .*)\n    barrier", r"\1", "no barrier after the copies into @0"),
    "barriers that nobody makes": (
        "wgmma", r" +mbarrier_init %.*\n", "", "nobody makes a barrier in @2"),
    "barriers that nobody arrives on": (
        "wgmma", r" +(mbarrier_arrive|mbarrier_expect|fetch) .*\n", "", "nobody arrives"),
    "bytes that nobody expects": (
        "wgmma", r" +mbarrier_expect .*\n", "", "nobody expects bytes"),
    "a number of registers that no thread can have": (
        "wgmma", "registers = none", "registers = (30, 240)", "cannot ask for 30 registers"),
    "another iteration of no loop": (
        "mma", r"\n  commit_copies\n", "\n  commit_copies {stage = -1}\n", "no loop has a place 0"),
    "another iteration's op in no place": (
        "mma", r"\n    commit_copies\n", "\n    commit_copies {stage = -1, order = 99}\n",
        "no loop has a place 99"),
    "registers that are not there": (
        "wgmma", r"threads = 128, warps = 1, registers = none",
        "threads = 384, warps = 4, registers = (96, 168)", "want 76800 registers"),
    "an operand too few": (
        "wgmma", r"(:= select i32 %\w+), 0, ", r"\1, ", "select takes 3 operands, not 2"),
    "an operand of another type": (
        "wgmma", r":= eq i32 (%tid), 128", r":= eq i64 \1, 128",
        "%tid is an i32: eq takes an i64"),
    "an integer as a condition": (
        "wgmma", r":= (xor i32 %\w+, 1)\n(.*:= mul)", r":= \1\n    %one := and i1 %tid, 1\n\2",
        "%tid is an i32: and takes an i1"),
    "a number of the loop as a condition": (
        "mma", r":= select i32 %[\w.]+\.11", ":= select i32 %s7", "%s7 is an i32"),
    "a conversion to fewer bits that widens": (
        "mma", r"(%s1) := udiv i32 %s0, 4", r"%wide := sext i32 %s0 to i1\n  \g<0>",
        "sext does not make an i1 of an i32"),
    "a conversion to nothing": (
        "mma", r"(%s1) := udiv i32 %s0, 4", r"%wide := sext i32 %s0\n  \g<0>",
        "sext needs the type that it gives"),
    "what is no conversion": (
        "mma", r"(:= udiv i32 %s0, 4)", r"\1 to i64", "udiv does not convert to i64"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_told(name: str) -> None:
    kernel, old, new, message = BROKEN[name]
    text = re.sub(old, new, text_of(kernel))
    assert text != text_of(kernel)
    with pytest.raises(VerifyError, match=message) as found:
        verify(parse_program(text))
    assert found.value.where


DATA = {"parts at one place", "nobody leaves sums", "sums of another part"}
"""Mutants that are a matter of data, or of global memory."""
STATIC = {
    "no wait for copies", "no barrier after the wait", "sums used in flight",
    "sums read before their matmul is committed", "sums read before the wait for the commit",
    "the last sums read before the wait", "an operand in tensor memory without a barrier",
    "columns that are not allocated", "columns that are not given back",
}  # fmt: skip
"""Mutants that the text alone tells, without running warps."""


def hold_at_both_ends(program: Program, guess: int = 0) -> None:
    """Of the first blocks of the launch, and of the last, whose tiles may be at an edge."""
    last = math.prod(map(size_hint, program.launch)) // program.cluster - 1
    for first in dict.fromkeys((0, last)):
        verify_protocol(program, first=first, guess=guess)


@pytest.mark.parametrize("name", KERNELS)
def test_protocols_hold(name: str) -> None:
    """No false alarm, whatever data decides."""
    for guess in (0, 1):
        hold_at_both_ends(parse_program(text_of(name)), guess)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found_without_data(name: str) -> None:
    """All but what is a matter of data, as who of two writers of one place wins."""
    _, text, _ = mutated(name)
    program = parse_program(text)
    found = None
    try:
        verify(program)
    except VerifyError as error:
        found = error
    assert (found is not None) == (name in STATIC)
    if name in DATA:
        hold_at_both_ends(program)
        return
    with pytest.raises(VerifyError) as told:
        hold_at_both_ends(program)
    assert told.value.where or "deadlock" in told.value.what


LARGE: dict[str, Callable[[], Kernel]] = {
    "ring of many stages": lambda: kernels.matmul(
        32, 3072, 3072, f16, (32, 32, 64), stages=12, persistent=False),
    "ping-pong": lambda: kernels.matmul(
        4096, 4096, 768, bf16, (128, 128, 64), persistent=True, teams=2),
    "neighbours": lambda: kernels.matmul(
        1000, 1000, 1000, f16, (64, 128, 64), neighbours=(2, 1), transpose_b=True),
    "stream-k": lambda: kernels.matmul(
        4096, 3000, 1000, bf16, (128, 256, 64), warps=8, stream_k=1),
    "chained": lambda: kernels.attention(1, 4, 1024, 64, blocks=(128, 64), warps=8),
    "split tf32": lambda: kernels.matmul(
        512, 512, 512, f32, (64, 64, 32), stages=4, wide=True),
    "images": lambda: kernels.convolution(32, 14, 256, 256, f16, (128, 64, 64)),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_protocols_of_large_kernels_hold(name: str) -> None:
    program = lower_to_gpu(LARGE[name](), SM_90A)
    verify(program)
    hold_at_both_ends(program)


def test_a_wait_for_another_stage_is_found_in_a_large_kernel() -> None:
    """The ring's phase is that of the stage: a flip one stage early is found."""
    text = gpu_text(LARGE["ping-pong"](), SM_90A)
    broken = re.sub(r"(:= eq i32 %\w+), (\d+)(?=\n.*\n.*:= xor)", r"\1, 2", text, count=1)
    assert broken != text
    with pytest.raises(VerifyError):
        verify_protocol(parse_program(broken))


def test_cut_tiles_have_the_registers_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A past bug: two blocks of a multiprocessor with cut tiles (stream-k), whose warps hand
    registers to each other, wait for registers for ever. There is one such block, or none asks."""
    kernel = kernels.matmul(
        4096, 2048, 1000, bf16, (128, 64, 64), warps=8, stream_k=2, transpose_b=True
    )
    program = lower_to_gpu(kernel, SM_90A)
    verify(program)
    assert program.resident == 1
    assert any(isinstance(op, WarpRoles) and op.registers for op in program.walk())
    monkeypatch.setattr(stream_k_plan, "_blocks_per_sm", lambda low: low.kernel.schedule.stream_k)
    with pytest.raises(VerifyError, match=r"the warps want 63488 registers, there are 30720"):
        verify(lower_to_gpu(kernel, SM_90A))


def test_sums_in_flight_are_not_used() -> None:
    _, text, message = mutated("sums used in flight")
    with pytest.raises(VerifyError, match=message):
        verify(parse_program(text))


def test_what_is_used_is_defined_before() -> None:
    program = parse_program(text_of("softmax"))
    program.body.ops.append(program.body.ops.pop(1))
    with pytest.raises(VerifyError, match="is used where it is not defined"):
        verify(program)
