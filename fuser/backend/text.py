"""How LLVM IR spells types, values and literals.

A value is a `Reg`: its LLVM type and how it is spelled. Types are plain strings ("float",
"<16 x float>", "i64", "ptr", "ptr addrspace(3)"). function.py writes functions of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fuser.errors import LoweringError
from fuser.graph.dims import DimExpr

_FLOAT_TYPES = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


@dataclass(frozen=True)
class Reg:
    """An SSA value, argument or literal: `type` and spelling `ref`."""

    type: str
    ref: str

    def __str__(self) -> str:
        return self.ref

    @property
    def typed(self) -> str:
        return f"{self.type} {self.ref}"

    @property
    def literal(self) -> int | None:
        """The number, if this is an integer literal."""
        if not self.type.startswith("i"):
            return None
        if self.ref in ("true", "false"):
            return int(self.ref == "true")
        return int(self.ref) if self.ref.lstrip("-").isdigit() else None


def vector(scalar: str, lanes: int) -> str:
    """`<lanes x scalar>`; the scalar itself for one lane."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def element(type: str) -> str:
    """The scalar type of a vector type; any other type itself."""
    return type.partition(" x ")[2][:-1] if type.startswith("<") else type


def lanes(type: str) -> int:
    """How many elements a vector type has; 1 for any other type."""
    return int(type[1:].partition(" x ")[0]) if type.startswith("<") else 1


def like(type: str, scalar: str) -> str:
    """`type` with its element type changed to `scalar`."""
    return vector(scalar, lanes(type))


def is_float(type: str) -> bool:
    return element(type) in _FLOAT_TYPES


def bits(type: str) -> int:
    """Width of a scalar, or of a vector's element."""
    scalar = element(type)
    return _FLOAT_TYPES[scalar] if scalar in _FLOAT_TYPES else int(scalar[1:])


def mangle(type: str) -> str:
    """How intrinsic names spell a type: <16 x float> is v16f32."""
    scalar = element(type)
    short = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}.get(scalar, scalar)
    if short.startswith("ptr"):
        space = "".join(c for c in short if c.isdigit()) or "0"
        short = f"p{space}"
    return short if lanes(type) == 1 else f"v{lanes(type)}{short}"


SYMBOLIC: ContextVar[dict[DimExpr, int] | None] = ContextVar("symbolic", default=None)
"""The numbers of the symbolic dims that the kernel being written reads (`function.read_sizes`)."""


@contextmanager
def symbolic_dims() -> Iterator[dict[DimExpr, int]]:
    """While a kernel is written: the symbolic dims that it reads, in order."""
    table: dict[DimExpr, int] = {}
    token = SYMBOLIC.set(table)
    try:
        yield table
    finally:
        SYMBOLIC.reset(token)


def _symbolic(dim: DimExpr, type: str) -> Reg:
    """The register of a symbolic dim, which `read_sizes` defines."""
    table = SYMBOLIC.get()
    if table is None:
        raise LoweringError(f"the dim {dim} is symbolic, and this back end takes numbers only")
    number = table.setdefault(dim, len(table))
    return Reg(type, f"%size.{number}" + ("" if type == "i64" else f".{mangle(type)}"))


def integer(value: int, type: str = "i64") -> Reg:
    """An integer literal; a vector type gives a splat. Wrapped to the signed range of the type.
    A symbolic dim is a register."""
    if isinstance(value, DimExpr):
        return _symbolic(value, type)
    width = bits(type)
    value &= (1 << width) - 1
    if width > 1 and value >> (width - 1):
        value -= 1 << width
    scalar = ("true" if value else "false") if width == 1 else str(value)
    return _splat_literal(type, scalar)


def real(value: float, type: str = "float") -> Reg:
    """A floating point literal, exact in `type`; a vector type gives a splat."""
    scalar = element(type)
    if scalar == "float":
        # A float literal is written as the double of equal value.
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    if scalar in ("half", "bfloat"):
        return _splat_literal(type, _half_literal(value, scalar))
    pattern = struct.unpack("<Q", struct.pack("<d", value))[0]
    return _splat_literal(type, f"0x{pattern:016X}")


def real_bits(value: float, scalar: str) -> int:
    """The bit pattern of a float or double."""
    if scalar == "float":
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def _half_literal(value: float, scalar: str) -> str:
    import ml_dtypes
    import numpy as np

    kind, prefix = (np.float16, "H") if scalar == "half" else (ml_dtypes.bfloat16, "R")
    return f"0x{prefix}{int(np.array(value).astype(kind).view(np.uint16)):04X}"


def _splat_literal(type: str, scalar: str) -> Reg:
    if lanes(type) == 1:
        return Reg(type, scalar)
    return Reg(type, f"splat ({element(type)} {scalar})")


def constants(type: str, values: Iterable[int]) -> Reg:
    """A vector literal of integers, one an element."""
    scalar = element(type)
    return Reg(type, "<" + ", ".join(integer(v, scalar).typed for v in values) + ">")


def zero(type: str) -> Reg:
    """All bits zero: null, 0.0, 0, or the zero of an aggregate."""
    if type.startswith("ptr"):
        return Reg(type, "null")
    if type.startswith(("<", "{", "[")):
        return Reg(type, "zeroinitializer")
    return real(0.0, type) if is_float(type) else integer(0, type)


def poison(type: str) -> Reg:
    return Reg(type, "poison")
