"""`fusion=`: whether a plan fuses, or which fusions its caller forces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fuser.errors import UsageError


@dataclass(frozen=True)
class Fusion:
    """Fusions that the caller decides, as pairs of names of ONNX nodes; the rest is fuser's choice.

    pin: a region must compute both. forbid: no region may. Constants and movement (Reshape,
    Transpose, Slice, Expand) are not computed by any. Compiling raises UsageError for a node that
    there is not, and, with the reason, for a pin that cannot be. Raises UsageError for what is no
    pair. fold_norms: on a GPU, matmuls apply the norm of their operand themselves
    (fuser/partition/passes/fold_norms.py).
    """

    pin: tuple[tuple[str, str], ...] = ()
    forbid: tuple[tuple[str, str], ...] = ()
    fold_norms: bool = False

    def __post_init__(self) -> None:
        for wish in ("pin", "forbid"):
            pairs = tuple(_pair(wish, pair) for pair in getattr(self, wish))
            object.__setattr__(self, wish, pairs)


def _pair(wish: str, pair: Iterable[str]) -> tuple[str, str]:
    names = (pair,) if isinstance(pair, str) else tuple(pair)
    if len(names) != 2 or names[0] == names[1] or not all(isinstance(n, str) for n in names):
        raise UsageError(f"{pair!r} is no pair to {wish}", hint="give the names of two nodes")
    return names[0], names[1]


Fusing = bool | Fusion
"""What `fusion=` takes. False: a kernel for every operator."""


def choice(fusion: Fusing) -> Any:
    """What keys of caches hold of it: plain data."""
    return asdict(fusion) if isinstance(fusion, Fusion) else bool(fusion)
