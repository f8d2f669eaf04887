"""Element types and constants as LLVM spells them."""

from __future__ import annotations

from fuser.backend.text import integer, real
from fuser.dtypes import DType

INT_MEMORY = {"i1": "i8"}


def memory_type(dtype: DType) -> str:
    """LLVM's type of an element in memory: a bool is one byte."""
    return INT_MEMORY.get(dtype.llvm, dtype.llvm)


def literal(value: float | int | bool, dtype: DType) -> str:
    """A constant of an element type, as LLVM spells it."""
    if dtype.is_float:
        return real(float(value), dtype.llvm).ref
    if dtype.kind == "bool":
        return "true" if value else "false"
    return integer(int(value), dtype.llvm).ref
