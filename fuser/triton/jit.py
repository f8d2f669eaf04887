"""triton.jit and the small functions beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fuser.language.jit import KernelFunction

SPELLING = {
    "powers_of_two": True, "no_slices": True, "constexpr_globals": True, "no_exits": True,
    "plain_pointers": True, "wraps": True,
}  # fmt: skip
"""Where the language of Triton is narrower than fuser's (language/expressions.py reads these)."""


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    version: Any = None,
    repr: Callable[..., str] | None = None,
    launch_metadata: Any = None,
    do_not_specialize: Iterable[str | int] | None = None,
    do_not_specialize_on_alignment: Iterable[str | int] | None = None,
    debug: bool | None = None,
    noinline: bool | None = None,
) -> Any:
    """Make a function a kernel. Parameters as those of triton.jit 3.6."""

    def decorate(function: Callable[..., Any]) -> KernelFunction:
        return KernelFunction(function, SPELLING, do_not_specialize or ())

    return decorate if fn is None else decorate(fn)


def cdiv(x: int, y: int) -> int:
    """x / y rounded up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The least power of 2 that is not below n."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


for _function in (cdiv, next_power_of_2):  # kernels may call them while they are compiled
    setattr(_function, "__constexpr_function__", True)  # noqa: B010
