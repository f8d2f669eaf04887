"""Arithmetic of 16 bits two numbers at a time, and indices that are known of a register."""

from __future__ import annotations

import re

import pytest

from fuser.backend.nvptx import compile_kernel
from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.backend.nvptx.emit.halves import halves_of, map_packed, word_of
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.indexing import Indexer
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import DType, bf16, f16, i16
from fuser.tilegen.index import axis
from tests.backend.nvptx import kernels


@pytest.mark.parametrize("fn", ["add", "sub", "mul"])
@pytest.mark.parametrize("dtype, target, paired", [
    (f16, SM_90A, True), (f16, SM_80, True), (bf16, SM_90A, True), (bf16, SM_80, False),
], ids=str)  # fmt: skip
def test_floats(fn: str, dtype: DType, target: Target, paired: bool) -> None:
    """An instruction for two, where the target has it, and no float32 on the way."""
    ptx = compile_kernel(kernels.elementwise(fn, dtype, 2, n=1024), target).code.decode()
    pairs = re.findall(r"(\w+)\.\S*(?:f16x2|bf16x2)\b", ptx)
    assert bool({"add", "sub", "mul", "fma"}.intersection(pairs)) == paired
    assert not (paired and re.search(r"\.f32\b", ptx))


@pytest.mark.parametrize("fn", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(fn: str) -> None:
    """Four numbers a thread, in two words."""
    ptx = compile_kernel(kernels.elementwise(fn, i16, 2, n=1024), SM_90A).code.decode()
    verb = fn.removeprefix("bitwise_")
    assert len(re.findall(rf"\b{verb}\.b32", ptx)) >= 2 and f"{verb}.b16" not in ptx


def test_a_word_is_what_its_halves_were_taken_from() -> None:
    e = Emitter("k", [], "")
    e.sm = 90
    low, high = halves_of(e, "%w", i16)
    assert word_of(e, low, high, i16) == "%w"
    assert word_of(e, high, low, i16) != "%w"
    assert word_of(e, "15", "3", i16) == str(15 | 3 << 16)
    made = map_packed(e, "bitwise_and", i16, [(low, "15"), (high, "15"), (low, "1")])
    assert len(made) == 3
    assert f"and i32 %w, {15 | 15 << 16}" in "\n".join(e.at.lines)


def test_an_index_of_a_register_is_a_number() -> None:
    """What threads add is a multiple of 8: the place in 8 is the register's, and so is the rest of
    a quotient, of which there is one division."""
    layout = Layout((64, 4), ((0, 0), (5, 0)), ((8, 0), (16, 0), (32, 0), (0, 1), (0, 2)), ())
    e = Emitter("k", [], "")
    indexer = Indexer(e, layout, lambda value: 0, lambda *at: "")
    k = axis(0, 64)
    assert indexer.evaluate(k % 8, (5, 0)) == (None, 5)
    assert indexer.evaluate(k % 8 // 2, (5, 0)) == (None, 2)
    assert indexer.evaluate(k % 2 * 16 + k % 8 // 2 * 4, (5, 0)) == (None, 24)
    first, other = (indexer.evaluate(k // 8, offset) for offset in layout.regs)
    assert first.dynamic == other.dynamic is not None and (first.constant, other.constant) == (0, 0)
    assert sum("udiv" in line for line in e.at.lines) <= 2
    assert indexer.evaluate(k % 16, (5, 0)).dynamic is not None
