"""Schedules of matmuls: register tiles and sweeps on CPUs, tiles and stages on GPUs."""

from __future__ import annotations

from dataclasses import replace

from fuser.graph.sizes import is_symbolic, size_hint
from fuser.target import DotUnit, Target
from fuser.tilegen import units
from fuser.tilegen.rules import block_of, blocks_of, ceildiv
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.share_rules import (
    LEAST_GAIN,
    PING_PONG_TILES,
    cut_cost,
    cut_of,
    parts_schedule,
    ping_pong_schedule,
    split_schedule,
)
from fuser.tilegen.stream_rules import stream_schedule

MOST_SYMBOLIC_DEPTH = 256
"""The block of a contracted dim of any size."""


def register_tile(
    target: Target, m: int, n: int, bits: int, accumulators: int = 1
) -> tuple[int, int]:
    """(rows, columns) of the register tile of a CPU dot that covers [m, n] with the least work."""
    return register_tiles(target, m, n, bits, accumulators)[0][1:]


def register_tiles(
    target: Target, m: int, n: int, bits: int, accumulators: int = 1
) -> list[tuple[float, int, int]]:
    """(cost, rows, columns) of the register tiles that fit, those of the least work first.

    rows * vectors accumulators a dot, a row of B and one broadcast fit the registers; tiles that
    fill them run at about the same speed, so what counts is what hangs over the edges of [m, n].
    Tiles of few rows wait for B: L2 gives a line in 2.7 cycles, in which 5.4 multiply-adds are
    done.
    """
    lanes = target.lanes(64 if bits == 64 else 32)
    stream = 5.4 * target.vector_bits / 512
    found: list[tuple[float, int, int]] = []
    for vectors in range(1, 5):
        most = (target.vector_registers - 1 - vectors) // (vectors * accumulators)
        most = min(most, target.tile_vectors // vectors)
        panels = ceildiv(n, vectors * lanes)
        for rows in range(max(1, most // 2), most + 1):
            height = min(rows, m)
            # multiply-adds of a step of k, its loads, and a share of the start and end of the tile
            step = max(height, stream) * vectors + 0.15 * (height + vectors) + 2
            found.append((ceildiv(m, height) * panels * step, height, vectors * lanes))
    return sorted(dict.fromkeys(found), key=lambda item: item[0])


def matmul_schedule(
    target: Target, m: int, n: int, k: int, bits: int, accumulators: int, rows: int, columns: int
) -> Schedule:
    """The schedule of a CPU matmul with a register tile."""
    group = swept_rows(
        target, ceildiv(m, rows), ceildiv(n, columns), rows, k * bits // 8,
        columns * accumulators * k * bits // 8, m * n * bits // 8,
    )  # fmt: skip
    return blocks_of(group=group, m=rows, n=columns, k=k, reason="register tile of least waste")


SWEPT_ROWS = 64
"""Rows that share one read of large weights at least. At full speed n rows ask for 128 / n bytes of
weights a cycle, and from beyond L2 a core gets 4: 128x3072x768 as sweeps of 32 rows runs at 70 % of
the peak, of 48 and more at 89 to 91 %."""


def swept_rows(
    target: Target, tiles: int, panels: int, rows: int, row_bytes: int, panel_bytes: int,
    result_bytes: int,
) -> int:  # fmt: skip
    """How many tiles of `rows` rows of a CPU matmul to take through all panels of the right
    operand before the next ones; 0: all of them.

    Without, every panel reads all rows, from beyond L2 where they are large; with, every sweep
    reads all panels. Weights that stay in L2 while much streams through it take one tile of rows
    after the other: rows, results and residuals pass once, in the order of memory. Else cores take
    neighbouring programs: a sweep each where weights are the smaller side, so that a core finds the
    rows it wrote in its own cache; else some panels each.
    """
    if panels < 2:
        return 0
    left, weights = tiles * rows * row_bytes, panels * panel_bytes
    if weights <= target.l2_bytes // 4 and left + result_bytes > target.l2_bytes // 8:
        return 1 if tiles > 1 else 0
    budget = target.l2_bytes * 3 // 10  # beside a panel in use and one under way
    sweeps = 1
    least, most = ceildiv(SWEPT_ROWS, rows), budget // (rows * row_bytes)
    if least <= most < tiles and budget + 2 * panel_bytes <= target.l2_bytes:
        wanted = ceildiv(tiles, most)
        if (wanted - 1) * weights < (panels - 1) * left:
            several = [s for s in range(wanted, wanted + 4) if ceildiv(tiles, s) >= least]
            sweeps = min(several, key=lambda s: ceildiv(tiles, s) * s, default=1)
    if weights < min(left, target.l2_bytes // 2) and sweeps < target.workers:
        share = ceildiv(tiles, target.workers)
        if share * target.workers <= 1.03 * tiles:
            sweeps = target.workers
    return ceildiv(tiles, sweeps) if sweeps > 1 else 0


HALF_TILES = (
    *((128, columns) for columns in (256, 192, 128)),
    *((64, 192), (64, 128), (128, 64), (64, 64), (64, 32)),
    *((32, 64), (32, 32), (16, 64), (16, 32)),
)
WIDE_TILES = ((64, 64), (32, 64), (64, 32), (32, 32), (16, 64), (16, 32))
"""(rows, columns) of a GPU dot of 16-bit operands and of others, the largest first."""
SHARED = 225 << 10
"""Bytes of shared memory that the blocks of a multiprocessor have for operands."""
PREFETCHED = 144 << 10
"""Bytes of operands under way in a block that has a multiprocessor for itself."""


def dot_schedule(
    target: Target, m: int, n: int, k: int, bits: int, accumulators: int = 1, batch: int = 1,
    unit: DotUnit | None = None, *, streamed: bool = True, folded: bool = True,
    crooked: tuple[bool, bool] = (False, False), codes: bool = False,
) -> Schedule:  # fmt: skip
    """Blocks "m", "n", "k" of a matmul [m, k] x [k, n]. unit: what multiplies on a CPU.
    streamed: whether a GPU's copy engine can fetch the operands. folded: whether results are
    reduced in the same kernel. crooked: whether rows of the (left, right) operand begin off the
    sectors of a GPU's L2. codes: whether operands are codes of 8-bit floats."""
    if codes:
        return _code_schedule(target, m, n, k, accumulators, batch, streamed)
    schedule = _dot_schedule(
        target, m, n, k, bits, accumulators, batch, unit, streamed=streamed, folded=folded
    )
    fixed = not is_symbolic(m, n, k, batch)
    if streamed and bits == 16 and target.arch == "sm_90a" and fixed and m > 16 and k > 64:
        cuts = not folded and accumulators == 1
        schedule = stream_schedule(target, m, n, k, accumulators, batch, schedule, cuts)
    if not (streamed and bits == 16 and any(crooked)) or is_symbolic(m, n, k):
        return schedule
    if target.arch != "sm_90a" or schedule.cluster > 1 or schedule.block("m") < 64:
        return schedule
    return _crooked_schedule(target, schedule, m, n, k, accumulators, batch, crooked)


LINES = (24, 142)
"""What a line of a tile costs that is requested from the L2, in multiply-adds of a step of k: one
that begins at its sectors of 32 bytes, and one that does not. Of requests and matmuls the longer
takes its time, the other three tenths. From an H200: it answers 52 of the latter kind in a ns."""
CLUSTER_START = 2.6e6
"""What starting blocks in pairs costs, 0.7 us, in multiply-adds of all steps of k."""


def _crooked_schedule(
    target: Target, plain: Schedule, m: int, n: int, k: int, accumulators: int, batch: int,
    crooked: tuple[bool, bool],
) -> Schedule:  # fmt: skip
    """A matmul that requests to the L2 may limit: pairs of programs load for each other what they
    share, where that costs less, and tiles may be larger. Larger clusters leave multiprocessors
    idle. plain: what would be best without."""
    options = [plain]
    if k >= 128:
        paired = replace(plain, warps=4, stages=4, persistent=True, extra={"teams": 2})
        pairs = [(r, c) for r, c in PING_PONG_TILES if 12288 <= r * c * accumulators <= 16384]
        options += [_with_tile(paired, r, c) for r, c in pairs if c * accumulators <= 256]
        if accumulators == 1:
            single = replace(plain, warps=8, stages=4, persistent=True, extra={})
            options.append(_with_tile(single, 128, 256))
    best: tuple[float, Schedule] | None = None
    for option in options:
        rows, columns = option.block("m"), option.block("n")
        grid = ceildiv(m, rows), ceildiv(n, columns)
        count = grid[0] * grid[1] * batch
        if option is not plain and count <= target.units:
            continue
        tile, lines = rows * columns * accumulators, (rows, columns * accumulators)
        is_ping_pong = "teams" in option.extra
        busy = (tile + 12 * sum(lines)) * (1.06 if option.persistent and not is_ping_pong else 1)
        for shape in ((1, 1), (2, 1), (1, 2)):
            if grid[0] % shape[0] or grid[1] % shape[1]:
                continue
            # blocks along the rows share the columns
            asked = LINES[crooked[0]] * lines[0] / shape[1]
            asked += LINES[crooked[1]] * lines[1] / shape[0]
            wave = max(busy, asked) + 0.3 * min(busy, asked)
            together = shape[0] * shape[1]
            groups, blocks = count // together, target.units // together
            cut = cut_of(groups, k, blocks) if option.persistent else None
            for shared in (0, 1) if cut is not None else (0,):
                whole = groups // blocks if shared else ceildiv(groups, blocks)
                cost = whole * wave + (1 if is_ping_pong else whole + shared) * tile * 200 / k
                if shared:
                    assert cut is not None
                    cost = (cost + cut_cost(wave, cut, k)) / LEAST_GAIN
                cost += CLUSTER_START / k if together > 1 else 0
                if best is None or cost < best[0]:
                    best = (cost, replace(option, neighbours=shape, stream_k=shared))
    assert best is not None
    return best[1]


def _with_tile(schedule: Schedule, rows: int, columns: int) -> Schedule:
    """A matmul's schedule with other blocks, for rows that are requested a few at a time."""
    return replace(
        schedule, blocks=(("m", rows), ("n", columns), ("k", 64)),
        reason="rows begin off the sectors of L2, whose requests count",
    )  # fmt: skip


def _dot_schedule(
    target: Target, m: int, n: int, k: int, bits: int, accumulators: int, batch: int,
    unit: DotUnit | None, *, streamed: bool, folded: bool,
) -> Schedule:  # fmt: skip
    if target.is_cuda and bits == 8:
        return _narrow_schedule(target, m, n, k, accumulators, batch, streamed, folded)
    whole, fixed = folded or is_symbolic(k), not is_symbolic(m, n, k, batch)
    m, n, batch = size_hint(m), size_hint(n), size_hint(batch)
    k = block_of(k, MOST_SYMBOLIC_DEPTH) if is_symbolic(k) else k
    if unit is not None:
        return units.schedule(target, unit, m, n, k, accumulators, batch)
    if not target.is_cuda:
        tile = register_tile(target, m, n, bits, accumulators)
        return matmul_schedule(target, m, n, k, bits, accumulators, *tile)
    half = bits == 16
    if half and m <= 16 and k >= 1024 and batch * ceildiv(n, 32) >= target.units // 2:
        return _thin_schedule(target, m, n, k, accumulators, batch)
    if bits == 32 and streamed and target.arch == "sm_90a" and accumulators == 1 and k >= 64:
        wide = _wide_schedule(target, m, n, batch)
        if wide is not None:
            return wide
    rows, columns, waves, reason = gpu_tile(target, m, n, bits, accumulators, batch)
    if half and streamed and waves == 1 and accumulators == 1 and not whole:
        shared = parts_schedule(target, m, n, k, batch) if fixed else None
        shared = shared or split_schedule(target, m, n, k, batch)
        if shared is not None:
            return shared
    if half and streamed and target.arch == "sm_90a" and k >= 128:
        plain = rows, columns, waves
        paired = ping_pong_schedule(target, m, n, k, accumulators, batch, plain, fixed)
        if paired is not None:
            return paired
    if bits == 32 and accumulators == 1 and (rows, columns) == (64, 64):
        taller = ceildiv(m, 128) * ceildiv(n, 64) * batch
        if m % 128 == 0 and taller >= 2 * target.units:
            # splitting float32 into two parts costs an instruction a row and a column of a warp
            rows, reason = 128, f"{taller} blocks on {target.units} processors"
    depth = 64 if half else 32 if bits < 64 else 16
    while depth > 16 and depth >= 2 * k:
        depth //= 2
    if half and not streamed and 64 < k <= 256:
        # elements are copied one by one: as few as possible beyond the last
        depth = min((64, 48, 32), key=lambda deep: ceildiv(k, deep) * (deep + 16))
    warps = 8 if rows * columns * accumulators >= 128 * 128 else 4
    stages = 4 if half else 3
    if half and waves == 1 and rows + columns * accumulators <= 192:
        lines = rows + columns * accumulators
        stages = deep_stages(lines, depth, ceildiv(k, depth), 216 << 10, 18)
    return blocks_of(
        warps=warps, stages=stages, group=8 if batch == 1 else 0, reason=reason,
        m=rows, n=columns, k=depth,
    )  # fmt: skip


def _narrow_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int, streamed: bool,
    folded: bool,
) -> Schedule:  # fmt: skip
    """Operands of 8 bits: as many bytes of k as the 16-bit matmul of half the depth, at twice its
    rate in everything."""
    half = dot_schedule(
        target, m, n, -(-k // 2), 16, accumulators, batch, streamed=streamed, folded=folded
    )
    blocks = tuple((name, size * 2 if name == "k" else size) for name, size in half.blocks)
    return replace(half, blocks=blocks)


FEW_ROWS = 12
"""Rows of a CPU matmul up to which its sums are scaled block by block, not its weights."""
DECODED_ROWS = 96
DECODED_DEPTH = 512
"""Rows and steps of k of a CPU matmul whose weights are decoded once for all of its rows."""


def packed_schedule(
    target: Target, m: int, n: int, k: int, block: int | None, accumulators: int
) -> Schedule:
    """Blocks of a CPU matmul [m, k] x [k, n] whose weights are decoded on the way. block: steps of
    k that share a scale; 0: all of them; None: unknown."""
    rows = size_hint(m)
    if rows <= FEW_ROWS and block is not None:
        tile = register_tile(target, rows, n, 32, accumulators * (2 if block else 1))
        schedule = blocks_of(m=tile[0], n=tile[1], k=block or k, reason="sums of blocks are scaled")
        return replace(schedule, extra={"late_scales": True})
    depth = min(k, max(1, DECODED_DEPTH // (block or 1)) * (block or 1))
    return blocks_of(
        m=min(rows, DECODED_ROWS), n=register_tile(target, rows, n, 32)[1], k=depth,
        reason="weights are decoded once a block",
    )  # fmt: skip


def _code_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int, streamed: bool
) -> Schedule:
    """8-bit floats: sums of a step of k are apart from those so far, which takes twice the
    registers."""
    m, n, batch = size_hint(m), size_hint(n), size_hint(batch)
    rows, columns, waves, reason = gpu_tile(target, m, n, 16, accumulators, batch, most=CODE_TILE)
    depth = 128
    while depth > 32 and depth >= 2 * size_hint(k):
        depth //= 2
    schedule = blocks_of(
        warps=8 if rows * columns * accumulators >= CODE_TILE else 4, stages=4,
        group=8 if batch == 1 else 0, reason=reason, m=rows, n=columns, k=depth,
    )  # fmt: skip
    return replace(schedule, persistent=streamed and waves > 1 and target.arch == "sm_90a")


CODE_TILE = 128 * 128
"""The largest tile of matmuls of 8-bit floats, in elements of all accumulators."""


def _wide_schedule(target: Target, m: int, n: int, batch: int) -> Schedule | None:
    """float32 on asynchronous tensor cores: a warp group with 64 rows, two blocks a multiprocessor.
    None where there are too few of them."""
    if ceildiv(m, 64) * ceildiv(n, 64) * batch < target.units:
        return None
    count = {c: ceildiv(m, 64) * ceildiv(n, c) * batch for c in (96, 64)}

    def cost(columns: int) -> int:
        return ceildiv(count[columns], 2 * target.units) * (64 * columns + 24 * (64 + columns))

    columns = min(count, key=cost)
    schedule = blocks_of(
        stages=3 if columns > 64 else 4, group=8 if batch == 1 else 0,
        reason=f"{count[columns]} blocks, two of them on each of {target.units} processors",
        m=64, n=columns, k=32,
    )  # fmt: skip
    return replace(schedule, extra={"wide": True})


def deep_stages(
    lines: int, depth: int, iterations: int, bytes_: int = PREFETCHED, most: int = 10
) -> int:
    """Stages of a block that has a multiprocessor, and its shared memory, for itself. lines: rows
    of the left operand and columns of the right ones; depth: 16-bit elements of each in a stage."""
    return max(4, min(bytes_ // (lines * depth * 2), most, iterations))


def _thin_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int
) -> Schedule:
    """Few rows: the time is that of streaming the right operand, so what counts is how many bytes
    are under way. Two blocks a processor, where narrow ones make that many, hide each other."""
    columns = 16 if batch * ceildiv(n, 32) < 2 * target.units else 32
    return blocks_of(
        stages=8 if columns * accumulators == 16 else 6, group=8 if batch == 1 else 0,
        reason=f"{batch * ceildiv(n, columns)} narrow blocks stream the right operand",
        m=16, n=columns, k=128,
    )  # fmt: skip


def gpu_tile(
    target: Target,
    m: int,
    n: int,
    bits: int,
    accumulators: int,
    batch: int,
    most: int = 1 << 15,
    row_cost: int = 24,
    tall_cost: int = 0,
    alone: float = 1.0,
    more: tuple[tuple[int, int], ...] = (),
) -> tuple[int, int, int, str]:
    """(rows, columns, waves, reason): the tile of least estimated time.

    A wave is one block on every multiprocessor. In a step of k a block multiplies rows * columns
    and streams both operands; row_cost is the cost of a row of the left one, in multiply-adds, and
    tall_cost that of one of 64 rows or more, if it is another. Fitted to an H200. most: the largest
    tile, in elements of all accumulators. alone: what a block costs more that has a multiprocessor
    for itself, as nothing hides its start and its end. more: tiles beside the usual ones.
    """
    sizes = (*more, *(HALF_TILES if bits == 16 else WIDE_TILES))
    best: tuple[float, bool, int, int, int] | None = None
    cost: float
    for rows, columns in sizes:
        too_wide = columns * accumulators > 256 or rows * columns * accumulators > most
        if (too_wide and (rows, columns) != sizes[-1]) or (columns > 128 and target.sm < 90):
            continue
        waves = ceildiv(ceildiv(m, rows) * ceildiv(n, columns) * batch, target.units)
        line = tall_cost if tall_cost and rows >= 64 else row_cost
        cost = waves * (rows * columns + line * rows + 24 * columns + 2048)
        cost *= alone if waves == 1 else 1
        # of a tile and its transpose the wide one, while one accumulator fills its columns
        tie = columns * accumulators > 128
        if best is None or (cost, tie) < best[:2]:
            best = (cost, tie, rows, columns, waves)
    assert best is not None
    _, _, rows, columns, waves = best
    count = ceildiv(m, rows) * ceildiv(n, columns) * batch
    return rows, columns, waves, f"{count} blocks in {waves} waves on {target.units} processors"
