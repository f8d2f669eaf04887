"""triton.runtime._allocation."""

from __future__ import annotations

from fuser.triton.allocation import NullAllocator, set_allocator

__all__ = ["NullAllocator", "set_allocator"]
