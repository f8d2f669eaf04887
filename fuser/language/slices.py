"""Constant indices and slices of tiles."""

from __future__ import annotations

from fuser.language.emitter import Emitter
from fuser.language.tensors import Pointer, Tensor


def cut(e: Emitter, x: Tensor | Pointer, axis: int, at: int | slice) -> Tensor | Pointer:
    """x at one place of an axis, which goes, or at some places."""
    e.fail(f"the index {at} of a {x.type}")
