"""triton.backends.driver: what a driver of Triton is."""

from __future__ import annotations

from fuser.triton.absent import names
from fuser.triton.driver import Driver

DriverBase = GPUDriver = Driver
__getattr__ = names(
    __name__,
    "Benchmarker decompose_descriptor expand_signature wrap_handle_tensordesc_impl",
    "fuser launches by its own tables of arguments",
)

__all__ = ["DriverBase", "GPUDriver"]
