"""The functions of the language on elements, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.language import choices, elementwise
from fuser.language.arithmetic import as_tensor, binary, to_bool, where
from fuser.language.debugging import checked
from fuser.language.emitter import Emitter
from fuser.language.registry import builtin, static_int
from fuser.language.tensors import Choice, Pointer, Tensor, unwrap


@builtin("where")
def _where(e: Emitter, condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    condition, x, y = unwrap(condition), unwrap(x), unwrap(y)
    if isinstance(x, Pointer | Choice) and isinstance(y, Pointer | Choice):
        return choices.chosen(e, condition, x, y)
    return where(e, condition, x, y)


def _float_map(fn: str) -> Callable[..., Any]:
    def call(e: Emitter, x: Any) -> Tensor:
        return elementwise.float_map(e, fn, unwrap(x))

    call.__doc__ = f"{fn} of each element."
    return call


for _name in elementwise.FLOAT_MAPS:
    builtin(_name, method=True)(_float_map(_name))
builtin("sqrt_rn", method=True)(_float_map("sqrt"))


@builtin("abs", method=True)
def _abs(e: Emitter, x: Any) -> Any:
    """The absolute value."""
    return elementwise.abs_(e, unwrap(x))


@builtin("maximum")
def _maximum(e: Emitter, x: Any, y: Any, propagate_nan: Any = None) -> Any:
    """The greater of two; a number, where the other is NaN."""
    return elementwise.extreme(e, True, unwrap(x), unwrap(y), unwrap(propagate_nan))


@builtin("minimum")
def _minimum(e: Emitter, x: Any, y: Any, propagate_nan: Any = None) -> Any:
    """The lesser of two; a number, where the other is NaN."""
    return elementwise.extreme(e, False, unwrap(x), unwrap(y), unwrap(propagate_nan))


def _logic(op: str) -> Callable[..., Any]:
    def call(e: Emitter, input: Any, other: Any) -> Any:
        a, b = (to_bool(e, as_tensor(e, unwrap(item))) for item in (input, other))
        return binary(e, op, a, b)

    call.__doc__ = f"bool(input) {op} bool(other)."
    return call


builtin("logical_and", method=True)(_logic("&"))
builtin("logical_or", method=True)(_logic("|"))


@builtin("clamp")
def _clamp(e: Emitter, x: Any, min: Any, max: Any, propagate_nan: Any = None) -> Any:
    """x between min and max."""
    return elementwise.clamp(e, unwrap(x), unwrap(min), unwrap(max), unwrap(propagate_nan))


builtin("sigmoid", method=True)(elementwise.sigmoid)
builtin("softmax", method=True)(elementwise.softmax)
builtin("fma", method=True)(elementwise.fma)
builtin("div_rn")(elementwise.div_rn)
builtin("fdiv")(elementwise.fdiv)
builtin("umulhi")(elementwise.umulhi)


def cdiv(x: int, div: int) -> int:
    """x / div rounded up, of plain numbers."""
    return -(-x // div)


def next_power_of_2(n: int) -> int:
    """The least power of 2 that is not below n, of plain numbers."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


@builtin("next_power_of_2", host=next_power_of_2)
def _next_power_of_2(e: Emitter, n: Any) -> int:
    """The least power of 2 that is not below n, which is known while compiling."""
    return next_power_of_2(static_int(e, n, "the number of next_power_of_2"))


@builtin("cdiv", method=True, host=cdiv)
def _cdiv(e: Emitter, x: Any, div: Any) -> Any:
    """x / div rounded up."""
    return elementwise.cdiv(e, unwrap(x), unwrap(div))


def _operator(op: str) -> Callable[..., Any]:
    def call(e: Emitter, x: Any, y: Any, sanitize_overflow: Any = True, **_: Any) -> Any:
        a, b = unwrap(x), unwrap(y)
        found = binary(e, op, a, b)
        return checked(e, op, a, b, found) if unwrap(sanitize_overflow) else found

    call.__doc__ = f"x {op} y."
    return call


for _name, _op in (("add", "+"), ("sub", "-"), ("mul", "*")):
    builtin(_name)(_operator(_op))
