"""`@fuser.kernel`: the decorator of the block language."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

from fuser.errors import names_keywords
from fuser.language.jit import KernelFunction


@overload
def kernel(fn: Callable[..., Any]) -> KernelFunction: ...
@overload
def kernel(
    *, do_not_specialize: Iterable[str | int] = ()
) -> Callable[[Callable[..., Any]], KernelFunction]: ...


@names_keywords
def kernel(
    fn: Callable[..., Any] | None = None, *, do_not_specialize: Iterable[str | int] = ()
) -> KernelFunction | Callable[[Callable[..., Any]], KernelFunction]:
    """Make a function a kernel, `kernel[grid](...)`, that other kernels can call, too.

    do_not_specialize: parameters, by name or position, for whose values no code is made of its own.
    """

    def decorate(function: Callable[..., Any]) -> KernelFunction:
        return KernelFunction(function, {}, do_not_specialize)

    return decorate if fn is None else decorate(fn)
