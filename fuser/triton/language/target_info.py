"""triton.language.target_info: what a kernel is compiled for, known while compiling."""

from __future__ import annotations

from fuser.triton.constexprs import constexpr_function
from fuser.triton.driver import driver


@constexpr_function
def current_target() -> object:
    """The target: its backend, arch and warp_size."""
    return driver.active.get_current_target()


@constexpr_function
def is_cuda() -> bool:
    """Whether the target is a GPU of NVIDIA."""
    return bool(driver.active.get_current_target().backend == "cuda")


@constexpr_function
def is_hip() -> bool:
    """Whether the target is a GPU of AMD: never."""
    return False


@constexpr_function
def cuda_capability_geq(major: int, minor: int = 0) -> bool:
    """Whether the target is a GPU of at least this compute capability."""
    target = driver.active.get_current_target()
    return bool(target.backend == "cuda" and target.arch >= 10 * major + minor)
