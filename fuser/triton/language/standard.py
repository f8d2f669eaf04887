"""triton.language.standard: functions of the block language."""

from __future__ import annotations

from fuser import language as _language
from fuser.triton.absent import names

__getattr__ = names(
    __name__, "sort_impl", "sorts are networks of fuser's own", "call sort or topk",
    lambda name: getattr(_language, name),
)  # fmt: skip
