"""Run a program: blocks of a cluster at a time, warps in a random order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.ops import ExpectParts
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.simulate import (
    control,
    copies,
    data,
    folds,
    matrix,
    memory,
    own,
    scans,
    shared,
    stream_k,
    tensor_memory,
    tf32x3,
    warp_transpose,
)
from fuser.backend.nvptx.simulate.clocks import Array, SimulationError
from fuser.backend.nvptx.simulate.machine import Machine
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp
from fuser.graph.sizes import size_hint

RULES: dict[type[Op], Rule] = {
    **data.RULES, **folds.RULES, **matrix.RULES, **memory.RULES, **shared.RULES, **copies.RULES,
    **control.RULES, **warp_transpose.RULES, **scans.RULES, **own.RULES, **stream_k.RULES,
    **tf32x3.RULES, **tensor_memory.RULES,
}  # fmt: skip


def simulate(
    program: Program,
    arrays: Mapping[str, Array],
    *,
    seed: int = 0,
    late: bool = False,
    clusters: Iterable[int] | None = None,
    scalars: Sequence[float] = (),
    sizes: Sequence[int] = (),
) -> None:
    """Run a launch on arrays by the names of the buffers, in place.

    seed: of the order in which warps go on and copies come. late: copies come when nothing else can
    go on. clusters: which of them run, all by default. scalars: the numbers of the launch, in
    order; sizes: of symbolic dims, those of the example by default. Raises SimulationError for what
    may race in shared memory, for a deadlock, and for what the simulator does not know.
    """
    count = math.prod(map(size_hint, program.launch)) // program.cluster
    workspace: dict[Any, Any] = {}
    waiting: list[Iterator[None]] = []
    for number in range(count) if clusters is None else clusters:
        first = number * program.cluster
        cluster = Cluster(program, arrays, first, seed + number, late, workspace, scalars, sizes)
        waiting.append(cluster.running())
        waiting = [other for other in waiting if not _ends(other)]
    while waiting:
        before = len(waiting), len(workspace)
        waiting = [other for other in waiting if not _ends(other)]
        if (len(waiting), len(workspace)) == before:
            raise SimulationError("a deadlock: blocks wait for each other's sums for ever")


def _ends(cluster: Iterator[None]) -> bool:
    """Let a cluster go on until it has ended, or waits for another."""
    return next(cluster, cluster) is cluster


class Cluster(Machine):
    """A cluster of blocks that is run."""

    def __init__(
        self,
        program: Program,
        arrays: Mapping[str, Array],
        first: int,
        seed: int,
        late: bool,
        workspace: dict[Any, Any] | None = None,
        numbers: Sequence[float] = (),
        sizes: Sequence[int] = (),
    ) -> None:
        """workspace: that it shares with the other clusters. numbers: of the launch; sizes: of
        symbolic dims, those of the example by default."""
        super().__init__(program, arrays, first, seed, late, RULES)
        self.workspace, self.numbers = {} if workspace is None else workspace, numbers
        self.sizes = list(map(size_hint, sizes or program.sizes))
        warps = program.threads // 32
        self.warps: list[Warp] = [
            Warp(self, block, number, block * warps + number)
            for block in range(program.cluster)
            for number in range(warps)
        ]

    def run(self) -> None:
        """Run a cluster that waits for no other."""
        for _ in self.running():
            raise SimulationError("a deadlock: a cluster waits for another for ever")

    def running(self) -> Iterator[None]:
        """Run the cluster; stops where only another can let it go on."""
        for op in self.program.body.walk():
            if isinstance(op, ExpectParts):
                for warp in self.warps:
                    shared.expect_at_head(warp, op)
        running = {warp: self._start(warp) for warp in self.warps}
        waits: dict[Warp, Callable[[], bool]] = {warp: lambda: True for warp in self.warps}
        while running:
            ready = [warp for warp in running if waits[warp]()]
            if not ready and not self.flights and self.asked:
                self.asked.clear()
                yield
                continue
            if not ready and not self.flights:
                stuck = ", ".join(map(str, running))
                raise SimulationError(f"a deadlock: {stuck} wait for ever")
            self.asked.clear()
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
        for block, found in self.tensor_memory.items():
            if found.slots:
                raise SimulationError(
                    "a block ends with columns of tensor memory that are its own",
                    where=f"block {block}",
                )

    def _start(self, warp: Warp) -> Steps:
        yield from warp.run(self.program.head)
        yield from warp.run(self.program.body)
