"""How functions of libdevice are defined: as formulas of terms of one type.

    @floats()
    def fdim(t, x, y): ...

Operands are brought to one float type and shape; 16-bit floats are computed in float32 and rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.language import shapes
from fuser.language.arithmetic import as_tensor, cast, operands
from fuser.language.emitter import Emitter
from fuser.language.tensors import Builtin, Tensor
from fuser.language.terms import Formula, Term
from fuser.language.types import ElementType, float32, float64

TABLE: dict[str, Builtin] = {}
Written = Callable[..., Term]


def _register(name: str, call: Callable[..., Any], doc: str | None) -> None:
    TABLE[name] = Builtin(f"libdevice.{name}", call, doc or "")


def _together(e: Emitter, args: tuple[Any, ...]) -> list[Tensor]:
    """The operands in one type and shape."""
    found = [as_tensor(e, item) for item in args]
    first: Any = args[0]
    for item in args[1:]:
        first = operands(e, first, item)[0]
    wanted = as_tensor(e, first)
    return [shapes.broadcast_to(e, cast(e, item, wanted.dtype), wanted.shape) for item in found]


def floats(
    *names: str, result: ElementType | None = None, double: bool = False, only: str = ""
) -> Callable[[Written], Written]:
    """A function of floats of one type. result: its type, if not that of the operands. double:
    float32 is computed in float64, and rounded once. only: the one type that it is made for."""

    def register(function: Written) -> Written:
        name = function.__name__.removeprefix("_")

        def call(e: Emitter, *args: Any) -> Tensor:
            given = _together(e, args)
            kind = given[0].dtype
            if not kind.is_floating():
                e.fail(f"libdevice.{name} of {given[0].type}", "cast it to float32 first")
            if only and kind.name != only and not (only == "fp32" and kind.bits < 32):
                e.fail(
                    f"libdevice.{name} of {given[0].type}",
                    f"it is made for {only}: cast, or compute it from functions of the language",
                )
            wide = float32 if kind.bits < 32 else kind
            work = float64 if double else wide
            t = Formula(e)
            found = function(t, *(t(item, wide).to(work) for item in given))
            wanted = result or kind
            return found.to(wide).to(wanted).value if result is None else found.to(wanted).value

        for item in names or (name,):
            _register(item, call, function.__doc__)
        return function

    return register


def whole(
    *names: str, bits: tuple[int, ...] = (32, 64), result: ElementType | None = None
) -> Callable[[Written], Written]:
    """A function of integers of one type, of so many bits."""

    def register(function: Written) -> Written:
        name = function.__name__.removeprefix("_")

        def call(e: Emitter, *args: Any) -> Tensor:
            given = _together(e, args)
            kind = given[0].dtype
            if not kind.is_int() or kind.bits not in bits:
                sizes = " or ".join(map(str, bits))
                e.fail(f"libdevice.{name} of {given[0].type}", f"it takes integers of {sizes} bits")
            t = Formula(e)
            found = function(t, *map(t, given))
            return found.to(result or kind).value

        for item in names or (name,):
            _register(item, call, function.__doc__)
        return function

    return register


def plain(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that looks at its operands itself."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _register(name, function, function.__doc__)
        return function

    return register


def refused(name: str, hint: str) -> None:
    """A name that exists and has no implementation: a call is an error that says so."""

    def call(e: Emitter, *_: Any, **__: Any) -> None:
        e.fail(f"libdevice.{name} has no implementation", hint)

    _register(name, call, "Not implemented.")
