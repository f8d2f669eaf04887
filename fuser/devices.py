"""The choice of a device."""

from __future__ import annotations

from typing import Literal

from fuser.errors import DeviceError
from fuser.target import Target

Device = Literal["auto", "cpu", "cuda"]


def choose_target(device: Device) -> Target:
    """The Target of a device. Raises DeviceError if "cuda" is asked for and there is none."""
    from fuser.backend.cpu.host import host_target

    if device == "cpu":
        return host_target()
    from fuser.runtime import cuda

    try:
        return cuda.device_target()
    except DeviceError:
        if device == "cuda":
            raise
        return host_target()
