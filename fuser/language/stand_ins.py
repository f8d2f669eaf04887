"""What a launch takes in the place of an array: one read as another type, or a type alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser.language.types import ElementType


class Retyped:
    """An array whose elements a kernel reads and writes as another type of as many bits."""

    def __init__(self, base: Any, dtype: ElementType) -> None:
        self.base, self.dtype = base, dtype


class Mock:
    """An array that is not there: enough to compile for."""

    def __init__(self, dtype: Any, shape: Sequence[int] = (1,)) -> None:
        """dtype: an element type, or that of an array library."""
        self.dtype, self.shape = dtype, list(shape)
