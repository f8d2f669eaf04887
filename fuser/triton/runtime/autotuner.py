"""triton.runtime.autotuner."""

from __future__ import annotations

from fuser.triton.autotuner import Autotuner, Heuristics, autotune, heuristics
from fuser.triton.configs import Config
from fuser.triton.errors import OutOfResources

__all__ = ["Autotuner", "Config", "Heuristics", "OutOfResources", "autotune", "heuristics"]
