"""Kernels of users (`fuser/frontends/torch/kernels.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.registry import aten
from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.ops.families import KERNEL_CALL

WRAPPED = "triton_kernel_wrapper_functional"
"""PyTorch's node for a kernel of Triton."""


@aten("kernel_call")
def kernel_call(
    b: Builder, arrays: Sequence[Value], written: Sequence[Value], call: int
) -> list[Value]:
    from fuser.frontends.torch.kernels import call_of  # which imports PyTorch

    return list(b.emit_node(KERNEL_CALL, *arrays, call=call_of(call)).outputs)


def wrapped(
    b: Builder, values: Mapping[str, Any], traced: Mapping[str, Any], written: Sequence[str],
    launch: Mapping[str, Any],
) -> dict[str, Value]:  # fmt: skip
    """The results of a node of PyTorch's, by parameter. values: the arguments by parameter; traced:
    the tensors without values that they are in the traced program. Raises UnsupportedError."""
    from fuser.frontends.torch.kernels import call_of, described_launch

    names, plans, number = described_launch({**values, **traced}, **launch)
    found = {name: values[name] for name in written}
    if number < 0:
        return found
    operands = []
    for place, rows, read, writes in plans:
        name, order = names[place], () if rows is None else rows[0]
        x: Value = values[name]
        if rows is not None and (rows[1] != rows[2] or len(order) != x.type.rank):
            raise UnsupportedError(f"{name} has gaps, or elements that are one in memory")
        if writes and name not in found:
            raise UnsupportedError(f"{name} is written, and PyTorch does not know of it")
        if read:
            operands.append(x if rows is None else b.transpose(x, order))
    results = iter(b.emit_node(KERNEL_CALL, *operands, call=call_of(number)).outputs)
    for place, rows, _, writes in plans:
        if writes:
            result = next(results)
            if rows is not None:
                result = b.transpose(result, [rows[0].index(axis) for axis in range(len(rows[0]))])
            found[names[place]] = result
    return found
