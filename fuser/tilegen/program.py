"""A tile program bound to the graph: the kernel, and which value each of its buffers holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fuser.dtypes import DType
from fuser.graph.ir import Value
from fuser.partition.region import Region
from fuser.tilegen.ir import Buffer, Kernel


@dataclass(frozen=True)
class Packing:
    """How a constant is rewritten once, when the plan is built, so that a kernel reads it in order.

    Applied in this sequence; None or empty skips a step. mix: (axis, rows of a matrix) pairs; the
    array is multiplied with each matrix along its axis, in float64. transpose: axis order of the
    logical array. reshape: its new shape. pad: (low, high) zeros per axis. split: a second reshape.
    permute: axis order of that. dtype: element type to convert to. With [K, N] weights, pad
    ((0, 0), (0, p)), split (K, N // r, r), permute (1, 0, 2) gives panels of r columns.
    """

    mix: tuple[tuple[int, tuple[tuple[float, ...], ...]], ...] = ()
    transpose: tuple[int, ...] = ()
    reshape: tuple[int, ...] = ()
    pad: tuple[tuple[int, int], ...] = ()
    split: tuple[int, ...] = ()
    permute: tuple[int, ...] = ()
    dtype: DType | None = None

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy, C-contiguous."""
        dtype = array.dtype
        for axis, rows in self.mix:
            mixed = np.tensordot(array.astype(np.float64), np.array(rows), (axis, 1))
            array = np.moveaxis(mixed, -1, axis)
        array = array.astype(dtype, copy=False)
        if self.transpose:
            array = array.transpose(self.transpose)
        if self.reshape:
            array = array.reshape(self.reshape)
        if self.pad:
            array = np.pad(array, self.pad)
        if self.split:
            array = array.reshape(self.split)
        if self.permute:
            array = array.transpose(self.permute)
        if self.dtype is not None:
            array = array.astype(self.dtype.numpy)
        return np.ascontiguousarray(array)


@dataclass(frozen=True)
class Argument:
    """What a kernel buffer holds: a graph value (packed, if it is a constant), or workspace.

    A workspace (value None) is `buffer.size` elements that live only between the programs of one
    region; programs of a region that share a workspace use the same `workspace` number.
    """

    buffer: Buffer
    value: Value | None
    packing: Packing | None = None
    workspace: int = 0
    zeroed: bool = False


@dataclass(eq=False)
class TileProgram:
    """One kernel of a region. A region is one program, or a few in order (split-K and its sum)."""

    region: Region
    kernel: Kernel
    arguments: tuple[Argument, ...]
    flops: int = 0
    notes: list[str] = field(default_factory=list)
