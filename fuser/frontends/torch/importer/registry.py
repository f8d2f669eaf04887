"""The table of ATen operators, and how their dtypes promote.

A handler takes the Builder and the call's arguments, tensors as Values. Nothing here imports
PyTorch: operators and dtypes are known by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce, wraps
from typing import Any, TypeVar

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import UnsupportedDTypeError
from fuser.graph.builder import Builder
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Value
from fuser.graph.rounding import as_stored

Handler = Callable[..., Any]
ATEN: dict[str, Handler] = {}

_H = TypeVar("_H", bound=Handler)


def aten(*names: str) -> Callable[[_H], _H]:
    """Register a handler under `op` (all overloads) or `op.overload`."""

    def register(handler: _H) -> _H:
        for name in names:
            assert name not in ATEN, name
            ATEN[name] = handler
        return handler

    return register


def along_axis(handler: _H) -> _H:
    """For operators along one axis, which take a tensor without axes for a vector of one element:
    the handler sees only vectors, and results are without axes where the first operand was."""

    def vector(b: Builder, x: Any) -> Any:
        return b.reshape(x, (1,)) if isinstance(x, Value) and not x.type.rank else x

    def number(b: Builder, x: Any) -> Any:
        return b.reshape(x, ()) if isinstance(x, Value) and x.shape == (1,) else x

    @wraps(handler)
    def lifted(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Any:
        found = handler(
            b, vector(b, x), *(vector(b, arg) for arg in args),
            **{name: vector(b, arg) for name, arg in kwargs.items()},
        )  # fmt: skip
        if x.type.rank:
            return found
        if isinstance(found, Value):
            return number(b, found)
        return type(found)(number(b, value) for value in found)

    return lifted  # type: ignore[return-value]


def in_opmath(handler: _H) -> _H:
    """For operators of floats of one dtype that PyTorch computes in float32 where that is a 16-bit
    float, numbers among their operands too, and rounds once: the handler sees float32, of operands
    that are rounded, and its results are rounded. Other operands reach it as they are."""

    def floats(nest: Any) -> Iterator[DType]:
        if isinstance(nest, Value) and nest.dtype.is_float:
            yield nest.dtype
        elif isinstance(nest, list | tuple):
            for part in nest:
                yield from floats(part)

    @wraps(handler)
    def widened(b: Builder, *args: Any, **kwargs: Any) -> Any:
        (own, *others) = {*floats(args), *floats(list(kwargs.values()))} or {dtypes.f32}
        if others or own.compute is own:
            return handler(b, *args, **kwargs)

        def wide(x: Any) -> Any:
            own_value = isinstance(x, Value) and x.dtype is own
            return b.cast(as_stored(b, x), own.compute) if own_value else x

        def rounded(x: Any) -> Any:
            narrow = isinstance(x, Value) and x.dtype is own.compute
            return b.cast(x, own) if narrow else x

        found = handler(b, *map(wide, args), **{name: wide(arg) for name, arg in kwargs.items()})
        return type(found)(map(rounded, found)) if isinstance(found, tuple) else rounded(found)

    return widened  # type: ignore[return-value]


def find(target: object) -> Handler | None:
    """The handler of an ATen overload such as `aten.add.Tensor`, or None."""
    library, _, name = str(target).partition(".")
    if library not in ("aten", "prims", "fuser"):
        return None
    return ATEN.get(name) or ATEN.get(name.rpartition(".")[0])


_DTYPES = {
    "float64": dtypes.f64,
    "double": dtypes.f64,
    "float32": dtypes.f32,
    "float": dtypes.f32,
    "float16": dtypes.f16,
    "half": dtypes.f16,
    "bfloat16": dtypes.bf16,
    "int64": dtypes.i64,
    "long": dtypes.i64,
    "int32": dtypes.i32,
    "int": dtypes.i32,
    "int16": dtypes.i16,
    "int8": dtypes.i8,
    "uint64": dtypes.u64,
    "uint32": dtypes.u32,
    "uint16": dtypes.u16,
    "uint8": dtypes.u8,
    "bool": dtypes.bool_,
}


def dtype_of(torch_dtype: object) -> DType:
    """The DType of a `torch.dtype`. Raises UnsupportedDTypeError."""
    name = str(torch_dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedDTypeError(f"the element type {torch_dtype} is not supported")
    return _DTYPES[name]


def optional_dtype(torch_dtype: object | None, otherwise: DType) -> DType:
    return otherwise if torch_dtype is None else dtype_of(torch_dtype)


def _category(dtype: DType) -> int:
    return 2 if dtype.is_float else 1 if dtype.is_integer else 0


def _wider(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if _category(a) != _category(b):
        return a if _category(a) > _category(b) else b
    if a.is_float and a.bits == b.bits:
        return dtypes.f32  # float16 with bfloat16
    if a.kind == b.kind or a.is_float:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return {8: dtypes.i16, 16: dtypes.i32}.get(unsigned.bits, dtypes.i64)


def promote(*operands: Any) -> DType:
    """PyTorch's result type: tensors with axes decide, then tensors without, then numbers, unless
    a later group is of a higher category (bool, integer, float)."""
    result: DType | None = None
    tensors = [x for x in operands if isinstance(x, Value)]
    numbers = [x for x in operands if isinstance(x, bool | int | float | DimExpr)]
    groups: list[list[DType]] = [
        [x.dtype for x in tensors if x.type.rank],
        [x.dtype for x in tensors if not x.type.rank],
        [
            dtypes.bool_
            if isinstance(x, bool)
            else dtypes.i64
            if isinstance(x, int | DimExpr)
            else dtypes.f32
            for x in numbers
        ],
    ]
    for group in groups:
        if group:
            common = reduce(_wider, group)
            if result is None or _category(common) > _category(result):
                result = common
    assert result is not None
    return result


def to_float(dtype: DType) -> DType:
    """What functions with real results compute in: the default float for integers."""
    return dtype if dtype.is_float else dtypes.f32


def keeps_digits(dtype: DType, operand: Any) -> bool:
    """Whether an operand that promotion has no say for is the same after rounding to dtype: a
    number, or a tensor without axes of a wider dtype, beside 16-bit floats."""
    if not dtype.is_float or dtype.compute is dtype:
        return True
    if isinstance(operand, Value):
        return not operand.dtype.is_float or operand.dtype.bits <= dtype.bits
    return isinstance(operand, DimExpr) or float(np.asarray(operand).astype(dtype.numpy)) == operand


def as_operands(b: Builder, operands: Sequence[Any], dtype: DType) -> list[Any]:
    """Operands of a map in one dtype. Beside a tensor of floats numbers stay numbers, which
    `Builder.map` keeps whole; integer dtypes they wrap around, as PyTorch has it."""
    if dtype.is_integer or not any(isinstance(x, Value) for x in operands):
        return list(as_values(b, operands, dtype))
    return [b.cast(x, dtype) if isinstance(x, Value) else x for x in operands]


def as_values(b: Builder, operands: Sequence[Any], dtype: DType) -> list[Value]:
    """Operands in one dtype; numbers as rank-0 constants."""
    return [b.cast(x, dtype) if isinstance(x, Value) else b.scalar(x, dtype) for x in operands]


def axis_of(axis: int, rank: int) -> int:
    return axis % max(rank, 1)


def axes_of(axes: Any, rank: int) -> list[int]:
    """Axes as non-negative ints; None or none given: all."""
    return named_axes(None if isinstance(axes, list | tuple) and not axes else axes, rank)


def named_axes(axes: Any, rank: int) -> list[int]:
    """The same for operators that an empty list leaves nothing to do."""
    if axes is None:
        return list(range(rank))
    given = axes if isinstance(axes, list | tuple) else (axes,)
    return [axis_of(a, rank) for a in given] if rank else []
