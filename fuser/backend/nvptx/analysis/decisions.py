"""What was decided about a kernel, mechanism by mechanism: what `fuser explain` prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """Whether a kernel has a mechanism, and why: what speaks for it or against it."""

    mechanism: str
    applied: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.mechanism}: {'yes' if self.applied else 'no'}, {self.reason}"


class Decisions:
    """What was decided of a kernel so far, a decision a mechanism: an application counts, else the
    first reason against it."""

    def __init__(self) -> None:
        self._made: dict[str, Decision] = {}

    def apply(self, mechanism: str, reason: str) -> None:
        self._made[mechanism] = Decision(mechanism, True, reason)

    def refuse(self, mechanism: str, reason: str) -> None:
        self._made.setdefault(mechanism, Decision(mechanism, False, reason))

    def add(self, *decisions: Decision) -> None:
        self._made |= {item.mechanism: item for item in decisions}

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._made.values())
