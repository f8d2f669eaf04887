"""What a back end returns for a kernel: code and how to launch it. Plain data for a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor the runtime encodes for a launch: a view of argument `argument`.

    dtype: element type name. shape, strides (in elements, innermost stride 1 left out), box: all
    innermost first, as cuTensorMapEncodeTiled takes them. offset: elements from the buffer's start.
    swizzle: 0, 32, 64 or 128 bytes.

    lower, upper, steps: of the dims but the first and the last where the box, then (columns, rows),
    has rows that walk through a bounding box (cuTensorMapEncodeIm2col): where it begins before or
    behind the start of a dim and ends before or behind its end, and the step of a walk.
    """

    argument: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    offset: int = 0
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one kernel.

    cpu: `code` is a relocatable object with the symbol `entry`:
        void entry(ptr const *buffers, i64 first, i64 last, ptr scratch)
    which runs programs first <= p < last of the row-major grid; `scratch` is `scratch_bytes` of the
    calling thread, 64-byte aligned.
    cuda: `code` is PTX with the kernel `entry`; its parameters are the buffer pointers in kernel
    order, one to `workspace_bytes` of device memory for this launch if there are any, then the
    tensor maps by value (64-byte aligned, __grid_constant__), then `sizes` as i64:
    the values of symbolic dims. Where facts["moving"] is true these are in memory instead, to which
    a pointer follows the buffers, and blocks of the launch beyond them return. `launch` is the CUDA
    grid, `threads` the block size, `shared_bytes` dynamic shared memory, `cluster` its size in x.
    """

    name: str
    target: str
    entry: str
    code: bytes
    grid: tuple[int, ...]
    scratch_bytes: int = 0
    launch: tuple[int, int, int] = (1, 1, 1)
    threads: int = 0
    shared_bytes: int = 0
    cluster: int = 1
    tensor_maps: tuple[TensorMap, ...] = ()
    sizes: tuple[int, ...] = ()
    pdl: bool = False
    workspace_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)  # registers, spills, tensor-core kind, ...

    @property
    def programs(self) -> int:
        count = 1
        for extent in self.grid:
            count *= extent
        return count
