"""Block extents that a launch leaves out."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.base.target import SM_90A, X86_64_V3, Target
from fuser.errors import UsageError
from fuser.language import extents


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


@fuser.kernel
def add(
    x: Any, out: Any, n: Any,
    BLOCK: fl.constexpr = fl.block(default=16),  # noqa: B008
    TWICE: fl.constexpr = fl.block(default=2),  # noqa: B008
) -> Any:  # fmt: skip
    at = fl.program_id(0) * BLOCK + fl.arange(0, BLOCK)
    fl.store(out + at, fl.load(x + at, at < n) * TWICE, at < n)


def test_a_launch_that_fills_the_device_chooses() -> None:
    """By what the grid follows alone; for later launches too, of any size."""
    n = 300_001
    x = np.arange(n, dtype=np.float32)
    assert add._extents == {"BLOCK": 16, "TWICE": 2}
    for size in (n, n, 5, n - 1):
        out = np.zeros_like(x)
        add[lambda meta, size=size: (fl.cdiv(size, meta["BLOCK"]),)](x, out, size)
        np.testing.assert_array_equal(out[:size], 2 * x[:size])
        assert not out[size:].any()
        assert add._extents["BLOCK"] >= 128 and add._extents["TWICE"] == 2
    out = np.zeros_like(x)
    add[(fl.cdiv(n, 32),)](x, out, n, BLOCK=32)
    np.testing.assert_array_equal(out, 2 * x)


def test_a_grid_may_launch_the_kernel_that_it_is_for() -> None:
    n = 300_001
    x, out, small = np.arange(n, dtype=np.float32), np.zeros(n, np.float32), np.zeros(4, np.float32)
    fresh = fuser.kernel(add.fn)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        fresh[(1,)](x, small, 4)
        return (fl.cdiv(n, meta["BLOCK"]),)

    def work() -> None:
        fresh[grid](x, out, n)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "it waits for itself"
    np.testing.assert_array_equal(out, 2 * x)
    assert small.tolist() == [0, 2, 4, 6] and fresh._extents["BLOCK"] >= 128


def test_a_grid_that_does_not_follow_has_the_default() -> None:
    n = 64
    x, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    fixed = fuser.kernel(add.fn)
    for _ in range(3):
        fixed[(4,)](x, out, n)
        np.testing.assert_array_equal(out, 2 * x)
    assert fixed._extents == {"BLOCK": 16, "TWICE": 2}


@fuser.kernel
def product(
    a: Any, b: Any, c: Any, n: Any,
    M: fl.constexpr = fl.block(default=16),  # noqa: B008
    N: fl.constexpr = fl.block(default=16),  # noqa: B008
    K: fl.constexpr = fl.block(default=32),  # noqa: B008
) -> Any:  # fmt: skip
    rows = fl.program_id(0) * M + fl.arange(0, M)[:, None]
    columns = fl.program_id(1) * N + fl.arange(0, N)[None, :]
    total = fl.zeros((M, N), fl.float32)
    for k in range(0, n, K):
        at = k + fl.arange(0, K)
        left = fl.load(a + rows * n + at[None, :], (rows < n) & (at[None, :] < n), 0.0)
        right = fl.load(b + at[:, None] * n + columns, (at[:, None] < n) & (columns < n), 0.0)
        total = fl.dot(left, right, total)
    fl.store(c + rows * n + columns, total, (rows < n) & (columns < n))


@pytest.mark.parametrize("target", [SM_90A, X86_64_V3])
def test_products_have_large_blocks_that_fit(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "choose_target", lambda device: target)
    n = 2048
    a = np.zeros((n, n), np.float16)
    c = np.zeros((n, n), np.float32)
    bound, options = product.bind((a, a, c, n), {})
    found = extents.choose_extents(
        product, bound, ["K", "M", "N"],
        lambda meta: (fl.cdiv(n, meta["M"]), fl.cdiv(n, meta["N"])), options, product.plain,
    )  # fmt: skip
    assert found is not None and found["K"] == 32
    assert min(found["M"], found["N"]) >= 64
    if target.is_cuda:
        assert found["M"] * found["N"] <= extents.ELEMENTS * 32 * options.num_warps


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
