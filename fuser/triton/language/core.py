"""triton.language.core: types, and functions that tensors also have as methods."""

from __future__ import annotations

from typing import Any

from fuser import language as _language
from fuser.language.aggregates import aggregate as _aggregate  # noqa: F401
from fuser.language.tensors import Constexpr
from fuser.language.types import BY_NAME, ElementType, PointerType


class _Dtype(type):
    def __call__(cls, name: str) -> ElementType:
        return BY_NAME[name]

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, ElementType)


class dtype(metaclass=_Dtype):
    """The class of element types; called with a name such as "fp32", the type of that name."""

    SINT_TYPES = ("int8", "int16", "int32", "int64")
    UINT_TYPES = ("int1", "uint8", "uint16", "uint32", "uint64")
    FP_TYPES = (
        "fp8e4b15", "fp8e4nv", "fp8e4b8", "fp8e5", "fp8e5b16", "fp16", "bf16", "fp32", "fp64",
    )  # fmt: skip
    STANDARD_FP_TYPES = ("fp16", "bf16", "fp32", "fp64")
    OTHER_TYPES = ("void",)


CONSTEXPR_0 = Constexpr(0)
"""A default of parameters that are compiled in."""


def str_to_ty(name: str, c: Any = None) -> Any:
    """The type that a signature names: `fp32`, `i32`, `*fp32`."""
    if name.startswith("*"):
        rest = name[1:]
        return PointerType(str_to_ty(rest.removeprefix("k")), const=rest.startswith("k"))
    from fuser.triton.parameters import SHORT_NAMES

    return SHORT_NAMES[name]


def __getattr__(name: str) -> Any:
    found = getattr(_language, name)
    if name == "__all__":
        found = [*found, "str_to_ty"]
    globals()[name] = found  # native launches watch what kernels read in the module itself
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_language)})
