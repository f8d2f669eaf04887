"""Names of Triton that packages import and that mean nothing here: they resolve, and raise an error
that says so where they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from fuser.errors import UnsupportedError


def refuse(name: str, why: str, hint: str = "") -> NoReturn:
    """Raise UnsupportedError for a use of a name."""
    raise UnsupportedError(f"{name}: {why}", hint=hint)


def function(name: str, why: str, hint: str = "") -> Callable[..., Any]:
    """A function that raises UnsupportedError when it is called."""

    def call(*args: Any, **named: Any) -> NoReturn:
        refuse(name, why, hint)

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__doc__ = f"Not here: {why}."
    return call


def kind(name: str, why: str, hint: str = "") -> type:
    """A class of which there are no objects: making one raises UnsupportedError."""

    def init(self: object, *args: Any, **named: Any) -> None:
        refuse(name, why, hint)

    short = name.rpartition(".")[2]
    return type(short, (), {"__init__": init, "__doc__": f"Not here: {why}."})
