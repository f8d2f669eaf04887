"""triton.runtime."""

from __future__ import annotations

from fuser.triton.autotuner import Autotuner, Heuristics, autotune, heuristics
from fuser.triton.configs import Config
from fuser.triton.driver import driver
from fuser.triton.errors import InterpreterError, OutOfResources
from fuser.triton.jit import JITFunction, KernelInterface
from fuser.triton.runtime import autotuner, errors, jit
from fuser.triton.runtime import driver as _module  # first: the name is that of the object below
from fuser.triton.tensors import MockTensor, TensorWrapper, reinterpret

__all__ = [
    "Autotuner", "Config", "Heuristics", "InterpreterError", "JITFunction", "KernelInterface",
    "MockTensor", "OutOfResources", "TensorWrapper", "autotune", "autotuner", "driver", "errors",
    "heuristics", "jit", "reinterpret",
]  # fmt: skip
