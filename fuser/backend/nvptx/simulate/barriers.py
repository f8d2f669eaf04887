"""Barriers of threads, barriers with phases, and what runs by itself until it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fuser.backend.nvptx.simulate.clocks import SimulationError, merge

Ready = Callable[[], bool]


@dataclass(eq=False)
class Meeting:
    """A barrier at which `count` warps meet, again and again."""

    count: int
    arrived: int = 0
    rounds: int = 0
    told: dict[int, int] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)

    def arrive(self, told: dict[int, int]) -> Ready:
        """One of them is there, and tells what it knows; whether all are."""
        round_ = self.rounds
        merge(self.told, told)
        self.arrived += 1
        self._advance()
        return lambda: self.rounds > round_

    def leave(self) -> None:
        """One of them has ended: the others meet without it."""
        self.count -= 1
        self._advance()

    def _advance(self) -> None:
        if self.arrived and self.arrived == self.count:
            self.arrived, self.rounds = 0, self.rounds + 1
            self.given, self.told = self.told, {}


@dataclass(eq=False)
class Mbarrier:
    """A barrier whose phase ends when `count` have arrived and all bytes that were announced have
    come."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0
    told: dict[int, int] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)
    waiting: int = 0

    def arrive(self, count: int, told: dict[int, int]) -> None:
        """Raises SimulationError for more arrivals than a phase has."""
        merge(self.told, told)
        self.pending -= count
        if self.pending < 0:
            raise SimulationError("more arrive on a barrier than it counts")
        self._advance()

    def expect(self, bytes_: int) -> None:
        self.bytes += bytes_

    def complete(self, bytes_: int, told: dict[int, int]) -> None:
        merge(self.told, told)
        self.bytes -= bytes_
        self._advance()

    def has_ended(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def _advance(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count
            merge(self.given, self.told)
            self.told = {}
