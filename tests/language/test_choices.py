"""Pointers that branches set to one argument or another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import LanguageError
from tests.language.launching import DEVICES, launch

EVERY = pytest.mark.parametrize("device", DEVICES)


@fuser.kernel
def joined(a: Any, b: Any, c: Any, out: Any, na: Any, nb: Any, n: Any, B: fl.constexpr) -> Any:
    """out = a, b and c, one behind the other."""
    part = fl.program_id(0)
    begin = 0
    size = na
    if part == 0:
        p = a
    elif part == 1:
        p = b
        begin = na
        size = nb
    else:
        p = c - nb + nb
        begin = na + nb
        size = n - na - nb
    for start in range(0, size, B):
        at = start + fl.arange(0, B)
        fl.store(out + begin + at, fl.load(p + fl.arange(0, B), at < size, -1.0), at < size)
        p += B


@EVERY
def test_each_branch_has_its_array(device: str) -> None:
    parts = [np.arange(n, dtype=np.float32) + 100 * n for n in (5, 8, 3)]
    out = np.zeros(18, np.float32)
    launch(joined, device, *parts, out, 5, 8, 16, B=4, grid=(3,))
    np.testing.assert_array_equal(out, [*np.concatenate(parts), 0, 0])


@fuser.kernel
def to_one(a: Any, b: Any, counts: Any, flags: Any, B: fl.constexpr) -> Any:
    at = fl.arange(0, B)
    p = a + B if fl.load(flags) > 0 else b
    q = counts if fl.load(flags + 1) > 0 else b
    fl.store(p + at[None, :], fl.load((p + at)[None, :]) + 1)
    fl.atomic_add(q, 7)


@EVERY
@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_stores_and_atomics_go_to_the_one(flags: tuple[int, int], device: str) -> None:
    a, b, counts = np.arange(8, dtype=np.int32), np.arange(4, dtype=np.int32), np.zeros(1, np.int32)
    wants = [item.copy() for item in (a, b, counts)]
    (wants[0][4:] if flags[0] else wants[1])[...] += 1
    (wants[2] if flags[1] else wants[1])[0] += 7
    launch(to_one, device, a, b, counts, np.array(flags, np.int32), B=4)
    for found, want in zip((a, b, counts), wants, strict=True):
        np.testing.assert_array_equal(found, want)


@fuser.kernel
def of_two_types(a: Any, b: Any, flags: Any) -> Any:
    if fl.load(flags) > 0:
        p = a
    else:
        p = b
    fl.store(p, 1)


def test_their_elements_are_of_one_type() -> None:
    with pytest.raises(LanguageError, match=r"pointer<fp32> in one branch and pointer<int32>"):
        of_two_types[(1,)](np.zeros(1, np.float32), np.zeros(1, np.int32), np.zeros(1, np.int32))
