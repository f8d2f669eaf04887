"""The types of the block language: element types, pointers, tiles.

Names, short forms and properties are those of `triton.language`: `float32` prints as `fp32`, a
pointer to it as `pointer<fp32>`, a tile as `<[16, 32], fp32>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from fuser import dtypes
from fuser.dtypes import DType


class Kind:
    """What kernels ask of any type. `is_int8()`, `is_fp8e5()` and the like are set below."""

    name, kind, bits = "", "", 0

    def is_floating(self) -> bool:
        return self.kind == "float"

    def is_fp8(self) -> bool:
        return self.kind == "float" and self.bits == 8

    def is_standard_floating(self) -> bool:
        return self.kind == "float" and self.bits > 8

    def is_fp16(self) -> bool:
        return self.name == "fp16"

    def is_bf16(self) -> bool:
        return self.name == "bf16"

    def is_fp32(self) -> bool:
        return self.name == "fp32"

    def is_fp64(self) -> bool:
        return self.name == "fp64"

    def is_int(self) -> bool:
        return self.kind in ("int", "uint")

    def is_int_signed(self) -> bool:
        return self.kind == "int"

    def is_int_unsigned(self) -> bool:
        return self.kind == "uint"

    def is_bool(self) -> bool:
        return self.name == "int1"

    def is_void(self) -> bool:
        return self.kind == "void"

    def get_int_max_value(self) -> int:
        """The greatest number of an integer type."""
        return int((1 << (self.bits - (self.kind == "int"))) - 1)

    def get_int_min_value(self) -> int:
        """The least."""
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def cache_key_part(self) -> str:
        return str(self)

    def with_element_ty(self, element_ty: ElementType | PointerType) -> Kind:
        """That type, in the shape of this one."""
        return element_ty

    def is_ptr(self) -> bool:
        return False

    def is_block(self) -> bool:
        return False

    def is_const(self) -> bool:
        return False

    @staticmethod
    def is_dtype(type_str: str) -> bool:
        """Whether it is the name of an element type."""
        return any(item.name == type_str for item in ALL)


class ElementType(Kind):
    """A number type. `ir` is how the Tile IR holds it: 8-bit floats are codes, `u8`.

    name: `fp32`; long_name: `float32`, its name in the language; kind: float, int, uint or void;
    bits: `primitive_bitwidth`; mantissa: bits of a float behind the point.
    """

    def __init__(
        self, name: str, long_name: str, ir: DType, kind: str, bits: int, mantissa: int = 0
    ) -> None:
        self.name, self.long_name, self.ir = name, long_name, ir
        self.kind, self.bits, self.mantissa = kind, bits, mantissa

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"triton.language.{self.long_name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ElementType) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    # what kernels ask of types ------------------------------------------------------------------

    @property
    def primitive_bitwidth(self) -> int:
        return self.bits

    @property
    def itemsize(self) -> int:
        return self.bits // 8

    @property
    def int_bitwidth(self) -> int:
        return self.bits

    @property
    def fp_mantissa_width(self) -> int:
        return self.mantissa

    @property
    def exponent_bias(self) -> int:
        """What is added to the exponent of a float; names such as `fp8e4b8` tell it."""
        told = self.name.rpartition("b")[2] if self.is_fp8() else ""
        return int(told) if told.isdigit() else (1 << (self.bits - self.mantissa - 2)) - 1

    @property
    def scalar(self) -> ElementType:
        return self

    @property
    def element_ty(self) -> ElementType:
        """Itself: what an array's dtype is to kernels that take it for a pointer's."""
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return ()


class PointerType(Kind):
    """A pointer to elements of a type."""

    def __init__(self, element_ty: ElementType, address_space: int = 1, const: bool = False):
        self.element_ty, self.address_space, self.const = element_ty, address_space, const

    name = "pointer"
    primitive_bitwidth = 64

    @property
    def scalar(self) -> PointerType:
        return self

    def __repr__(self) -> str:
        return f"pointer<{self.element_ty}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PointerType) and self.element_ty == other.element_ty

    def __hash__(self) -> int:
        return hash(("pointer", self.element_ty))

    def is_ptr(self) -> bool:
        return True

    def is_const(self) -> bool:
        return self.const


class BlockType(Kind):
    """A tile of elements or pointers."""

    def __init__(self, element_ty: ElementType | PointerType, shape: Sequence[int]) -> None:
        self.element_ty, self.shape = element_ty, tuple(shape)

    @property
    def scalar(self) -> ElementType | PointerType:
        return self.element_ty

    @property
    def numel(self) -> int:
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    def get_block_shapes(self) -> tuple[int, ...]:
        return self.shape

    def __repr__(self) -> str:
        return f"<{list(self.shape)}, {self.element_ty}>"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BlockType)
            and self.element_ty == other.element_ty
            and self.shape == other.shape
        )

    def __hash__(self) -> int:
        return hash((self.element_ty, self.shape))

    @property
    def nbytes(self) -> int:
        return self.numel * self.element_ty.primitive_bitwidth // 8

    def is_block(self) -> bool:
        return True

    def with_element_ty(self, element_ty: ElementType | PointerType) -> BlockType:
        return BlockType(element_ty, self.shape)


class Const:
    """The annotation of a pointer that a kernel does not write through."""


@dataclass(frozen=True)
class ConstexprType:
    """The type of what is known while compiling: of one value."""

    value: Any


int1 = ElementType("int1", "int1", dtypes.bool_, "uint", 1)
int8 = ElementType("int8", "int8", dtypes.i8, "int", 8)
int16 = ElementType("int16", "int16", dtypes.i16, "int", 16)
int32 = ElementType("int32", "int32", dtypes.i32, "int", 32)
int64 = ElementType("int64", "int64", dtypes.i64, "int", 64)
uint8 = ElementType("uint8", "uint8", dtypes.u8, "uint", 8)
uint16 = ElementType("uint16", "uint16", dtypes.u16, "uint", 16)
uint32 = ElementType("uint32", "uint32", dtypes.u32, "uint", 32)
uint64 = ElementType("uint64", "uint64", dtypes.u64, "uint", 64)
float16 = ElementType("fp16", "float16", dtypes.f16, "float", 16, 10)
bfloat16 = ElementType("bf16", "bfloat16", dtypes.bf16, "float", 16, 7)
float32 = ElementType("fp32", "float32", dtypes.f32, "float", 32, 23)
float64 = ElementType("fp64", "float64", dtypes.f64, "float", 64, 52)
float8e5 = ElementType("fp8e5", "float8e5", dtypes.u8, "float", 8, 2)
float8e4nv = ElementType("fp8e4nv", "float8e4nv", dtypes.u8, "float", 8, 3)
float8e4b8 = ElementType("fp8e4b8", "float8e4b8", dtypes.u8, "float", 8, 3)
float8e5b16 = ElementType("fp8e5b16", "float8e5b16", dtypes.u8, "float", 8, 2)
float8e4b15 = ElementType("fp8e4b15", "float8e4b15", dtypes.u8, "float", 8, 3)
void = ElementType("void", "void", dtypes.u8, "void", 0)

ALL: tuple[ElementType, ...] = (
    int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32,
    float64, float8e5, float8e4nv, float8e4b8, float8e5b16, float8e4b15, void,
)  # fmt: skip
BY_NAME = {dtype.name: dtype for dtype in ALL} | {dtype.long_name: dtype for dtype in ALL}
pi32_t = PointerType(int32)


def _predicate(name: str) -> Callable[[Kind], bool]:
    return lambda self: self.name == name


for _item in ALL:
    if not hasattr(Kind, f"is_{_item.name}"):
        setattr(Kind, f"is_{_item.name}", _predicate(_item.name))


def get_int_dtype(bitwidth: int, signed: bool) -> ElementType:
    """The integer type of so many bits."""
    return BY_NAME["int1" if bitwidth == 1 else f"{'' if signed else 'u'}int{bitwidth}"]


get_int_dtype.__constexpr_function__ = True  # type: ignore[attr-defined]  # kernels call it

_CODES = {
    "f8e5m2": float8e5, "f8e4m3fn": float8e4nv, "f8e4m3fnuz": float8e4b8, "f8e5m2fnuz": float8e5b16,
}  # fmt: skip


def of_dtype(dtype: DType) -> ElementType:
    """The element type of an array's dtype. Raises KeyError for sub-byte types."""
    if dtype.name in _CODES:
        return _CODES[dtype.name]
    return next(item for item in ALL if item.ir is dtype and not item.is_fp8() and item is not void)


def is_type(value: Any) -> TypeGuard[ElementType | PointerType | BlockType]:
    return isinstance(value, Kind)
