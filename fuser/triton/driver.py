"""triton.runtime.driver: the device that kernels run on."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from fuser.errors import UsageError
from fuser.triton.targets import GPUTarget
from fuser.triton.timing import measure


def _torch() -> Any:
    return sys.modules.get("torch")


def _torch_sees_gpu() -> bool:
    torch = _torch()
    return torch is not None and bool(torch.cuda.is_available())


class Utils:
    """Facts on devices."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu

    def get_device_properties(self, device: int = 0) -> dict[str, Any]:
        """Sizes of a device; of a GPU its clocks too, in kHz, and the width of its memory in
        bits."""
        from fuser.pipeline.devices import choose_target
        from fuser.runtime.driver import attribute

        target = choose_target("cuda" if self.on_gpu else "cpu")
        cores = os.cpu_count() or 1
        if self.on_gpu:
            cores = int(_torch().cuda.get_device_properties(device).multi_processor_count)
        clocks = {} if not self.on_gpu else {
            "sm_clock_rate": attribute("CLOCK_RATE", device),
            "mem_clock_rate": attribute("MEMORY_CLOCK_RATE", device),
            "mem_bus_width": attribute("GLOBAL_MEMORY_BUS_WIDTH", device),
        }  # fmt: skip
        return clocks | {
            "max_shared_mem": target.shared_bytes,
            "max_num_regs": 65536,
            "multiprocessor_count": cores,
            "warpSize": 32 if self.on_gpu else 1,
        }


class HostEvent:
    """A moment on the host, in place of an event on a stream."""

    def __init__(self, enable_timing: bool = False, **named: Any) -> None:
        self.at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Make it this moment."""
        self.at = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds until another one. Raises UsageError where one is not recorded."""
        if self.at is None or end.at is None:
            raise UsageError("an event that was not recorded", hint="call record() first")
        return 1e3 * (end.at - self.at)

    def synchronize(self) -> None:
        """Nothing: launches on CPUs end before they return."""

    def wait(self, stream: Any = None) -> None:
        """Nothing, likewise."""

    def query(self) -> bool:
        """Whether it is over: it is."""
        return True


class HostInterface:
    """torch.cpu, with events that tell the time."""

    Event = HostEvent

    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


class Driver:
    """The current device: a GPU where PyTorch sees one, else the CPU. A launch runs where its
    arrays are, whatever is current."""

    def __init__(self, device: str = "auto") -> None:
        """device: auto, cpu or cuda."""
        if device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"there is no device {device!r}", hint="it is auto, cpu or cuda")
        self.device = device

    @cached_property
    def on_gpu(self) -> bool:
        return _torch_sees_gpu() if self.device == "auto" else self.device == "cuda"

    @cached_property
    def utils(self) -> Utils:
        return Utils(self.on_gpu)

    def is_active(self) -> bool:
        return True

    def get_current_device(self) -> int:
        return int(_torch().cuda.current_device()) if self.on_gpu else 0

    def set_current_device(self, device: int) -> None:
        if self.on_gpu:
            _torch().cuda.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        return int(_torch().cuda.current_stream(device).cuda_stream) if self.on_gpu else 0

    def get_active_torch_device(self) -> Any:
        torch = _torch()
        return (
            torch.device("cuda", self.get_current_device()) if self.on_gpu else torch.device("cpu")
        )

    @cached_property
    def _target(self) -> GPUTarget:
        if not self.on_gpu:
            import platform

            return GPUTarget("cpu", platform.machine(), 1)
        major, minor = _torch().cuda.get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_device_interface(self) -> Any:
        torch = _torch()
        if torch is None:
            raise UsageError("there is no device interface", hint="import torch first")
        return torch.cuda if self.on_gpu else HostInterface(torch.cpu)

    def get_device_capability(self, device: int | None = None) -> Any:
        return _torch().cuda.get_device_capability(device)

    def get_benchmarker(self) -> Callable[..., Any]:
        return partial(measure, self)

    def get_empty_cache_for_benchmark(self) -> Any:
        torch = _torch()
        size = 256 << 20 if self.on_gpu else 64 << 20
        return torch.empty(size // 4, dtype=torch.int32, device=self.get_active_torch_device())

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

    def synchronize(self) -> None:
        if self.on_gpu:
            _torch().cuda.synchronize()


class DriverConfig:
    """`driver.active`: the driver in use; set_active puts another in its place."""

    def __init__(self) -> None:
        self._default: Any = None
        self._active: Any = None

    @property
    def default(self) -> Any:
        if self._default is None:
            self._default = Driver()
        return self._default

    @property
    def active(self) -> Any:
        if self._active is None:
            self._active = self.default
        return self._active

    def set_active(self, driver: Any) -> None:
        self._active = driver

    def reset_active(self) -> None:
        self._active = self.default


driver = DriverConfig()
