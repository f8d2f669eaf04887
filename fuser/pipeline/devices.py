"""The choice of a device."""

from __future__ import annotations

from dataclasses import replace

from fuser.backend.cores import available_cores, check_threads
from fuser.base.config import Config
from fuser.base.target import Target
from fuser.errors import DeviceError
from fuser.runtime.devices import KINDS, Device, parse_device

__all__ = [
    "KINDS",
    "Device",
    "check_device",
    "choose_target",
    "parse_device",
    "plan_threads",
]


def check_device(device: Device, threads: int | None = None) -> None:
    """Raise UsageError for a device that there is not, or a number of threads that is none. What
    holds them for later calls this, so that the error is at the call that names them."""
    parse_device(device)
    check_threads(threads)


def choose_target(device: Device, threads: int | None = None) -> Target:
    """The Target of a device, with the `threads` of a plan (see plan_threads) where it is a CPU.
    Raises DeviceError if there is no such GPU, UsageError for another name."""
    kind, ordinal = parse_device(device)
    if isinstance(device, Target):
        return device if device.is_cuda else replace(device, threads=plan_threads(threads))
    if kind == "cpu":
        return _host(threads)
    from fuser.runtime import cuda

    try:
        return cuda.device_target(ordinal)
    except DeviceError:
        if kind == "cuda":
            raise
        return _host(threads)


def plan_threads(threads: int | None) -> int:
    """CPU threads of a plan: as asked for, else FUSER_THREADS, else one a core."""
    return check_threads(threads) or Config.from_environment().threads or available_cores()


def _host(threads: int | None) -> Target:
    from fuser.backend.cpu.host import host_target

    return replace(host_target(), threads=plan_threads(threads))
