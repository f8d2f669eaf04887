"""triton.compiler.code_generator: Triton's walk over a kernel. That of fuser is
fuser/language/statements.py, and emits Tile IR."""

from __future__ import annotations

from fuser.triton.absent import function, kind
from fuser.triton.errors import (
    CompilationError,
    CompileTimeAssertionFailure,
    UnsupportedLanguageConstruct,
)
from fuser.triton.language.core import str_to_ty

_WHY = "kernels become Tile IR, not Triton's intermediate code"
_HINT = 'kernel.warmup(...).asm["tile"] has the text'
ast_to_ttir = function("ast_to_ttir", _WHY, _HINT)
mangle_fn = function("mangle_fn", "called functions are compiled where the call stands")
flatten_values_to_ir = function("flatten_values_to_ir", _WHY, _HINT)
unflatten_ir_values = function("unflatten_ir_values", _WHY, _HINT)
CodeGenerator = kind("CodeGenerator", _WHY, _HINT)
ASTFunction = kind("ASTFunction", _WHY, _HINT)
BoundJITMethod = kind("BoundJITMethod", _WHY, _HINT)

__all__ = [
    "ASTFunction", "BoundJITMethod", "CodeGenerator", "CompilationError",
    "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "ast_to_ttir",
    "flatten_values_to_ir", "mangle_fn", "str_to_ty", "unflatten_ir_values",
]  # fmt: skip
