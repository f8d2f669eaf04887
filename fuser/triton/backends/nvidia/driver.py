"""triton.backends.nvidia.driver."""

from __future__ import annotations

from fuser.triton.absent import function
from fuser.triton.driver import Driver
from fuser.triton.driver import Utils as CudaUtils


class CudaDriver(Driver):
    """The driver of GPUs of NVIDIA."""

    def __init__(self) -> None:
        super().__init__("cuda")

    def is_active(self) -> bool:
        """Whether PyTorch sees a GPU."""
        return Driver().on_gpu


_WHY = "fuser builds no launcher of C: it asks the CUDA driver by ctypes"
library_dirs = function("library_dirs", _WHY)
libcuda_dirs = function("libcuda_dirs", _WHY)
make_kernel_signature = function("make_kernel_signature", _WHY)

__all__ = ["CudaDriver", "CudaUtils", "libcuda_dirs", "library_dirs", "make_kernel_signature"]
