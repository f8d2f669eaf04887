"""Random numbers in a traced function are an error: recorded once, they would never change.

While a function is recorded, the functions of `np.random` and `random` raise where the recording
calls them, and generators that the function reaches must be as they were afterwards. One that the
function makes itself from a seed draws the same numbers in every call, so constants are right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.forks import new_lock
from fuser.frontends.numpy.trace.context import maybe_current
from fuser.frontends.numpy.trace.lines import defined_at

_HINT = "draw them outside, and pass them as an argument: f(x, rng.normal(size=n))"
_SILENT = frozenset(("get_state", "getstate", "seed", "set_state", "setstate"))
_lock = new_lock()
_replaced: dict[tuple[ModuleType, str], Any] = {}
_recordings = 0


@contextmanager
def no_randomness(function: Callable[..., Any], name: str) -> Iterator[None]:
    """Raise TraceError where the code within draws random numbers."""
    reached = _generators(function)
    before = [_state(generator) for generator in reached]
    _guard()
    try:
        yield
    finally:
        _release()
    if before != [_state(generator) for generator in reached]:
        raise TraceError(
            f"{name} draws random numbers, which would be the same in every call",
            where=defined_at(function),
            hint=_HINT,
        )


def _guard() -> None:
    """Put guards in the places of the functions, for as long as anything is recorded."""
    global _recordings
    with _lock:
        _recordings += 1
        if _recordings > 1:
            return
        for module in (np.random, random):
            for name in module.__all__:
                found = getattr(module, name)
                if isinstance(found, type) or name in _SILENT or not callable(found):
                    continue
                _replaced[module, name] = found
                setattr(module, name, _guarded(f"{module.__name__}.{name}", found))


def _release() -> None:
    global _recordings
    with _lock:
        _recordings -= 1
        if not _recordings:
            for (module, name), found in _replaced.items():
                setattr(module, name, found)
            _replaced.clear()


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def guard(*args: Any, **kwargs: Any) -> Any:
        seeded = name == "numpy.random.default_rng" and (*args, *kwargs.values()) not in (
            (),
            (None,),
        )
        if maybe_current() is None or seeded:  # another thread records
            return function(*args, **kwargs)
        raise TraceError(
            f"{name} in a traced function: its numbers would be the same in every call", hint=_HINT
        )

    return guard


def _generators(function: Callable[..., Any]) -> list[Any]:
    """Generators that a function, and functions of its module that it names, read by name."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    home = getattr(function, "__module__", None)
    todo: list[Any] = [getattr(function, "__func__", function)]
    while todo:
        current = todo.pop()
        owner = getattr(current, "__self__", current)  # rng.normal, kept by name
        if isinstance(owner, np.random.Generator | np.random.RandomState | random.Random):
            found[id(owner)] = owner
        if not isinstance(current, FunctionType) or id(current) in seen:
            continue
        seen.add(id(current))
        if current.__module__ != home:
            continue
        cells = (cell for cell in current.__closure__ or () if _is_filled(cell))
        todo += [cell.cell_contents for cell in cells]
        names = current.__code__.co_names
        todo += [current.__globals__[name] for name in names if name in current.__globals__]
    return list(found.values())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _state(generator: Any) -> Any:
    """What is equal if and only if nothing was drawn."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    return _plain(generator.get_state(legacy=False))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(part) for key, part in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
