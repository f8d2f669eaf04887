"""A CPU program whose kernels run at one size of a dim after another, without a new memory plan.

The program is laid out for the largest size. What kernels read of sizes, and how many programs a
launch has, are formulas of the dim: a run computes them and writes them into its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from fuser.graph.dims import Dim, parse, substitute, symbol
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.memory import address
from fuser.runtime.program import Launch

LENGTH = symbol("n")
"""What moves."""
Formula = Callable[[int], tuple[int, ...]]


def formula(dims: Iterable[Dim], sizes: Mapping[str, Dim]) -> Formula:
    """A function from the size of LENGTH to the values of dims. sizes: of all symbols, as numbers
    or in terms of LENGTH."""
    texts = [str(substitute(dim, sizes)) for dim in dims]
    source = f"lambda n: ({''.join(f'{text}, ' for text in texts)})"
    found: Formula = eval(source, {"__builtins__": {}, "min": min, "max": max})
    return found


class MovingProgram:
    """Runs an executor's program at any size of one dim up to that which it was laid out for. Safe
    to use from many threads."""

    def __init__(self, executor: CpuExecutor, known: Mapping[str, Dim]) -> None:
        """executor: of a program whose kernels have "sizes" and "grid" among their facts where they
        depend on sizes. known: as for `formula`."""
        self.executor = executor
        texts: dict[str, int] = {}

        def number(text: str) -> int:
            return texts.setdefault(text, len(texts))

        launches = executor.program.launches
        sizes: list[list[int]] = []
        blocks: dict[int, int] = {}  # number of a constant -> where its numbers begin
        rows, grids = [], []
        top = 0
        moved = {place for place, launch in enumerate(launches) if _moves(launch)}
        for place in sorted(moved):
            facts = launches[place].kernel.facts
            blocks[launches[place].arguments[-1].index] = top
            sizes.append([number(text) for text in facts["sizes"] or ("0",)])
            top += len(sizes[-1])
        for row, (kind, place) in enumerate(
            zip(executor.table["kind"], executor.labels, strict=True)
        ):
            if kind == 0 and place in moved:
                rows.append(row)
                grid = (*launches[place].kernel.facts["grid"], "1", "1")[:3]
                grids.append([number(text) for text in grid])
        self.formula = formula(map(parse, texts), known)
        self.sizes = np.array(list(chain.from_iterable(sizes)), np.intp)
        self.rows = np.array(rows, np.intp)
        self.grids = np.array(grids, np.intp).reshape(len(rows), 3)
        self.most = executor.table["chunks"][self.rows]
        ends = len(executor.program.inputs) + len(executor.program.outputs)
        self.places = [(ends + constant, 8 * start) for constant, start in blocks.items()]
        self._free: list[_Moving] = []

    def run(self, size: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """As `CpuExecutor.run_into`, at a size of the dim."""
        try:
            moving = self._free.pop()
        except IndexError:
            moving = _Moving(self)
        numbers = np.array(self.formula(size), np.int64)
        moving.sizes[: len(self.sizes)] = numbers[self.sizes]
        programs = numbers[self.grids].prod(axis=1)
        moving.table["programs"][self.rows] = programs
        moving.table["chunks"][self.rows] = np.minimum(self.most, programs)
        self.executor.run_in(moving.context, inputs, outputs)
        self._free.append(moving)


class _Moving:
    """What one run at a time uses: a context whose table and sizes are its own."""

    def __init__(self, program: MovingProgram) -> None:
        self.context = program.executor.new_context()
        self.table = program.executor.table.copy()
        self.sizes = np.zeros(max(1, len(program.sizes)), np.int64)
        self.context.record[0] = address(self.table)
        for place, start in program.places:
            self.context.bases[place] = address(self.sizes) + start


def _moves(launch: Launch) -> bool:
    return "sizes" in launch.kernel.facts and launch.arguments[-1].space == "constant"


__all__ = ["LENGTH", "Formula", "MovingProgram", "formula"]
