"""NVTX ranges, on request: what Nsight Systems shows of compiles and runs under FUSER_NVTX=1.

By the package nvtx, else by the library libnvToolsExt of the CUDA toolkit, looked for when they are
first needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from fuser.base.config import Config

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("fuser")


@contextmanager
def marked(name: str) -> Iterator[None]:
    """A range around the block, if ranges are asked for and can be had."""
    found = _functions() if Config.from_environment().nvtx else None
    if found is None:
        yield
        return
    push, pop = found
    push(name)
    try:
        yield
    finally:
        pop()


def mark(what: object, methods: Iterable[str], name: str) -> None:
    """Put a range around each call of those methods of an object that it has. Where no ranges are
    asked for it stays as it is, so that calls cost nothing more."""
    for method in methods:
        if (function := getattr(what, method, None)) is not None:
            if (found := marking(function, f"fuser {method} {name}")) is not function:
                setattr(what, method, found)


def marking(function: Callable[P, R], name: str) -> Callable[P, R]:
    """The function with a range around each call; itself where no ranges are asked for."""
    if not Config.from_environment().nvtx or _functions() is None:
        return function

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with marked(name):
            return function(*args, **kwargs)

    return call


@functools.cache
def _functions() -> tuple[Callable[[str], object], Callable[[], object]] | None:
    """What begins a range and what ends it; None, and a warning, where there is neither."""
    try:
        import nvtx

        return nvtx.push_range, nvtx.pop_range
    except ImportError:
        pass
    if (library := _library()) is not None:
        return (lambda text: library.nvtxRangePushA(text.encode())), library.nvtxRangePop
    _log.warning("FUSER_NVTX=1 marks nothing: neither the package nvtx nor libnvToolsExt is here;"
                 " pip install nvtx")  # fmt: skip
    return None


def _library() -> ctypes.CDLL | None:
    for name in ("libnvToolsExt.so.1", "libnvToolsExt.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None
