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
from types import FunctionType
from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.lines import defined_at
from fuser.frontends.numpy.trace.replaced import replace_while_recording

_HINT = "draw them outside, and pass them as an argument: f(x, rng.normal(size=n))"
_SILENT = frozenset(("get_state", "getstate", "seed", "set_state", "setstate"))
_DEFAULT_RNG = "numpy.random.default_rng"


def _refused(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if name == _DEFAULT_RNG and (*args, *kwargs.values()) not in ((), (None,)):
            return function(*args, **kwargs)
        raise TraceError(
            f"{name} in a traced function: its numbers would be the same in every call", hint=_HINT
        )

    return refuse


for _module in (np.random, random):
    for _name in _module.__all__:
        _found = getattr(_module, _name)
        if callable(_found) and not isinstance(_found, type) and _name not in _SILENT:
            replace_while_recording(_module, _name, _refused(f"{_module.__name__}.{_name}", _found))


@contextmanager
def no_randomness(function: Callable[..., Any], name: str) -> Iterator[None]:
    """Raise TraceError where the code within draws random numbers."""
    reached = _generators(function)
    before = [_state(generator) for generator in reached]
    yield
    if before != [_state(generator) for generator in reached]:
        raise TraceError(
            f"{name} draws random numbers, which would be the same in every call",
            where=defined_at(function),
            hint=_HINT,
        )


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
