"""triton.runtime._allocation."""

from __future__ import annotations

from typing import Any, Protocol

from fuser.triton.allocation import (
    NullAllocator,
    has_profile_allocator,
    set_allocator,
    set_profile_allocator,
)


class Buffer(Protocol):
    """Memory that an allocator gives."""

    def data_ptr(self) -> int: ...


class Allocator(Protocol):
    """What gives memory."""

    def __call__(self, size: int, alignment: int, stream: int | None) -> Any: ...


__all__ = [
    "Allocator", "Buffer", "NullAllocator", "has_profile_allocator", "set_allocator",
    "set_profile_allocator",
]  # fmt: skip
