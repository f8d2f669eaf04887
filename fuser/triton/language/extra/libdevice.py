"""triton.language.extra.libdevice: mathematical functions by the names of CUDA's libdevice."""

from __future__ import annotations

from typing import Any

from fuser import language as _language


def __getattr__(name: str) -> Any:
    return getattr(_language, name)
