"""What was decided about a kernel, mechanism by mechanism: what `fuser explain` prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """Whether a kernel has a mechanism, and why: what speaks for it or against it."""

    mechanism: str
    applied: bool
    reason: str = ""
