"""triton.language.core: types, and functions that tensors also have as methods."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fuser import language as _language
from fuser.language.aggregates import aggregate as _aggregate  # noqa: F401
from fuser.language.tensors import Builtin, Constexpr, RuntimeValue, unwrap
from fuser.language.types import (  # noqa: F401
    BY_NAME,
    ElementType,
    PointerType,
    get_int_dtype,
)
from fuser.triton.absent import names
from fuser.triton.constexprs import constexpr_function, must_use_result  # noqa: F401

if TYPE_CHECKING:
    from fuser.language.emitter import Emitter


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


def builtin(fn: Callable[..., Any]) -> Builtin:
    """Python that a kernel runs while it is compiled: it gets `_semantic`, and hands it on to the
    functions of the language that it calls."""
    wanted = inspect.signature(fn).parameters

    def call(e: Emitter, *args: Any, **named: Any) -> Any:
        more = {name: e for name in ("_semantic", "_generator") if name in wanted}
        return fn(*args, **named, **more)

    return Builtin(fn.__name__, call, fn.__doc__ or "")


@constexpr_function
def _unwrap_if_constexpr(o: Any) -> Any:
    """What a constexpr holds, or the value itself."""
    return unwrap(o)


extern = builtin
base_value = RuntimeValue


def is_builtin(fn: Any) -> bool:
    """Whether it is a function of the language."""
    return isinstance(fn, Builtin)


def is_negative_zero(x: Any) -> bool:
    """Whether it is the float -0.0."""
    return isinstance(x, float) and x == 0 and math.copysign(1, x) < 0


def _extern_elementwise(
    e: Emitter, lib_name: str, lib_path: str, args: Any, arg_type_symbol_dict: Any,
    is_pure: bool = True,
) -> Any:  # fmt: skip
    """A function of libdevice by its symbol, which stands beside the types of its operands."""
    from fuser.language import arithmetic
    from fuser.language.libdevice.registry import TABLE as LIBDEVICE

    tensors = [arithmetic.as_tensor(e, item) for item in args]
    key = tuple(item.dtype for item in tensors)
    if key not in arg_type_symbol_dict:
        kinds = "; ".join(", ".join(map(str, item)) for item in arg_type_symbol_dict)
        e.fail(f"an extern function of {', '.join(map(str, key))}", f"it is one of {kinds}")
    symbol, result = arg_type_symbol_dict[key]
    name = symbol.removeprefix("__nv_")
    spelled = (name, name.removesuffix("f"), name[1:], name[1:].removesuffix("f"))
    known = [item for item in spelled if item in LIBDEVICE]
    if not symbol.startswith("__nv_") or not known:
        e.fail(f"the extern function {symbol}", "a kernel calls functions of libdevice alone")
    return arithmetic.cast(
        e, arithmetic.as_tensor(e, LIBDEVICE[known[0]].call(e, *tensors)), result
    )


extern_elementwise = Builtin(
    "extern_elementwise", _extern_elementwise, _extern_elementwise.__doc__ or ""
)
_absent = names(
    __name__,
    "CAT_CAN_REORDER_WARNING RESHAPE_CAN_REORDER_WARNING TRITON_BUILTIN base_type "
    "binary_op_type_legalization builtin_max builtin_min check_bit_width dataclass_transform "
    "dispatch item slice_type tensor_descriptor_base_type tensor_descriptor_type tuple_type",
    "fuser has types and rules of its own",
    "call the functions of triton.language",
)


def __getattr__(name: str) -> Any:
    if name == "tensor_descriptor_base":
        name = "tensor_descriptor"
    found = getattr(_language, name, None)
    if found is None:
        return _absent(name)
    if name == "__all__":
        found = [*found, "str_to_ty"]
    globals()[name] = found  # native launches watch what kernels read in the module itself
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_language)})
