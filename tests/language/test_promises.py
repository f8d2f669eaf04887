"""multiple_of and assume: what they tell the compiler, and where they must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from tests.language.launching import DEVICES, launch


@fuser.kernel
def in_a_branch(x, first, out, n, B: fl.constexpr):
    start = fl.load(first)
    if start >= 0:
        fl.assume(start >= 0)
        fl.multiple_of(start, 16)
        fl.store(out + B, 1.0)
    at = start + fl.arange(0, B)
    inside = (at >= 0) & (at < n)
    fl.store(out + fl.arange(0, B), fl.load(x + at, mask=inside, other=-1.0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start", [-5, 0, 16, 96])
def test_a_promise_in_a_branch_holds_there_only(start: int, device: str) -> None:
    whole = np.arange(-64, 100, dtype=np.float32)  # what is before x can be read, and is wrong
    x, out = whole[64:], np.zeros(33, np.float32)
    launch(in_a_branch, device, x, np.array([start], np.int32), out, 100, B=32)
    at = start + np.arange(32)
    np.testing.assert_array_equal(out[:32], np.where((at >= 0) & (at < 100), at, -1))
    assert out[32] == (start >= 0)


@fuser.kernel
def promised(x, first, out, B: fl.constexpr, BY: fl.constexpr):
    start = fl.multiple_of(fl.load(first), BY)
    fl.assume(start >= 0)
    fl.store(out + fl.arange(0, B), fl.load(x + start + fl.arange(0, B)))


@pytest.mark.parametrize("by", [1, 8, 16])
def test_a_promise_is_known_to_the_compiler(by: int) -> None:
    x, out = np.arange(100, dtype=np.float32), np.zeros(16, np.float32)
    variant: Any = promised[(1,)](x, np.array([48], np.int32), out, B=16, BY=by)
    np.testing.assert_array_equal(out, x[48:64])
    start = next(line for line in variant.tile.splitlines() if "load &first" in line)
    assert "in [0, inf]" in start
    assert start.partition("#")[0].rstrip().endswith(f"by {by}" if by > 1 else "inf]")
