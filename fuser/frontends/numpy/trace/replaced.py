"""Functions of other modules that are others while a function is recorded, for whoever records.

NumPy asks no array about them, so that there is no other way to be asked. Other threads get what
they call all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from fuser.base.forks import new_lock
from fuser.frontends.numpy.trace.context import maybe_current

_lock = new_lock()
_replacements: dict[tuple[ModuleType, str], Callable[..., Any]] = {}
_originals: dict[tuple[ModuleType, str], Any] = {}
_recordings = 0


def replace_while_recording(module: ModuleType, name: str, other: Callable[..., Any]) -> None:
    _replacements[module, name] = other


@contextmanager
def replaced() -> Iterator[None]:
    """The replacements are in their places within."""
    global _recordings
    with _lock:
        _recordings += 1
        if _recordings == 1:
            for (module, name), other in _replacements.items():
                found = _originals[module, name] = getattr(module, name)
                setattr(module, name, _for_recordings(found, other))
    try:
        yield
    finally:
        with _lock:
            _recordings -= 1
            if not _recordings:
                for (module, name), found in _originals.items():
                    setattr(module, name, found)


def _for_recordings(original: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (original if maybe_current() is None else other)(*args, **kwargs)

    return call
