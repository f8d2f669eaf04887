"""triton.compiler.code_generator: Triton's walk over a kernel. That of fuser is
fuser/language/statements.py, and emits Tile IR."""

from __future__ import annotations

from fuser.triton.absent import names
from fuser.triton.errors import (
    CompilationError,
    CompileTimeAssertionFailure,
    UnsupportedLanguageConstruct,
)
from fuser.triton.language.core import str_to_ty

__getattr__ = names(
    __name__,
    "ASTFunction BoundJITMethod CodeGenerator ContainsReturnChecker ast_to_ttir "
    "check_identifier_legality enter_sub_region flatten_values_to_ir mangle_fn normalize_value "
    "unflatten_ir_values",
    "kernels become Tile IR, not Triton's intermediate code",
    'kernel.warmup(...).asm["tile"] has the text',
)

__all__ = [
    "CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "str_to_ty",
]  # fmt: skip
