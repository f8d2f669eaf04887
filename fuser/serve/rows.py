"""Which batches give a row the bits that it has alone. It is tried, not assumed.

A model may mix the rows of a batch (a mean over axis 0), and a compiler may choose another order of
additions for another number of rows. So before requests share a run, single rows and batches of
every size that will be used are run on random inputs and compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], Arrays]


def ladder(most: int) -> tuple[int, ...]:
    """Sizes of batches up to `most`: 1, 2, 3, 4, 6, 8, 12, 16, ... Others are filled up to the next
    one, so that few sizes have plans and all of them are tried."""
    sizes = {1, most}
    power = 2
    while power <= most:
        sizes |= {power, power * 3 // 2}
        power *= 2
    return tuple(sorted(size for size in sizes if size <= most))


def same_bits(run: Run, feeds: Arrays, sizes: Sequence[int]) -> tuple[int, ...]:
    """The upper part of `sizes` at which every row has the same bits, whatever the other rows are
    and wherever it stands; () where there is none. feeds: as many different rows as the last size.

    The least size s is a row alone: s copies of it, as the server fills up a batch.
    """
    count = sizes[-1] if sizes else 0
    for place, least in enumerate(sizes):
        alone = [run({k: np.repeat(a[i : i + 1], least, 0) for k, a in feeds.items()})
                 for i in range(count)]  # fmt: skip
        if all(_agree(run, feeds, size, alone) for size in sizes[place:]):
            return tuple(sizes[place:])
    return ()


def _agree(run: Run, feeds: Arrays, size: int, alone: Sequence[Arrays]) -> bool:
    """Whether the rows of a batch of this size are those alone, and one turned by a row, too."""
    for turn in range(min(2, size)):
        order = [(i + turn) % size for i in range(size)]
        outputs = run({k: np.take(a, order, 0) for k, a in feeds.items()})
        for name, found in outputs.items():
            for place, row in enumerate(order):
                if len(found) != size or bits(found[place]) != bits(alone[row][name][0]):
                    return False
    return True


def bits(array: np.ndarray) -> bytes:
    """The bits of an array: NaN equals itself, -0 is not 0."""
    return array.tobytes()


def fill(parts: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Rows one after another, the last of them again until there are `size`."""
    rows = sum(len(part) for part in parts)
    if rows < size:
        parts = [*parts, np.repeat(parts[-1][-1:], size - rows, 0)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
