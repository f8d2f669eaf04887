"""What kernels of GPUs ask of the machine, and libdevice.

Launches run in order here, so a kernel has nothing to wait for (`gdc_wait`) and nobody to let go
(`gdc_launch_dependents`).
"""

from __future__ import annotations

from typing import Any

from fuser.language import libdevice
from fuser.language.arithmetic import as_tensor
from fuser.language.emitter import Emitter
from fuser.language.tensors import Builtin, Tensor

THREADS_OF_A_WARP = 32


def _nothing(e: Emitter) -> None:
    """Nothing: launches run in order."""


def _warps(e: Emitter) -> Tensor:
    """The warps that the launch asked for."""
    return as_tensor(e, _asked(e))


def _threads(e: Emitter) -> Tensor:
    """The threads of that many warps."""
    return as_tensor(e, THREADS_OF_A_WARP * _asked(e))


def _asked(e: Emitter) -> int:
    e.asked_warps = True
    return e.warps


def _unknown(name: str) -> Any:
    def call(e: Emitter) -> None:
        e.fail(f"{name} is a register of one machine", "measure a launch, or number the programs")

    return call


gdc_wait = Builtin("gdc_wait", _nothing, _nothing.__doc__ or "")
gdc_launch_dependents = Builtin("gdc_launch_dependents", _nothing, _nothing.__doc__ or "")
num_warps = Builtin("num_warps", _warps, _warps.__doc__ or "")
num_threads = Builtin("num_threads", _threads, _threads.__doc__ or "")
globaltimer = Builtin("globaltimer", _unknown("globaltimer"), "Refused.")
smid = Builtin("smid", _unknown("smid"), "Refused.")

__all__ = [
    "gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "num_threads", "num_warps",
    "smid",
]  # fmt: skip
