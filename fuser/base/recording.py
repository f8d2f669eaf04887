"""Launches that are recorded instead of done: their arrays stand for tensors of a graph.

A front end that traces programs adds a `Finder`; a kernel asks all of them before it is launched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self
from weakref import WeakValueDictionary

Record = Callable[[Any, Mapping[str, Any], tuple[int, ...], Any], None]
"""Takes the kernel, its arguments by parameter, the grid and the options of a launch."""
Finder = Callable[[Sequence[Any]], Record | None]
"""Takes the arguments of a launch; None where none of them is of a trace of its own."""

FINDERS: list[Finder] = []

captures: Callable[[], bool] | None = None
"""Whether a compiler reads the code of this program, in which case a kernel gives it this:"""
launcher: Callable[[Any, Any], Callable[..., None]] | None = None
"""Takes a kernel and a grid, to launch it in code that such a compiler reads."""


class Launchable:
    """A kernel, by a number: what reads code takes numbers for constants, and objects not always
    (PyTorch before 2.13)."""

    launch_number: int

    def __new__(cls, *args: Any, **named: Any) -> Self:
        made = super().__new__(cls)
        made.launch_number = next(_NUMBERS)
        LAUNCHABLE[made.launch_number] = made
        return made

    def __getstate__(self) -> dict[str, Any]:
        """A copy is a kernel of its own, with its own number."""
        return {name: item for name, item in vars(self).items() if name != "launch_number"}


_NUMBERS = itertools.count()
LAUNCHABLE: WeakValueDictionary[int, Launchable] = WeakValueDictionary()
"""By number, the kernels that are there."""


def recorder_of(values: Iterable[Any]) -> Record | None:
    """What records a launch with these arguments, if it is not to be done now."""
    if not FINDERS:
        return None
    flat = list(flattened(values))
    return next((found for find in FINDERS if (found := find(flat)) is not None), None)


def flattened(values: Iterable[Any]) -> Iterable[Any]:
    """Arguments, tuples taken apart."""
    for value in values:
        if isinstance(value, tuple):
            yield from flattened(value)
        else:
            yield value
