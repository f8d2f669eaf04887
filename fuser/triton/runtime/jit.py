"""triton.runtime.jit."""

from __future__ import annotations

from fuser.language.types import BY_NAME
from fuser.triton.constexprs import ConstexprFunction, constexpr_function
from fuser.triton.jit import JITFunction, JitFunctionInfo, KernelInterface, jit
from fuser.triton.parameters import KernelParam, short_name
from fuser.triton.tensors import MockTensor, TensorWrapper, reinterpret

JITCallable = JITFunction
type_canonicalisation_dict: dict[str, str] = {
    name: short_name(dtype) for name, dtype in BY_NAME.items() if not dtype.is_void()
} | {"bool": "u1", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
"""Names of types, and the short names that signatures have for them."""

__all__ = [
    "ConstexprFunction", "JITCallable", "JITFunction", "JitFunctionInfo", "KernelInterface",
    "KernelParam", "MockTensor", "TensorWrapper", "constexpr_function", "jit", "reinterpret",
    "type_canonicalisation_dict",
]  # fmt: skip
