"""Run a program: blocks of a cluster at a time, warps in a random order."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.ops import ExpectParts
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import print_op
from fuser.backend.nvptx.simulate import (
    control,
    copies,
    data,
    folds,
    lines,
    matrix,
    memory,
    own,
    scans,
    shared,
)
from fuser.backend.nvptx.simulate.barriers import Mbarrier, Meeting
from fuser.backend.nvptx.simulate.clocks import Array, Shadow, SimulationError
from fuser.backend.nvptx.simulate.integers import Lookup
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp
from fuser.graph.sizes import size_hint

RULES: dict[type[Op], Rule] = {
    **data.RULES, **folds.RULES, **matrix.RULES, **memory.RULES, **shared.RULES, **copies.RULES,
    **control.RULES, **lines.RULES, **scans.RULES, **own.RULES,
}  # fmt: skip


def simulate(
    program: Program,
    arrays: Mapping[str, Array],
    *,
    seed: int = 0,
    late: bool = False,
    clusters: Iterable[int] | None = None,
) -> None:
    """Run a launch on arrays by the names of the buffers, in place.

    seed: of the order in which warps go on and copies come. late: copies come when nothing else can
    go on. clusters: which of them run, all by default. Raises SimulationError for what may race in
    shared memory, for a deadlock, and for what the simulator does not know.
    """
    count = math.prod(map(size_hint, program.launch)) // program.cluster
    for number in range(count) if clusters is None else clusters:
        Machine(program, arrays, number * program.cluster, seed + number, late).run()


class Machine:
    """A cluster of blocks. first: the number of its first block in the launch."""

    def __init__(
        self, program: Program, arrays: Mapping[str, Array], first: int, seed: int, late: bool
    ) -> None:
        self.program, self.arrays, self.first, self.late = program, arrays, first, late
        self.rng = np.random.default_rng(seed)
        self.rules = RULES
        blocks, warps = program.cluster, program.threads // 32
        size = max(1, program.shared_bytes)
        self._agents = blocks * warps
        self.shared = [Shadow(size) for _ in range(blocks)]
        self.meetings = [Meeting(warps) for _ in range(blocks)]
        self.cluster_meeting = Meeting(blocks * warps)
        self.mbarriers: dict[tuple[int, int], Mbarrier] = {}
        self.flights: list[Callable[[], None]] = []
        self._numbered: dict[tuple[int, int], Meeting] = {}
        self.warps = [
            Warp(self, block, number, block * warps + number)
            for block in range(blocks)
            for number in range(warps)
        ]

    def agent(self) -> int:
        """A number for something that runs by itself."""
        self._agents += 1
        return self._agents - 1

    def run(self) -> None:
        for op in self.program.body.walk():
            if isinstance(op, ExpectParts):
                for warp in self.warps:
                    shared.expect_at_head(warp, op)
        running = {warp: self._start(warp) for warp in self.warps}
        waits: dict[Warp, Callable[[], bool]] = {warp: lambda: True for warp in self.warps}
        while running:
            ready = [warp for warp in running if waits[warp]()]
            if not ready and not self.flights:
                stuck = ", ".join(map(str, running))
                raise SimulationError(f"a deadlock: {stuck} wait for ever")
            if self.flights and (not ready or (not self.late and self.rng.random() < 0.5)):
                self.flights.pop(int(self.rng.integers(len(self.flights))))()
                continue
            warp = ready[int(self.rng.integers(len(ready)))]
            try:
                waits[warp] = next(running[warp])
            except StopIteration:
                del running[warp]
                self.meetings[warp.block].leave()
                self.cluster_meeting.leave()
        while self.flights:
            self.flights.pop(int(self.rng.integers(len(self.flights))))()

    def _start(self, warp: Warp) -> Steps:
        yield from warp.run(self.program.head)
        yield from warp.run(self.program.body)

    def register(self, warp: Warp) -> Lookup:
        """What special registers hold."""
        return functools.partial(self._register, warp)

    def _register(self, warp: Warp, name: str) -> Array:
        if name == "tid.x":
            return np.arange(32, dtype=np.int64) + 32 * warp.number
        x, y, _ = self.program.launch
        block = self.first + warp.block
        place = {"x": block % x, "y": block // x % y, "z": block // (x * y)}
        if name == "cluster.ctarank":
            return np.full(32, warp.block, np.int64)
        kind, _, axis = name.partition(".")
        if kind == "ctaid":
            return np.full(32, place[axis], np.int64)
        if kind == "nctaid":
            return np.full(32, dict(zip("xyz", self.program.launch, strict=True))[axis], np.int64)
        if kind == "clusterid":
            return np.full(
                32, place[axis] // (self.program.cluster if axis == "x" else 1), np.int64
            )
        raise SimulationError(f"a register that the simulator does not know: {name}")

    def text(self, op: Op) -> str:
        """An op, for messages."""
        try:
            return print_op(self.program, op)
        except (KeyError, ValueError):
            return op.opcode

    def meeting(self, block: int, number: int, threads: int) -> Meeting:
        """The numbered barrier of a block at which so many threads meet."""
        found = self._numbered.setdefault((block, number), Meeting(threads // 32))
        if found.count != threads // 32:
            raise SimulationError(f"barrier {number} has {found.count} warps, not {threads // 32}")
        return found

    def mbarrier(self, block: int, at: int) -> Mbarrier:
        """A barrier by its address. Raises SimulationError if there is none."""
        found: Mbarrier | None = self.mbarriers.get((block, at))
        if found is None:
            raise SimulationError(f"there is no barrier at byte {at} of block {block}")
        return found
