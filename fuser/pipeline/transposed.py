"""Copies of arrays whose strides are another's: of a transposed matrix some columns at a time.

Element by element in the order of the target every line of the source is read for two bytes, and
is gone from the caches when the next two are wanted: weights of [k, n] take three times as long.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fuser.backend.cores import available_cores
from fuser.tilegen.program import copy_elements

AT_ONCE = 128
"""Columns that are copied at a time: their lines stay in a cache until all of them is read."""
LARGE = 4 << 20
"""Bytes from which on all cores copy: NumPy lets go of the interpreter meanwhile."""


def copy_transposed(target: np.ndarray, source: np.ndarray) -> None:
    """Copy a source of the same shape, whatever the strides and dtypes of both."""
    steps, columns = source.strides[-2:], source.shape[-1:]
    if source.ndim < 2 or steps[0] >= steps[1] or columns[0] <= AT_ONCE:
        copy_elements(target, source)
        return

    def piece(start: int) -> None:
        here = (..., slice(start, start + AT_ONCE))
        copy_elements(target[here], source[here])

    starts = range(0, columns[0], AT_ONCE)
    threads = min(len(starts), available_cores())
    if source.nbytes < LARGE or threads < 2:
        for start in starts:
            piece(start)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(piece, starts))


__all__ = ["copy_transposed"]
