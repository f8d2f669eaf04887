"""triton.runtime.driver: the module; `driver` in it holds the driver in use."""

from __future__ import annotations

from fuser.triton.backends import backends
from fuser.triton.driver import Driver, DriverConfig, driver

__all__ = ["Driver", "DriverConfig", "backends", "driver"]
