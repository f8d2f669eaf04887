"""What happened before what: vector clocks of agents, and the shadow of shared memory.

An agent is a warp, or something that a warp has set off and that runs by itself (a copy). An access
of one agent is safe from another's if a chain of barriers and waits lies between them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from fuser.errors import FuserError

Array: TypeAlias = "np.ndarray[Any, Any]"


class SimulationError(FuserError):
    """A race, a deadlock, or a broken promise in a program of the GPU IR."""


class Clock:
    """What an agent knows of the others: up to which of their steps all has happened."""

    def __init__(self, agent: int, known: dict[int, int] | None = None) -> None:
        self.agent = agent
        self.known = dict(known or {})
        self.known.setdefault(agent, 1)

    @property
    def now(self) -> int:
        return self.known[self.agent]

    def release(self) -> dict[int, int]:
        """What another may learn; what this agent does from here on is later than that."""
        told = dict(self.known)
        self.known[self.agent] += 1
        return told

    def fence(self) -> None:
        """What this agent knows to be written is seen by matrix units and the copy engine."""
        merge(self.known, {~agent: step for agent, step in self.known.items() if agent >= 0})
        self.known[self.agent] += 1

    def learn(self, told: dict[int, int]) -> None:
        merge(self.known, told)

    def is_after(self, agent: int, step: int) -> bool:
        return self.known.get(agent, 0) >= step


def merge(known: dict[int, int], told: dict[int, int]) -> None:
    """Add what `told` knows."""
    for agent, step in told.items():
        known[agent] = max(known.get(agent, 0), step)


class Shadow:
    """Who touched each byte of a block's shared memory last. What is there at first is poison: as
    floats of any kind it is no number. places: what its bytes are called."""

    places = "byte {} of shared memory"

    def __init__(self, size: int) -> None:
        self.data = np.full(size, 255, np.uint8)
        self._writer = np.full(size, -1, np.int32)
        self._writes: list[tuple[int, int, str]] = []
        self._reads: dict[int, Array] = {}
        self._names: dict[int, str] = {}
        self.engines: set[int] = set()

    def read(self, at: Array, clock: Clock, what: str, by_unit: bool = False) -> None:
        """Note that an agent reads bytes. by_unit: past the threads' own accesses, which it sees
        after a fence only. Raises SimulationError if a write may not be over."""
        self.after_writes(at, clock, what, "reads", by_unit)
        steps = self._reads.setdefault(clock.agent, np.zeros(len(self.data), np.int32))
        steps[at] = clock.now
        self._names[clock.agent] = what

    def write(self, at: Array, values: Array, clock: Clock, what: str) -> None:
        """Write bytes. Raises SimulationError if another access may not be over; two agents may
        write the same."""
        self.claim(at[self.data[at] != values], clock, what)
        order = np.argsort(at, kind="stable")
        twice = np.diff(at[order]) == 0
        if (twice & (np.diff(values[order].astype(np.int16)) != 0)).any():
            raise SimulationError(f"{what} writes different values to one place")
        self.data[at] = values
        self._own(at, clock, what)

    def claim(self, at: Array, clock: Clock, what: str) -> None:
        """Note that an agent may write bytes from now on."""
        self.after_writes(at, clock, what, "overwrites")
        self.after_reads(at, clock, what)
        self._own(at, clock, what)

    def after_reads(self, at: Array, clock: Clock, what: str) -> None:
        """Raises SimulationError if somebody may still read bytes that are overwritten."""
        for agent, steps in self._reads.items():
            last = int(steps[at].max(initial=0))
            if agent != clock.agent and last and not clock.is_after(agent, last):
                raise SimulationError(
                    f"{what} overwrites what {self._names[agent]} may still read",
                    where=self.places.format(int(at[steps[at].argmax()])),
                )

    def _own(self, at: Array, clock: Clock, what: str) -> None:
        self._writer[at] = len(self._writes)
        self._writes.append((clock.agent, clock.now, what))

    def after_writes(
        self, at: Array, clock: Clock, what: str, verb: str, by_unit: bool = False
    ) -> None:
        """Raises SimulationError if somebody may still write bytes that are touched."""
        for number in np.unique(self._writer[at]):
            if number < 0:
                continue
            agent, step, writer = self._writes[number]
            if agent != clock.agent and not clock.is_after(agent, step):
                place = int(at[self._writer[at] == number][0])
                raise SimulationError(
                    f"{what} {verb} what {writer} may still write",
                    where=self.places.format(place),
                )
            if by_unit and agent not in self.engines and not clock.is_after(~agent, step):
                raise SimulationError(f"{what} {verb} what {writer} wrote, and no fence is between")
