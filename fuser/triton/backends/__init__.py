"""triton.backends: the names of targets; fuser has its own back ends."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.triton.backends.compiler import BaseBackend, FuserBackend
from fuser.triton.backends.driver import DriverBase
from fuser.triton.driver import Driver


@dataclass(frozen=True)
class Backend:
    """A back end, and the driver of its devices."""

    compiler: type[BaseBackend]
    driver: type[Driver]


backends: dict[str, Backend] = {
    "nvidia": Backend(FuserBackend, Driver), "cpu": Backend(FuserBackend, Driver),
}  # fmt: skip
"""By name: fuser compiles for both."""

__all__ = ["Backend", "BaseBackend", "DriverBase", "backends"]
