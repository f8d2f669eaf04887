"""break, continue and return inside of loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from tests.language.launching import DEVICES, launch

EVERY = pytest.mark.parametrize("device", DEVICES)


@fuser.kernel
def first_above(x: Any, out: Any, n: Any, limit: Any) -> Any:
    place = -1
    for i in range(n):
        if fl.load(x + i) > limit:
            place = i
            break
    fl.store(out, place)


@EVERY
@pytest.mark.parametrize(("limit", "want"), [(2.5, 3), (-1.0, 0), (99.0, -1), (8.5, 9)])
def test_break_in_a_for(device: str, limit: float, want: int) -> None:
    x, out = np.arange(10, dtype=np.float32), np.full(1, -7, np.int32)
    launch(first_above, device, x, out, 10, limit)
    assert out[0] == want


@fuser.kernel
def sum_of_odd(x: Any, out: Any, n: Any) -> Any:
    total = 0.0
    for i in range(0, n):
        if i % 2 == 0:
            continue
        value = fl.load(x + i)
        if value < 0:
            continue
        total += value
    fl.store(out, total)


@EVERY
def test_continue_in_a_for(device: str) -> None:
    x, out = np.arange(10, dtype=np.float32), np.zeros(1, np.float32)
    x[3] = -3
    launch(sum_of_odd, device, x, out, 10)
    assert out[0] == 1 + 5 + 7 + 9


@fuser.kernel
def steps_of_collatz(x: Any, out: Any, most: Any) -> Any:
    me = fl.program_id(0)
    n = fl.load(x + me)
    steps = 0
    while True:
        if n == 1:
            break
        if steps >= most:
            steps = -1
            break
        steps += 1
        if n % 2 == 0:
            n = n // 2
            continue
        n = 3 * n + 1
    fl.store(out + me, steps)


def collatz(n: int, most: int) -> int:
    steps = 0
    while n != 1:
        if steps >= most:
            return -1
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@EVERY
def test_break_and_continue_in_a_while(device: str) -> None:
    x = np.arange(1, 30, dtype=np.int32)
    out = np.zeros(29, np.int32)
    launch(steps_of_collatz, device, x, out, 50, grid=(29,))
    assert out.tolist() == [collatz(n, 50) for n in range(1, 30)]


@fuser.kernel
def find(x: Any, n: Any, wanted: Any) -> Any:
    for i in range(n):
        if fl.load(x + i) == wanted:
            return i
    return -1


@fuser.kernel
def find_all(x: Any, wanted: Any, out: Any, n: Any) -> Any:
    me = fl.program_id(0)
    fl.store(out + me, find(x, n, fl.load(wanted + me)))


@EVERY
def test_a_function_that_returns_in_a_loop(device: str) -> None:
    x = np.array([5, 3, 8, 3, 1], np.int32)
    wanted = np.array([3, 1, 7, 5, 8], np.int32)
    out = np.zeros(5, np.int32)
    launch(find_all, device, x, wanted, out, 5, grid=(5,))
    assert out.tolist() == [1, 4, -1, 0, 2]


@fuser.kernel
def find_pair(x: Any, n: Any, total: Any) -> Any:
    for i in range(n):
        a = fl.load(x + i)
        for j in range(i + 1, n):
            if a + fl.load(x + j) == total:
                return i, j
    return -1, -1


@fuser.kernel
def pairs(x: Any, totals: Any, out: Any, n: Any) -> Any:
    me = fl.program_id(0)
    i, j = find_pair(x, n, fl.load(totals + me))
    fl.store(out + 2 * me, i)
    fl.store(out + 2 * me + 1, j)


@EVERY
def test_a_return_through_two_loops(device: str) -> None:
    x = np.array([1, 20, 300, 4000], np.int32)
    totals = np.array([21, 4020, 5, 301, 4300], np.int32)
    out = np.zeros((5, 2), np.int32)
    launch(pairs, device, x, totals, out, 4, grid=(5,))
    assert out.tolist() == [[0, 1], [1, 3], [-1, -1], [0, 2], [2, 3]]


@fuser.kernel
def early_end(x: Any, out: Any, n: Any) -> Any:
    for i in range(n):
        value = fl.load(x + i)
        if value < 0:
            return
        fl.store(out + i, value)
    fl.store(out + n, 100)


@EVERY
def test_a_kernel_that_returns_in_a_loop(device: str) -> None:
    x = np.array([1, 2, -3, 4], np.int32)
    out = np.zeros(5, np.int32)
    launch(early_end, device, x, out, 4)
    assert out.tolist() == [1, 2, 0, 0, 0]
    launch(early_end, device, np.abs(x), out, 4)
    assert out.tolist() == [1, 2, 3, 4, 100]


@fuser.kernel
def unrolled(x: Any, out: Any) -> Any:
    total = 0
    for i in fl.static_range(6):
        if i == 4:
            break
        value = fl.load(x + i)
        if value == 0:
            continue
        if value < 0:
            break
        total += value
    fl.store(out, total)


@EVERY
@pytest.mark.parametrize(
    ("x", "want"),
    [([1, 2, 3, 4, 5, 6], 10), ([1, 0, 3, 0, 5, 6], 4), ([1, 2, -1, 4, 5, 6], 3), ([-1] * 6, 0)],
)
def test_loops_that_are_written_out(device: str, x: list[int], want: int) -> None:
    out = np.zeros(1, np.int32)
    launch(unrolled, device, np.array(x, np.int32), out)
    assert out[0] == want


@fuser.kernel
def known(x: Any, out: Any, n: Any, LAST: fl.constexpr) -> Any:
    total = fl.zeros((16,), fl.float32)
    for i in range(n):
        if LAST >= 0:
            if i > LAST:
                break
        total += fl.load(x + i * 16 + fl.arange(0, 16))
    fl.store(out + fl.arange(0, 16), total)


def test_flags_that_are_known_leave_no_code() -> None:
    x, out = np.ones((8, 16), np.float32), np.zeros(16, np.float32)
    plain = known[(1,)](x, out, 8, LAST=-1)
    assert out.tolist() == [8.0] * 16
    assert "while" not in plain.tile
    assert " if" not in plain.tile
    ended = known[(1,)](x, out, 8, LAST=4)
    assert out.tolist() == [5.0] * 16
    assert "while" in ended.tile


@fuser.kernel
def downwards(x: Any, out: Any, n: Any) -> Any:
    found = -1
    for i in range(n - 1, -1, -1):
        if fl.load(x + i) == 0:
            continue
        found = i
        break
    fl.store(out, found)


@EVERY
def test_break_of_a_range_that_counts_down(device: str) -> None:
    out = np.zeros(1, np.int32)
    launch(downwards, device, np.array([0, 4, 5, 0, 0], np.int32), out, 5)
    assert out[0] == 2
    launch(downwards, device, np.zeros(5, np.int32), out, 5)
    assert out[0] == -1


@fuser.kernel
def nested(out: Any, n: Any) -> Any:
    count = 0
    for i in range(n):
        for j in range(n):
            if j > i:
                break
            if (i + j) % 3 == 0:
                continue
            count += 1
        if i == 6:
            break
    fl.store(out, count)


@EVERY
def test_exits_belong_to_the_inner_loop(device: str) -> None:
    out = np.zeros(1, np.int32)
    launch(nested, device, out, 10)
    assert out[0] == sum((i + j) % 3 != 0 for i in range(7) for j in range(i + 1))


@fuser.kernel
def last_place(x: Any, out: Any, n: Any) -> Any:
    i = 100
    for i in range(n):
        if fl.load(x + i) > 5:
            break
    fl.store(out, i)


@EVERY
def test_the_loop_variable_after_a_break(device: str) -> None:
    out = np.zeros(1, np.int32)
    x = np.arange(10, dtype=np.int32)
    launch(last_place, device, x, out, 10)
    assert out[0] == 6
    launch(last_place, device, x, out, 0)
    assert out[0] == 100


@fuser.kernel
def guarded_condition(x: Any, out: Any, n: Any) -> Any:
    i = 0
    while fl.load(x + i) != 0:
        i += 1
        if i == n:
            break
    fl.store(out, i)


def test_a_condition_is_not_asked_again_after_a_break() -> None:
    out = np.zeros(1, np.int32)
    guarded_condition[(1,)](np.ones(4, np.int32), out, 4, check=True)  # x[4] is no element
    assert out[0] == 4


@fuser.kernel
def masked(mask, out, WITH: fl.constexpr):
    at = fl.program_id(0)
    if WITH:
        if fl.load(mask + at) == 0:
            return
    else:
        fl.store(out + at, 5)
    fl.store(out + at, fl.load(out + at) + 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chosen, want", [(True, [1, 0, 1]), (False, [6, 6, 6])])
def test_a_return_below_a_known_condition(device: str, chosen: bool, want: list[int]) -> None:
    mask, out = np.array([1, 0, 1], np.int32), np.zeros(3, np.int32)
    launch(masked, device, mask, out, WITH=chosen, grid=(3,))
    assert out.tolist() == want
