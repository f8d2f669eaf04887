"""The model of the last cache: what must cross, what need not, and more cache is never worse."""

from __future__ import annotations

import pytest

from fuser.base.target import SM_90A, X86_64_V4
from fuser.report.dram import Cache, Touch, cache_of, dram_bytes

MB = 1 << 20
CACHE = cache_of(SM_90A)
assert CACHE is not None
LRU = Cache(32 * MB, 32 * MB)


def chain(size: int, kernels: int = 6) -> list[list[Touch]]:
    """Each kernel reads what the one before it wrote, the first what the last one wrote."""
    return [
        [
            Touch((i - 1) % kernels * size, size, size, 0),
            Touch(i % kernels * size, size, 0, size),
        ]
        for i in range(kernels)
    ]  # fmt: skip


def total(kernels: list[list[Touch]], cache: Cache, warm: bool = True) -> int:
    return sum(item.total for item in dram_bytes(kernels, cache)[warm])


@pytest.mark.parametrize("cache", [LRU, CACHE], ids=["lru", "fitted"])
def test_what_fits_and_is_warm_crosses_nothing(cache: Cache) -> None:
    assert total(chain(MB), cache) == 0
    # A cold run fetches what it did not write, and its results go to memory in the end.
    assert total(chain(MB), cache, warm=False) == (1 + 6) * MB


@pytest.mark.parametrize("cache", [LRU, CACHE], ids=["lru", "fitted"])
def test_buffers_beyond_the_cache_cross_whole(cache: Cache) -> None:
    size = 256 * MB
    found = dram_bytes(chain(size), cache)[1]
    assert all(item.read == size for item in found)
    assert sum(item.written for item in found) == pytest.approx(6 * size)


def test_what_the_next_kernel_reads_stays() -> None:
    """24 MB between kernels, beside 1 GB of weights of which each is read once a run."""
    kernels = [
        [*step, Touch((1 << 30) + i * 160 * MB, 160 * MB, 160 * MB, 0)]
        for i, step in enumerate(chain(2 * MB))
    ]
    found = dram_bytes(kernels, LRU)[1]
    assert all(160 * MB <= item.read < 163 * MB for item in found)


@pytest.mark.parametrize("warm", [True, False])
def test_a_larger_cache_is_no_worse(warm: bool) -> None:
    for size in (2 * MB, 7 * MB, 12 * MB):
        found = [
            total(chain(size), Cache(room * MB, room * MB / 2), warm) for room in range(4, 100, 12)
        ]
        assert found == sorted(found, reverse=True)


def test_a_device_without_a_known_cache_moves_all() -> None:
    assert cache_of(X86_64_V4) is None
    found = dram_bytes(chain(MB), None)[1]
    assert [(item.read, item.written) for item in found] == [(MB, MB)] * 6


def test_what_is_overwritten_in_time_is_not_written_back() -> None:
    """One kernel writes 4 MB again and again, another streams 20 MB of weights."""
    kernels = [
        [Touch(0, 4 * MB, 0, 4 * MB)],
        [Touch(0, 4 * MB, 4 * MB, 0), Touch(64 * MB, 20 * MB, 20 * MB, 0)],
    ]
    assert total(kernels, LRU) == 0
    small = Cache(16 * MB, 16 * MB)
    assert 2 * MB < dram_bytes(kernels, small)[1][1].written <= 4 * MB
