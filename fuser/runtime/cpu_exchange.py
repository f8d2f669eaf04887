"""Collectives of a plan on the CPU: the launch table is run in pieces, and between them the ranks
meet."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from fuser.dtypes import BY_NAME
from fuser.runtime.collectives import Array, Communicator, perform
from fuser.runtime.memory import address
from fuser.runtime.program import Exchange, Launch, alone

Place = tuple[int, int]
"""The number of a base address, and bytes from there on."""
Run = Callable[[int, "int | None", "int | None"], None]
"""The native loop: on a context, a pool and room for time stamps."""


class Exchanges:
    """The collectives among launches. rows: the row of the table that stands for each; records: of
    how many bytes a row is."""

    def __init__(self, launches: Sequence[Launch], labels: Sequence[int],
                 place: Callable[[Launch], list[Place]]) -> None:  # fmt: skip
        self.comm: Communicator | None = None
        found = ((n, Exchange.of(launch.kernel)) for n, launch in enumerate(launches))
        self.launches: dict[int, tuple[Exchange, Place, Place]] = {}
        for number, exchange in found:
            if exchange is not None:
                operand, result = place(launches[number])
                self.launches[number] = exchange, operand, result
        self.rows = [(labels.index(number), number) for number in self.launches]

    def check(self, name: str) -> None:
        """Raise UsageError unless there are other ranks."""
        if self.comm is None:
            raise alone(name)

    def perform(self, number: int, bases: np.ndarray) -> None:
        """Run the collective of a launch, on a table of base addresses."""
        exchange, operand, result = self.launches[number]
        assert self.comm is not None
        source = _array(bases, operand, exchange.size, exchange.dtype)
        target = _array(bases, result, exchange.result, exchange.dtype)
        attrs = {"groups": exchange.groups, "fold": exchange.fold, "root": exchange.root}
        perform(self.comm, exchange.kind, attrs, source, target)

    def run(
        self, run: Run, pointer: int, record: np.ndarray, bases: np.ndarray, stride: int,
        pool: int | None, times: np.ndarray | None,
    ) -> None:  # fmt: skip
        """Run the whole table of a context, whose `record` begins with its address and rows. times:
        for a stamp before each row and one at the end."""
        table, count = int(record[0]), int(record[1])
        first = 0
        try:
            for row, number in [*self.rows, (count, -1)]:
                before = times[first].copy() if times is not None and first else None
                record[:2] = table + first * stride, row - first
                run(pointer, pool, address(times[first:]) if times is not None else None)
                if times is not None and before is not None:
                    times[first] = before  # the exchange is the time of its row
                if number >= 0:
                    self.perform(number, bases)
                first = row
        finally:
            record[:2] = table, count


def _array(bases: np.ndarray, place: Place, size: int, dtype: str) -> Array:
    kind = BY_NAME[dtype].numpy
    if not size:
        return np.empty(0, kind)
    held = (ctypes.c_uint8 * (size * kind.itemsize)).from_address(int(bases[place[0]]) + place[1])
    return np.ctypeslib.as_array(held).view(kind)
