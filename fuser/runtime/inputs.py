"""Seeded random inputs that make sense: indices within their table, masks of zeros and ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fuser.graph.ir import Graph
from fuser.runtime.program import TensorSpec

Hints = Mapping[str, tuple[int, int]]
"""Input name -> (low, high), both inclusive."""


def random_feeds(
    specs: Sequence[TensorSpec], hints: Hints | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """One array an input: floats from a standard normal, integers and bools within their hint
    (without one: integers 0 or 1)."""
    raise NotImplementedError


def input_hints(graph: Graph) -> dict[str, tuple[int, int]]:
    """What range each input's values must stay in, found by following its uses through casts and
    movement: an index of a gather stays within the table, a mask is 0 or 1."""
    raise NotImplementedError
