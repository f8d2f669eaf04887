"""triton.language.extra: functions of vendors."""

from __future__ import annotations

from fuser.triton.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
