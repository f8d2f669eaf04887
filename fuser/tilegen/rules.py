"""Schedules by simple cost rules: block sizes, warps and stages for each kind of region.

The rules read the Target and extents only. A CPU tile is an iteration space: blocks are register
tiles (contractions) or enough work for one program. A GPU tile is spread over warps: dims are
powers of two, and there should be a few blocks for each multiprocessor.
"""

from __future__ import annotations

from dataclasses import replace

from fuser.graph.sizes import by_example, is_symbolic, size_hint
from fuser.target import DotUnit, Target
from fuser.tilegen import units
from fuser.tilegen.schedule import Schedule

MOST_SYMBOLIC_DEPTH = 256
"""The block of a contracted dim of any size."""
MOST_SYMBOLIC_ROWS = 32
"""The block of a number of queries of any size."""
MOST_SYMBOLIC_KEYS = 64
"""The block of a number of keys of any size: what hangs over is computed in vain."""
CPU_ELEMENTS = 4096
"""Elements of a map program on a CPU: about 10 microseconds of simple work would be more, but the
runtime hands out chunks of programs."""


def block_of(extent: int, most: int) -> int:
    """The extent of a block: min(extent, most), or, of a symbolic extent, what suits its example;
    the rest of a block that hangs over is masked."""
    return min(power_of_two(size_hint(extent)), most) if is_symbolic(extent) else min(extent, most)


def cover(extent: int) -> int:
    """The extent of a tile axis that must hold all of `extent`: a power of two that holds the
    example of a symbolic one, and a guard that it fits."""
    if not is_symbolic(extent):
        return extent
    whole = power_of_two(size_hint(extent))
    return whole if extent <= whole else int(extent)


def power_of_two(extent: int) -> int:
    """The least power of two that is not below `extent`."""
    return 1 << (max(extent, 1) - 1).bit_length()


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def _product(dims: list[int]) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count


def map_schedule(target: Target, extents: list[int], lead: int | None, item_bytes: int) -> Schedule:
    """Blocks "rows" and "columns" of a map over merged dims of the given extents."""
    sizes = [size_hint(extent) for extent in extents]
    total, columns = _product(sizes), block_of(extents[-1], CPU_ELEMENTS)
    rows = extents[lead] if lead is not None else _product(extents[:-1])
    if is_symbolic(*extents):
        rows = power_of_two(size_hint(rows))
    if not target.is_cuda:
        if lead is not None:
            return _blocks(rows=min(rows, 32), columns=min(columns, 64), reason="transpose")
        width = min(columns, CPU_ELEMENTS)
        return _blocks(rows=max(1, min(rows, CPU_ELEMENTS // width)), columns=width)
    if lead is not None:
        side = 32 if total < 32 * 64 * target.units else 64
        return _blocks(
            rows=min(power_of_two(rows), side), columns=min(power_of_two(columns), side),
            reason="transpose",
        )  # fmt: skip
    work = 2048 if item_bytes <= 2 else 1024
    while work > 256 and ceildiv(total, work) < 2 * target.units:
        work //= 2
    width = min(power_of_two(columns), work)
    height = min(power_of_two(rows), max(1, work // width))
    return _blocks(warps=max(1, min(4, width * height // 128)), rows=height, columns=width)


def reduce_schedule(
    target: Target, rows: int, total: int, columns: int, item_bytes: int = 4, reads: int = 0
) -> Schedule:
    """Blocks "rows", "columns" (kept dims inside the reduced ones) and "total" (reduced extent).

    columns is 1 where the reduced dims are the innermost in memory. item_bytes: of an element read.
    reads: values as long as a row that are read, where rows may be spread over several blocks
    (running sums cannot), else 0.
    """
    if is_symbolic(rows, total, columns):
        long = size_hint(total) > CPU_ELEMENTS or size_hint(columns) > 1
        if is_symbolic(total):
            # columns are as fast in chunks; a row is best in one piece
            chunk = MOST_SYMBOLIC_KEYS if size_hint(columns) > 1 else CPU_ELEMENTS
            total = block_of(total, chunk) if long else cover(total)
        rows, columns = block_of(rows, CPU_ELEMENTS), block_of(columns, CPU_ELEMENTS)
    if not target.is_cuda:
        width = min(columns, 64) if columns > 1 else 1
        height = max(1, min(rows, CPU_ELEMENTS // max(1, total * width)))
        return _blocks(rows=height, columns=width, total=total)
    padded = power_of_two(total)
    if columns > 1:
        width = min(power_of_two(columns), 64)
        return _blocks(rows=1, columns=width, total=min(padded, max(1, 8192 // width)))
    cluster = row_blocks(target, padded, reads, item_bytes) if reads else 1
    whole = min(padded, ROW_ELEMENTS * cluster)
    height = 1
    while whole * height < 1024 and height * 2 <= rows and rows // (height * 2) >= target.units:
        height *= 2
    part = whole // cluster
    warps = max(1, min(16, part * height // (512 if cluster == 1 else 1024)))
    if item_bytes <= 2 and part * height == 4096:
        warps = 4  # bytes in flight of many small blocks rather than of few large ones
    schedule = _blocks(warps=power_of_two(warps), rows=height, columns=1, total=whole)
    return replace(schedule, cluster=cluster)


ROW_ELEMENTS = 16384
"""Elements of a row that a block keeps in registers."""


def row_blocks(target: Target, padded: int, reads: int, item_bytes: int) -> int:
    """Blocks that share a row, where the target has clusters: as many as hold it in registers. A
    row that eight blocks cannot hold is read twice, by one."""
    if target.sm < 90 or not ROW_ELEMENTS < padded <= 8 * ROW_ELEMENTS:
        return 1
    part = ROW_ELEMENTS if reads < 3 and item_bytes <= 4 else ROW_ELEMENTS // 2
    if item_bytes > 4 and padded > 8 * part:
        return 1
    return min(8, padded // part)


def register_tile(
    target: Target, m: int, n: int, bits: int, accumulators: int = 1
) -> tuple[int, int]:
    """(rows, columns) of the register tile of a CPU dot that covers [m, n] with the least work.

    rows * vectors accumulators a dot, a row of B and one broadcast fit the registers; tiles that
    fill them run at about the same speed, so what counts is what hangs over the edges of [m, n].
    Tiles of few rows wait for B: L2 gives a line in 2.7 cycles, in which 5.4 products are done.
    """
    lanes = target.lanes(64 if bits == 64 else 32)
    stream = 5.4 * target.vector_bits / 512
    best: tuple[float, int, int] | None = None
    for vectors in range(1, 5):
        most = (target.vector_registers - 1 - vectors) // (vectors * accumulators)
        panels = ceildiv(n, vectors * lanes)
        for rows in range(max(1, most // 2), most + 1):
            height = min(rows, m)
            # multiply-adds of a step of k, its loads, and a share of the start and end of the tile
            step = max(height, stream) * vectors + 0.15 * (height + vectors) + 2
            cost = ceildiv(m, height) * panels * step
            if best is None or cost < best[0]:
                best = (cost, height, vectors * lanes)
    assert best is not None
    return best[1], best[2]


def swept_rows(target: Target, tiles: int, panels: int, tile_bytes: int, panel_bytes: int) -> int:
    """How many row tiles of a CPU product to take through all panels of the right operand before
    the next ones; 0: all of them.

    Without, every panel reads all rows, from beyond L2 where they are large; with, every sweep
    reads all panels. Cores take neighbouring programs: a sweep each where weights are the smaller
    side, so that a core finds the rows it wrote in its own cache; else some panels each.
    """
    if panels < 2:
        return 0
    budget = target.l2_bytes * 3 // 10  # beside a panel in use and one under way
    rows, weights = tiles * tile_bytes, panels * panel_bytes
    sweeps = 1
    if rows > budget and budget + 2 * panel_bytes <= target.l2_bytes:
        wanted = ceildiv(tiles, max(1, budget // tile_bytes))
        if (wanted - 1) * weights < (panels - 1) * rows:
            sweeps = min(range(wanted, wanted + 4), key=lambda s: ceildiv(tiles, s) * s)
    if weights < min(rows, target.l2_bytes // 2) and sweeps < target.units:
        share = ceildiv(tiles, target.units)
        if share * target.units <= 1.03 * tiles:
            sweeps = target.units
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
) -> Schedule:  # fmt: skip
    """Blocks "m", "n", "k" of a matrix product [m, k] x [k, n]. unit: what multiplies on a CPU.
    streamed: whether a GPU's copy engine can fetch the operands. folded: whether results are
    reduced in the same kernel."""
    whole = folded or is_symbolic(k)
    m, n, batch = size_hint(m), size_hint(n), size_hint(batch)
    k = block_of(k, MOST_SYMBOLIC_DEPTH) if is_symbolic(k) else k
    if unit is not None:
        return units.schedule(target, unit, m, n, k, accumulators, batch)
    if not target.is_cuda:
        rows, columns = register_tile(target, m, n, bits, accumulators)
        group = swept_rows(
            target, ceildiv(m, rows), ceildiv(n, columns), rows * k * bits // 8,
            columns * accumulators * k * bits // 8,
        )  # fmt: skip
        return _blocks(group=group, m=rows, n=columns, k=k, reason="register tile of least waste")
    half = bits == 16
    if half and m <= 16 and k >= 1024 and batch * ceildiv(n, 32) >= target.units // 2:
        return _thin_schedule(target, m, n, k, accumulators, batch)
    if bits == 32 and streamed and target.arch == "sm_90a" and accumulators == 1 and k >= 64:
        wide = _wide_schedule(target, m, n, batch)
        if wide is not None:
            return wide
    rows, columns, waves, reason = _gpu_tile(target, m, n, bits, accumulators, batch)
    if half and streamed and waves == 1 and accumulators == 1 and not whole:
        shared = split_schedule(target, m, n, k, batch)
        if shared is not None:
            return shared
    if half and streamed and target.arch == "sm_90a" and k >= 128:
        turns = _team_schedule(target, m, n, k, accumulators, batch, (rows, columns, waves))
        if turns is not None:
            return turns
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
    return _blocks(
        warps=warps, stages=stages, group=8 if batch == 1 else 0, reason=reason,
        m=rows, n=columns, k=depth,
    )  # fmt: skip


TEAM_TILES = ((128, 128), (64, 256), (64, 192), (128, 64), (64, 128), (64, 64))
"""(rows, columns) of a dot of one of two teams of four warps."""


def _team_schedule(
    target: Target,
    m: int,
    n: int,
    k: int,
    accumulators: int,
    batch: int,
    plain: tuple[int, int, int],
) -> Schedule | None:
    """Two teams of warps in turns, in a block a multiprocessor that runs program after program:
    what follows the products of one is hidden behind those of the other, and so are their loads.
    None where `plain`, (rows, columns, waves) of one program a block, takes less time.

    Costs are multiply-adds of a step of k. What is left to wait for at the end takes the time of
    some 200 steps of the last tile; a line of an operand that of 12 elements. From an H200.
    """

    def cost(rows: int, columns: int, turns: int, exposed: int) -> float:
        tile, lines = rows * columns * accumulators, rows + columns * accumulators
        return turns * (tile + 12 * lines) + exposed * tile * 200 / k

    best: tuple[float, int, int, int] | None = None
    for rows, columns in TEAM_TILES:
        wide = columns * accumulators
        if wide > 256 or not 12288 <= rows * wide <= 16384:
            continue
        count = ceildiv(m, rows) * ceildiv(n, columns) * batch
        if count > target.units:
            time = cost(rows, columns, ceildiv(count, target.units), 1)
            if best is None or time < best[0]:
                best = (time, rows, columns, count)
    rows, columns, waves = plain
    begun = 2048 * waves if waves > 1 else 0
    if best is None or best[0] > cost(rows, columns, waves, waves) + begun:
        return None
    _, rows, columns, count = best
    return replace(
        _blocks(
            warps=4, stages=4, group=8 if batch == 1 else 0,
            reason=f"{count} programs on {target.units} processors, two teams of warps in turns",
            m=rows, n=columns, k=64,
        ),
        persistent=True, extra={"teams": 2},
    )  # fmt: skip


def split_schedule(target: Target, m: int, n: int, k: int, batch: int) -> Schedule | None:
    """A product of few tiles and a long k, of 16-bit operands: the blocks of a cluster take a part
    of k each, as many as run at once. None where there are tiles enough, where the sums of parts
    would take longer than what they save (about 2 us on an H200), or without clusters."""
    tiles = ceildiv(m, 64) * ceildiv(n, 64) * batch
    cluster = next((c for c in (8, 4, 2) if tiles * c <= target.units), 1)
    if target.arch != "sm_90a" or cluster == 1 or k < SPLIT_DEPTH:
        return None
    schedule = _blocks(
        stages=min(6, k // 64 // cluster), group=8 if batch == 1 else 0,
        reason=f"{tiles} tiles, each of a cluster of {cluster} blocks that share k",
        m=64, n=64, k=64,
    )  # fmt: skip
    return replace(schedule, cluster=cluster)


SPLIT_DEPTH = 2048
"""The least k that is shared by the blocks of a cluster."""


def _wide_schedule(target: Target, m: int, n: int, batch: int) -> Schedule | None:
    """float32 on asynchronous tensor cores: a warp group with 64 rows, two blocks a multiprocessor.
    None where there are too few of them."""
    if ceildiv(m, 64) * ceildiv(n, 64) * batch < target.units:
        return None
    count = {c: ceildiv(m, 64) * ceildiv(n, c) * batch for c in (96, 64)}

    def cost(columns: int) -> int:
        return ceildiv(count[columns], 2 * target.units) * (64 * columns + 24 * (64 + columns))

    columns = min(count, key=cost)
    schedule = _blocks(
        stages=3 if columns > 64 else 4, group=8 if batch == 1 else 0,
        reason=f"{count[columns]} blocks, two of them on each of {target.units} processors",
        m=64, n=columns, k=32,
    )  # fmt: skip
    return replace(schedule, extra={"wide": True})


def deep_stages(
    lines: int, depth: int, trips: int, bytes_: int = PREFETCHED, most: int = 10
) -> int:
    """Stages of a block that has a multiprocessor, and its shared memory, for itself. lines: rows
    of the left operand and columns of the right ones; depth: 16-bit elements of each in a stage."""
    return max(4, min(bytes_ // (lines * depth * 2), most, trips))


def _thin_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int
) -> Schedule:
    """Few rows: the time is that of streaming the right operand, so what counts is how many bytes
    are under way. Two blocks a processor, where narrow ones make that many, hide each other."""
    columns = 16 if batch * ceildiv(n, 32) < 2 * target.units else 32
    return _blocks(
        stages=8 if columns * accumulators == 16 else 6, group=8 if batch == 1 else 0,
        reason=f"{batch * ceildiv(n, columns)} narrow blocks stream the right operand",
        m=16, n=columns, k=128,
    )  # fmt: skip


def _gpu_tile(
    target: Target,
    m: int,
    n: int,
    bits: int,
    accumulators: int,
    batch: int,
    most: int = 1 << 15,
    row_cost: int = 24,
    alone: float = 1.0,
    more: tuple[tuple[int, int], ...] = (),
) -> tuple[int, int, int, str]:
    """(rows, columns, waves, reason): the tile of least estimated time.

    A wave is one block on every multiprocessor. In a step of k a block multiplies rows * columns
    and streams both operands; row_cost is the cost of a row of the left one, in multiply-adds.
    Fitted to an H200. most: the largest tile, in elements of all accumulators. alone: what a block
    costs more that has a multiprocessor for itself, as nothing hides its start and its end. more:
    tiles beside the usual ones.
    """
    sizes = (*more, *(HALF_TILES if bits == 16 else WIDE_TILES))
    best: tuple[float, bool, int, int, int] | None = None
    cost: float
    for rows, columns in sizes:
        too_wide = columns * accumulators > 256 or rows * columns * accumulators > most
        if (too_wide and (rows, columns) != sizes[-1]) or (columns > 128 and target.sm < 90):
            continue
        waves = ceildiv(ceildiv(m, rows) * ceildiv(n, columns) * batch, target.units)
        cost = waves * (rows * columns + row_cost * rows + 24 * columns + 2048)
        cost *= alone if waves == 1 else 1
        # of a tile and its transpose the wide one, while one accumulator fills its columns
        tie = columns * accumulators > 128
        if best is None or (cost, tie) < best[:2]:
            best = (cost, tie, rows, columns, waves)
    assert best is not None
    _, _, rows, columns, waves = best
    count = ceildiv(m, rows) * ceildiv(n, columns) * batch
    return rows, columns, waves, f"{count} blocks in {waves} waves on {target.units} processors"


def _blocks(
    warps: int = 4, stages: int = 1, group: int = 0, reason: str = "", **blocks: int
) -> Schedule:
    return Schedule(
        blocks=tuple(blocks.items()), warps=warps, stages=stages, group=group, reason=reason
    )


def conv_schedule(
    target: Target, m: int, n: int, channels: int, taps: int, bits: int, groups: int,
    unit: DotUnit | None = None, *, staged: bool = False,
) -> Schedule:  # fmt: skip
    """Blocks "m" (pixels), "n" (output channels), "k" (input channels, or taps and channels).
    staged: whether operands are copied as they are and results are not reduced."""
    staged = staged and not is_symbolic(channels)
    m, n, groups = size_hint(m), size_hint(n), size_hint(groups)
    channels = cover(channels)
    if unit is not None:
        found = units.schedule(target, unit, m, n, channels * taps, 1, 1)
        k = channels * taps if channels < unit.depth else channels
        return replace(found, blocks=(*found.blocks[:2], ("k", k)))
    if not target.is_cuda:
        rows, columns = register_tile(target, m, n, bits)
        line = channels * bits // 8
        group = swept_rows(
            target, ceildiv(m, rows), ceildiv(n, columns), rows * line, columns * taps * line
        )
        return _blocks(
            group=group, m=rows, n=columns, k=channels, reason="register tile of least waste"
        )
    half = bits == 16
    # rows are gathered; with a short k the output dominates, and several blocks a processor hide it
    k = channels * taps
    most = 1 << 12 if k <= 64 else 1 << 13 if k <= 512 else 3 << 13
    tall = ((192, 128),) if half and target.arch == "sm_90a" else ()
    rows, columns, waves, reason = _gpu_tile(
        target, m, n, bits, 1, groups, most, row_cost=60, alone=1.2, more=tall
    )
    depth = 64 if half else 32 if bits < 64 else 16
    if half and staged and waves == 1 and channels % 64 == 0:
        shared = split_schedule(target, m, n, k, groups)
        if shared is not None:
            return replace(shared, group=0)
    if channels < 16:
        return _blocks(stages=3, reason=reason, m=min(rows, 64), n=min(columns, 64), k=16)
    while depth > 16 and channels % depth and depth > channels % depth:
        depth //= 2
    warps = 8 if rows * columns >= 128 * 128 else 4
    warps = 12 if rows == 192 else warps
    stages = 4 if half else 3
    trips = taps * ceildiv(channels, depth)
    if half and warps == 4 and (3 <= waves <= 4 or (waves > 4 and k <= 512)):
        # three blocks at once, and so all of the last wave
        stages = max(2, min(stages, SHARED // (3 * 2 * (rows + columns) * depth), trips))
    if half and waves == 1 and warps < 12:
        # one block a multiprocessor: many bytes on their way, and few barriers
        if rows + columns <= 96 and channels % 128 == 0:
            depth = 128
        stages = deep_stages(rows + columns, depth, taps * ceildiv(channels, depth))
    return _blocks(warps=warps, stages=stages, reason=reason, m=rows, n=columns, k=depth)


def direct_schedule(target: Target, m: int, n: int) -> Schedule:
    """Blocks "m" (pixels) and "n" (channels) of a convolution without a matrix product."""
    m, n = block_of(m, 1 << 20), block_of(n, 1 << 20)
    if not target.is_cuda:
        width = min(n, 64)
        return _blocks(m=max(1, min(m, 1024 // width)), n=width)
    width = min(power_of_two(n), 64)
    return _blocks(m=min(power_of_two(m), 1024 // width), n=width)


WINOGRAD_RATE = 0.75
"""Of the peak of one core, what a product reaches."""
STREAM_BYTES = 2e10
"""Bytes a second that one core reads or writes past its own caches."""


@by_example
def winograd_pays(
    target: Target, channels: int, outputs: int, pixels: tuple[int, ...], squares: int,
    products: int,
) -> bool:  # fmt: skip
    """Whether a 3x3 convolution is faster as `products` products of `squares` rows.

    Both ways are multiply-adds beside a stream of weights; the squares also go through memory
    twice, before and after the products.
    """
    if min(channels, outputs) < 32:
        return False
    rate = WINOGRAD_RATE * target.flops_f32 / target.units
    count = _product(list(pixels))
    direct = max(2 * 9 * count * channels * outputs / rate,
                 4 * 9 * channels * outputs / STREAM_BYTES)  # fmt: skip
    weights = 4 * products * channels * outputs / STREAM_BYTES
    tiles = ceildiv(squares, 8) * 8
    multiply = max(2 * products * tiles * channels * outputs / rate, weights)
    move = 2 * 4 * products * squares * (channels + outputs) / STREAM_BYTES
    return multiply + move < 0.85 * direct


def squares_schedule(target: Target, squares: int, channels: int) -> Schedule:
    """Blocks "m" (squares) and "n" (channels) of a transform of Winograd's."""
    squares, channels = block_of(squares, 1 << 20), block_of(channels, 1 << 20)
    width = min(channels, 64)
    return _blocks(m=max(1, min(squares, 256 // width)), n=width)


def sort_schedule(target: Target, length: int) -> Schedule:
    """Blocks "m" (elements placed by a program) and "n" (elements compared at once)."""
    length = block_of(length, 1 << 20)
    if not target.is_cuda:
        return _blocks(m=min(length, 64), n=min(length, 512))
    return _blocks(m=min(power_of_two(length), 64), n=min(power_of_two(length), 64))
