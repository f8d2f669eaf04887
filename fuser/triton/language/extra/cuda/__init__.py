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
from fuser.triton.absent import names
from fuser.triton.language.extra.cuda import gdc, libdevice, utils

__getattr__ = names(
    __name__,
    "convert_custom_float8_sm70 convert_custom_float8_sm80",
    "fuser casts 8-bit floats on every machine",
    "use x.to(dtype)",
)
__all__ = [
    "gdc", "gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "num_threads",
    "num_warps", "smid", "utils",
]  # fmt: skip
