"""triton.language.extra.cuda.libdevice: mathematical functions by the names of CUDA's libdevice."""

from __future__ import annotations

from typing import Any

from fuser.language import libdevice as _libdevice


def __getattr__(name: str) -> Any:
    return getattr(_libdevice, name)
