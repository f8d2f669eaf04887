"""Pointers that branches, or `where`, set to one argument or another."""

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


@fuser.kernel
def by_rows(a: Any, b: Any, c: Any, numbers: Any, out: Any, n: Any, B: fl.constexpr) -> Any:
    """Row i of out is row i of the array with the number numbers[i], in columns below n, plus 1
    there; what is read is doubled in place."""
    row, column = fl.arange(0, B), fl.arange(0, B)
    number = fl.load(numbers + row)
    p = a + row * 0
    for i in fl.static_range(1, 3):
        p = fl.where(number == i, (a, b, c)[i], p)
    p = fl.multiple_of(p, 1)
    at = p[:, None] + (row[:, None] * B + column[None, :])
    inside = column[None, :] < n
    x = fl.load(at, inside, 0.0)
    fl.store(at, x * 2, inside)
    fl.store(out + row[:, None] * B + column[None, :], x + 1, inside)


@EVERY
@pytest.mark.parametrize("numbers", [(0, 1, 2, 1), (2, 2, 2, 2), (0, 0, 1, 0)])
def test_each_element_has_its_array(numbers: tuple[int, ...], device: str) -> None:
    parts = [np.arange(16, dtype=np.float32).reshape(4, 4) + 100 * n for n in range(3)]
    wants = [part.copy() for part in parts]
    out = np.zeros((4, 4), np.float32)
    want = out.copy()
    for row, number in enumerate(numbers):
        want[row, :3] = parts[number][row, :3] + 1
        wants[number][row, :3] *= 2
    launch(by_rows, device, *parts, np.array(numbers, np.int32), out, 3, B=4)
    np.testing.assert_array_equal(out, want)
    for part, doubled in zip(parts, wants, strict=True):
        np.testing.assert_array_equal(part, doubled)


@fuser.kernel
def with_branches(a: Any, b: Any, flags: Any, out: Any, B: fl.constexpr) -> Any:
    """A branch between a choice for each element and one array; offsets that differ; a loop."""
    at = fl.arange(0, B)
    p = fl.where(at % 2 == 0, a + at, b + 2 * at)
    if fl.load(flags) > 0:
        p = b + at
    total = fl.zeros((B,), fl.float32)
    for _ in range(3):
        total += fl.load(p)
        p += 1
    same = fl.where(at < 2, a + at, a + 1)
    alone = fl.where(fl.load(flags) > 0, a, b)
    fl.store(out + at, total + 1000 * fl.load(same) + 100000 * fl.load(alone))


@EVERY
@pytest.mark.parametrize("flag", [0, 1])
def test_choices_of_elements_and_of_branches_meet(flag: int, device: str) -> None:
    a, b = np.arange(16, dtype=np.float32), np.arange(16, dtype=np.float32) + 50
    out = np.zeros(4, np.float32)
    launch(with_branches, device, a, b, np.array([flag], np.int32), out, B=4)
    at = np.arange(4)
    first = [b[i : i + 3] if flag else (b[2 * i :][:3] if i % 2 else a[i : i + 3]) for i in at]
    want = (
        np.sum(first, axis=1) + 1000 * np.where(at < 2, a[at], a[1]) + 100000 * (a, b)[not flag][0]
    )
    np.testing.assert_array_equal(out, want)


@fuser.kernel
def where_of_two_types(a: Any, b: Any) -> Any:
    at = fl.arange(0, 4)
    fl.store(fl.where(at < 2, a + at, b + at), 1)


def test_where_is_of_one_type() -> None:
    with pytest.raises(LanguageError, match=r"where between .*fp32>> and .*int32>>"):
        where_of_two_types[(1,)](np.zeros(4, np.float32), np.zeros(4, np.int32))
