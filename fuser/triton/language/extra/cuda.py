"""triton.language.extra.cuda."""

from __future__ import annotations

from fuser.language.extra import (
    gdc_launch_dependents,
    gdc_wait,
    globaltimer,
    num_threads,
    num_warps,
    smid,
)
from fuser.triton.language.extra import libdevice

__all__ = [
    "gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "num_threads", "num_warps",
    "smid",
]  # fmt: skip
