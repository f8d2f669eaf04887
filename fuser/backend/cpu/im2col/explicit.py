"""im2col of windows over few channels, in contiguous runs of memory.

With channels last a row of a window is one run of memory, `k // 21` rows and `k % 21` along each.
Vectors of a fixed width straddle the ends of runs, and would be put together element by element;
vectors that begin where a run begins are plain loads, and wholly in the image or out of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuser.backend import text
from fuser.backend.cpu.analysis import affine, costs, kernel_facts
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Memory
from fuser.tilegen import ops
from fuser.tilegen.index import Index, in_range
from fuser.tilegen.value import Value

MOST_LOADS = 64
"""Loads of a row, which are written out."""
WIDEST_BYTES = 64


def fill_im2col(low: Lowering, source: Value, place: Memory, flips: int = 0) -> bool:
    """Copy a [rows, k] tile to scratch, run by run; False where it has no runs or needs none.
    flips: bits of every element that change."""
    pieces = _pieces(low, source)
    if not pieces:
        return False

    def copy(row: Index, _: int) -> None:
        for start, lanes in pieces:
            point = (row, Index(start) + affine.lane(lanes))
            reg = low.vector_at(source, point, lanes)
            if flips:
                mask = low.f.splat(text.integer(flips, source.dtype.llvm), lanes)
                reg = low.f.binary("xor", reg, mask)
            low.write_at(place, source.dtype, point, reg, lanes)

    low.cover(source.shape[0], 1, "runs", copy)
    return True


def _pieces(low: Lowering, source: Value) -> list[tuple[int, int]]:
    """(start, lanes) of the loads that make up a row; none where fixed vectors do as well."""
    load = low.known.producers.get(source)
    if not isinstance(load, ops.Load) or low.known.kind(source) != "inline":
        return []
    if load.mask is not None:
        return []
    indices = zip(load.indices, load.view.shape, strict=True)
    padded = load.pad is not None
    bounded = [pair for pair in indices if padded and not in_range(*pair)]
    rows, depth = source.shape
    cost = costs.lane_cost(low.known, source, costs.probe(source.shape, 1, 16), 16)
    if cost <= 1 and not bounded:
        return []
    row = costs.probe((rows, 1), 0, 1)[0]
    widest = WIDEST_BYTES // source.dtype.bytes
    for run in reversed(kernel_facts.divisors(load, 1)):
        if run < 4 or run >= depth:
            continue
        pieces = [
            (start + offset, lanes)
            for start in range(0, depth, run)
            for offset, lanes in _powers(min(run, depth - start), widest)
        ]
        if len(pieces) <= MOST_LOADS and all(
            lanes == 1 or _is_plain(low, load, bounded, (row, Index(start) + affine.lane(lanes)))
            for start, lanes in pieces
        ):
            return pieces
    return []


def _is_plain(
    low: Lowering, load: ops.Load, bounded: list[tuple[Index, int]], point: tuple[Index, ...]
) -> bool:
    """Whether lanes are neighbours, which are inside of all bounds or outside together."""
    firsts = (affine.first_lane(low.resolve(index, point), extent) for index, extent in bounded)
    if any(map(affine.has_lane, firsts)):
        return False
    return affine.lane_form(kernel_facts.address_of(low.known, load, point)).step == 1


def _powers(length: int, widest: int) -> Iterator[tuple[int, int]]:
    """(offset, lanes) of vectors that cover a run, each of a power of two."""
    offset, lanes = 0, widest
    while offset < length:
        while lanes > length - offset:
            lanes //= 2
        yield offset, lanes
        offset += lanes
