"""8-bit floats, which are codes in memory and in the Tile IR, and rounding toward zero."""

from __future__ import annotations

from fuser.language.emitter import Emitter
from fuser.language.tensors import Tensor
from fuser.language.types import ElementType


def convert(e: Emitter, value: Tensor, dtype: ElementType) -> Tensor:
    """A tensor of 8-bit floats as another type, or another as 8-bit floats."""
    e.fail(f"a cast of {value.dtype} to {dtype}")


def toward_zero(e: Emitter, value: Tensor, dtype: ElementType) -> Tensor:
    """A float as a narrower one, cut instead of rounded."""
    e.fail(f"a cast of {value.dtype} to {dtype} that rounds toward zero")
