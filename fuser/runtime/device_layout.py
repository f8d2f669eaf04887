"""Where the values of a plan lie in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuser.runtime.device_share import ALIGNMENT
from fuser.runtime.memory import align
from fuser.runtime.program import BufferRef, Program


@dataclass(frozen=True)
class Layout:
    """Byte offsets: values between kernels first, then inputs and outputs; constants, which plans
    of other sizes may share, from `own` on."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[int, ...]
    own: int
    total: int

    def offset(self, ref: BufferRef) -> int:
        if ref.space == "arena":
            return ref.index
        offsets = {"input": self.inputs, "output": self.outputs, "constant": self.constants}
        return offsets[ref.space][ref.index]


def lay_out(program: Program) -> Layout:
    """Offsets of the arena, inputs, outputs and constants, each 256-byte aligned."""
    top = align(program.arena_bytes, ALIGNMENT)

    def stack(sizes: Sequence[int]) -> tuple[int, ...]:
        nonlocal top
        offsets = []
        for size in sizes:
            offsets.append(top)
            top += align(size, ALIGNMENT)
        return tuple(offsets)

    inputs = stack([spec.bytes for spec in program.inputs])
    outputs = stack([spec.bytes for spec in program.outputs])
    own = top = max(top, ALIGNMENT)
    constants = stack([array.nbytes for array in program.constants])
    return Layout(inputs, outputs, constants, own, top)


@dataclass(frozen=True)
class Addresses:
    """Device addresses of a run's buffers: in the memory at `base`, or where bound inputs and
    outputs are. constants: where those begin."""

    base: int
    constants: int
    layout: Layout
    inputs: tuple[int, ...] | None = None
    outputs: tuple[int, ...] | None = None

    def address(self, ref: BufferRef) -> int:
        if ref.space == "constant":
            return self.constants + self.layout.constants[ref.index] - self.layout.own
        bound = {"input": self.inputs, "output": self.outputs}.get(ref.space)
        return self.base + self.layout.offset(ref) if bound is None else bound[ref.index]
