"""AsyncCompileMode: warm-ups that threads of an executor compile."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.errors import LanguageError, UsageError


def kernels() -> tuple[Any, Any]:
    """New ones: nothing is compiled of them."""

    @triton.jit
    def add(x, out, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.store(out + at, tl.load(x + at) + B)

    @triton.jit
    def wrong(x, out, B: tl.constexpr):
        tl.store(out + tl.arange(0, B), tl.load(x + tl.arange(0, 2 * B)))

    return add, wrong


class Late(ThreadPoolExecutor):
    """Begins nothing until it is told to, and counts."""

    def __init__(self) -> None:
        super().__init__(2)
        self.begin, self.count = threading.Event(), 0

    def submit(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        self.count += 1
        return super().submit(lambda: (self.begin.wait(60), fn(*args, **named))[1])


def test_a_warm_up_is_a_kernel_that_comes() -> None:
    add, _ = kernels()
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    executor = Late()
    with triton.AsyncCompileMode(executor):
        first = add.warmup(x, out, B=16, grid=(1,))
        same = add.warmup(x, out, B=16, grid=(1,))
        other = add.warmup(x, out, B=8, grid=(1,))
        assert isinstance(first, triton.FutureKernel) and first is same and first is not other
        assert first.kernel is None and executor.count == 2
        held = add.device_caches[0][0]
        assert list(held.values()) == [first, other]
        executor.begin.set()
    assert first.kernel is not None and first.result() is first.kernel
    assert list(held.values()) == [first.kernel, other.kernel]
    assert first.name == "add" and "tile" in first.asm
    compiled = sum(map(len, add.variants.values()))
    add[(1,)](x, out, B=16)
    assert compiled == 2 == sum(map(len, add.variants.values()))
    np.testing.assert_array_equal(out, x + 16)


def test_a_launch_inside_waits_for_nobody_else() -> None:
    add, _ = kernels()
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    executor = Late()
    with triton.AsyncCompileMode(executor):
        coming = add.warmup(x, out, B=16, grid=(1,))
        add[(1,)](x, out, B=16)
        executor.begin.set()
    np.testing.assert_array_equal(out, x + 16)
    assert sum(map(len, add.variants.values())) == 1 and coming.result().name == "add"


def test_errors_come_at_the_end_or_not_at_all() -> None:
    add, wrong = kernels()
    x = np.zeros(16, np.float32)
    with (
        ThreadPoolExecutor(2) as executor,
        pytest.raises(LanguageError, match="16"),
        triton.AsyncCompileMode(executor),
    ):
        bad, good = (kernel.warmup(x, x, B=8, grid=(1,)) for kernel in (wrong, add))
    assert good.kernel is not None
    with pytest.raises(LanguageError):
        bad.result()
    with ThreadPoolExecutor(2) as executor, triton.AsyncCompileMode(executor, ignore_errors=True):
        bad = kernels()[1].warmup(x, x, B=8, grid=(1,))
    assert bad.result(ignore_errors=True) is None
    assert not isinstance(add.warmup(x, x, B=4, grid=(1,)), triton.FutureKernel)


def test_an_error_of_the_block_is_the_one_that_is_raised() -> None:
    x = np.zeros(16, np.float32)
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(ZeroDivisionError),
        triton.AsyncCompileMode(executor),
    ):
        kernels()[1].warmup(x, x, B=8, grid=(1,))
        raise ZeroDivisionError


def test_one_within_another() -> None:
    with (
        ThreadPoolExecutor(1) as executor,
        triton.AsyncCompileMode(executor),
        pytest.raises(UsageError, match="active"),
        triton.AsyncCompileMode(executor),
    ):
        pass


def test_what_is_submitted_by_hand() -> None:
    seen: list[Any] = []
    with ThreadPoolExecutor(1) as executor, triton.AsyncCompileMode(executor) as mode:
        found = mode.submit("key", lambda: 3, seen.append, seen.append)
        assert mode.submit("key", lambda: 4, seen.append, seen.append) is found
    assert found.result() == 3 and seen == [3]


class Never(ThreadPoolExecutor):
    """Keeps what it is given, and begins none of it."""

    def submit(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        return Future()


def test_an_error_of_the_block_waits_for_nothing_that_has_not_begun() -> None:
    add, _ = kernels()
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    with pytest.raises(ZeroDivisionError), triton.AsyncCompileMode(Never()):
        add.warmup(x, out, B=16, grid=(1,))
        raise ZeroDivisionError
    assert not add.device_caches[0][0]
    add[(1,)](x, out, B=16)
    np.testing.assert_array_equal(out, x + 16)
