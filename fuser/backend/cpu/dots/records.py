"""How the micro-kernel of a dot reads its operands, and the register tile that it computes."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.base.target import DotUnit
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value


@dataclass(frozen=True)
class Spacing:
    """A tile in scratch: along `axis`, parts of `width` elements begin `across` elements apart.
    Rows of an image may have room between them; panels of columns have all of k in between."""

    axis: int
    width: int
    across: int


@dataclass(frozen=True)
class ImplicitIm2col:
    """A left operand that is windows over an image (im2col/implicit.py).

    width, high: pixels of a row of the result, rows. taps, strides, dilation: along y and x.
    channels: elements of k under a tap. rises, runs, steps: what an image row, a column and a
    channel add to each index of the load.
    """

    width: int
    high: int
    taps: tuple[int, int]
    channels: int
    strides: tuple[int, int]
    dilation: tuple[int, int]
    rises: tuple[int, ...]
    runs: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def across(self) -> int:
        """Pixels from one row of the result to the next, with those that nobody reads."""
        stride = self.strides[1]
        reach = stride * (self.width - 1) + self.dilation[1] * (self.taps[1] - 1) + 1
        return -(-reach // stride)

    @property
    def rows(self) -> int:
        """Pixels of the result, those between rows included."""
        return (self.high - 1) * self.across + self.width

    @property
    def columns(self) -> int:
        """Pixels of a line of the copy."""
        return self.across * self.strides[1]

    @property
    def copied(self) -> int:
        """Elements of the copy."""
        return self.planes * self.lines * self.columns * self.channels

    @property
    def planes(self) -> int:
        return self.strides[0]

    @property
    def lines(self) -> int:
        """Lines of a plane of the copy: image rows of one remainder by the stride."""
        stride = self.strides[0]
        return -(-(stride * (self.high - 1) + self.dilation[0] * (self.taps[0] - 1) + 1) // stride)


@dataclass(frozen=True)
class OperandPlan:
    """How a dot reads an operand: what, from where, in which layout.

    value: what is read: the operand itself, or a copy made for the dot.
    right: of [k, columns]; the left operand is [rows, k].

    By FMAs it is evaluated at points, in the accumulator's dtype: in vectors along `axis`, or
    element by element, broadcast, for -1. A dot unit reads rows with k innermost of the left
    operand and panels of the right one (`PANEL`), `step` elements apart: of memory as it is where
    `source` is None, else of a packed copy of `source`, in scratch. window: the copy is the image
    that the rows are windows of.
    """

    value: Value
    right: bool
    axis: int = -1
    unit: DotUnit | None = None
    step: int = 0
    source: Value | None = None
    window: ImplicitIm2col | None = None

    def point(self, k: Index, other: Index) -> tuple[Index, Index]:
        """The point of the operand at a step of k and a row or column."""
        return (k, other) if self.right else (other, k)


@dataclass(frozen=True)
class DotPlan:
    """How a dot is computed. rows, vectors: the register tile of FMAs. steps: of k in an iteration
    of the loop."""

    a: OperandPlan
    b: OperandPlan
    rows: int = 1
    vectors: int = 1
    steps: int = 1

    @property
    def unit(self) -> DotUnit | None:
        return self.a.unit

    @property
    def along_k(self) -> bool:
        """Whether vectors run along k, of both operands (dots/dot_along_k.py)."""
        return self.a.axis == 1

    @property
    def vector_axis(self) -> int:
        """The axis of the result that vectors run along."""
        return 0 if self.a.axis == 0 else 1
