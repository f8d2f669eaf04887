"""triton.language.semantic: Triton's rules as methods of an object. Those of fuser are functions
(fuser/language/arithmetic.py, promotion.py), and kernels call them by name."""

from __future__ import annotations

from fuser.triton.absent import names
from fuser.triton.errors import CompilationError

IncompatibleTypeErrorImpl = CompilationError

__getattr__ = names(
    __name__, "TensorTy TritonSemantic", "no object has the rules of the language",
    "call the functions of triton.language; Python that a kernel runs gets `_semantic`",
)  # fmt: skip
