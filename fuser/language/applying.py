"""What a kernel may call, and what attributes of run-time values are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fuser.errors import FuserError
from fuser.language import arrays, shapes
from fuser.language.aggregates import Aggregate
from fuser.language.arithmetic import as_tensor, cast, describe
from fuser.language.builtins import METHODS, TABLE
from fuser.language.emitter import Emitter
from fuser.language.memory import BlockPointer
from fuser.language.objects import call_python, is_plain, make
from fuser.language.tensors import Builtin, Choice, Constexpr, Pointer, Tensor, unwrap
from fuser.language.types import (
    BlockType,
    ConstexprType,
    ElementType,
    PointerType,
    int1,
    is_type,
)

PYTHON_CALLS = (len, int, float, bool, str, tuple, isinstance, getattr, hasattr, repr, type, round)
PURE = (
    *PYTHON_CALLS, abs, min, max, sum, divmod, pow, all, any, chr, ord, bin, hex, callable, hash,
    sorted, reversed, enumerate, zip, slice, list, range, issubclass, complex, ascii, format, id,
)  # fmt: skip
"""What a kernel may call of Python, with what is known while compiling."""
MUTABLE = (list, dict, set, bytearray)
MAKEABLE = (tuple, Constexpr, ConstexprType, PointerType, BlockType)
"""Classes whose objects a kernel may make."""
RUNTIME = (Tensor, Pointer, Choice, BlockPointer)


class Method:
    """A function of the language, bound to what it is a method of."""

    def __init__(self, function: Builtin | Callable[..., Any], owner: Any) -> None:
        self.function, self.owner = function, owner


def apply(e: Emitter, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Call what a kernel may call."""
    if isinstance(function, Method):
        owner, function = function.owner, function.function
        args = [owner, *args]
        if isinstance(owner, Aggregate) and is_plain(function):
            return call_python(e, function, args, named)
    if isinstance(function, Builtin):
        return _builtin(e, function, args, named)
    inline = getattr(function, "__language_function__", None)
    if inline is not None:
        return e.call(function, *args, **named)
    if isinstance(function, ElementType):
        return METHODS["to"].call(e, as_tensor(e, args[0]), function)
    if isinstance(function, type) and issubclass(function, Aggregate):
        return make(e, function, args, named)
    plain = [unwrap(arg) for arg in args]
    known = {name: unwrap(item) for name, item in named.items()}
    if function in (min, max) and any(isinstance(a, RUNTIME) for a in plain):
        return _extreme(e, function, plain)
    if function is abs and isinstance(plain[0], Tensor):
        return METHODS["abs"].call(e, plain[0])
    if function is range:
        return TABLE["range"].call(e, *plain)
    if function is print:
        return _print(e, plain, known)
    if function is len and plain and isinstance(plain[0], RUNTIME):
        return _length(e, plain[0])
    if function in (int, float, bool) and plain and isinstance(plain[0], Tensor):
        return _number(e, function, plain[0])
    return _python_call(e, function, plain, known)


def _builtin(e: Emitter, function: Builtin, args: list[Any], named: dict[str, Any]) -> Any:
    given = [unwrap(arg) for arg in args]
    known = {name: unwrap(item) for name, item in named.items()}
    known.pop("_semantic", None)
    known.pop("_builder", None)
    try:
        return function.call(e, *given, **known)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        text = str(error).split("() ", 1)[-1]
        e.fail(f"{function.name}: {text}")


def _length(e: Emitter, x: Any) -> Any:
    layout = arrays.layout_of(x)
    shape = layout.shape() if layout is not None else x.shape
    if not shape:
        e.fail(f"len of a {x.type}", "it has no axis")
    return shape[0]


def _extreme(e: Emitter, function: Any, args: list[Any]) -> Any:
    from fuser.language.elementwise import extreme

    total = args[0]
    for item in args[1:]:
        total = extreme(e, function is max, total, item)
    return total


def _print(e: Emitter, args: list[Any], named: dict[str, Any]) -> None:
    TABLE["device_print"].call(e, *args)


def _number(e: Emitter, function: Any, x: Tensor) -> Any:
    from fuser.language.types import float32, int32

    if x.shape:
        e.fail(f"{function.__name__} of a {x.type}", "use .to(dtype)")
    if x.literal is not None:
        return function(x.literal)
    if function is bool:
        return cast(e, x, int1)
    wanted = float32 if function is float else int32
    same = x.dtype.is_floating() if function is float else x.dtype.is_int()
    return x if same else cast(e, x, wanted)


def _python_call(e: Emitter, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    home = getattr(function, "__module__", "")
    constant = getattr(function, "__constexpr_function__", False)
    allowed = (
        constant
        or is_type(getattr(function, "__self__", None))  # what a type tells of itself
        or function in PYTHON_CALLS
        or home == "math"
        or (home == "builtins" and function in PURE)
        or (isinstance(function, type) and issubclass(function, MAKEABLE))
    )
    if not allowed:
        name = getattr(function, "__name__", describe(function))
        if not callable(function):
            e.fail(f"{describe(function)} is not a function")
        absent = getattr(function, "fuser_absent", None)  # of triton/absent.py
        if absent is not None:
            e.fail(f"{absent[0]}: {absent[1]}", absent[2])
        e.fail(
            f"{name} is a Python function, which a kernel cannot call",
            f"decorate {name} like the kernel, or compute its result before the launch",
        )
    runtime = any(isinstance(a, RUNTIME) for a in (*args, *named.values()))
    if runtime and not (function in PYTHON_CALLS or isinstance(function, type)):
        name = getattr(function, "__name__", "it")
        e.fail(
            f"{name} of a value that is known at run time only",
            f"use the language's own {name}, if it has one",
        )
    try:
        found = unwrap(function(*args, **named))
        listed = function in (sorted, reversed, enumerate, zip, list)
        return tuple(found) if listed else found
    except FuserError:
        raise
    except Exception as error:
        e.fail(f"{getattr(function, '__name__', function)}: {error}")


def member_of(e: Emitter, owner: Any, name: str) -> Any:
    """An attribute of a value that is known at run time."""
    layout = arrays.layout_of(owner)
    if layout is not None:
        found = arrays.member(e, owner, layout, name)
        if found is not None:
            return found
    if name == "shape":
        return tuple(owner.shape)
    if name in ("dtype", "type"):
        return getattr(owner, name)
    if name == "numel":
        return math.prod(owner.shape)
    if name == "T":
        return METHODS["trans"].call(e, owner)
    members = getattr(owner, "members", None)  # that only some run-time values have
    if members is not None and name in members:
        return members[name]
    method = METHODS.get(name)
    if method is not None:
        return Method(method, owner)
    if name == "item":
        return Method(Builtin("item", lambda e, x: shapes.reshape(e, x, ())), owner)
    e.fail(f"a {owner.type} has no {name!r}")
