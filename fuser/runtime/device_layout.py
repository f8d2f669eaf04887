"""Where the values of a plan lie in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuser.runtime.device_share import ALIGNMENT
from fuser.runtime.memory import align
from fuser.runtime.program import BufferRef, Program


@dataclass(frozen=True)
class Layout:
    """Byte offsets: values between kernels first; inputs and outputs, which only runs on arrays of
    the host have here, from `arena` on; constants, which plans of other sizes may share, from `own`
    on."""

    arena: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[int, ...]
    own: int
    total: int


def lay_out(program: Program) -> Layout:
    """Offsets of the arena, inputs, outputs and constants, each 256-byte aligned."""
    arena = top = max(align(program.arena_bytes, ALIGNMENT), ALIGNMENT)

    def stack(sizes: Sequence[int]) -> tuple[int, ...]:
        nonlocal top
        offsets = []
        for size in sizes:
            offsets.append(top)
            top += align(size, ALIGNMENT)
        return tuple(offsets)

    inputs = stack([spec.bytes for spec in program.inputs])
    outputs = stack([spec.bytes for spec in program.outputs])
    own = top
    constants = stack([array.nbytes for array in program.constants])
    return Layout(arena, inputs, outputs, constants, own, top)


@dataclass(frozen=True)
class Addresses:
    """Device addresses of a run's buffers: values between kernels are in the memory at `base`,
    inputs and outputs where they are bound."""

    base: int
    constants: tuple[int, ...]
    layout: Layout
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def address(self, ref: BufferRef) -> int:
        if ref.space == "arena":
            return self.base + ref.index
        if ref.space == "constant":
            return self.constants[ref.index]
        return (self.inputs if ref.space == "input" else self.outputs)[ref.index]
