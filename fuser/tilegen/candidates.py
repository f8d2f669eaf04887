"""Schedules that may be faster than the one of the rules, for tuning (pipeline/tuning.py): a few of
a kernel, the likeliest first.

Matmuls are ranked by the costs of the rules (rules/), so that what is tried are the tiles
between which the rules had to choose. Of other kernels it is the neighbours: one block size, the
warps or the stages twice or half what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fuser.base.target import Target
from fuser.tilegen import ops
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.rules.cpu.k_blocks import deep_schedule
from fuser.tilegen.rules.cpu.matmul import matmul_schedule, register_tiles
from fuser.tilegen.rules.gpu.ping_pong import PING_PONG_TILES
from fuser.tilegen.rules.gpu.stream_k import cut_of
from fuser.tilegen.rules.gpu.tiles import HALF_TILES, WIDE_TILES, has_room
from fuser.tilegen.schedule import Schedule

MOST = 8
"""Candidates of a kernel beside the schedule of the rules."""
MOVABLE = ("rows", "columns", "m", "n")
"""Blocks that may have any size: others must hold a whole row, or follow the layout of weights."""
LEAST_ROWS = 16
"""Of a tile that tensor cores multiply."""


@dataclass(frozen=True)
class Matmul:
    """A matmul as the schedule rules see it: `batch` of [m, k] x [k, n], `accumulators`
    that share the left operand, elements of `bits`. streamed: see `MatmulRule`."""

    m: int
    n: int
    k: int
    bits: int
    accumulators: int = 1
    batch: int = 1
    streamed: bool = True


def candidates(
    program: TileProgram, target: Target, matmul: Matmul | None = None, most: int = MOST
) -> list[Schedule]:
    """At most `most` schedules for a program, without its own, the likeliest first. They may not
    fit the region or the target: emission and compilation say so."""
    return [schedule for schedule, _ in ranked(program, target, matmul, most)[1:]]


def ranked(
    program: TileProgram, target: Target, matmul: Matmul | None = None, most: int = MOST
) -> list[tuple[Schedule, float | None]]:
    """The schedule of a program, then its `candidates`, each with the cost that the rules give it:
    comparable among themselves, None where the rules have no cost."""
    own = program.kernel.schedule
    costs: list[tuple[float, Schedule]] = []
    if matmul is not None and not (target.is_cuda and matmul.bits > 32):
        costs = _on_gpu(target, matmul, own) if target.is_cuda else _on_cpu(target, matmul, own)
    found = [schedule for _, schedule in costs[: most * 3 // 4]]
    chained = program.region.kind == "attention"
    dots = any(isinstance(op, ops.Dot) for op in program.kernel.walk())
    found += _neighbours(own, target, chained=chained, dots=dots)
    table = {_key(schedule): schedule for schedule in reversed(found)}
    table.pop(_key(own), None)
    known = {_key(schedule): cost for cost, schedule in reversed(costs)}
    chosen = [own, *[*reversed(table.values())][:most]]
    return [(schedule, known.get(_key(schedule))) for schedule in chosen]


def _key(schedule: Schedule) -> tuple[object, ...]:
    return (schedule.blocks, repr(replace(schedule, reason="")))


def _neighbours(own: Schedule, target: Target, *, chained: bool, dots: bool) -> Iterator[Schedule]:
    """One thing of a schedule twice, or half, what it is."""
    plain = replace(own, reason="tuned")
    for name, size in own.blocks:
        if name not in MOVABLE:
            continue
        least = LEAST_ROWS if dots and target.is_cuda else 1
        for other in (size * 2, size // 2 if size % 2 == 0 else 0):
            if other < least:
                continue
            blocks = tuple((n, other if n == name else s) for n, s in own.blocks)
            warps = own.warps
            if target.is_cuda and chained and name == "m":  # a warp has 16 rows of scores
                warps = max(1, own.warps * other // size)
            yield replace(plain, blocks=blocks, warps=warps, neighbours=(1, 1))
    if target.is_cuda:
        if not chained:
            for warps in (own.warps * 2, own.warps // 2):
                if 1 <= warps <= 16 and own.consumer_groups == 1:
                    yield replace(plain, warps=warps)
        for stages in (own.stages + 1, own.stages - 1):
            if own.stages > 1 and stages >= 1:
                yield replace(plain, stages=stages)
    elif own.group:
        for group in (0, own.group * 2, own.group // 2):
            yield replace(plain, group=group)


def _on_cpu(target: Target, p: Matmul, own: Schedule) -> list[tuple[float, Schedule]]:
    """Register tiles of least cost, with the sweeps or the blocks of k of the rules."""
    found: list[tuple[float, Schedule]] = []
    for cost, rows, columns in register_tiles(target, p.m, p.n, p.bits, p.accumulators):
        one = matmul_schedule(target, p.m, p.n, p.k, p.bits, p.accumulators, rows, columns)
        if own.k_panels is not None:
            one = deep_schedule(target, p.m, p.n, p.k, p.bits, p.batch, one)
        found.append((cost, replace(one, reason="tuned")))
    return found


def _on_gpu(target: Target, p: Matmul, own: Schedule) -> list[tuple[float, Schedule]]:
    """Tiles of one program a block, of persistent blocks, and of two ping-pong warp groups, by the
    cost that the rules give them (rules/gpu/ping_pong.py)."""
    half = p.bits <= 16
    depth = own.block("k")
    hopper = target.wgmma and half and p.streamed
    found: list[tuple[float, int, Schedule]] = []
    steps = p.k * p.bits / 16

    def cost(tile: int, lines: int, waves: float, exposed: int) -> float:
        return waves * (tile + 12 * lines) + exposed * tile * 200 / max(1, steps)

    tiles = dict.fromkeys((*HALF_TILES, *PING_PONG_TILES) if half else WIDE_TILES)
    for rows, columns in tiles:
        wide = columns * p.accumulators
        tile, lines = rows * wide, rows + wide
        if wide > 256 or tile > 1 << 15 or not has_room(target, rows, columns):
            continue
        if rows >= 2 * max(p.m, LEAST_ROWS) or columns >= 2 * max(p.n, 16):
            continue
        count = ceildiv(p.m, rows) * ceildiv(p.n, columns) * p.batch
        waves = ceildiv(count, target.units)
        blocks = tuple({**dict(own.blocks), "m": rows, "n": columns, "k": depth}.items())
        base = Schedule(
            blocks=blocks, warps=8 if tile >= 128 * 128 else 4, stages=max(2, min(own.stages, 4)),
            group=8 if p.batch == 1 else 0, reason="tuned",
        )  # fmt: skip
        begun = 2048 * waves if waves > 1 else 0
        found.append((cost(tile, lines, waves, waves) + begun, len(found), base))
        if hopper and count > target.units:
            single = cost(tile, lines, waves, 1) + begun / 2
            found.append((single, len(found), replace(base, persistent=True)))
        if hopper and count > target.units and 12288 <= tile <= 16384:
            paired = replace(base, persistent=True, warps=4, consumer_groups=2)
            found.append((cost(tile, lines, waves, 1), len(found), paired))
            cut = cut_of(count, p.k, target.units)
            if cut is not None:
                shared = replace(paired, stream_k=1)
                cut_waves = count // target.units + cut.waves
                found.append((cost(tile, lines, cut_waves, 1), len(found), shared))
        if hopper and 2 * count <= target.units and rows == 64 and columns >= 64:
            shared = replace(base, stages=8, stream_k=1)
            found.append((cost(tile, lines, 0.5, 1), len(found), shared))
    return [(c, schedule) for c, _, schedule in sorted(found, key=lambda item: item[:2])]
