"""triton.language.extra.cuda: what kernels of GPUs ask of the machine."""

from __future__ import annotations

from fuser.language.extra import (
    gdc_launch_dependents,
    gdc_wait,
    globaltimer,
    num_threads,
    num_warps,
    smid,
)
from fuser.triton.language.extra.cuda import gdc, libdevice, utils

__all__ = [
    "gdc", "gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "num_threads",
    "num_warps", "smid", "utils",
]  # fmt: skip
