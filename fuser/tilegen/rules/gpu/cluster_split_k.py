"""Schedules of matmuls of few tiles: the blocks of a cluster take a part of k each (split-k)."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.tilegen.rules.common import blocks_of, ceildiv
from fuser.tilegen.schedule import Schedule


def split_schedule(target: Target, m: int, n: int, k: int, batch: int) -> Schedule | None:
    """A matmul of few tiles and a long k, of 16-bit operands: the blocks of a cluster take a part
    of k each, as many as run at once. None where there are tiles enough, where the sums of parts
    would take longer than what they save (about 2 us on an H200), or without clusters."""
    tiles = ceildiv(m, 64) * ceildiv(n, 64) * batch
    cluster = next((c for c in (8, 4, 2) if tiles * c <= target.units), 1)
    if not target.wgmma or cluster == 1 or k < SPLIT_DEPTH:
        return None
    schedule = blocks_of(
        stages=min(6, k // 64 // cluster), group=8 if batch == 1 else 0,
        reason=f"{tiles} tiles, each of a cluster of {cluster} blocks that share k",
        m=64, n=64, k=64,
    )  # fmt: skip
    return replace(schedule, cluster=cluster)


SPLIT_DEPTH = 2048
"""The least k that is shared by the blocks of a cluster."""
