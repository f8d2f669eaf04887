"""Loops in loops: what they compute, and how often their bodies are compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.triton import constexpr_function
from tests.language.launching import DEVICES, launch

EVERY = pytest.mark.parametrize("device", DEVICES)
SEEN: list[None] = []


@constexpr_function
def seen() -> int:
    SEEN.append(None)
    return 1


@fuser.kernel
def four_deep(x: Any, out: Any, n: Any) -> Any:
    total = 0.0
    p = x
    for _ in range(n):
        j = 0
        while j < n:
            j += 1
            for k in range(n):
                if k == 3:
                    break
                for m in range(n):
                    if m == 1:
                        continue
                    total += fl.load(p + m) * seen()
        p += 1
    fl.store(out, total)


@EVERY
def test_bodies_are_not_compiled_for_each_way_to_them(device: str) -> None:
    x, out, n = np.arange(12, dtype=np.float32), np.zeros(1, np.float32), 5
    SEEN.clear()
    launch(four_deep, device, x, out, n)
    assert out[0] == sum(n * 3 * x[i + m] for i in range(n) for m in range(n) if m != 1)
    assert 0 < len(SEEN) <= 2 * 4 + 1


@fuser.kernel
def doubled(out: Any, n: Any) -> Any:
    i = 7
    for i in range(n):
        i = 2 * i
        fl.store(out + i, i)


@EVERY
def test_an_iteration_begins_with_its_number(device: str) -> None:
    out = np.full(8, -1, np.int32)
    launch(doubled, device, out, 4)
    assert out.tolist() == [0, -1, 2, -1, 4, -1, 6, -1]
