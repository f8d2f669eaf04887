"""What the schedule rules and costs of matmuls and convolutions see of a kernel: its sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuser.base.target import DotUnit
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.rules.common import MAX_SYMBOLIC_DEPTH, block_of, ceildiv, cover


@dataclass(frozen=True)
class Window:
    """A convolution of two spatial dims. pixels: batch, height and width of the result; the others
    are along height and width."""

    pixels: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclass(frozen=True)
class Image:
    """The left operand of a convolution: rows are windows of so many taps, of so many channels
    each.

    window: where pixels lie in memory with their channels together, in the dtype that the unit
    multiplies. run: how many taps follow each other in memory, with all their channels. pitch:
    bytes from a pixel under a tap to that of the next output pixel, where channels are adjacent,
    else 0.
    """

    channels: int
    taps: int
    window: Window | None = None
    run: int = 1
    pitch: int = 0


@dataclass(frozen=True)
class Problem:
    """A matmul [m, k] x [k, n], or a convolution as one: of `image`, with m pixels, n output
    channels, and k of channels times taps.

    bits: of an element that is multiplied. accumulators: right operands that share the left one.
    batch: matmuls, or groups of a convolution. unit: what multiplies on a CPU, beyond vectors.
    streamed: whether a GPU's copy engine can fetch the operands, an image with its channels last.
    folded: whether results are reduced in the same kernel, so that no other block may have a part
    of k. misaligned: whether rows of the (left, right) operand begin off the sectors of a GPU's L2.
    codes: whether operands are codes of 8-bit floats. packed: whether right operands are constants
    of 16 bits, which lie as a block of few rows wants them. panel: columns of such a block, sums of
    which are results; 0 elsewhere. decoded: bits of a code that an element of the right operands
    is computed from in the kernel; 0 elsewhere. pitch: bytes from a step of k of the right operands
    to the next, where these are arrays of the run; 0 where neighbours in memory are not columns;
    None of constants, which are packed, and of what is computed. open: whether sizes are those of
    an example.
    """

    m: int
    n: int
    k: int
    bits: int
    accumulators: int = 1
    batch: int = 1
    unit: DotUnit | None = None
    streamed: bool = True
    folded: bool = True
    misaligned: tuple[bool, bool] = (False, False)
    codes: bool = False
    packed: bool = False
    panel: int = 0
    decoded: int = 0
    image: Image | None = None
    pitch: int | None = None
    open: bool = False

    def closed(self) -> Problem:
        """The problem with numbers for sizes: open ones by their examples, and of an open k the
        block that suits it, of which nobody has a part."""
        if not is_symbolic(self.m, self.n, self.k, self.batch):
            return self
        m, n, batch = size_hint(self.m), size_hint(self.n), size_hint(self.batch)
        found = replace(self, m=m, n=n, batch=batch, open=True)
        if not is_symbolic(self.k):
            return found
        if self.image is None:
            return replace(found, k=block_of(self.k, MAX_SYMBOLIC_DEPTH), folded=True)
        image = replace(self.image, channels=cover(self.image.channels))
        k = image.channels * image.taps
        return replace(found, k=k, image=image, folded=True, streamed=False)

    def tiles(self, rows: int, columns: int) -> int:
        """How many blocks of so many rows and columns cover the results."""
        return ceildiv(self.m, rows) * ceildiv(self.n, columns) * self.batch

    def iterations(self, depth: int) -> int:
        """Iterations of a loop over k in steps of `depth`; taps of many channels are apart."""
        if self.image is None or self.image.channels < MIN_CHANNELS:
            return ceildiv(self.k, depth)
        return self.image.taps * ceildiv(self.image.channels, depth)

    @property
    def bytes(self) -> float:
        """Of operands and results, each once; of an image of the pixels that it has a result of."""
        left = self.m * (self.image.channels if self.image is not None else self.k)
        right = self.accumulators * self.n * self.k * (self.decoded or self.bits) / self.bits
        return (left + right + self.m * self.n) * self.batch * self.bits / 8


MIN_CHANNELS = 16
"""Channels of an image, fewer of which are gathered with all their taps at once."""
