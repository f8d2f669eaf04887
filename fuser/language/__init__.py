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
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fuser.language import types
from fuser.language.blocks import block
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

if TYPE_CHECKING:
    from fuser.language import extra, libdevice, math
    from fuser.language.aggregates import aggregate
    from fuser.language.descriptors import Descriptor as tensor_descriptor
    from fuser.language.descriptors import TensorDescriptor
    from fuser.language.elementwise import PropagateNan

TRITON_MAX_TENSOR_NUMEL = 1 << 20
"""The most elements of a tile in Triton's spelling."""
tuple: type = python.tuple
slice = python.slice


# Decorators need types alone; the functions of the language load when one is asked for.
_HOMES = {
    "PropagateNan": ("elementwise", "PropagateNan"),
    "aggregate": ("aggregates", "aggregate"),
    "TensorDescriptor": ("descriptors", "TensorDescriptor"),
    "tensor_descriptor": ("descriptors", "Descriptor"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, own = _HOMES[name]
        found = getattr(import_module(f"{__name__}.{module}"), own)
    elif find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    else:
        table = import_module(f"{__name__}.builtins").TABLE
        if name == "__all__":
            found = sorted({*_NAMES, *table})
        elif name in table:
            found = table[name]
        else:
            raise AttributeError(f"the block language has no {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


__all__ = [
    "TRITON_MAX_TENSOR_NUMEL",
    "PropagateNan",
    "TensorDescriptor",
    "aggregate",
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
_NAMES = __all__
del __all__  # who asks for it gets the functions of the language, too
