"""Primitives by what they do: names alone, for what asks without a graph."""

from __future__ import annotations

CREATE = frozenset(("constant", "iota", "dims"))
VIEW = frozenset(("reshape", "transpose", "broadcast", "slice"))
"""Movement that reads one operand at one place: it never costs a kernel of its own."""

DECODE = frozenset(("dequantize",))
"""What matmuls decode on the way: their weights stay packed in memory."""

SELECTING = frozenset(("concat", "pad", "gather"))
"""Movement that decides per element what to read: cheap, but with a price in an inner loop."""

REDUCE = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"))
ANCHORS = frozenset(("dot_general", "conv", "reduce_window"))
CONTRACTIONS = ("dot_general", "conv")
KERNEL_CALL = "kernel_call"
