"""Pools that are taken, and interrupts at every place where Python may raise them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fuser.runtime.threads import Pool


@contextmanager
def taken(pool: Pool) -> Iterator[None]:
    """As while a plan runs; the pool is free before."""
    assert pool.take(pool.pointer)
    assert not pool.take(pool.pointer)
    try:
        yield
    finally:
        pool.give(pool.pointer)


def interrupted_everywhere(work: Callable[[], object], inside: Callable[..., Any]) -> Iterator[int]:
    """Do some work again and again, with a KeyboardInterrupt in front of the first, second, ...
    instruction of a function in it, until it comes to its end; yields after each."""
    code = inside.__code__
    for count in itertools.count(1):
        left = count

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            left -= event == "opcode"
            if not left:
                left = -1
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        yield count
        if left > 0:
            assert count > 10, "there is no such call in the work"
            return
