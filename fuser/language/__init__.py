"""The block language: kernels in Python, in blocks of numbers.

    import fuser
    import fuser.language as fl

    @fuser.kernel
    def add(x, y, out, n, BLOCK: fl.constexpr):
        at = fl.program_id(0) * BLOCK + fl.arange(0, BLOCK)
        inside = at < n
        fl.store(out + at, fl.load(x + at, inside) + fl.load(y + at, inside), inside)

    add[(fl.cdiv(n, 128),)](x, y, out, n, BLOCK=128)

A program handles a block; the compiler decides on threads, vectors, memory and tensor cores. The
names and their meaning are those of triton.language (docs/language.md lists what is new).
"""

from __future__ import annotations

import builtins as python
from typing import Any

from fuser.language import extra, libdevice, math, types
from fuser.language.blocks import block
from fuser.language.builtins import TABLE
from fuser.language.descriptors import Descriptor as tensor_descriptor
from fuser.language.descriptors import TensorDescriptor
from fuser.language.elementwise import PropagateNan
from fuser.language.tensors import Constexpr as constexpr
from fuser.language.tensors import Tensor as tensor
from fuser.language.types import BlockType as block_type
from fuser.language.types import Const as const
from fuser.language.types import ConstexprType as constexpr_type
from fuser.language.types import ElementType as dtype
from fuser.language.types import PointerType as pointer_type
from fuser.language.types import (
    bfloat16,
    float8e4b8,
    float8e4b15,
    float8e4nv,
    float8e5,
    float8e5b16,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    pi32_t,
    uint8,
    uint16,
    uint32,
    uint64,
    void,
)

TRITON_MAX_TENSOR_NUMEL = 1 << 20
"""The most elements of a tile in Triton's spelling."""
tuple: type = python.tuple
slice = python.slice


def __getattr__(name: str) -> Any:
    if name in TABLE:
        return TABLE[name]
    raise AttributeError(f"the block language has no {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *TABLE})


__all__ = [
    *TABLE,
    "PropagateNan",
    "TRITON_MAX_TENSOR_NUMEL",
    "TensorDescriptor",
    "bfloat16",
    "block",
    "block_type",
    "const",
    "constexpr",
    "constexpr_type",
    "dtype",
    "extra",
    "float8e4b8",
    "float8e4b15",
    "float8e4nv",
    "float8e5",
    "float8e5b16",
    "float16",
    "float32",
    "float64",
    "int1",
    "int8",
    "int16",
    "int32",
    "int64",
    "libdevice",
    "math",
    "pi32_t",
    "pointer_type",
    "slice",
    "tensor",
    "tensor_descriptor",
    "tuple",
    "types",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "void",
]  # fmt: skip
