"""Objects of aggregates in kernels: making them, and their methods that are Python.

Python of the user's runs while a kernel is compiled. It gets tensors as they are and constants as
constexprs; what it raises is an error at the kernel's line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from fuser.errors import FuserError
from fuser.language.aggregates import Aggregate, as_python, construct
from fuser.language.emitter import Emitter
from fuser.language.tensors import unwrap


def make(e: Emitter, cls: Any, args: Sequence[Any], named: dict[str, Any]) -> Aggregate:
    """An object that a kernel makes. What is known while compiling is a constexpr to it."""
    made: Aggregate = object.__new__(cls)
    given = {name: as_python(value) for name, value in named.items()}
    positional = [*map(as_python, args)]
    run_python(
        e, cls.__name__, lambda: construct(made, positional, given, lambda init: handed(e, init))
    )
    return made


def run_python(e: Emitter, what: str, function: Callable[[], Any]) -> Any:
    """The result of Python of the user's that runs while a kernel is compiled."""
    try:
        return function()
    except FuserError as error:
        e.fail(error.what, error.hint)
    except Exception as error:
        e.fail(f"{what}: {type(error).__name__}: {error}")


def handed(e: Emitter, function: Any) -> dict[str, Any]:
    """The arguments by which Python of the user's calls functions of the language."""
    plain = getattr(function, "fn", function)
    try:
        names = inspect.signature(plain).parameters
    except (TypeError, ValueError):
        return {}
    return {name: e for name in ("_semantic", "_generator") if name in names}


def is_plain(function: Any) -> bool:
    """Whether a method is Python of the user's without a decorator."""
    return isinstance(function, FunctionType)


def call_python(e: Emitter, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """A method without a decorator."""
    owner, *rest = args
    given = [owner, *map(as_python, rest)]
    known = {name: as_python(item) for name, item in named.items()} | handed(e, function)
    return run_python(e, function.__name__, lambda: unwrap(function(*given, **known)))
