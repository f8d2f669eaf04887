"""triton.runtime.jit."""

from __future__ import annotations

from fuser.triton._utils import type_canonicalisation_dict
from fuser.triton.constexprs import ConstexprFunction, constexpr_function
from fuser.triton.jit import JITFunction, JitFunctionInfo, KernelInterface, jit
from fuser.triton.parameters import KernelParam
from fuser.triton.tensors import MockTensor, TensorWrapper, reinterpret

JITCallable = JITFunction

__all__ = [
    "ConstexprFunction", "JITCallable", "JITFunction", "JitFunctionInfo", "KernelInterface",
    "KernelParam", "MockTensor", "TensorWrapper", "constexpr_function", "jit", "reinterpret",
    "type_canonicalisation_dict",
]  # fmt: skip
