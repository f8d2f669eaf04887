"""triton.compiler.compiler."""

from __future__ import annotations

from fuser.triton.absent import names
from fuser.triton.ahead import compile
from fuser.triton.backends import backends
from fuser.triton.backends.compiler import make_backend
from fuser.triton.compiled import CompiledKernel, LazyDict
from fuser.triton.driver import driver
from fuser.triton.runtime.cache import triton_key
from fuser.triton.sources import ASTSource
from fuser.triton.targets import GPUTarget


def max_shared_mem(device: int = 0) -> int:
    """Bytes of shared memory that a block of the current device may have."""
    return int(driver.active.utils.get_device_properties(device)["max_shared_mem"])


INTERNALS = (
    "AsmDict CompileTimer IRSource arg_type_pattern convert_type_repr filter_traceback "
    "get_cache_key parse prototype_pattern ptx_arg_type_pattern ptx_prototype_pattern"
)
"""Names that mean nothing here."""
WHY = "fuser compiles functions, in stages of its own, not texts of Triton's stages"
__getattr__ = names(__name__, INTERNALS, WHY, 'kernel.asm["tile"] has the Tile IR')

__all__ = [
    "ASTSource", "CompiledKernel", "GPUTarget", "LazyDict", "backends", "compile", "make_backend",
    "max_shared_mem", "triton_key",
]  # fmt: skip
