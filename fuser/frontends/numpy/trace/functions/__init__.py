"""NumPy functions on traced arrays, one file a family; `FUNCTIONS` has them by name."""

from __future__ import annotations

from fuser.frontends.numpy.trace.functions import (
    contraction,
    creation,
    movement,
    reductions,
    selection,
)
from fuser.frontends.numpy.trace.functions.registry import FUNCTIONS

__all__ = ["FUNCTIONS", "contraction", "creation", "movement", "reductions", "selection"]
