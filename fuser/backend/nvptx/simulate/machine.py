"""What the warps of a cluster share: its memory, its barriers, what is on its way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.ops import AwaitPrevious
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import print_op
from fuser.backend.nvptx.simulate.barriers import Mbarrier, Meeting, Ready
from fuser.backend.nvptx.simulate.clocks import Array, Shadow, SimulationError

Steps = Generator[Ready, None, None]
"""Runs until it has to wait, and says for what."""
Rule = Callable[[Any, Any], Steps | None]
"""What a warp does at an op."""


class Machine:
    """A cluster of blocks. first: the number of its first block in the launch. rules: of the ops.
    late: copies come when nothing else can go on. follows: whether it starts under the kernel in
    front."""

    def __init__(
        self, program: Program, arrays: Mapping[str, Array], first: int, seed: int, late: bool,
        rules: Mapping[type[Op], Rule],
    ) -> None:  # fmt: skip
        self.program, self.arrays, self.first, self.late = program, arrays, first, late
        self.rng = np.random.default_rng(seed)
        self.rules = rules
        self.follows = any(isinstance(op, AwaitPrevious) for op in program.body.walk())
        blocks, warps = program.cluster, program.threads // 32
        size = max(1, program.shared_bytes)
        self._agents = blocks * warps
        self.shared = [Shadow(size) for _ in range(blocks)]
        self.meetings = [Meeting(warps) for _ in range(blocks)]
        self.cluster_meeting = Meeting(blocks * warps)
        self.mbarriers: dict[tuple[int, int], Mbarrier] = {}
        self.tensor_memory: dict[int, Any] = {}
        """By block, where it has some (tensor_memory.py)."""
        self.flights: list[Callable[[], None]] = []
        self._numbered: dict[tuple[int, int], Meeting] = {}
        self.warps: list[Any] = []
        self.sizes: list[int] = []
        self.numbers: Sequence[float] = ()
        self.workspace: dict[Any, Any] = {}
        self.asked: set[Any] = set()
        """Flags of other clusters that warps wait for."""

    def agent(self) -> int:
        """A number for something that runs by itself."""
        self._agents += 1
        return self._agents - 1

    def register(self, block: int, warp: int, name: str) -> Array:
        """What a special register holds in the threads of a warp."""
        if name == "tid.x":
            return np.arange(32, dtype=np.int64) + 32 * warp
        x, y, _ = self.program.launch
        at = self.first + block
        place = {"x": at % x, "y": at // x % y, "z": at // (x * y)}
        if name == "cluster.ctarank":
            return np.full(32, block, np.int64)
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
