"""NumPy functions on traced arrays, one file a family; `FUNCTIONS` has them by name."""

from __future__ import annotations

from fuser.frontends.numpy.trace.functions import (
    arranged,
    contraction,
    creation,
    derived,
    movement,
    products,
    quantiles,
    reductions,
    searching,
    selection,
    without_nan,
    writing,
)
from fuser.frontends.numpy.trace.functions.registry import FUNCTIONS

__all__ = [
    "FUNCTIONS",
    "arranged",
    "contraction",
    "creation",
    "derived",
    "movement",
    "products",
    "quantiles",
    "reductions",
    "searching",
    "selection",
    "without_nan",
    "writing",
]
