"""triton.language.extra.cuda.utils."""

from __future__ import annotations

from fuser.language.extra import globaltimer, num_threads, num_warps, smid

__all__ = ["globaltimer", "num_threads", "num_warps", "smid"]
