"""Triton's public names on the block language: kernels written for Triton run as they are.

import fuser.triton as triton
import fuser.triton.language as tl
"""

from __future__ import annotations

from fuser.language.aggregates import aggregate
from fuser.triton import compiler, knobs, language, runtime, testing, tools
from fuser.triton.ahead import compile
from fuser.triton.allocation import set_allocator
from fuser.triton.async_compile import AsyncCompileMode, FutureKernel
from fuser.triton.autotuner import autotune, heuristics
from fuser.triton.configs import Config
from fuser.triton.constexprs import cdiv, constexpr_function, must_use_result, next_power_of_2
from fuser.triton.errors import CompilationError, InterpreterError, OutOfResources, TritonError
from fuser.triton.imports import imports
from fuser.triton.jit import JITFunction, KernelInterface, jit
from fuser.triton.tensors import MockTensor, TensorWrapper, reinterpret

__version__ = "3.9.0"
"""The version of Triton whose names and rules these are."""

__all__ = [
    "AsyncCompileMode", "CompilationError", "Config", "FutureKernel", "InterpreterError",
    "JITFunction", "KernelInterface", "MockTensor", "OutOfResources", "TensorWrapper",
    "TritonError", "aggregate", "autotune", "cdiv",
    "compile", "compiler", "constexpr_function", "heuristics", "imports", "jit", "knobs",
    "language", "must_use_result", "next_power_of_2", "reinterpret", "runtime", "set_allocator",
    "testing", "tools",
]  # fmt: skip
