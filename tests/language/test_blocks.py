"""Block extents that a launch leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import UsageError


@fuser.kernel
def double(x: Any, out: Any, BLOCK: fl.constexpr = fl.block(default=48)) -> Any:  # noqa: B008
    at = fl.program_id(0) * BLOCK + fl.arange(0, BLOCK)
    out[at] = x[at] + x[at]


@fuser.kernel
def by_function(x: Any, out: Any) -> Any:
    out[fl.arange(0, 96)] = part(x, 0)
    out[fl.arange(96, 100)] = part(x, 96, BLOCK=4)


@fuser.kernel
def part(x: Any, start: Any, BLOCK: fl.constexpr = fl.block(default=96)) -> Any:  # noqa: B008
    return x[start + fl.arange(0, BLOCK)] * 2


def test_the_default_serves_launch_and_grid() -> None:
    x = np.arange(1000, dtype=np.float32)
    seen = []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        seen.append(meta["BLOCK"])
        return (fl.cdiv(1000, meta["BLOCK"]),)

    for _ in range(3):
        out = np.zeros_like(x)
        double[grid](x, out)
        np.testing.assert_array_equal(out, 2 * x)
    assert set(seen) == {48}


@pytest.mark.parametrize("block", [1, 100, 1024])
def test_a_launch_may_give_it(block: int) -> None:
    x = np.arange(1000, dtype=np.float32)
    out = np.zeros_like(x)
    double[(fl.cdiv(1000, block),)](x, out, BLOCK=block)
    np.testing.assert_array_equal(out, 2 * x)


def test_a_function_has_its_default_too() -> None:
    x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    by_function[(1,)](x, out)
    np.testing.assert_array_equal(out, 2 * x)


@pytest.mark.parametrize("default", [0, -1, 1.5, True, "x"])
def test_what_is_no_extent(default: Any) -> None:
    with pytest.raises(UsageError, match="block"):
        fl.block(default=default)


def test_the_language_on_the_host() -> None:
    assert [fl.cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [fl.next_power_of_2(n) for n in (0, 1, 2, 3, 1000)] == [0, 1, 2, 4, 1024]
