"""Triton's public names on the block language: kernels written for Triton run as they are.

import fuser.triton as triton
import fuser.triton.language as tl
"""

from __future__ import annotations

from fuser.triton import language
from fuser.triton.jit import cdiv, jit, next_power_of_2

__all__ = ["cdiv", "jit", "language", "next_power_of_2"]
