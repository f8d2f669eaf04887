"""triton.language.extra.cuda.utils."""

from __future__ import annotations

from fuser.language.extra import globaltimer, num_threads, num_warps, smid
from fuser.triton.absent import names

__getattr__ = names(
    __name__,
    "convert_custom_float8 convert_custom_float8_sm70 convert_custom_float8_sm80 "
    "convert_float16_to_fp8e4b15 convert_fp8e4b15_to_float16",
    "fuser casts 8-bit floats on every machine",
    "use x.to(dtype)",
)
__all__ = ["globaltimer", "num_threads", "num_warps", "smid"]
