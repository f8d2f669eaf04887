"""set_allocator: who gives memory for what kernels need beside their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NullAllocator:
    """No allocator: fuser's kernels get memory of their own."""

    def __call__(self, size: int, alignment: int, stream: int | None) -> Any:
        raise RuntimeError("no allocator is set; fuser needs none")


_allocator: Any = NullAllocator()
_profile_allocator: Any = None


def set_allocator(allocator: Callable[..., Any]) -> None:
    """Take an allocator. fuser's kernels make no use of it: descriptors need no memory."""
    global _allocator
    _allocator = allocator


def set_profile_allocator(allocator: Callable[..., Any] | None) -> None:
    """Take an allocator for a profiler's memory. fuser's kernels have no such memory."""
    global _profile_allocator
    _profile_allocator = allocator


def has_profile_allocator() -> bool:
    """Whether one was given."""
    return _profile_allocator is not None
