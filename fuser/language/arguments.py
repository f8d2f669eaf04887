"""What a launch's arguments are to the compiler: their classes, and the numbers that are passed.

An array is a pointer whose alignment matters; an integer of 2 and more is a symbol, so that one
compile serves all sizes; 0 and 1, None, bools and constexpr are compiled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from fuser.errors import NumberRangeError, UsageError
from fuser.graph.sizes import LEAST
from fuser.language.compile import (
    ArgumentClass,
    ArrayClass,
    Fixed,
    FloatClass,
    IntegerClass,
)
from fuser.language.descriptors import TensorDescriptor
from fuser.language.emitter import wrap
from fuser.language.stand_ins import Mock, Retyped
from fuser.language.tensors import plain as as_number
from fuser.language.types import (
    BY_NAME,
    ElementType,
    float32,
    int32,
    int64,
    of_dtype,
    uint64,
)
from fuser.runtime.arrays import ArrayRecord, describe, is_array, overlaps

NO_ARGUMENTS = (list, dict, set, complex, bytes, bytearray)
ALIGNMENT = 16
"""What addresses and integers are compiled to be multiples of, where they are."""


OTHER_NAMES = {
    "bool": "int1", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
}  # fmt: skip
"""Names that array libraries have for types of the language."""


@dataclass
class Arguments:
    """The arguments of one launch, taken apart.

    classes: by parameter, what is compiled for. leaves: every array and number, in order; tuples
    are taken apart. records: of the leaves that are arrays; names: what messages call those.
    """

    classes: dict[str, ArgumentClass] = field(default_factory=dict)
    leaves: list[Any] = field(default_factory=list)
    records: dict[int, ArrayRecord] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    stand_in: str = "cpu"
    """The device where no array says one."""

    @property
    def device(self) -> tuple[str, int]:
        """(cpu or cuda, ordinal): that of the arrays. Raises UsageError where they differ."""
        found = {(record.device, record.ordinal) for record in self.records.values()}
        if len(found) > 1:
            places = ", ".join(sorted({record.place for record in self.records.values()}))
            raise UsageError(
                f"the arrays of a launch are on {places}", hint="put them all on one device"
            )
        return next(iter(found), (self.stand_in, 0))


def classify(
    bound: Mapping[str, Any],
    constexprs: frozenset[str],
    plain: frozenset[str] = frozenset(),
    annotated: Mapping[str, ElementType | None] = MappingProxyType({}),
) -> Arguments:
    """The arguments by parameter. constexprs: those that are known while compiling; plain: those
    for whose values no code is made of its own; annotated: the types of numbers that are given, and
    None for a pointer to what is not written. Raises UsageError, FeedError."""
    found = Arguments()
    for name, value in bound.items():
        if name in annotated:
            found.classes[name] = _annotated(name, value, annotated[name], found, name in plain)
            continue
        if name in constexprs:
            value = known(value)
            found.classes[name] = Fixed(value)
            found.leaves.append(value)
        else:
            found.classes[name] = _class_of(name, value, found, name in plain)
    if len(found.records) > 1:
        groups = overlaps(list(found.records.values()))
        if any(groups):
            by_leaf = dict(zip(found.records, groups, strict=True))
            count = iter(range(len(found.leaves)))
            for name, kind in found.classes.items():
                found.classes[name] = _aliased(kind, by_leaf, count)
    return found


def known(value: Any) -> Any:
    """What a constexpr argument stands for: of NumPy scalars, in tuples too, the numbers."""
    if isinstance(value, tuple):
        items = tuple(map(known, value))
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else items
    return as_number(value)


def _aliased(kind: ArgumentClass, groups: Mapping[int, int], count: Any) -> ArgumentClass:
    if isinstance(kind, tuple):
        items = tuple(_aliased(item, groups, count) for item in kind)
        return type(kind)(*items) if hasattr(kind, "_fields") else items  # type: ignore[arg-type]
    leaf = next(count)
    if isinstance(kind, ArrayClass) and groups.get(leaf):
        return replace(kind, alias=groups[leaf])
    return kind


def _class_of(name: str, value: Any, found: Arguments, plain: bool) -> ArgumentClass:
    if isinstance(value, TensorDescriptor):
        value = value.parts()
    if isinstance(value, tuple):
        parts = getattr(value, "_fields", range(len(value)))
        items = tuple(
            _class_of(f"{name}.{part}", item, found, plain)
            for part, item in zip(parts, value, strict=True)
        )
        return type(value)(*items) if hasattr(value, "_fields") else items  # type: ignore[arg-type]
    position = len(found.leaves)
    value = as_number(value)
    found.leaves.append(value)
    if value is None or isinstance(value, bool | str):
        return Fixed(value)
    if isinstance(value, Mock):
        return ArrayClass(_element_of(value.dtype))
    if isinstance(value, int):
        return integer_class(name, value, plain)
    if isinstance(value, float):
        return FloatClass(float32)
    kind = value.dtype if isinstance(value, Retyped) else None
    if kind is not None:
        value = value.base
    if is_array(value):
        record = describe(value, name)
        found.records[position] = record
        found.names[position] = name
        element = of_dtype(record.dtype) if kind is None else _element_of(kind)
        if element.ir.bytes != record.dtype.bytes:
            raise UsageError(
                f"{name} has elements of {record.dtype}, which are no {element}",
                hint="an array is taken for a type of as many bytes",
            )
        size = max(record.storage[1] - record.address, 0)
        itemsize = record.dtype.bytes
        align = ALIGNMENT if record.address % ALIGNMENT == 0 else itemsize
        return ArrayClass(element, align, size >= 1 << 31)
    if isinstance(value, NO_ARGUMENTS):
        raise UsageError(
            f"{name} is a {type(value).__name__}, which is no argument of a kernel",
            hint="pass arrays, numbers, or tuples of them",
        )
    return Fixed(value)


def _annotated(
    name: str, value: Any, dtype: ElementType | None, found: Arguments, plain: bool
) -> ArgumentClass:
    """The class of an argument whose parameter has a type."""
    kind = _class_of(name, value, found, plain)
    if dtype is None or isinstance(kind, ArrayClass):
        return replace(kind, const=dtype is None) if isinstance(kind, ArrayClass) else kind
    number = found.leaves[-1]
    if isinstance(kind, tuple) or not isinstance(number, bool | int | float):
        return kind
    if dtype.is_floating():
        found.leaves[-1] = float(number)
        return FloatClass(dtype)
    if isinstance(number, float):
        raise UsageError(f"{name} is {number}", hint=f"its type is {dtype}: pass a whole number")
    wrapped = number % 2 if dtype.is_bool() else wrap(number, dtype.ir)
    found.leaves[-1] = wrapped
    if dtype.is_bool() or (wrapped in (0, 1) and dtype in (int32, int64)):
        return Fixed(wrapped, dtype)
    if dtype not in (int32, int64):
        return IntegerClass(dtype, 0)
    by = integer_class(name, wrapped, plain)
    return IntegerClass(dtype, by.by if isinstance(by, IntegerClass) else 0)


def _element_of(dtype: Any) -> ElementType:
    """The element type of a type of the language, or of an array library's dtype."""
    if isinstance(dtype, ElementType):
        return dtype
    name = str(dtype).rsplit(".", 1)[-1]
    found = BY_NAME.get(OTHER_NAMES.get(name, name))
    if found is None:
        raise UsageError(f"{dtype} is no type of elements", hint="such as float32")
    return found


def integer_class(name: str, value: int, plain: bool = False) -> ArgumentClass:
    """The class of an integer. plain: its divisibility does not matter."""
    if not -(1 << 63) <= value < 1 << 64:
        raise NumberRangeError(f"{name} is {value}, which needs more than 64 bits")
    if value in (0, 1):
        return Fixed(value, None if value == 1 and not plain else int32)
    dtype = int32 if -(1 << 31) <= value < 1 << 31 else int64 if value < 1 << 63 else uint64
    if value < 0 or dtype is not int32:
        return IntegerClass(dtype, 0)
    whole = value % ALIGNMENT == 0 and value // ALIGNMENT >= LEAST and not plain
    return IntegerClass(dtype, ALIGNMENT if whole else 1)
