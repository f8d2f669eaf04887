"""Which operands of tile dots can be one copy of the image that their windows slide over
(implicit.py)."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from fuser.backend.cpu.analysis import affine, kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.backend.cpu.dots.records import ImplicitIm2col
from fuser.base.target import DotUnit
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import Index, in_range
from fuser.tilegen.value import Value

MOST_TAPS = 11
"""Along a line of a window."""
MOST_WASTE = 1.5
"""Tiles of the matmul with the pixels between rows, over those without."""


def find_implicit_im2col(facts: Facts, value: Value, unit: DotUnit) -> ImplicitIm2col | None:
    """How an operand slides over an image in memory; None if it does not, or if that is no gain."""
    load = kernel_facts.direct_load(facts, value, unit.dtype)
    if unit.name != "amx" or load is None:
        return None
    rows, depth = value.shape
    if is_symbolic(rows, depth, *load.view.shape, *load.view.strides):
        return None
    widths = [w for w in kernel_facts.divisors(load, 0) if 1 < w < rows and rows % w == 0] + [rows]
    lines = [d for d in kernel_facts.divisors(load, 1) if d < depth and depth % d == 0] + [depth]
    found: list[ImplicitIm2col] = []
    for width in widths:
        for line in lines:
            for channels in _divided(line, unit.depth):
                window = _match(facts, load, (width, line, channels), (rows, depth))
                if window is not None and _pays(window, rows, depth):
                    found.append(window)
    return min(found, key=lambda window: window.copied, default=None)


def _divided(line: int, depth: int) -> Iterator[int]:
    """Channels of a pixel that a line of taps may consist of: whole steps of k."""
    for parts in range(1, MOST_TAPS + 1):
        if line % parts == 0 and line // parts % depth == 0:
            yield line // parts


def _match(
    facts: Facts, load: ops.Load, sizes: tuple[int, int, int], shape: tuple[int, int]
) -> ImplicitIm2col | None:
    """The window, if rows of `width` pixels and taps of `channels` along `line` explain a load."""
    width, line, channels = sizes
    high, taps = shape[0] // width, (shape[1] // line, line // channels)
    extents = (high, width, *taps, channels)
    counters = y, x, i, j, c = [affine.any_counter(extent) for extent in extents]
    point = (y * width + x, i * line + j * channels + c)
    steps: list[list[int]] = []
    for index in load.indices:
        found = affine.steps_of(kernel_facts.resolve(facts, index, point), counters)
        if found is None:
            return None
        steps.append(found)
    down = _ratio([(s[0], s[2]) for s in steps])
    across = _ratio([(s[1], s[3]) for s in steps])
    if down is None or across is None:
        return None
    edges = []
    address = 0
    for (_, _, _, _, step), index, extent, stride, rise, run in zip(
        steps, load.indices, load.view.shape, load.view.strides, down[1], across[1], strict=True
    ):
        address += step * stride
        if load.pad is None or in_range(kernel_facts.resolve(facts, index, point), extent):
            continue
        # all channels of a pixel are inside of the bounds, or none
        parts = [
            rise,
            run,
            extent,
            kernel_facts.resolve(facts, index, (Index(0), Index(0))).multiple,
        ]
        if step not in (0, 1) or (step and any(part % channels for part in parts)):
            return None
        edges.append(step)
    if address != 1:
        return None
    (sy, dy), (sx, dx) = down[0], across[0]
    return ImplicitIm2col(
        width, high, taps, channels, (sy, sx), (dy, dx), tuple(down[1]), tuple(across[1]),
        tuple(s[4] for s in steps),
    )  # fmt: skip


def _ratio(pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], list[int]] | None:
    """((stride, dilation), the step of one row or column of the image in each index) where indices
    move by multiples of the same steps with pixels and with taps."""
    found: set[tuple[int, int]] = set()
    units = []
    for pixel, tap in pairs:
        unit = gcd(pixel, tap)
        units.append(unit)
        if unit:
            found.add((pixel // unit, tap // unit))
    if not found:
        return (1, 1), units
    ratio = found.pop()
    return None if found or min(ratio) < 0 else (ratio, units)


def _pays(window: ImplicitIm2col, rows: int, depth: int) -> bool:
    """Whether a copy is smaller than all windows, and few multiply-adds are wasted."""
    if min(window.strides) < 1 or max(window.taps) == 1:
        return False
    tiles, plain = -(-window.rows // 16), -(-rows // 16)
    return tiles <= plain * MOST_WASTE and window.copied < rows * depth
