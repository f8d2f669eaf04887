"""triton.compiler."""

from __future__ import annotations

from fuser.triton.absent import names
from fuser.triton.ahead import compile
from fuser.triton.compiled import CompiledKernel, LazyDict
from fuser.triton.compiler import compiler, errors
from fuser.triton.compiler.compiler import WHY, make_backend, max_shared_mem
from fuser.triton.errors import CompilationError
from fuser.triton.sources import ASTSource

__getattr__ = names(__name__, "IRSource get_cache_key", WHY)

__all__ = [
    "ASTSource", "CompilationError", "CompiledKernel", "LazyDict", "compile", "compiler", "errors",
    "make_backend", "max_shared_mem",
]  # fmt: skip
