"""Numbers with units: three significant digits, the same spelling everywhere."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from fuser.graph.units import byte_size, counted, duration, microseconds, milliseconds, operations


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (393, "393 B"), (999, "999 B"), (1000, "1.00 kB"), (999_400, "999 kB"),
     (999_500, "1.00 MB"), (1_500_000, "1.50 MB"), (47_460_000, "47.5 MB"), (109_486_464, "109 MB"),
     (9_994_999, "9.99 MB"), (9_995_001, "10.0 MB"), (99_950_001, "100 MB"), (3.2e9, "3.20 GB"),
     (999_600_000_000, "1.00 TB"), (5.4e15, "5,400 TB"), (-1_500, "-1.50 kB")],
)  # fmt: skip
def test_bytes(count: float, text: str) -> None:
    assert byte_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 µs"), (3.5e-7, "0.350 µs"), (3.5e-6, "3.50 µs"), (124e-6, "124 µs"),
     (999.6e-6, "1.00 ms"), (0.00198, "1.98 ms"), (0.5, "500 ms"), (12.34, "12.3 s"),
     (123.4, "123 s"), (86400, "86,400 s")],
)  # fmt: skip
def test_times(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert microseconds(seconds * 1e6) == milliseconds(seconds * 1e3) == text


def test_numbers_of_an_axis_have_no_trailing_zeros() -> None:
    ticks = [microseconds(us, tick=True) for us in (0.5, 2, 10, 100, 2500, 20_000, 3e6)]
    assert ticks == ["0.5 µs", "2 µs", "10 µs", "100 µs", "2.5 ms", "20 ms", "3 s"]
    assert [operations(10.0**power, tick=True) for power in (0, 2, 3, 7)] == [
        "1", "100", "1 k", "10 M",
    ]  # fmt: skip


def test_counts() -> None:
    assert [counted(n, "kernel") for n in (0, 1, 2, 1234)] == [
        "0 kernels", "1 kernel", "2 kernels", "1,234 kernels",
    ]  # fmt: skip
    assert [counted(n, "entry", "entries") for n in (1, 3)] == ["1 entry", "3 entries"]
    assert operations(2_500_000) == "2.50 M" and operations(7) == "7"
    assert operations(1.2e12, "FLOP/s") == "1.20 TFLOP/s" and operations(0.5) == "0.5"


def test_what_is_read_back_is_within_half_of_the_third_digit() -> None:
    """For any size, on either side of each border between units."""
    worth = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "µs": 1e-6, "ms": 1e-3, "s": 1}
    rng = np.random.default_rng(5)
    for shown, low, high in ((byte_size, 3, 14), (duration, -6, 2)):
        borders = [10.0**n * (1 + e) for n in range(low, high) for e in (-6e-4, -4e-4, 0, 1e-6)]
        for value in [*10 ** rng.uniform(low, high, 500), *borders]:
            text = shown(value)
            number, unit = re.fullmatch(r"([\d,.]+) (\S+)", text).groups()  # type: ignore[union-attr]
            assert math.isclose(float(number.replace(",", "")) * worth[unit], value, rel_tol=5.1e-3)
            assert len(re.sub(r"\D", "", number).lstrip("0")) == 3, text
