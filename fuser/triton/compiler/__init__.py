"""triton.compiler."""

from __future__ import annotations

from fuser.triton.ahead import ASTSource, compile
from fuser.triton.compiled import CompiledKernel, LazyDict
from fuser.triton.compiler import compiler, errors
from fuser.triton.errors import CompilationError

__all__ = [
    "ASTSource", "CompilationError", "CompiledKernel", "LazyDict", "compile", "compiler", "errors",
]  # fmt: skip
