"""triton.language.extra.cuda."""

from __future__ import annotations

from typing import Any

from fuser import language as _language
from fuser.triton.language.extra import libdevice


def __getattr__(name: str) -> Any:
    return getattr(_language, name)


__all__ = ["libdevice"]
