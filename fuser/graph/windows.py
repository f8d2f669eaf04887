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
        starts = [i * self.stride - self.low for i in range(count)]
        useful = [
            tap
            for tap in range(self.window)
            if any(0 <= start + tap * self.dilation < size for start in starts)
        ]
        if not useful:
            return self
        first = min(useful[0], self.low // self.dilation)
        window, low = useful[-1] + 1 - first, self.low - first * self.dilation
        reach = (count - 1) * self.stride + (window - 1) * self.dilation + 1
        line = _Line(window, self.stride, low, max(0, reach - size - low), self.dilation)
        same = window_extent(size, line.window, line.stride, line.low, line.high, line.dilation)
        return line if same == count else self

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
