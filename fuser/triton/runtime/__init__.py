"""triton.runtime. `driver` is the object, not the module of that name."""

from __future__ import annotations

from fuser.triton.absent import modules, names
from fuser.triton.autotuner import Autotuner, Heuristics, autotune, heuristics
from fuser.triton.configs import Config
from fuser.triton.errors import InterpreterError, OutOfResources
from fuser.triton.jit import JITFunction, KernelInterface
from fuser.triton.runtime import autotuner, errors, jit
from fuser.triton.runtime.driver import driver
from fuser.triton.tensors import MockTensor, TensorWrapper, reinterpret

_WHY = "fuser compiles for the CPU and has no interpreter of Triton's code"
modules(__name__, "interpreter", _WHY, "run the kernel on arrays of the CPU, check=True")
__getattr__ = names(
    __name__, "RedisRemoteCacheBackend RemoteCacheBackend",
    "fuser's caches are folders of this machine", "share the folder FUSER_CACHE_DIR",
)  # fmt: skip

__all__ = [
    "Autotuner", "Config", "Heuristics", "InterpreterError", "JITFunction", "KernelInterface",
    "MockTensor", "OutOfResources", "TensorWrapper", "autotune", "autotuner", "driver", "errors",
    "heuristics", "jit", "reinterpret",
]  # fmt: skip
