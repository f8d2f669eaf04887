"""triton._utils: nested tuples, names of types, shapes of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fuser.errors import UsageError
from fuser.language import TRITON_MAX_TENSOR_NUMEL
from fuser.language.types import BY_NAME
from fuser.triton.absent import names
from fuser.triton.parameters import short_name

Path = tuple[int, ...]

type_canonicalisation_dict: dict[str, str] = {
    name: short_name(dtype) for name, dtype in BY_NAME.items() if not dtype.is_void()
} | {
    "bool": "u1", "int1": "u1", "uint1": "u1", "i1": "u1", "half": "fp16", "float": "fp32",
    "double": "fp64", "int": "i32", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16", "void": "void",
}  # fmt: skip
"""Names of types, and the short names that signatures have for them."""
type_canonicalisation_dict |= {short: short for short in type_canonicalisation_dict.values()}


def get_iterable_path(iterable: Any, path: Path) -> Any:
    """The item at a path of positions."""
    for place in path:
        iterable = iterable[place]
    return iterable


def set_iterable_path(iterable: Any, path: Path, val: Any) -> None:
    """Put an item at a path of positions: what holds it must be a list. Raises UsageError."""
    if not path:
        raise UsageError("an empty path leads to no item")
    holder = get_iterable_path(iterable, path[:-1])
    if not isinstance(holder, list):
        raise UsageError(
            f"an item of a {type(holder).__name__} does not change", hint="make a list of it first"
        )
    holder[path[-1]] = val


def is_iterable(x: Any) -> bool:
    """Whether it is a list or a tuple."""
    return isinstance(x, list | tuple)


def apply_with_path(value: Any, fn: Callable[[Path, Any], None], _path: Path = ()) -> None:
    """Call fn(path, item) for every item of nested lists and tuples, in order."""
    if not is_iterable(value):
        fn(_path, value)
        return
    for place, item in enumerate(value):
        apply_with_path(item, fn, (*_path, place))


def find_paths_if(iterable: Any, pred: Callable[[Path, Any], bool]) -> list[Path]:
    """The paths of the items for which pred(path, item) holds, in order."""
    found: list[Path] = []

    def note(path: Path, item: Any) -> None:
        if pred(path, item):
            found.append(path)

    apply_with_path(iterable, note)
    return found


def is_power_of_two(x: int) -> bool:
    return x > 0 and not x & (x - 1)


def validate_block_shape(shape: Sequence[int]) -> int:
    """The elements of a block in Triton's spelling. Raises UsageError."""
    for place, extent in enumerate(shape):
        if not isinstance(extent, int) or isinstance(extent, bool):
            raise UsageError(f"axis {place} of a block is {extent!r}", hint="it is a whole number")
        if not is_power_of_two(extent):
            raise UsageError(f"axis {place} of a block is {extent}", hint="it is a power of 2")
    total = math.prod(shape)
    if total > TRITON_MAX_TENSOR_NUMEL:
        raise UsageError(f"a block of {total} elements", hint=f"most: {TRITON_MAX_TENSOR_NUMEL}")
    return total


def canonicalize_dtype(dtype: Any) -> str:
    """The short name of a type, or of an array library's dtype: `fp32`. Raises UsageError."""
    name = str(dtype).rpartition(".")[2]
    if name not in type_canonicalisation_dict:
        raise UsageError(f"{dtype} is no type of elements", hint="such as float32")
    return type_canonicalisation_dict[name]


def canonicalize_ptr_dtype(dtype: Any, is_const: bool) -> str:
    """The short name of a pointer to a type: `*fp32`, `*kfp32` where it is only read."""
    return f"*{'k' if is_const else ''}{canonicalize_dtype(dtype)}"


def get_primitive_bitwidth(dtype: str) -> int:
    """The bits of a type by one of its names. Raises UsageError."""
    short = canonicalize_dtype(dtype)
    if short in ("u1", "void"):
        return int(short == "u1")
    digits = "8" if short.startswith("fp8") else "".join(c for c in short if c.isdigit())
    return int(digits)


BITWIDTH_DICT: dict[str, int] = {
    short: get_primitive_bitwidth(short) for short in type_canonicalisation_dict.values()
}
"""The bits of types by their short names."""
__getattr__ = names(
    __name__, "prewarm_deprecation_warnings warn_once", "these are not Triton's warnings"
)


def is_namedtuple(val: Any) -> bool:
    """Whether it is a class of named tuples."""
    return isinstance(val, type) and issubclass(val, tuple) and hasattr(val, "_fields")
