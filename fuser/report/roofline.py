"""What the rooflines of a report are of."""

from __future__ import annotations

from fuser.base.target import Target
from fuser.runtime.plan_report import Device


def device_of(target: Target) -> Device:
    return Device(
        target.name, target.arch, target.units, target.peak(), target.peak("bf16", 16),
        target.peak_bandwidth, target.l2_cache_bytes,
    )  # fmt: skip
