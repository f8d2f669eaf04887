"""The arena: what is live together never overlaps, and the arena is not wasteful."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fuser.runtime.memory import (
    Interval,
    Recycler,
    address,
    aligned_array,
    aligned_copy,
    plan_memory,
)

_interval = st.builds(
    lambda first, length, size: Interval(first, first + length, size),
    st.integers(0, 20),
    st.integers(0, 8),
    st.integers(0, 5000),
)


def test_address_of_any_array() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = base.copy()
    frozen.flags.writeable = False
    narrow = np.zeros(5, ml_dtypes.bfloat16)
    arrays = [base, base.T, base[1:], base[:, 2:], base[::-1], frozen, narrow, np.zeros((0, 3)),
              np.zeros((), np.float64), np.broadcast_to(base[0], (3, 6))]  # fmt: skip
    for array in arrays:
        before = sys.getrefcount(array)
        assert address(array) == array.__array_interface__["data"][0]
        assert sys.getrefcount(array) == before  # nothing holds on to it


@settings(max_examples=200, deadline=None)
@given(st.lists(_interval, max_size=40), st.sampled_from([64, 256]))
def test_live_buffers_never_overlap(intervals: list[Interval], alignment: int) -> None:
    offsets, total = plan_memory(intervals, alignment)
    assert len(offsets) == len(intervals)
    for i, (a, item) in enumerate(zip(offsets, intervals, strict=True)):
        assert a % alignment == 0
        assert a + item.bytes <= total or not item.bytes
        for b, other in list(zip(offsets, intervals, strict=True))[:i]:
            together = item.first <= other.last and other.first <= item.last
            assert not together or a + item.bytes <= b or b + other.bytes <= a


@settings(max_examples=50, deadline=None)
@given(st.lists(_interval, min_size=1, max_size=40))
def test_total_is_between_the_peak_and_the_sum(intervals: list[Interval]) -> None:
    _, total = plan_memory(intervals, 1)
    peak = max(
        sum(item.bytes for item in intervals if item.first <= step <= item.last)
        for step in range(30)
    )
    assert peak <= total <= sum(item.bytes for item in intervals)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Interval(i, i + 1, 1024) for i in range(50)]
    assert plan_memory(chain)[1] == 2048


def test_nothing_to_plan() -> None:
    assert plan_memory([]) == ([], 0)
    assert plan_memory([Interval(0, 3, 0)]) == ([0], 0)


def test_aligned_arrays() -> None:
    array = aligned_array((3, 5), np.dtype(np.float16), 256)
    assert array.shape == (3, 5) and address(array) % 256 == 0
    assert aligned_copy(array, 256) is array
    odd = np.arange(100, dtype=np.uint8)[1:]
    copy = aligned_copy(odd)
    assert address(copy) % 64 == 0
    np.testing.assert_array_equal(copy, odd)
    assert aligned_copy(np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_results_are_recycled_only_when_nobody_holds_them() -> None:
    make = Recycler((1 << 19,), np.dtype(np.float32))
    first, place = make()
    view = first[::2][3:]
    assert address(first) == place and place % 64 == 0
    del first
    second, other = make()
    assert not np.shares_memory(view, second) and other != place
    held = memoryview(second)
    del second, view
    assert make()[1] == place  # the first is free, the second is not
    third = make()[0]
    assert not np.shares_memory(third, np.asarray(held))


def test_small_results_are_simply_allocated() -> None:
    make = Recycler((3,), np.dtype(np.float32))
    assert not np.shares_memory(make()[0], make()[0])


class _Step(int):
    """A step that counts how often two are compared."""

    compared = 0

    def _count(self) -> None:
        _Step.compared += 1

    def __lt__(self, other: int) -> bool:
        self._count()
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        self._count()
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        self._count()
        return int(self) > int(other)

    def __ge__(self, other: int) -> bool:
        self._count()
        return int(self) >= int(other)

    def __eq__(self, other: object) -> bool:
        self._count()
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


def test_a_long_chain_is_not_compared_with_itself() -> None:
    """Of many buffers of which few live together, each is compared with those few."""

    def comparisons(count: int) -> int:
        sizes = np.random.default_rng(0).integers(1, 4, count).tolist()
        _Step.compared = 0
        plan_memory([Interval(_Step(i), _Step(i + 1), 64 * n) for i, n in enumerate(sizes)])
        return _Step.compared

    assert comparisons(2000) < 2.5 * comparisons(1000)
