"""The choice of a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from fuser.backend.cores import available_cores
from fuser.config import Config
from fuser.errors import DeviceError, UsageError
from fuser.target import Target

Device = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[Device, ...] = get_args(Device)


def check_device(device: Device) -> None:
    """Raise UsageError for a device that there is not. What holds a device for later calls this, so
    that the error is at the call that names it."""
    if device not in DEVICES:
        raise UsageError(f"there is no device {device!r}", hint=f"one of {', '.join(DEVICES)}")


def choose_target(device: Device, threads: int | None = None) -> Target:
    """The Target of a device, with the `threads` of a plan (see plan_threads) where it is a CPU.
    Raises DeviceError if "cuda" is asked for and there is none, UsageError for another name."""
    check_device(device)
    if device == "cpu":
        return _host(threads)
    from fuser.runtime import cuda

    try:
        return cuda.device_target()
    except DeviceError:
        if device == "cuda":
            raise
        return _host(threads)


def plan_threads(threads: int | None) -> int:
    """CPU threads of a plan: as asked for, else FUSER_THREADS, else one a core."""
    return threads or Config.from_environment().threads or available_cores()


def _host(threads: int | None) -> Target:
    from fuser.backend.cpu.host import host_target

    return replace(host_target(), threads=plan_threads(threads))
