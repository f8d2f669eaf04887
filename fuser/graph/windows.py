"""Reductions over windows in their canonical form, shared by every front end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.graph.builder import Builder
from fuser.graph.dims import Dim
from fuser.graph.ir import Value
from fuser.graph.ops.reduction import window_extent

MOST_TAPS = 256
"""Windows with more elements are reduced axis by axis: kernels unroll a window."""


@dataclass(frozen=True)
class _Line:
    """The windows along one axis."""

    window: int
    stride: int
    low: int
    high: int
    dilation: int

    def trimmed(self, size: Dim) -> _Line:
        """Without the taps at both ends that read padding for every output."""
        if not isinstance(size, int):
            return self
        count = window_extent(size, self.window, self.stride, self.low, self.high, self.dilation)
        assert isinstance(count, int)
        ends = self._useful_taps(size, count)
        if ends is None:
            return self
        first = min(ends[0], self.low // self.dilation)
        window, low = ends[1] + 1 - first, self.low - first * self.dilation
        reach = (count - 1) * self.stride + (window - 1) * self.dilation + 1
        line = _Line(window, self.stride, low, max(0, reach - size - low), self.dilation)
        same = window_extent(size, line.window, line.stride, line.low, line.high, line.dilation)
        return line if same == count else self

    def _useful_taps(self, size: int, count: int) -> tuple[int, int] | None:
        """The first and the last tap that read an element for some output. None: there are none,
        or they are not found in MOST_TAPS steps."""
        farthest = (count - 1) * self.stride - self.low  # where the last window starts
        lowest = max(0, -(farthest // self.dilation))
        highest = min(self.window - 1, (size - 1 + self.low) // self.dilation)
        upwards = range(lowest, min(highest + 1, lowest + MOST_TAPS))
        downwards = range(highest, max(lowest - 1, highest - MOST_TAPS), -1)
        first = next((tap for tap in upwards if self._is_useful(tap, size, count)), None)
        last = next((tap for tap in downwards if self._is_useful(tap, size, count)), None)
        return None if first is None or last is None else (first, last)

    def _is_useful(self, tap: int, size: int, count: int) -> bool:
        """Whether a tap reads an element for some output: the first one for which it reads none of
        the padding before the axis reads one of the axis."""
        offset = tap * self.dilation - self.low
        output = max(0, -(offset // self.stride))
        return output < count and output * self.stride + offset < size

    def whole(self, size: Dim) -> bool:
        """Whether the one window is the axis."""
        return (self.window, self.low, self.high, self.dilation) == (size, 0, 0, 1)


def reduce_windows(
    b: Builder, fn: str, x: Value, window: Sequence[int], strides: Sequence[int],
    padding: Sequence[tuple[int, int]], dilation: Sequence[int],
) -> Value:  # fmt: skip
    """The sum or maximum ("sum", "max") of each window over the last axes of x, one entry an axis.

    A window that holds its axes whole is an ordinary reduction; a large one is reduced axis by
    axis, which sums and maxima can be.
    """
    lead = x.type.rank - len(window)
    lines = [
        _Line(w, s, low, high, d).trimmed(size)
        for size, w, s, (low, high), d in zip(
            x.type.shape[lead:], window, strides, padding, dilation, strict=True
        )
    ]
    if all(line.whole(size) for line, size in zip(lines, x.type.shape[lead:], strict=True)):
        return b.reduce(f"reduce_{fn}", x, range(lead, x.type.rank), keep=True)
    still = _Line(1, 1, 0, 0, 1)
    groups = [lines]
    if math.prod(line.window for line in lines) > MOST_TAPS:
        groups = [[still] * i + [line] + [still] * (len(lines) - 1 - i)
                  for i, line in enumerate(lines)]  # fmt: skip
    for group in groups:
        full = [still] * lead + group
        x = b.emit(
            "reduce_window", x, fn=fn,
            window=tuple(line.window for line in full),
            strides=tuple(line.stride for line in full),
            padding=tuple((line.low, line.high) for line in full),
            dilation=tuple(line.dilation for line in full),
        )  # fmt: skip
    return x
