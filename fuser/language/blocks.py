"""Block extents that a launch may leave out: `BLOCK: fl.constexpr = fl.block(default=128)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuser.errors import UsageError


@dataclass(frozen=True)
class Block:
    """The extent of a block. default: what it is where the launch gives none."""

    default: int

    def __repr__(self) -> str:
        return f"block(default={self.default})"


def block(default: int) -> Any:
    """As the default value of a parameter: an extent that is known while compiling, and chosen
    where a launch leaves it out. The function that gives the grid sees it, too.

    It is `default`, unless the grid follows it: then a cost model chooses, at the first launch that
    fills the device, for that and all later ones (extents.py).

    Raises UsageError for what is no extent.
    """
    if isinstance(default, bool) or not isinstance(default, int) or default < 1:
        raise UsageError(f"block(default={default!r})", hint="a whole number above 0")
    return Block(default)


def chosen(value: Any) -> Any:
    """The extent, where a value is a Block; anything else as it is."""
    return value.default if isinstance(value, Block) else value
