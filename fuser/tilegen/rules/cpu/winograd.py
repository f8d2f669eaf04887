"""Where a CPU does convolutions by Winograd's transforms, and the schedules of those."""

from __future__ import annotations

from math import prod

from fuser.base.target import Target
from fuser.graph.sizes import by_example
from fuser.tilegen.rules.common import block_of, blocks_of, ceildiv
from fuser.tilegen.schedule import Schedule

MATMUL_RATE = 1.2
"""Multiply-adds of a matmul over those that the target says of a core, whose clock it does not
know."""
MOVE_BYTES = 2e10
"""Bytes a second that one core reads or writes past its own caches."""


@by_example
def winograd_side(target: Target, channels: int, outputs: int, pixels: tuple[int, ...]) -> int:
    """The side of the squares of outputs, 2 or 4, with which a 3x3 convolution is fastest by
    Winograd's transforms; 0 where the sum over windows is.

    All are multiply-adds beside a stream of weights from memory; squares of inputs and of matmuls
    also go through memory twice.
    """
    if min(channels, outputs) < 32:
        return 0
    rate = MATMUL_RATE * target.flops_f32 / target.units
    stream = target.bandwidth / target.units
    images, height, width = pixels

    def matmuls(count: int, rows: int) -> float:
        flops, bytes = 2 * count * rows * channels * outputs, 4 * count * channels * outputs
        return max(flops / rate, bytes / stream)

    best, side = 0.85 * matmuls(9, prod(pixels)), 0
    for squares_side in (2, 4):
        squares = images * ceildiv(height, squares_side) * ceildiv(width, squares_side)
        count = (squares_side + 2) ** 2
        moved = 2 * 4 * count * squares * (channels + outputs)
        cost = matmuls(count, ceildiv(squares, 8) * 8) + moved / MOVE_BYTES
        if cost < best:
            best, side = cost, squares_side
    return side


def squares_schedule(target: Target, squares: int, channels: int) -> Schedule:
    """Blocks "m" (squares) and "n" (channels) of a transform of Winograd's."""
    squares, channels = block_of(squares, 1 << 20), block_of(channels, 1 << 20)
    width = min(channels, 64)
    return blocks_of(m=max(1, min(squares, 256 // width)), n=width)
