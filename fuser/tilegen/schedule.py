"""The Schedule of a kernel: plain data beside the tile program; it decides speed, not meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """How a back end should run a kernel.

    blocks: names and sizes of the block parameters the emitter used, e.g. (("m", 128), ("k", 64)).
    warps: warps a program on a GPU. stages: buffers of a software-pipelined loop.
    group: program order on a 2-D grid (m, n): `group` rows of blocks are swept together (on a CPU
    by a grid axis of their own) so that neighbours share cached operands; 0 is row-major.
    persistent: programs loop over the grid. stream_k: blocks of a GPU's multiprocessor among which
    the steps of all programs' loops are shared out evenly, parts of programs included (0: whole
    programs).
    split_k: how many programs share one reduction. cluster: blocks of a GPU that share one program,
    where it has clusters (Hopper). neighbours: programs along the last two axes of the grid, rows
    and columns, whose blocks form a cluster and load for each other what they share. reason: one
    line for `fuser explain`.
    """

    blocks: tuple[tuple[str, int], ...] = ()
    warps: int = 4
    stages: int = 1
    group: int = 0
    persistent: bool = False
    split_k: int = 1
    cluster: int = 1
    neighbours: tuple[int, int] = (1, 1)
    stream_k: int = 0
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def block(self, name: str, default: int = 1) -> int:
        return dict(self.blocks).get(name, default)

    def to_dict(self) -> dict[str, Any]:
        """What the report prints."""
        table: dict[str, Any] = {f"block_{name}": size for name, size in self.blocks}
        table |= {"warps": self.warps, "stages": self.stages}
        if self.group:
            table["group"] = self.group
        if self.split_k > 1:
            table["split_k"] = self.split_k
        if self.cluster > 1:
            table["cluster"] = self.cluster
        if self.neighbours != (1, 1):
            table["neighbours"] = list(self.neighbours)
        if self.persistent:
            table["persistent"] = True
        if self.stream_k:
            table["stream_k"] = self.stream_k
        return table | {k: list(v) if isinstance(v, tuple) else v for k, v in self.extra.items()}


def settings(schedule: Mapping[str, Any], device: str) -> dict[str, Any]:
    """What of a schedule (`Schedule.to_dict`) means something on a device, "cpu" or "cuda": a CPU
    has no warps and pipelines no loads."""
    return {
        name: value
        for name, value in schedule.items()
        if device != "cpu" or name not in ("warps", "stages")
    }
