"""triton.language.standard: functions of the block language."""

from __future__ import annotations

from fuser import language as _language
from fuser.triton.absent import names
from fuser.triton.constexprs import constexpr_function


# Packages use this one too, though its name is private.
@constexpr_function
def _log2(i: int) -> int:
    """The exponent of a power of 2."""
    return i.bit_length() - 1


__getattr__ = names(
    __name__, "sort_impl", "sorts are networks of fuser's own", "call sort or topk",
    lambda name: getattr(_language, name),
)  # fmt: skip
