"""The table of the language's functions, and what their arguments are checked with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.language.arithmetic import describe
from fuser.language.emitter import Emitter
from fuser.language.tensors import Builtin, Tensor, unwrap
from fuser.language.types import ElementType

TABLE: dict[str, Builtin] = {}
METHODS: dict[str, Builtin] = {}


def builtin(
    *names: str, method: bool = False, host: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of the language, under one or more names. host: what it is outside of
    kernels."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            TABLE[name] = Builtin(name, function, function.__doc__ or "", host)
            if method:
                METHODS[name] = TABLE[name]
        return function

    return register


def static_int(e: Emitter, value: Any, what: str) -> int:
    """An integer that is known while compiling."""
    value = unwrap(value)
    if isinstance(value, Tensor) and value.literal is not None and not value.shape:
        value = value.literal
    if isinstance(value, bool | float | str) or value is None:
        e.fail(f"{what} is {value!r}, which is no whole number")
    if isinstance(value, int):
        return value
    if not isinstance(value, Tensor):
        e.fail(f"{what} is {describe(value)}, which is no whole number")
    if value.literal is None or value.shape:
        e.fail(
            f"{what} must be known while compiling",
            "make it a number, or an argument with the annotation constexpr",
        )
    e.fail(f"{what} is {value.literal!r}, which is no whole number")


def static_shape(e: Emitter, shape: Any) -> tuple[int, ...]:
    """A shape that is known while compiling."""
    items = shape if isinstance(shape, tuple | list) else (shape,)
    extents = tuple(static_int(e, item, "a shape") for item in items)
    for extent in extents:
        if extent < 1:
            e.fail(f"a tile with an axis of {extent}", "tiles have at least one element")
    return extents


def element_type(e: Emitter, dtype: Any) -> ElementType:
    dtype = unwrap(dtype)
    if not isinstance(dtype, ElementType):
        e.fail(f"{dtype!r} is not an element type", "give one such as float32")
    return dtype
