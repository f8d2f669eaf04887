"""triton.compiler.compiler."""

from __future__ import annotations

from fuser.triton.ahead import ASTSource, compile
from fuser.triton.backends.compiler import make_backend
from fuser.triton.compiled import CompiledKernel, LazyDict
from fuser.triton.runtime.cache import triton_key
from fuser.triton.targets import GPUTarget

__all__ = [
    "ASTSource", "CompiledKernel", "GPUTarget", "LazyDict", "compile", "make_backend", "triton_key",
]  # fmt: skip
