"""triton.language.standard: functions of the block language."""

from __future__ import annotations

from fuser import language as _language
from fuser.triton.absent import names
from fuser.triton.constexprs import constexpr_function


# Packages use these two, though their names are private.
@constexpr_function
def _log2(i: int) -> int:
    """The logarithm of a power of 2, else that of the greatest one below."""
    return i.bit_length() - 1 if i > 0 else 0


@constexpr_function
def _is_power_of_two(i: int) -> bool:
    """Whether a whole number is a power of 2."""
    return i > 0 and i & (i - 1) == 0


__getattr__ = names(
    __name__, "sort_impl", "sorts are networks of fuser's own", "call sort or topk",
    lambda name: getattr(_language, name),
)  # fmt: skip
