"""Launching compiled kernels on arrays of a caller: the doors by name.

kernel = load_kernel(compiled, "cpu")
kernel.launch([record.address for record in records], grid=(8,), values={"n": 1000})
"""

from __future__ import annotations

from typing import Literal

from fuser.backend.module import CompiledKernel
from fuser.runtime.cpu_launch import CpuKernel
from fuser.runtime.cuda_launch import CudaKernel, stream_for
from fuser.runtime.geometry import scalar_bits

__all__ = ["CpuKernel", "CudaKernel", "load_kernel", "scalar_bits", "stream_for"]


def load_kernel(
    kernel: CompiledKernel, device: Literal["cpu", "cuda"], ordinal: int = 0
) -> CpuKernel | CudaKernel:
    """The kernel, ready to be launched on a device."""
    return CpuKernel(kernel) if device == "cpu" else CudaKernel(kernel, ordinal)
