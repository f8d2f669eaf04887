"""Where the time of a run goes: parts that add up to it."""

from __future__ import annotations

import random

import pytest

from fuser.report.breakdown import BETWEEN, HOST, Part, breakdown, sentence

KERNELS = [("conv", 30.0), ("map", 5.0), ("conv", 20.0), ("reduce", 15.0)]


def test_on_a_gpu_what_is_no_kernel_has_two_parts() -> None:
    assert breakdown(KERNELS, 120.0, 90.0) == [
        Part("conv", 50.0, "conv"), Part("reduce", 15.0, "reduce"), Part("map", 5.0, "map"),
        Part(BETWEEN, 20.0), Part(HOST, 30.0),
    ]  # fmt: skip


def test_on_a_cpu_it_has_one() -> None:
    *kinds, rest = breakdown(KERNELS, 100.0)
    assert sum(part.us for part in kinds) == 70.0
    assert rest == Part(f"{BETWEEN}, {HOST}", 30.0)


def test_kernels_that_overlap_share_the_run() -> None:
    found = breakdown(KERNELS, 60.0, 35.0)
    assert [part.us for part in found] == [25.0, 7.5, 2.5, 0.0, 25.0]


@pytest.mark.parametrize("seed", range(20))
def test_parts_add_up(seed: int) -> None:
    source = random.Random(seed)
    kernels = [(source.choice("abc"), source.uniform(0, 9)) for _ in range(source.randrange(9))]
    run = source.uniform(1, 60)
    found = breakdown(kernels, run, source.choice([None, source.uniform(1, 90)]))
    assert sum(part.us for part in found) == pytest.approx(run)
    assert all(part.us >= -1e-9 for part in found)


def test_words() -> None:
    assert sentence(breakdown([("map", 30.0)], 120.0, 90.0)) == (
        f"a run of 120 µs: map 30.0 µs (25.0 %), {BETWEEN} 60.0 µs (50.0 %), {HOST} 30.0 µs"
        " (25.0 %)"
    )
