"""Whether what a program gave is one of the right answers.

The right answers are a set: eager's, and what other evaluations gave that used the freedom of each
statement (`tests.fuzzing.program`). An element for which all of them agree has one right answer, to
the bit and the sign of zero. Where they differ by d, a result may lie 2 d from eager's, and by a
unit in the last place; where they differ by more than the element itself (a pole, a full
cancellation), nothing is said of it. What fails so is near the float64 value or it is not: then it
is "wrong", else only "bits" or, if nothing but the sign of zeros is off, "sign".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
TINY = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}

REACH = 2.0
"""How much farther than the other evaluations a result may lie."""
ULPS = 4.0
"""How far from float64 a result may lie beyond REACH times eager's error."""


@dataclass(frozen=True)
class Seen:
    """One thing that can be seen after a call. array: float64 for floats, else integers or bools;
    strides are None where they promise nothing."""

    label: str
    array: Array
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def is_float(self) -> bool:
        return self.dtype in EPSILON


@dataclass(frozen=True)
class Verdict:
    """What is wrong."""

    kind: str
    what: str


RANK = ("wrong", "shape", "dtype", "alias", "gradient", "bits", "sign", "strides")
"""Kinds, the worst first."""


def judged(
    found: Sequence[Seen], eager: Sequence[Seen], others: Sequence[Sequence[Seen]],
    exact: Sequence[Seen] | None, slack: float = 0.0,
) -> Verdict | None:  # fmt: skip
    """The worst that is wrong with what was found, or None. slack: units in the last place that are
    allowed wherever the answer is not a constant (gradients, whose order of sums is free)."""
    if [x.label for x in found] != [x.label for x in eager]:
        return Verdict("shape", f"{len(found)} results, not {len(eager)}")
    verdicts = []
    for place, (a, b) in enumerate(zip(found, eager, strict=True)):
        rivals = [run[place].array for run in others if run[place].array.shape == b.array.shape]
        ideal = exact[place].array if exact is not None else None
        verdict = _one(a, b, rivals, ideal, slack)
        if verdict is not None:
            verdicts.append(verdict)
    return min(verdicts, key=lambda v: RANK.index(v.kind), default=None)


def _one(
    found: Seen, eager: Seen, rivals: Sequence[Array], exact: Array | None, slack: float
) -> Verdict | None:
    label = eager.label
    if found.dtype != eager.dtype:
        return Verdict("dtype", f"{label} is {found.dtype}, not {eager.dtype}")
    if found.array.shape != eager.array.shape:
        return Verdict("shape", f"{label} is {found.array.shape}, not {eager.array.shape}")
    off = wrong_elements(found, eager, rivals, slack)
    if off.any():
        far = off
        if eager.is_float and exact is not None and exact.shape == off.shape:
            far = off & ~near_exact(found, eager, exact)
        kind = "wrong" if far.any() else "bits"
        signs = (found.array == 0) & (eager.array == 0)
        if eager.is_float and not (off & ~signs).any():
            kind = "sign"
        if label.endswith("written"):
            kind = "alias" if kind == "wrong" else kind
        elif label.startswith("gradient") and kind == "wrong":
            kind = "gradient"
        at = tuple(int(i) for i in np.argwhere(far if far.any() else off)[0])
        what = f"{label}{list(at)} is {found.array[at]!r}, not {eager.array[at]!r}"
        if exact is not None and exact.shape == off.shape:
            what += f" (float64: {exact[at]!r})"
        return Verdict(kind, f"{what}; {int(off.sum())} of {off.size} elements are off")
    if found.strides is not None and eager.strides is not None and found.strides != eager.strides:
        return Verdict("strides", f"{label} has strides {found.strides}, not {eager.strides}")
    return None


def wrong_elements(found: Seen, eager: Seen, rivals: Sequence[Array], slack: float = 0.0) -> Array:
    """Where an array is none of the right answers."""
    a, b = found.array, eager.array
    if not eager.is_float:
        low, high = b, b
        for rival in rivals:
            low, high = np.minimum(low, rival), np.maximum(high, rival)
        return np.asarray((a < low) | (a > high))
    with np.errstate(all="ignore"):
        right = same_bits(a, b)
        spread = np.zeros(b.shape)
        for rival in rivals:
            right |= same_bits(a, rival)
            gap = np.abs(rival - b)
            spread = np.fmax(spread, np.where(np.isnan(gap), 0.0, gap))
        unit = EPSILON[eager.dtype] * np.abs(b) + TINY[eager.dtype]
        free = spread > 0
        allowed = np.where(free, REACH * spread + unit, 0.0)
        right |= free & (spread > np.abs(b))
        if slack:
            allowed = allowed + slack * unit
        gap = np.abs(a - b)
        return np.asarray(~(right | ((gap <= allowed) & (free | (slack > 0)))))


def near_exact(found: Seen, eager: Seen, exact: Array) -> Array:
    """Where an array is about as near to float64 as eager's."""
    with np.errstate(all="ignore"):
        error = np.abs(found.array - exact)
        own = np.abs(eager.array - exact)
        unit = EPSILON[eager.dtype] * np.abs(exact) + TINY[eager.dtype]
        near = error <= REACH * own + ULPS * unit
        return np.asarray(near | _equal(found.array, exact))


def _equal(a: Array, b: Array) -> Array:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def same_bits(a: Array, b: Array) -> Array:
    """Equal, with the sign of zero. All NaNs are alike."""
    return np.asarray(((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b)))
