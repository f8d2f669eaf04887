"""What would lift a refusal: the change of the model or of an option, or that there is none."""

from __future__ import annotations

from fuser.partition.forced import APART
from fuser.partition.region import Refusal

LIFTS: dict[str, str] = {
    "second-anchor": "nothing: each matmul, convolution, window or attention has loops of its own",
    "row-across-blocks": "nothing: no block of the kernel before holds a whole row",
    "row-in-prologue": "on a GPU --fold-norms, for norms in front of constant weights of 16 bits",
    "different-rows": "reductions along the same axes of one shape",
    "different-space": "one order and shape of elements on both sides: movement between them"
    " placed elsewhere",
    "row-too-long": "a shorter row, or less work in front of the reduction",
    "too-much-code": "nothing: it bounds the time of a compile",
    "slow-kernel": "a larger --max-kernel-seconds; 0 sets no bound",
    "not-emitted": "nothing: there is no kernel for both",
    "aligned-rows": "rows whose length is a multiple of 16 bytes: a padded operand",
    "channels-last": "an input whose channels are adjacent (NHWC)",
    "graph-output": "an output less, if the model can do without it; otherwise it is written",
    "cycle": "no second way between the two over a third region",
    "opaque": "nothing: sorts, scatters, running sums and collectives need whole operands",
    "tangled-movement": "fewer reshapes between transposes",
    "probabilities-escape": "no other reader of the scores or probabilities",
    "second-softmax": "one softmax between the two matmuls",
    "values-by-query": "values that all queries of a head share",
    "head-too-wide": "a narrower head",
    "reserved": "no --pin of one of the two",
    "no-fusion": "no --no-fusion",
}
"""By code; those that a pin lifts are in PINNED."""

PINNED = {
    "recompute": "each reader computes it again",
    "more-outputs": "the kernel writes one value more",
}
"""Codes of what is refused because it does not pay, and what becomes of it where it is pinned."""


def lift(refusal: Refusal) -> str:
    """What would let the two be one kernel, in one line."""
    pair = ",".join(names[0] for names in (refusal.sources, refusal.readers) if names)
    if refusal.code == "forbidden":
        return f"no --forbid of {refusal.reason.removesuffix(APART)}"
    if refusal.code in PINNED:
        return f"--pin {pair}: {PINNED[refusal.code]}"
    return LIFTS.get(refusal.code, "unknown")
