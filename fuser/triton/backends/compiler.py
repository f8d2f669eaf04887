"""triton.backends.compiler."""

from __future__ import annotations

from fuser.triton.targets import GPUTarget

__all__ = ["GPUTarget"]
