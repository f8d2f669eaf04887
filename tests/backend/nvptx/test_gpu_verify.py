"""The verifier of the GPU IR: every kernel passes, and what is broken is told."""

from __future__ import annotations

import re

import pytest

from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.verify import verify
from fuser.errors import VerifyError
from tests.backend.nvptx.test_simulate import KERNELS, mutated, text_of


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
        "mma", r" +wait_copies .*\n", "", "no wait for copies behind the copies into @0"),
    "copies of other threads": (
        "mma", r"(wait_copies .*)\n    barrier", r"\1", "no barrier behind the copies into @0"),
    "barriers that nobody makes": (
        "wgmma", r" +mbarrier_init %.*\n", "", "nobody makes a barrier in @2"),
    "barriers that nobody arrives on": (
        "wgmma", r" +(mbarrier_arrive|mbarrier_expect|fetch) .*\n", "", "nobody arrives"),
    "bytes that nobody expects": (
        "wgmma", r" +mbarrier_expect .*\n", "", "nobody expects bytes"),
    "a number of registers that no thread can have": (
        "wgmma", "registers = none", "registers = (30, 240)", "cannot ask for 30 registers"),
    "registers that are not there": (
        "wgmma", r"threads = 128, warps = 1, registers = none",
        "threads = 384, warps = 4, registers = (96, 168)", "want 76800 registers"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_told(name: str) -> None:
    kernel, old, new, message = BROKEN[name]
    text = re.sub(old, new, text_of(kernel))
    assert text != text_of(kernel)
    with pytest.raises(VerifyError, match=message) as found:
        verify(parse_program(text))
    assert found.value.where


def test_sums_in_flight_are_not_used() -> None:
    _, text, message = mutated("sums used in flight")
    with pytest.raises(VerifyError, match=message):
        verify(parse_program(text))


def test_what_is_used_is_defined_before() -> None:
    program = parse_program(text_of("softmax"))
    program.body.ops.append(program.body.ops.pop(1))
    with pytest.raises(VerifyError, match="is used before it is defined"):
        verify(program)
