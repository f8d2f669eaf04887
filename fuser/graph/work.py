"""What a primitive asks for: operations, bytes, and the least time that both take on a Target."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, Protocol

from fuser.base.target import Target
from fuser.dtypes import BY_NAME, DType
from fuser.graph.ops.families import (
    CONTRACTIONS,
    CREATE,
    DECODE,
    KERNEL_CALL,
    REDUCE,
    SELECTING,
    VIEW,
)
from fuser.graph.sizes import by_example, size_hint


class Operation(Protocol):
    """A `Node`, which asks for these itself."""

    op: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    attrs: dict[str, Any]


@by_example
def flops(node: Operation) -> int:
    """Operations that a node asks for: two a multiply-add of matmuls and convolutions, one an
    operand element of a reduction, a window's element and a result element of everything else;
    what its code has of a user's kernel, none of constants, casts and movement (reshape, slice,
    concat, gather, ...)."""
    if node.op in CREATE | VIEW | DECODE | SELECTING or node.op == "cast":
        return 0
    size = int(node.outputs[0].type.size)
    if node.op == "dot_general":
        return 2 * size * int(
            prod(node.inputs[0].shape[axis] for axis in node.attrs["lhs_contract"])
        )  # fmt: skip
    if node.op == KERNEL_CALL:
        return int(node.attrs["call"].flops)
    if node.op == "conv":
        return 2 * size * int(prod(node.inputs[1].shape[1:]))
    if node.op == "reduce_window":
        return size * int(prod(node.attrs["window"]))
    if node.op in REDUCE:
        return int(node.inputs[0].type.size)
    return size


def operand_dtype(node: Operation) -> DType:
    """What a contraction multiplies: the dtype that its operands are rounded to, else their own."""
    asked = node.attrs.get("operands")
    found: DType = BY_NAME[asked] if asked else node.inputs[0].dtype
    return found


@by_example
def alone_bytes(node: Operation) -> int:
    """Bytes of a node's distinct operands and results."""
    return size_hint(sum(v.type.bytes for v in dict.fromkeys((*node.inputs, *node.outputs))))


def roofline_us(target: Target, nodes: Iterable[Operation], flops: int, moved: int) -> float:
    """The least microseconds: operations at the peak rate or bytes at that of the memory, whichever
    takes longer. A kernel with contractions has the peak rate of their narrowest operands."""
    operands = [operand_dtype(node) for node in nodes if node.op in CONTRACTIONS]
    rate = max((target.peak(kind.name, kind.bits) for kind in operands), default=target.peak())
    return max(flops / rate, moved / target.peak_bandwidth) * 1e6
