"""What a user may ask of the partitioner."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.dtypes import DType

Pair = tuple[str, str]
"""Names of two ONNX nodes."""


@dataclass(frozen=True)
class Options:
    """Control over fusion.

    no_fusion: every operator of the model becomes a region (several, if it has several anchors).
    forbid: pairs that no region computes both of; pin: pairs that one region must compute both of
    (forced.py). merge: whether parallel contractions become one. attention: whether attention
    becomes one region. operands: the dtype that float32 matmuls round their operands to
    (graph/precision.py); None leaves them as they are. narrow_weights: constant matrices become
    whole numbers of 8 bits with a scale a column. reserve: regions that do not compute all of a
    pin's nodes yet take no others. copy_pinned: what is computed by maps for a pin is computed
    again for others. state: (input, output) pairs of which the output is the input of the next run.
    fold_norms: norms go behind the matmuls of their results (passes/fold_norms.py), which compute
    the statistics of their rows where that is cheaper than a kernel (statistics.py).
    """

    no_fusion: bool = False
    forbid: tuple[Pair, ...] = ()
    pin: tuple[Pair, ...] = ()
    merge: bool = True
    attention: bool = True
    operands: DType | None = None
    narrow_weights: bool = False
    reserve: bool = False
    copy_pinned: bool = False
    state: tuple[Pair, ...] = ()
    fold_norms: bool = False
