"""What would lift a refusal: what a person can do so that the two become one kernel."""

from __future__ import annotations

from fuser.partition.forced import APART
from fuser.partition.region import Refusal

LIFTS = {
    "slow-kernel": "--max-kernel-seconds 0, or a larger one: the compile takes longer",
    "reserved": "leave out a --pin of one of the two",
    "no-fusion": "leave out --no-fusion",
}
"""By code: options that decide it."""

PINNED = {
    "recompute": "each reader computes it again",
    "more-outputs": "the kernel writes one value more",
    "row-too-long": "each pass over a row computes it again",
}
"""Codes of what is refused because it does not pay, and what becomes of it where it is pinned."""


def lift(refusal: Refusal) -> str:
    """What lets the two be one kernel, in one line; "" where nothing that can be asked for does:
    there is no such kernel, or it would take another model."""
    if refusal.code == "forbidden":
        return f"leave out --forbid of {refusal.reason.removesuffix(APART)}"
    if refusal.code in PINNED and refusal.sources and refusal.readers:
        pair = f"{refusal.sources[0]},{refusal.readers[0]}"
        return f"--pin {pair}: {PINNED[refusal.code]}"
    return LIFTS.get(refusal.code, "")
