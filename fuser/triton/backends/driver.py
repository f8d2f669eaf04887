"""triton.backends.driver: what a driver of Triton is."""

from __future__ import annotations

from fuser.triton.driver import Driver

DriverBase = GPUDriver = Driver

__all__ = ["DriverBase", "GPUDriver"]
