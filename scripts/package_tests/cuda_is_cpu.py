"""Devices that code names "cuda" mean the CPU, in this process: for tests that name no other.

PyTorch says that there is one GPU, of capability 8.0. Its calls that take a device take the CPU;
what asks for the size of a GPU still fails.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuser.triton.driver import Driver, driver


def _moved(value: Any) -> Any:
    """A device of CUDA as the CPU; anything else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


class CudaIsCpu(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.cuda:
            return args[0]
        if function == torch.Tensor.is_cuda.__get__:
            return True
        named = {key: _moved(value) for key, value in (kwargs or {}).items()}
        return function(*(_moved(value) for value in args), **named)


def install() -> None:
    """From now on; devices, in this thread alone. torch.compile runs functions as they are."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_bf16_supported = lambda *args, **named: True
    torch.cuda.get_device_capability = lambda *args: (8, 0)
    torch.cuda.get_rng_state = lambda *args: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *args: torch.set_rng_state(state)
    for name in ("manual_seed", "manual_seed_all", "synchronize", "empty_cache", "set_device"):
        setattr(torch.cuda, name, lambda *args, **named: None)
    driver.set_active(Driver("cpu"))
    CudaIsCpu().__enter__()
