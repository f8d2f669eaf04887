"""What a kernel's code is made of, as text: its source, and what the names in it stand for.

Two kernels of one fingerprint are compiled to the same code for the same arguments. What a name
stands for is described by its meaning: a function of the language by its source and by the names in
that, a constant by its value, a function of Python that runs while a kernel is compiled by its byte
code. A kernel that names anything else, an object whose state nobody knows, has no fingerprint.
"""

from __future__ import annotations

import builtins as python
import dis
import enum
import functools
import hashlib
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

from fuser.language.aggregates import Aggregate
from fuser.language.blocks import Block
from fuser.language.foreign import of_pytorch
from fuser.language.functions import Function
from fuser.language.libdevice.registry import TABLE as LIBDEVICE
from fuser.language.registry import METHODS, TABLE
from fuser.language.tensors import Builtin, ConstantFunction, Constexpr
from fuser.language.types import is_type

OURS = "fuser."
PURE_MODULES = ("math", "operator", "builtins")
"""Modules of Python whose functions give the same for the same."""
IMPURE = {
    "open", "input", "eval", "exec", "__import__", "globals", "locals", "vars", "id", "hash",
    "compile",
}  # fmt: skip
"""Functions of Python that give what is not in their arguments."""
PLAIN = (bool, int, float, str, bytes, complex, type(None), type(...))


class Unknown(Exception):
    """Something whose meaning has no text."""


class Fingerprint:
    """Of one kernel. text: describes all that its code depends on, besides arguments and options,
    and what `of` was asked for. owners: functions and modules whose names were described, in an
    order that the text decides. Raises Unknown."""

    def __init__(self, function: Function) -> None:
        self.owners: list[Any] = []
        self._parts: list[str] = []
        self._known: dict[int, str] = {}
        self._kept: list[Any] = []  # what `_known` names by its id
        self.of(function)

    @property
    def text(self) -> str:
        return "\n".join(self._parts)

    @property
    def functions(self) -> set[Function]:
        """The functions of the language that were described."""
        return {item for item in self._kept if isinstance(item, Function)}

    def of(self, value: Any) -> str:
        """A short text for a value; what is longer is added to the fingerprint's."""
        if isinstance(value, PLAIN):
            return f"{type(value).__name__} {value!r}"
        if id(value) in self._known:
            return self._known[id(value)]
        if isinstance(value, tuple):
            items = ", ".join(map(self.of, value))
            return f"{_name(type(value))}({items})"
        if is_type(value):
            return f"{_name(type(value))} {value!r}"
        if isinstance(value, Constexpr):
            return f"constexpr {self.of(value.value)}"
        if isinstance(value, ConstantFunction):
            return f"constexpr {self.of(value.function)}"
        if isinstance(value, Block):
            return f"block {self.of(value.default)}"
        if isinstance(value, Builtin):
            return f"builtin {value.name} {self._builtin(value)}"
        if isinstance(value, enum.Enum):
            return f"{_name(type(value))}.{value.name} {self.of(value.value)}"
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, BuiltinFunctionType | MethodDescriptorType):
            home = getattr(value, "__module__", None)
            if home in PURE_MODULES:
                return f"python {_name(value)}"
        if isinstance(value, Function):
            return self._long(value, self._function(value))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, FunctionType):
            return self._long(value, self._python(value))
        if getattr(value, "__constexpr_function__", False) and hasattr(value, "fn"):
            return f"constexpr function {self.of(value.fn)}"
        raise Unknown(f"{_name(type(value))}")

    def _long(self, value: Any, lines: Iterator[str]) -> str:
        """Add the lines of a value once; the text that stands for them."""
        found = self._known[id(value)] = f"#{len(self._known)}"
        self._kept.append(value)
        self._parts.append(f"{found} = " + "\n".join(lines))
        return found

    def _builtin(self, value: Builtin) -> str:
        if id(value) not in _own():
            cells = getattr(value.call, "__closure__", None) or ()  # a user's function, it may be
            return f"{self.of(value.call)} {self.of(tuple(cell.cell_contents for cell in cells))}"
        return _name(value.call)

    def _module(self, module: ModuleType) -> str:
        name = module.__name__
        if name in PURE_MODULES or f"{name}.".startswith(OURS):
            return f"module {name}"
        raise Unknown(f"the module {name}")

    def _class(self, kind: type) -> str:
        if kind.__module__ in PURE_MODULES or kind.__module__.startswith(OURS):
            return f"class {_name(kind)}"
        if issubclass(kind, enum.Enum):
            return self._long(kind, (self.of(item) for item in kind))
        if issubclass(kind, Aggregate):
            return self._long(kind, self._aggregate(kind))
        raise Unknown(f"the class {_name(kind)}")

    def _aggregate(self, kind: type[Aggregate]) -> Iterator[str]:
        yield _name(kind)
        yield repr({name: str(item) for name, item in kind._aggregate_fields.items()})
        for table in (kind._aggregate_defaults, kind._aggregate_methods):
            for name, item in sorted(table.items()):
                yield f"{name}: {self.of(item)}"
        yield self.of(kind._aggregate_init)

    def _function(self, function: Function) -> Iterator[str]:
        """A function of the language: its text, and what the names in it stand for."""
        source, fn = function.source, function.fn
        yield f"{fn.__module__}.{fn.__qualname__} {source.file}:{source.first}:{source.indent}"
        yield repr(sorted(function.options.items()))
        yield source.text
        for name, item in function.signature.parameters.items():
            default = item.default
            yield f"{name}={'' if default is item.empty else self.of(default)}"
        self.owners.append(fn)
        scope = function.scope
        for chain in source.names:
            if chain[0] in scope:
                if scope[chain[0]] is None:  # as PyTorch's names are without a Triton
                    yield f"{chain[0]}: {self.of(of_pytorch(fn, chain[0]))}"
                yield f"{'.'.join(chain)}: {self._reached(scope[chain[0]], chain[1:])}"
            else:
                yield f"{chain[0]}: {'python' if hasattr(python, chain[0]) else 'nothing'}"

    def _reached(self, value: Any, attributes: tuple[str, ...]) -> str:
        """What attributes of modules lead to."""
        for name in attributes:
            if not isinstance(value, ModuleType):
                break
            if not any(value is owner for owner in self.owners):
                self.owners.append(value)
            if not hasattr(value, name):
                return f"{value.__name__} without {name}"
            value = getattr(value, name)
        return self.of(value)

    def _python(self, fn: FunctionType) -> Iterator[str]:
        """A function of Python: its byte code, and what the names in it stand for."""
        yield _name(fn)
        if fn.__module__.startswith(OURS) and not fn.__closure__:
            return
        names: set[str] = set()
        yield from self._code(fn.__code__, names)
        if names & IMPURE:
            raise Unknown(f"{_name(fn)}, which calls {min(names & IMPURE)}")
        yield self.of((fn.__defaults__, tuple(sorted((fn.__kwdefaults__ or {}).items()))))
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False))
        for name in sorted(names | cells.keys()):
            if name in cells:
                yield f"{name}: {self.of(cells[name].cell_contents)}"
            elif name in fn.__globals__:
                found = fn.__globals__[name]
                if isinstance(found, ModuleType) and found.__name__ not in PURE_MODULES:
                    raise Unknown(f"{_name(fn)}, which reads the module {name}")
                yield f"{name}: {self.of(found)}"

    def _code(self, code: CodeType, names: set[str]) -> Iterator[str]:
        names |= set(code.co_names)
        if any(item.opname == "IMPORT_NAME" for item in dis.get_instructions(code)):
            names.add("__import__")
        yield hashlib.sha256(code.co_code + code.co_exceptiontable).hexdigest()
        yield repr((code.co_names, code.co_varnames, code.co_argcount, code.co_flags))
        for item in code.co_consts:
            if isinstance(item, CodeType):
                yield from self._code(item, names)
            else:
                yield f"{type(item).__name__} {item!r}"


@functools.cache
def _own() -> frozenset[int]:
    """The functions of the language, which stay, by their id."""
    return frozenset(id(item) for own in (TABLE, METHODS, LIBDEVICE) for item in own.values())


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
