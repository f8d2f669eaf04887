"""The names of devices, and which of several targets a device runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from fuser.backend.features import missing_features
from fuser.base.target import Target
from fuser.errors import DeviceError, UsageError

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


def choose(targets: Sequence[Target], device: Device | int) -> tuple[int, int]:
    """Which of these targets a device runs best, and which GPU it is. device: an int is a GPU, if
    the target is one. One target alone is not compared with the device. Raises DeviceError."""
    kind, ordinal = ("auto", device) if isinstance(device, int) else parse_device(device)
    places = [i for i, target in enumerate(targets) if kind in ("auto", target.name)]
    if len(places) == 1:
        return places[0], ordinal
    gpus = [i for i in places if targets[i].is_cuda]
    reason = ""
    if gpus:
        try:
            capability = _capability(ordinal)
            gpus = [i for i in gpus if runs(targets[i], capability)]
            if gpus:
                return max(gpus, key=lambda i: targets[i].sm), ordinal
        except DeviceError as error:
            reason = f": {error}"
    cpus = [
        i for i in places if not targets[i].is_cuda and not missing_features(targets[i].features)
    ]
    if cpus:
        return max(cpus, key=lambda i: (targets[i].vector_bits, len(targets[i].features))), ordinal
    known = ", ".join(_shown(target) for target in targets)
    raise DeviceError(f"the plan is for {known}, and nothing here runs one of them{reason}")


def runs(target: Target, capability: int) -> bool:
    """Whether a GPU of this compute capability (90 for 9.0) runs code for a target: later ones do,
    unless it is for one architecture alone."""
    return target.sm == capability if target.arch.endswith("a") else target.sm <= capability


def _capability(ordinal: int) -> int:
    from fuser.runtime import driver

    major, minor = (f"COMPUTE_CAPABILITY_{part}" for part in ("MAJOR", "MINOR"))
    return driver.attribute(major, ordinal) * 10 + driver.attribute(minor, ordinal)


def _shown(target: Target) -> str:
    return target.arch if target.is_cuda else f"cpu {target.arch}"
