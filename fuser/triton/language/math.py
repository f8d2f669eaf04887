"""triton.language.math: functions of the block language."""

from __future__ import annotations

from typing import Any

from fuser import language as _language


def __getattr__(name: str) -> Any:
    return getattr(_language, name)
