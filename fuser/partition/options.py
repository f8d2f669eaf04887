"""What a user may ask of the partitioner."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.dtypes import DType


@dataclass(frozen=True)
class Options:
    """Control over fusion.

    no_fusion: every operator of the model becomes a region (several, if it has several anchors).
    forbid, pin: pairs of ONNX node names (producer, consumer) that must not, or must if it is
    legal, share a region. merge: whether parallel contractions become one. attention: whether
    attention becomes one region. operands: the dtype that float32 matmuls round their operands
    to (graph/precision.py); None leaves them as they are. narrow_weights: constant matrices become
    whole numbers of 8 bits with a scale a column.
    """

    no_fusion: bool = False
    forbid: tuple[tuple[str, str], ...] = ()
    pin: tuple[tuple[str, str], ...] = ()
    merge: bool = True
    attention: bool = True
    operands: DType | None = None
    narrow_weights: bool = False
