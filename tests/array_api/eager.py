"""An eager array namespace whose functions are each traced, compiled and run by fuser.

What `array-api-tests` wants: `Array` holds the values, and a function of fuser's namespace, an
operator or an index is compiled for the arrays it gets. A test suite calls many functions to check
one: only those that the test under way names are compiled (`compiled`), the others are NumPy's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import fuser
from fuser.frontends.numpy.trace import namespace

__version__ = fuser.__version__ if hasattr(fuser, "__version__") else "0"
__array_api_version__ = namespace.__array_api_version__

ATTRIBUTES = ("__getitem__", "T", "mT")
OPERATORS = tuple(
    f"__{name}__" for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
        "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge",
        "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul", "rand", "ror",
        "rxor", "rlshift", "rrshift", "neg", "pos", "abs", "invert",
    )
)  # fmt: skip
_FIRST = ("repeat",)
"""Functions whose other operands decide the shape of the result, so that they must be known."""
calls = 0
"""Functions that fuser computed."""
numpy_only = False
"""Leave every function to NumPy: does the suite find NumPy itself at fault?"""
_DATA = ("asarray", "from_dlpack", "isdtype", "finfo", "iinfo", "can_cast", "result_type")
"""Functions of data from outside, or of dtypes alone."""


def subjects(test: str) -> set[str]:
    """The functions and operators that a test is about: the words of its name."""
    words = set(re.findall(r"\w+", test.partition("::")[2]))
    words |= {word.removeprefix("test_") for word in words}
    if any(word.startswith("getitem") for word in words):
        words.add("__getitem__")
    if any(word.startswith("astype") for word in words):
        words.add("astype")
    return words


def compiled(name: str) -> bool:
    return not numpy_only and name in subjects(os.environ.get("PYTEST_CURRENT_TEST", ""))


class Array:
    """The values of an array. Operators are fuser's where they are under test."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    dtype = property(lambda self: self.values.dtype)
    shape = property(lambda self: self.values.shape)
    ndim = property(lambda self: self.values.ndim)
    size = property(lambda self: self.values.size)
    device = property(lambda self: "cpu")
    T = property(lambda self: run("T", lambda x: x.T, (self,), lambda x: x.T))
    mT = property(lambda self: run("mT", lambda x: x.mT, (self,), lambda x: x.mT))

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        return self

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        import sys

        return sys.modules[__name__]

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.values.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()

    def __bool__(self) -> bool:
        return bool(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def __float__(self) -> float:
        return float(self.values)

    def __complex__(self) -> complex:
        return complex(self.values)

    def __index__(self) -> int:
        return self.values.__index__()

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Array({self.values!r})"

    def __getitem__(self, key: Any) -> Array:
        plain = _plain(key)
        return run("__getitem__", lambda x: x[plain], (self,), lambda x: x[plain])

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.values.flags.writeable:
            self.values = self.values.copy()
        self.values[_plain(key)] = _plain(value)


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Array, *others: Any) -> Any:
        if any(not isinstance(x, Array | bool | int | float | complex) for x in others):
            return NotImplemented

        def call(*operands: Any) -> Any:
            # The second operand may be a number, and has no such method.
            result = getattr(operands[0], name)(*operands[1:])
            if result is NotImplemented:
                raise TypeError(f"{name} of {operands}")
            return result

        return run(name, call, (self, *others), call)

    method.__name__ = name
    return method


def _in_place(name: str) -> Callable[..., Any]:
    plain = f"__{name[3:]}"

    def method(self: Array, other: Any) -> Any:
        result = getattr(self, plain)(other)
        if result is NotImplemented:
            return result
        self.values = np.asarray(result.values, self.values.dtype)
        return self

    method.__name__ = name
    return method


for _name in OPERATORS:
    setattr(Array, _name, _operator(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or",
              "xor", "lshift", "rshift"):  # fmt: skip
    setattr(Array, f"__i{_name}__", _in_place(f"__i{_name}__"))


def _plain(nest: Any) -> Any:
    """A nest with NumPy arrays in place of Arrays."""
    if isinstance(nest, Array):
        return nest.values
    if isinstance(nest, list | tuple):
        return type(nest)(map(_plain, nest))
    return nest


def _wrapped(nest: Any) -> Any:
    if isinstance(nest, np.ndarray | np.generic):
        return Array(nest)
    if isinstance(nest, list | tuple):
        return tuple(map(_wrapped, nest)) if type(nest) is not list else list(map(_wrapped, nest))
    return nest


def run(
    name: str, traced: Callable[..., Any], operands: tuple[Any, ...], host: Callable[..., Any]
) -> Any:
    """A function of the arrays and numbers among the operands, by fuser where it is under test."""
    plain = [_plain(x) for x in operands]
    if not compiled(name) or any(map(_complex, plain)):
        with np.errstate(all="ignore"):
            return _wrapped(host(*plain))
    global calls
    calls += 1
    leaves: list[Any] = []

    def note(nest: Any) -> Any:
        if isinstance(nest, np.ndarray | bool | int | float):
            leaves.append(nest)
            return _Place(len(leaves) - 1)
        return type(nest)(map(note, nest)) if isinstance(nest, list | tuple) else nest

    places = [note(x) for x in plain]

    def call(arrays: tuple[Any, ...]) -> Any:
        def put(nest: Any) -> Any:
            if isinstance(nest, _Place):
                return arrays[nest.index]
            return type(nest)(map(put, nest)) if isinstance(nest, list | tuple) else nest

        return traced(*map(put, places))

    if not leaves:
        return _wrapped(fuser.trace(lambda: traced(*plain), device="cpu")())
    return _wrapped(fuser.trace(call, tuple(leaves), device="cpu")(tuple(leaves)))


def _complex(nest: Any) -> bool:
    """Whether there are complex numbers or their dtype, which fuser does not claim."""
    if isinstance(nest, list | tuple):
        return any(map(_complex, nest))
    if isinstance(nest, type):
        return issubclass(nest, complex | np.complexfloating)
    dtype = nest if isinstance(nest, np.dtype) else getattr(nest, "dtype", None)
    return isinstance(nest, complex) or getattr(dtype, "kind", "") == "c"


class _Place:
    def __init__(self, index: int) -> None:
        self.index = index


def _function(name: str) -> Callable[..., Any]:
    """A function of the namespace. Arrays (and numbers that meet arrays) are what it computes with,
    everything else is fixed."""
    own = getattr(namespace, name, None)
    numpy = getattr(np, name, None)

    def function(*args: Any, **kwargs: Any) -> Any:
        def of(implementation: Any) -> Callable[..., Any]:
            def call(*arrays: Any) -> Any:
                given = iter(arrays)
                filled = [next(given) if varies(x) else _plain(x) for x in args]
                named = {k: next(given) if varies(x) else _plain(x) for k, x in kwargs.items()}
                return implementation(*filled, **named)

            return call

        elementwise = isinstance(numpy, np.ufunc) and name != "vecdot"  # it takes an axis

        def varies(x: Any) -> bool:
            if isinstance(x, list | tuple):
                return any(map(varies, x))
            if name in _FIRST and x is not args[0]:
                return False
            return isinstance(x, Array) or (elementwise and isinstance(x, bool | int | float))

        kwargs.pop("device", None)
        operands = tuple(x for x in (*args, *kwargs.values()) if varies(x))
        if any(map(_complex, (*args, *kwargs.values()))):
            return _wrapped(of(numpy)(*map(_plain, operands)))
        return run(name, of(own), operands, of(numpy or own))

    function.__name__ = name
    return function


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Array:
    if isinstance(obj, Array) and compiled("asarray"):
        return run("asarray", lambda x: namespace.asarray(x, dtype=dtype), (obj,), np.asarray)
    values = _plain(obj)
    if isinstance(values, int) and not isinstance(values, bool) and dtype is None:
        values = np.asarray(values)
    return Array(np.array(values, dtype=dtype, copy=True if copy is None else copy))


def from_dlpack(x: Any, /, **kwargs: Any) -> Array:
    return Array(np.from_dlpack(x.values if isinstance(x, Array) else x))


def can_cast(source: Any, target: Any, /) -> bool:
    return bool(np.can_cast(source.dtype if isinstance(source, Array) else source, target))


def result_type(*operands: Any) -> Any:
    return np.result_type(*(x.dtype if isinstance(x, Array) else x for x in operands))


def finfo(type: Any, /) -> Any:
    return np.finfo(type.dtype if isinstance(type, Array) else type)


def iinfo(type: Any, /) -> Any:
    return np.iinfo(type.dtype if isinstance(type, Array) else type)


def __getattr__(name: str) -> Any:
    """Functions that the namespace claims; NumPy's constants, dtypes and other functions."""
    if name == "__array_namespace_info__":
        return np.__array_namespace_info__
    if name.startswith("__") or name in ("fft", "linalg"):
        raise AttributeError(name)
    found = getattr(np, name)
    if isinstance(found, type | float | np.dtype) or name in ("isdtype", "newaxis"):
        return found
    if claimed(name):
        return _function(name)
    if callable(found):
        return lambda *args, **kwargs: _wrapped(
            found(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})
        )
    return found


def claimed(name: str) -> bool:
    """Whether fuser's namespace has a function, or traced arrays an operator."""
    if name in (*OPERATORS, *ATTRIBUTES):
        return True
    try:
        found = getattr(namespace, name)
    except AttributeError:
        return False
    return callable(found) and not isinstance(found, type) and name not in _DATA
