"""triton.backends.nvidia.compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuser.triton.absent import names
from fuser.triton.backends.compiler import FuserBackend
from fuser.triton.errors import PTXASError
from fuser.triton.targets import GPUTarget


@dataclass(frozen=True)
class CUDAOptions:
    """Options of a launch on a GPU, as `kernel[grid](..., num_warps=8)` takes them."""

    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None
    launch_pdl: bool = False
    debug: bool = False


class CUDABackend(FuserBackend):
    """fuser's back end for GPUs of NVIDIA."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cuda"

    def parse_options(self, options: dict[str, Any]) -> CUDAOptions:
        known = CUDAOptions.__dataclass_fields__
        return CUDAOptions(**{name: value for name, value in options.items() if name in known})


__getattr__ = names(
    __name__,
    "file_hash get_features get_llvm_flags get_ptx_version_from_options get_ptxas "
    "get_ptxas_version min_dot_size ptx_get_version sm_arch_from_capability",
    "fuser hands PTX to the CUDA driver, not to ptxas",
    'kernel.asm["ptx"] has it',
)

__all__ = ["CUDABackend", "CUDAOptions", "PTXASError"]
