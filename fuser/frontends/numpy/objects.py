"""Objects whose attributes a traced function reads: `self` of a method, a model, a state.

The function gets a proxy in the object's place, and what it reads through that is noted. Arrays and
floats become inputs, looked up in each call. All else (sizes, options, classes, which attributes
there are) is compiled in, and compared in each call. Nothing can be written.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)  # fmt: skip
from typing import Any, NoReturn

import numpy as np

from fuser.base.forks import cached_property as locked_property
from fuser.dtypes import from_numpy
from fuser.errors import TraceError
from fuser.frontends.numpy.specs import spec_of
from fuser.frontends.numpy.trace import ArraySpec, TracedArray, outermost
from fuser.frontends.numpy.trace import tree as trees
from fuser.graph.ir import TensorType

Path = tuple[tuple[str, Any], ...]
"""Steps from an argument: ("", its name), then ("attribute", name) and ("item", key)."""
_MISSING: Any = type("Missing", (), {"__repr__": lambda self: "missing"})()
_VALUES = (bool, int, str, bytes, complex, type(None), np.integer, np.bool_, Enum, np.dtype, range,
           slice, frozenset, set, type(Ellipsis))  # fmt: skip
_CODE = (type, FunctionType, BuiltinFunctionType, np.ufunc, ModuleType, partial)
_C_DESCRIPTORS = (GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType)


def is_object(x: Any) -> bool:
    """Whether x is an instance of a class written in Python, with attributes to be read; not of the
    standard library, no nest of arrays, no array, and no code."""
    if isinstance(x, type | Enum | np.ndarray | np.generic | list | tuple | dict | ArraySpec):
        return False
    if isinstance(x, SimpleNamespace) or is_proxy(x):
        return True
    if dataclasses.is_dataclass(x) or isinstance(x, TracedArray):
        return False
    return _is_plain(x) and not hasattr(x, "__array__") and not hasattr(x, "__dlpack__")


def _is_plain(x: Any) -> bool:
    cls = type(x)
    home = cls.__module__.partition(".")[0]
    written = bool(cls.__flags__ & _HEAP_TYPE) and home not in _FOREIGN
    return written and not (hasattr(x, "shape") and hasattr(x, "dtype"))


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_FOREIGN = frozenset(sys.stdlib_module_names) | {"fuser", "numpy"}


def is_proxy(x: Any) -> bool:
    return type(x) is _Proxy


@dataclass(frozen=True)
class _Read:
    """What was found at a path. spec: it is an input of that type; otherwise it must be `value`, by
    identity where `same`."""

    path: Path
    spec: ArraySpec | None = None
    value: Any = None
    same: bool = False

    @property
    def label(self) -> str:
        return ".".join(str(name) for _, name in self.path)


class Reads:
    """What one recording reads of the objects among its arguments."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        self._reads: dict[tuple[Path, str], _Read] = {}
        self._made: dict[Path, Any] = {}
        self._containers: list[tuple[str, Any, Any]] = []

    def proxy(self, name: str) -> Any:
        """The object of that argument, as the function gets it."""
        return self.wrap((("", name),), self._objects[name], force=True)

    # while the function is recorded --------------------------------------------------------------

    def note(self, path: Path, value: Any, same: bool, kind: str = "value") -> None:
        self._reads.setdefault((path, kind), _Read(path, None, value, same))

    def wrap(self, path: Path, value: Any, force: bool = False) -> Any:
        """What the function gets for a value that it reads. force: as an object, if it is none of
        an array, a number and code."""
        if path not in self._made:
            self._made[path] = self._wrapped(path, value, force)
        return self._made[path]

    def _wrapped(self, path: Path, value: Any, force: bool) -> Any:
        label = ".".join(str(name) for _, name in path)
        if isinstance(value, TracedArray) or is_proxy(value):
            return value
        if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
            raise TraceError(
                f"{label} draws random numbers, which would be the same in every call",
                hint="draw them outside, and pass them as an argument",
            )
        if isinstance(value, type) and force:
            self.note(path, value, True)
            return _Proxy(self, path, value)
        if isinstance(value, MethodType):
            self.note(path, value.__func__, True, "function")
            owner = self.wrap((*path, ("attribute", "__self__")), value.__self__)
            return MethodType(value.__func__, owner)
        if isinstance(value, _VALUES):
            self.note(path, value, False)
            return set(value) if isinstance(value, set) else value
        if isinstance(value, _CODE):
            self.note(path, value, True)
            return value
        if isinstance(value, dict | list | tuple):
            return self._container(path, value, label)
        if isinstance(value, SimpleNamespace) or _is_plain(value) or force:
            if not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
                self.note(path, type(value), True, "type")
                return _Proxy(self, path, value)
        if type(value).__module__ in ("collections", "array"):
            raise TraceError(
                f"{label} is a {type(value).__name__}, which a traced function cannot read",
                hint="keep arrays in a list or a dict",
            )
        if isinstance(value, float | np.ndarray | np.generic) or hasattr(value, "__array__"):
            return self._input(path, value, label)
        if hasattr(value, "__dlpack__"):
            return self._input(path, value, label)
        self.note(path, value, True)  # a lock, a logger, a file
        return value

    def _input(self, path: Path, value: Any, label: str) -> Any:
        spec = spec_of(label, value)
        self._reads[path, "value"] = _Read(path, spec)
        trace = outermost()
        type = TensorType(from_numpy(spec.dtype), spec.shape)
        array = TracedArray(trace, trace.graph.add_input(label, type), spec.weak)
        array.argument = label
        return array

    def _container(self, path: Path, value: Any, label: str) -> Any:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        self.note(path, _outline(value), False, "outline")
        parts = [self.wrap((*path, ("item", key)), value[key]) for key in keys]
        if isinstance(value, dict):
            made: Any = dict(zip(keys, parts, strict=True))
        else:
            made = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        self._containers.append((label, made, _snapshot(made)))
        return made

    def finish(self) -> None:
        """Forget what only the recording needs. Raises TraceError where the function has changed a
        container of an object."""
        for label, made, before in self._containers:
            if _snapshot(made) != before:
                raise TraceError(
                    f"the function changes {label}, which would be lost",
                    hint="return the new value, and put it there outside",
                )
        self._objects = {}
        self._made.clear()
        self._containers.clear()

    # in a call ----------------------------------------------------------------------------------

    def changed(self, objects: Mapping[str, Any]) -> str:
        """What is compiled in and is another now, in words; "" if nothing is."""
        for (_, kind), read in self._reads.items():
            found = _follow(objects, read.path)
            if kind == "outline" and found is not _MISSING:
                found = _outline(found)
            elif kind == "type":
                found = type(found)
            elif kind == "function" and isinstance(found, MethodType):
                found = found.__func__
            elif kind == "names" and found is not _MISSING:
                found = tuple(vars(found))
            if read.spec is not None:
                if found is _MISSING or _spec(read.label, found) != read.spec:
                    return f"{read.label} is not {read.spec}"
            elif found is not read.value and (
                read.same or type(found) is not type(read.value) or found != read.value
            ):
                return f"{read.label} is {found!r} and was {read.value!r}"
        return ""

    def feeds(self, objects: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs, by name."""
        return {r.label: _follow(objects, r.path) for r in self._reads.values() if r.spec}


def _spec(label: str, value: Any) -> ArraySpec | None:
    is_array = isinstance(value, float | np.ndarray | np.generic) or hasattr(value, "__array__")
    return spec_of(label, value) if is_array or hasattr(value, "__dlpack__") else None


def _outline(container: Any) -> Any:
    if isinstance(container, dict):
        return type(container), tuple(container)
    return type(container), len(container) if isinstance(container, list | tuple) else -1


def _snapshot(container: Any) -> Any:
    leaves, tree = trees.flatten(container)
    return tree, [id(leaf) for leaf in leaves]


def _follow(objects: Mapping[str, Any], path: Path) -> Any:
    found: Any = objects[path[0][1]]
    for step, key in path[1:]:
        if step == "item":
            try:
                found = found[key]
            except (LookupError, TypeError):
                return _MISSING
        elif step == "class":
            found = type(found)
        elif isinstance(found, MethodType):
            found = found.__self__
        else:
            _, found = _lookup(found, key)
        if found is _MISSING:
            return _MISSING
    return found


def _lookup(owner: Any, name: str) -> tuple[bool, Any]:
    """An attribute without running code: whether it is a descriptor, and itself or _MISSING."""
    cls = owner if isinstance(owner, type) else type(owner)
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), _MISSING)
    if isinstance(found, MemberDescriptorType) and owner is not cls:
        try:
            return False, found.__get__(owner, cls)
        except AttributeError:
            return False, _MISSING
    if owner is not cls and not hasattr(type(found), "__set__"):
        own = getattr(owner, "__dict__", {})
        if name in own:
            return False, own[name]
    return hasattr(type(found), "__get__"), found


class _Proxy:
    """An object, as a traced function sees it. isinstance and super take it for the object."""

    __slots__ = ("_state",)

    def __init__(self, reads: Reads, path: Path, real: Any) -> None:
        object.__setattr__(self, "_state", (reads, path, real))

    def __getattribute__(self, name: str) -> Any:
        reads, path, real = object.__getattribute__(self, "_state")
        cls = real if isinstance(real, type) else type(real)
        if name == "__class__":
            return type(real)
        if name == "__dict__" and hasattr(real, "__dict__"):
            reads.note(path, tuple(vars(real)), False, "names")
            return {key: getattr(self, key) for key in vars(real)}
        is_descriptor, found = _lookup(real, name)
        here = (*path, ("attribute", name))
        if found is _MISSING:
            reads.note(here, _MISSING, True)
            hook = getattr(cls, "__getattr__", None)
            if hook is not None and cls is not real:
                return hook(self, name)
            raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
        if not is_descriptor:
            return reads.wrap(here, found)
        reads.note(here, found, True)
        if isinstance(found, property) and cls is not real:
            if found.fget is None:
                raise AttributeError(f"{name!r} of {cls.__name__!r} cannot be read")
            return found.fget(self)
        if isinstance(found, cached_property | locked_property) and cls is not real:
            return found.func(self)  # type: ignore[union-attr]
        if isinstance(found, classmethod):
            owner = self if cls is real else reads.wrap((*path, ("class", "")), cls, force=True)
            return MethodType(found.__func__, owner)
        if isinstance(found, _C_DESCRIPTORS):
            return found.__get__(real, cls)
        return found.__get__(None if cls is real else self, cls)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        _, path, _ = object.__getattribute__(self, "_state")
        label = ".".join(str(step) for _, step in (*path, ("attribute", name)))
        raise TraceError(
            f"the function sets {label}, which would be lost",
            hint="return the new value, and set it outside",
        )

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        _, path, real = object.__getattribute__(self, "_state")
        return f"<{'.'.join(str(step) for _, step in path)}: {type(real).__name__}, traced>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _, _, real = object.__getattribute__(self, "_state")
        if isinstance(real, type):
            return real(*args, **kwargs)
        return getattr(self, "__call__")(*args, **kwargs)  # noqa: B004, B009

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, "__getitem__")(key)  # noqa: B009

    def __len__(self) -> int:
        return int(getattr(self, "__len__")())  # noqa: B009

    def __iter__(self) -> Iterator[Any]:
        return iter(getattr(self, "__iter__")())  # noqa: B009
