"""Implicit im2col: one padded copy of an image stands for all windows that slide over it.

The left operand of a convolution has a row for each pixel and the elements under its window along
k. Neighbouring windows overlap, so that operand is the image several times over. For tile
registers the part of the image under a block is copied once, with its edges padded; a tile of 16
pixels under one tap is then 16 pieces of k that lie equally far apart:

    pixel (y, x), tap (i, j), channel c  at  image row sy*y + dy*i, column sx*x + dx*j, channel c

Lines of the copy are a whole number of strides long, so that the step from the last pixel of a row
to the first of the next is a number of pixels: results are computed for the few pixels between
rows as well, and nobody reads them. With a stride along y, image rows of one remainder lie together
(a plane each).
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.cpu.analysis import affine
from fuser.backend.cpu.dots.records import ImplicitIm2col
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Memory
from fuser.backend.text import Reg
from fuser.tilegen import ops
from fuser.tilegen.index import Index, floordiv, modulo
from fuser.tilegen.value import Value

LANES = 32
"""Elements of 16 bits that are copied at once."""


def fill_implicit_im2col(
    low: Lowering, source: Value, window: ImplicitIm2col, place: Memory
) -> None:
    """Copy the image under a block to scratch, line by line."""
    load = low.known.producers[source]
    assert isinstance(load, ops.Load)
    starts = [low.resolve(index, (Index(0), Index(0))) for index in load.indices]
    (sy, _), (dy, dx) = window.strides, window.dilation
    last = (sy * (window.high - 1) + dy * (window.taps[0] - 1),
            window.strides[1] * (window.width - 1) + dx * (window.taps[1] - 1))  # fmt: skip
    channels = window.channels

    def pixel(row: Index, column: Index) -> None:
        here = [
            start + row * rise + column * run
            for start, rise, run in zip(starts, window.rises, window.runs, strict=True)
        ]
        conditions = []
        if load.pad is not None:
            conditions = low.open_conditions(here, load.view.shape)
        base = Index(load.view.offset)
        for at, stride in zip(here, load.view.strides, strict=True):
            base = base + at * stride
        line = modulo(row, sy) * window.lines + floordiv(row, sy)
        target = (line * window.columns + column) * channels
        for start in range(0, channels, LANES):
            lanes = min(LANES, channels - start)
            c = affine.lane(lanes) + start
            reg = low.read(
                low.buffers[load.view.buffer], source.dtype, base + c, lanes, conditions,
                load.pad or 0,
            )  # fmt: skip
            low.write(place.pointer, source.dtype, target + c, reg, lanes)

    low.cover(
        last[0] + 1, 1, "lines",
        lambda row, _: low.cover(last[1] + 1, 1, "pixels", lambda column, _: pixel(row, column)),
    )  # fmt: skip


def each_tap(low: Lowering, window: ImplicitIm2col, body: Callable[[Reg, Reg], None]) -> None:
    """Call body(number of the tap, elements from a pixel to what it reads) in a loop over taps."""

    def each(tap: Index, _: int) -> None:
        row = floordiv(tap, window.taps[1]) * window.dilation[0]
        column = modulo(tap, window.taps[1]) * window.dilation[1]
        sy = window.strides[0]
        line = modulo(row, sy) * window.lines + floordiv(row, sy)
        body(low.index(tap), low.index((line * window.columns + column) * window.channels))

    low.cover(window.taps[0] * window.taps[1], 1, "taps", each)
