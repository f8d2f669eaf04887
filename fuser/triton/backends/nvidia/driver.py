"""triton.backends.nvidia.driver."""

from __future__ import annotations

from fuser.triton.absent import names
from fuser.triton.driver import Driver
from fuser.triton.driver import Utils as CudaUtils


class CudaDriver(Driver):
    """The driver of GPUs of NVIDIA."""

    def __init__(self) -> None:
        super().__init__("cuda")

    def is_active(self) -> bool:
        """Whether PyTorch sees a GPU."""
        return Driver().on_gpu


__all__ = ["CudaDriver", "CudaUtils"]
__getattr__ = names(
    __name__,
    "ARG_CONSTEXPR ARG_KERNEL ARG_TUPLE CudaLauncher GSAN_PER_DEVICE_STATE_STRIDE PyCUtensorMap "
    "PyKernelArg TMA_DTYPE_DEVICE_TO_HOST TMA_TF32 annotate_arguments dirname include_dirs "
    "libcuda_dirs libdevice_dir libraries library_dirs make_kernel_signature make_tensordesc_arg "
    "ty_to_cpp wrap_handle_tensordesc",
    "fuser builds no launcher of C: it asks the CUDA driver by ctypes",
)
