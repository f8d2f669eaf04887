"""fork() while other threads are at work: the child keeps the thread that forked and no other.

What the others held stays held for ever in the child, so:

- Locks of Python code come from `new_lock`. In the child they are free, unless the thread that
  forked holds them. What such a lock guards must be in order after every bytecode: entries are
  added complete, by one call.
- Locks around native code, whose state may be half changed, are held across the fork itself
  (`hold_at_fork`): fork() waits for the call under way.
- A module that another thread is importing would never be ready in the child: fork() waits for it.
"""

from __future__ import annotations

# It registers for forks as well, which must not happen while a fork waits for imports.
import concurrent.futures.thread  # noqa: F401
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, overload

IMPORT_SECONDS = 20.0
"""How long fork() waits for imports of other threads."""

_IMPORTED = frozenset(
    ("blake3", "cuda", "fuser", "llvmlite", "ml_dtypes", "numpy", "onnx", "platformdirs", "torch")
)
"""Packages that fuser imports while it works, and not at its own import."""

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_held: dict[Hashable, AbstractContextManager[object]] = {}


def new_lock() -> threading.RLock:
    """A reentrant lock that a forked child finds free, unless the thread that forked holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def hold_at_fork(name: Hashable, lock: AbstractContextManager[object]) -> None:
    """Enter `lock`, which must be reentrant, before each fork; leave it in parent and child."""
    _held[name] = lock


def _before() -> None:
    end = time.monotonic() + IMPORT_SECONDS
    while True:
        for lock in _held.values():
            lock.__enter__()
        if not _is_importing() or time.monotonic() > end:
            return
        _leave()
        time.sleep(0.002)


def _is_importing() -> bool:
    """Whether another thread holds the lock of a module that fuser imports while it works. Modules
    of others may hold theirs for ever: a program may be run by importing it."""
    locks = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
    for name, reference in list(locks.items()):
        if name.partition(".")[0] in _IMPORTED:
            owner = getattr(reference(), "owner", None)
            if owner is not None and owner != threading.get_ident():
                return True
    return False


def _leave() -> None:
    for lock in reversed(_held.values()):
        lock.__exit__(None, None, None)


def _in_child() -> None:
    _leave()
    for lock in _locks:
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_leave, after_in_child=_in_child)


_Result = TypeVar("_Result")


class cached_property(Generic[_Result]):
    """functools.cached_property as it is from Python 3.12 on: without a lock, which a thread that
    computes a value would hold across a fork. Two threads may both compute it."""

    def __init__(self, function: Callable[[Any], _Result]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[_Result]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _Result: ...
    def __get__(self, instance: Any, owner: type) -> cached_property[_Result] | _Result:
        if instance is None:
            return self
        found = self.function(instance)
        instance.__dict__[self.name] = found
        return found
