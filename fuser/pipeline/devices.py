"""The choice of a device."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeAlias

from fuser.backend.cores import available_cores, check_threads
from fuser.config import Config
from fuser.errors import DeviceError, UsageError
from fuser.target import Target

Device: TypeAlias = "str | Target"
"""Where a plan runs: "auto" (a GPU if there is one, else the CPU), "cpu", "cuda", "cuda:1", in
either case of letters, or the device of PyTorch that is written so. Or a Target to compile for,
whose device need not be there."""

KINDS = ("auto", "cpu", "cuda")


def parse_device(device: Device) -> tuple[str, int]:
    """("auto", "cpu" or "cuda", which GPU) of a device. Raises UsageError for another name."""
    if isinstance(device, Target):
        return device.name, 0
    text = str(device).lower()
    kind, colon, index = text.partition(":")
    if text in KINDS or (kind == "cuda" and re.fullmatch("[0-9]+", index)):
        return kind, int(index or 0)
    hint = f"one of {', '.join(KINDS)}, cuda:N"
    if kind in ("gpu", "nvidia"):
        hint = f"did you mean {'cuda' + colon + index!r}? {hint}"
    raise UsageError(f"there is no device {device!r}", hint=hint)


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
