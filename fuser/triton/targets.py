"""What kernels are compiled for, by Triton's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GPUTarget:
    """backend: cuda or cpu. arch: of a GPU its compute capability, such as 90."""

    backend: str
    arch: int | str
    warp_size: int
