"""The Schedule of a kernel: plain data beside the tile program; it decides speed, not meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
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

    GPUs. consumer_groups: warp groups of `warps` warps that compute a tile each, in ping-pong.
    tf32x3: float32 matmuls as three products of TF32 on wgmma. resident_rows: long rows of a
    reduction stay in shared memory. blocks_per_sm: blocks that a multiprocessor is to run at once
    (0: the compiler's choice). max_registers: of a thread (0: the compiler's choice). im2col: loads
    of windows on an image use TMA's im2col mode.
    launch_overlap, early_constants, warp_specialized, ping_pong: whether the kernel starts before
    the previous one has ended, requests constants meanwhile, has a producer warp, and whether its
    consumer groups ping-pong at the tensor cores; None is the compiler's choice. bounded_scores:
    row maxima of an attention may be any number between the two that the program gives.

    CPUs. k_panels: (row tiles, panels) of a program whose matmul goes through k in blocks. packs:
    whether right operands of a matmul, which are not constants, are copied to panels first.
    Either. late_scales: scales of decoded weights are applied after the matmul. digits: a row by
    weights of 4 bits is multiplied in whole numbers.
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
    consumer_groups: int = 1
    tf32x3: bool = False
    resident_rows: bool = False
    blocks_per_sm: int = 0
    max_registers: int = 0
    im2col: bool = True
    launch_overlap: bool | None = None
    early_constants: bool | None = None
    warp_specialized: bool | None = None
    ping_pong: bool | None = None
    bounded_scores: bool = False
    k_panels: tuple[int, int] | None = None
    packs: bool = False
    late_scales: bool = False
    digits: bool = False

    def block(self, name: str, default: int = 1) -> int:
        return dict(self.blocks).get(name, default)

    def to_dict(self) -> dict[str, Any]:
        """What the report prints: blocks, warps, stages, and what is not the default."""
        table: dict[str, Any] = {f"block_{name}": size for name, size in self.blocks}
        table |= {"warps": self.warps, "stages": self.stages}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in (*table, "blocks", "reason") and value != item.default:
                table[item.name] = list(value) if isinstance(value, tuple) else value
        return table


def settings(schedule: Mapping[str, Any], device: str) -> dict[str, Any]:
    """What of a schedule (`Schedule.to_dict`) means something on a device, "cpu" or "cuda": a CPU
    has no warps and pipelines no loads."""
    return {
        name: value
        for name, value in schedule.items()
        if device != "cpu" or name not in ("warps", "stages")
    }
