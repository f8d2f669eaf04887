"""triton.language.semantic: Triton's rules as methods of an object. Those of fuser are functions
(fuser/language/arithmetic.py, promotion.py), and kernels call them by name."""

from __future__ import annotations

from fuser.triton.absent import kind
from fuser.triton.errors import CompilationError

_HINT = "call the functions of triton.language; Python that a kernel runs gets `_semantic`"
TritonSemantic = kind("TritonSemantic", "no object has the rules of the language", _HINT)
IncompatibleTypeErrorImpl = CompilationError

__all__ = ["IncompatibleTypeErrorImpl", "TritonSemantic"]
