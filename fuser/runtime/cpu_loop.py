"""A plan on the CPU as the body of a loop of many iterations: between buffers that stay.

What an iteration costs beside its kernels is an assignment of addresses and one native call.
`PlanLoop` does the same for any device, and takes ten times as long on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.memory import address, allocate, settle

LOOKED_AT = 64
"""Iterations between two looks at the limits."""


class CpuLoop:
    """A plan whose results are carried into inputs. Each result that is carried has two buffers,
    which take turns; every other one has one.

    arrays: for every input of the program, C-contiguous and of its type. carried: the output that
    an input has the value of in the next iteration, by their numbers. index: the input that is the
    number of the iteration, None if nothing reads it.
    """

    def __init__(
        self, executor: CpuExecutor, arrays: Sequence[np.ndarray], carried: Mapping[int, int],
        index: int | None,
    ) -> None:  # fmt: skip
        program = executor.program
        first = [settle(array, array.itemsize)[0] for array in arrays]
        self._number: np.ndarray | None = None
        if index is not None:
            spec = program.inputs[index]
            self._number = first[index] = allocate(spec.shape, spec.dtype.numpy)[0]
        moved = set(carried.values())
        one = [allocate(spec.shape, spec.dtype.numpy)[0] for spec in program.outputs]
        two = [
            allocate(spec.shape, spec.dtype.numpy)[0] if output in moved else one[output]
            for output, spec in enumerate(program.outputs)
        ]
        self.results = (one, two)
        """The buffers of the results, for even and odd iterations."""
        self._carried = dict(carried)
        sources = [list(first) for _ in range(3)]  # of the first iteration, of even and odd ones
        for place, output in carried.items():
            sources[1][place], sources[2][place] = two[output], one[output]
        targets = (one, one, two)
        self._tables = [
            np.array([address(array) for array in (*reads, *writes)], np.int64)
            for reads, writes in zip(sources, targets, strict=True)
        ]
        self._copies = [
            executor.copies_between(reads, writes)
            for reads, writes in zip(sources, targets, strict=True)
        ]
        self._held = sources
        self._context = executor.new_context()
        self._call = executor.caller(self._context)
        self.count = 0
        """Iterations that were run."""

    def run(
        self, number: int, limit: int | None, going: int, rows: Sequence[int],
        collected: list[list[np.ndarray]], look: Callable[[], None],
    ) -> None:  # fmt: skip
        """Iterate from `number` on until `limit` (None: without end) or until the output `going` is
        false. rows: outputs whose values each iteration appends to `collected`. look: called now
        and then; what it raises ends the loop."""
        bases = self._context.bases[: len(self._tables[0])]
        call, own = self._call, self._number
        ways = [
            (table, copies, results, results[going])
            for table, copies, results in zip(
                self._tables, self._copies, (self.results[0], *self.results), strict=True
            )
        ]
        way = 0
        while True:
            table, copies, results, alive = ways[way]
            if own is not None:
                own[...] = number
            bases[:] = table
            call()
            for target, source in copies:
                target[:] = source
            if rows:
                collected.append([results[output].copy() for output in rows])
            number += 1
            self.count += 1
            way = 1 if way == 2 else 2
            if not alive.item() or number == limit:
                return
            if not number % LOOKED_AT:
                look()

    def last(self, output: int) -> np.ndarray:
        """The value of a result after the last iteration, an array of its own."""
        return self.results[(self.count - 1) % 2][output].copy()

    def state(self) -> dict[int, np.ndarray]:
        """The carried values by input, as arrays of their own."""
        return {place: self.last(output) for place, output in self._carried.items()}
