"""Classes whose objects kernels make and hand on: fields by name, with methods.

    @fl.aggregate
    class Running:
        total: fl.tensor
        count: fl.tensor
        scale: fl.constexpr

        @fuser.kernel
        def add(self, x):
            return Running(self.total + x, self.count + 1, self.scale)

An object holds tensors, pointers, constexprs, tuples and other objects. Loops carry it, branches
give it, functions take and return it, field by field; fields that are constexprs must stay what
they are. It does not change: `aggregate_replace` makes another one. A constructor is Python that
runs while a kernel is compiled; without one the fields are its parameters, in order.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from fuser.errors import KeywordError, UsageError
from fuser.language.functions import Function
from fuser.language.promotion import of_number
from fuser.language.tensors import Constexpr, RuntimeValue, Tensor, is_constexpr, unwrap
from fuser.language.types import int32, int64

BINARY = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor",
}  # fmt: skip
COMPARED = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
UNARY = {"-": "neg", "+": "pos", "~": "invert", "not": "not"}
_MISSING = object()
Handed = Callable[[Any], dict[str, Any]]


class FieldError(UsageError, AttributeError, TypeError):
    """An object of an aggregate is made of what does not fit its fields, or is changed."""


class Aggregate:
    """The class of all objects of classes under `aggregate`."""

    _aggregate_fields: ClassVar[dict[str, Any]] = {}
    """Annotations by field, in order."""
    _aggregate_defaults: ClassVar[dict[str, Any]] = {}
    _aggregate_methods: ClassVar[dict[str, Any]] = {}
    """What a kernel may ask of an object besides its fields."""
    _aggregate_init: ClassVar[Any] = None

    def __init__(self, *args: Any, **named: Any) -> None:
        construct(self, args, named, lambda _: {})

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self).__name__
        fields = self._aggregate_fields
        if name not in fields:
            close = f"its fields: {', '.join(fields)}"
            raise FieldError(f"{kind} has no field {name!r}", hint=close)
        if self.__dict__.get(_MADE):
            raise FieldError(
                f"an assignment to the field {name} of a {kind}",
                hint=f"objects do not change: aggregate_replace(x, {name}=...) makes another one",
            )
        object.__setattr__(self, name, _fitted(kind, name, fields[name], value))

    def __delattr__(self, name: str) -> None:
        raise FieldError(f"a field of a {type(self).__name__} is deleted")

    def __repr__(self) -> str:
        items = (f"{name}={value!r}" for name, value in fields_of(self).items())
        return f"{type(self).__name__}({', '.join(items)})"

    def __eq__(self, other: object) -> bool:
        """Whether both are of one class and their fields are alike: of tensors, the same ones."""
        return type(self) is type(other) and all(
            a is b or bool(unwrap(a) == unwrap(b))
            for a, b in zip(fields_of(self).values(), fields_of(other).values(), strict=True)
        )

    def __hash__(self) -> int:
        return hash((type(self), *map(unwrap, fields_of(self).values())))


_MADE = "aggregate is made"
"""No identifier, so that it meets no field."""


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of an object, in order."""
    return {name: value.__dict__[name] for name in value._aggregate_fields}


def with_fields(value: Aggregate, fields: Sequence[Any]) -> Aggregate:
    """An object of the same class with these fields, which fit."""
    made = object.__new__(type(value))
    made.__dict__.update(zip(value._aggregate_fields, fields, strict=True))
    made.__dict__[_MADE] = True
    return made


def aggregate(cls: type) -> Any:
    """Make a class one whose objects kernels can hold. Its annotations are the fields, with plain
    values as defaults; it may inherit from other such classes. Methods are functions with the
    kernel's decorator, or Python that runs while a kernel is compiled. Raises UsageError."""
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        if base in (object, Aggregate):
            continue
        if not issubclass(base, Aggregate):
            raise UsageError(
                f"the aggregate {cls.__name__} inherits from {base.__name__}",
                hint="it may inherit from other aggregates only",
            )
        fields |= base._aggregate_fields
        defaults |= base._aggregate_defaults
        methods |= base._aggregate_methods
    own = dict(vars(cls))
    for name, kind in _annotations(cls).items():
        fields[name] = kind
        value = own.get(name, _MISSING)
        if value is not _MISSING and not callable(value):
            defaults[name] = own.pop(name)
    for name, member in own.items():
        method = callable(member) or isinstance(member, staticmethod | Function)
        if name != "__init__" and method:
            methods[name] = member
    bases = tuple(base for base in cls.__bases__ if base is not object) or (Aggregate,)
    left = ("__init__", "__dict__", "__weakref__", "__annotations__", "__hash__")
    space = {
        name: member
        for name, member in own.items()
        if name not in left and not (name in methods and name.startswith("__"))
    }
    space |= {
        "_aggregate_fields": fields, "_aggregate_defaults": defaults,
        "_aggregate_methods": methods, "_aggregate_init": own.get("__init__"),
        "__annotations__": dict(fields), "__triton_aggregate__": True,
        "__aggregate_fields__": tuple(fields), "__aggregate_defaults__": dict(defaults),
    }  # fmt: skip
    made = type(cls.__name__, bases, space)
    made.__qualname__ = cls.__qualname__
    return made


def _annotations(cls: type) -> dict[str, Any]:
    """The class's own annotations; those that are text, evaluated where that can be."""
    found = inspect.get_annotations(cls)
    if not any(isinstance(kind, str) for kind in found.values()):
        return found
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, AttributeError, TypeError):  # a name of the function around the class
        return found
    return {name: hints[name] for name in found}


def as_python(value: Any) -> Any:
    """A value as Python of the user's sees it: of what is no run-time value, the constexpr."""
    if isinstance(value, tuple):
        items = tuple(map(as_python, value))
        return type(value)(*items) if hasattr(value, "_fields") else items
    if isinstance(value, RuntimeValue | Aggregate | Constexpr):
        return value
    return Constexpr(value)


def construct(made: Any, args: Sequence[Any], named: dict[str, Any], more: Handed) -> None:
    """Set the fields of a new object. more: gives what a constructor gets besides."""
    cls = type(made)
    init = cls.__dict__["_aggregate_init"]  # that of a base sets the base's fields only
    if _MADE in made.__dict__:
        raise FieldError(
            f"the constructor of {cls.__name__} calls another one", hint="set the fields in it"
        )
    made.__dict__[_MADE] = False
    if init is None:
        _fill(made, args, named)
    else:
        if getattr(init, "__language_function__", False):
            raise FieldError(
                f"the constructor of {cls.__name__} is a kernel's function",
                hint="it is Python: leave the decorator out",
            )
        init(made, *args, **named, **more(init))
    for name in cls._aggregate_fields:
        if name not in made.__dict__:
            raise FieldError(f"the constructor of {cls.__name__} did not set the field {name}")
    made.__dict__[_MADE] = True


def _fill(made: Any, args: Sequence[Any], named: dict[str, Any]) -> None:
    """The constructor of a class that has none."""
    cls = type(made)
    names, kind = list(cls._aggregate_fields), cls.__name__
    if len(args) > len(names):
        raise KeywordError(
            f"{kind} takes {len(names)} fields, and {len(args)} are given",
            hint=f"its fields: {', '.join(names)}",
        )
    given = dict(zip(names, args, strict=False))
    for name, value in named.items():
        if name not in names:
            raise KeywordError(f"{kind} has no field {name!r}", hint=f"it has {', '.join(names)}")
        if name in given:
            raise KeywordError(f"{kind} is given its field {name} twice")
        given[name] = value
    for name in names:
        if name in given:
            setattr(made, name, given[name])
        elif name in cls._aggregate_defaults:
            setattr(made, name, as_python(cls._aggregate_defaults[name]))
        else:
            raise KeywordError(f"{kind} is made without its field {name}")


def _fitted(kind: str, name: str, annotation: Any, value: Any) -> Any:
    """A value as a field of that annotation. Raises FieldError."""
    wanted = annotation
    if isinstance(annotation, str):  # what could not be evaluated
        wanted = {"constexpr": Constexpr, "tensor": Tensor, "tuple": tuple}.get(
            annotation.rsplit(".", 1)[-1]
        )
    if is_constexpr(wanted):
        plain = unwrap(value)
        if isinstance(plain, Tensor) and plain.literal is not None and not plain.shape:
            plain = plain.literal
        if isinstance(plain, RuntimeValue):
            raise FieldError(
                f"{kind}.{name} is a constexpr, and given a {_shown(value)}",
                hint="which is known at run time only: annotate the field as a tensor",
            )
        return Constexpr(plain)
    if wanted is Tensor:
        if isinstance(value, RuntimeValue):
            return value
        plain = unwrap(value)
        if isinstance(plain, bool | int | float):
            return _number(plain)
        raise FieldError(
            f"{kind}.{name} is a tensor, and given {_shown(value)}",
            hint="annotate the field as a constexpr, or with what it is",
        )
    if isinstance(wanted, type):
        inner = unwrap(value)
        if not isinstance(inner, wanted):
            raise FieldError(f"{kind}.{name} is a {wanted.__name__}, and given {_shown(value)}")
        return inner if isinstance(inner, tuple | Aggregate | RuntimeValue) else value
    return value


def _shown(value: Any) -> str:
    return str(getattr(value, "type", repr(value)))


def _number(value: Any) -> Tensor:
    """A number that is written out, as the tensor that a name would hold."""
    from fuser.tilegen.index import Index  # decorators load without the compiler

    dtype = of_number(value)
    if dtype is None:
        raise FieldError(f"{value} needs more than 64 bits")
    whole = Index(value) if dtype in (int32, int64) else None
    return Tensor(dtype, (), literal=value, index=whole)


# what kernels ask of objects ----------------------------------------------------------------------


def method_of(value: Aggregate, name: str) -> Any:
    """(function, whether it takes the object) of a method; None where there is none."""
    found = value._aggregate_methods.get(name)
    if found is None:
        return None
    if isinstance(found, staticmethod):
        return found.__func__, False
    if isinstance(found, classmethod):
        return None
    return found, True


def operated(name: str, a: Any, b: Any, mirrored: str) -> tuple[Any, Any, Any] | None:
    """(method, object, other operand) for an operator by the names of its methods, of the left
    operand first; None where no operand has one."""
    for owner, other, word in ((a, b, name), (b, a, mirrored)):
        if isinstance(owner, Aggregate):
            found = method_of(owner, f"__{word}__")
            if found is not None:
                return found[0], owner, other
    return None


def replaced(value: Any, changes: dict[str, Any]) -> Aggregate:
    """The object with other values in some of its fields. Raises FieldError, KeywordError."""
    if not isinstance(value, Aggregate):
        raise UsageError(
            f"aggregate_replace of a {type(value).__name__}",
            hint="it takes objects of classes under @aggregate",
        )
    kind, fields = type(value).__name__, value._aggregate_fields
    for name in changes:
        if name not in fields:
            raise KeywordError(f"{kind} has no field {name!r}", hint=f"it has {', '.join(fields)}")
    kept = fields_of(value)
    changed = {n: _fitted(kind, n, fields[n], as_python(item)) for n, item in changes.items()}
    return with_fields(value, [*(kept | changed).values()])
