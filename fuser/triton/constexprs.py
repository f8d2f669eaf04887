"""Functions of Python that kernels call while they are compiled, and that programs call as well."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from fuser.language.tensors import Constexpr, unwrap


class ConstexprFunction:
    """A Python function that kernels call while they are compiled, on what is known then."""

    __constexpr_function__ = True

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__, self.__qualname__ = fn.__name__, fn.__qualname__
        self.__module__, self.__doc__ = fn.__module__, fn.__doc__
        self.__wrapped__ = fn
        self.hash: str | None = None
        self._src: str | None = None

    @property
    def src(self) -> str:
        if self._src is None:
            self._src = textwrap.dedent(inspect.getsource(self.fn))
        return self._src

    def _unsafe_update_src(self, new_src: str) -> None:
        self._src, self.hash = new_src, None

    @property
    def scope(self) -> dict[str, Any]:
        return dict(self.fn.__globals__)

    @property
    def cache_key(self) -> str:
        if self.hash is None:
            self.hash = hashlib.sha256(self.src.encode()).hexdigest()
        return self.hash

    def parse(self) -> ast.Module:
        """The syntax tree of `src`."""
        return ast.parse(self.src)

    def get_capture_scope(self) -> dict[str, Any]:
        """The names around it, as they are now."""
        return self.scope

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """As a method: with the object as its first argument."""
        return self if owner is None else BoundConstexprFunction(self, owner)

    def __call__(self, *args: Any, **named: Any) -> Any:
        plain = [arg.value if isinstance(arg, Constexpr) else arg for arg in args]
        known = {k: v.value if isinstance(v, Constexpr) else v for k, v in named.items()}
        return self.fn(*plain, **known)


class BoundConstexprFunction:
    """A constexpr function as a method of an object."""

    __constexpr_function__ = True

    def __init__(self, function: ConstexprFunction, owner: Any) -> None:
        self.__func__, self.__self__ = function, owner
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.__func__(self.__self__, *args, **named)


def constexpr_function(fn: Callable[..., Any]) -> ConstexprFunction:
    """Make a Python function callable in kernels while they are compiled."""
    return ConstexprFunction(fn)


def must_use_result(x: Any, s: str | bool = True) -> Any:
    """Mark a function whose result a kernel may not drop; `s` is added to the error.

    Also as a decorator with a reason: @must_use_result("why").
    """
    if isinstance(x, str):
        return lambda function: must_use_result(function, x)
    x.must_use_result = s
    return x


def cdiv(x: Any, y: Any) -> Any:
    """x / y rounded up."""
    if type(x) is int and type(y) is int:
        return -(-x // y)
    return -(-unwrap(x) // unwrap(y))


def next_power_of_2(n: Any) -> Any:
    """The least power of 2 that is not below n."""
    n = unwrap(n)
    return 1 << (n - 1).bit_length() if n > 0 else 0


# Grids are computed with them at each launch: functions are called faster than objects.
cdiv.__constexpr_function__ = True  # type: ignore[attr-defined]
next_power_of_2.__constexpr_function__ = True  # type: ignore[attr-defined]
