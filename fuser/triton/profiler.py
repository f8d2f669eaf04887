"""triton.profiler: marks for Proton, Triton's profiler, which fuser has not.

A scope does what it does in Triton where no session runs: nothing. A session is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fuser.triton.absent import modules, names, stand_in

Function = TypeVar("Function", bound=Callable[..., Any])
DEFAULT_PROFILE_NAME = "proton"
__path__: list[str] = []
_WHY = "Proton is not here"
_HINT = "time a function with triton.testing.do_bench, or run the program under a system profiler"
profile = stand_in("triton.profiler.profile", _WHY, _HINT)
__getattr__ = names(__name__, "activate configure_runtime start", _WHY, _HINT)
modules(
    __name__,
    "context data flags hooks hooks.hook hooks.instrumentation hooks.launch language metric mode "
    "profile proton scope specs state",
    _WHY,
    _HINT,
)


def finalize(session: int | None = None, output_format: str = "") -> None:
    """End all sessions: there are none."""


def deactivate(session: int | None = None, flushing: bool = False) -> None:
    """Stop a session: there is none."""


class scope:
    """A name for a part of a program, as a context or a decorator: nobody is told."""

    def __init__(self, name: str, metrics: dict[str, Any] | None = None) -> None:
        self.name, self.metrics = name, metrics

    def __enter__(self) -> scope:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __call__(self, function: Function) -> Function:
        return function


cpu_timed_scope = state = metadata_state = scope


def enter_scope(name: str, *, metrics: dict[str, Any] | None = None) -> None:
    """Begin a part of a program: nobody is told."""


def exit_scope(name: str | None = None, *, metrics: dict[str, Any] | None = None) -> None:
    """End it."""


enter_state, exit_state = enter_scope, exit_scope

__all__ = [
    "DEFAULT_PROFILE_NAME", "cpu_timed_scope", "deactivate", "enter_scope", "enter_state",
    "exit_scope", "exit_state", "finalize", "metadata_state", "scope", "state",
]  # fmt: skip
