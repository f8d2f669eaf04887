"""Kernels of users (`fuser/frontends/torch/kernels.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.frontends.torch.importer.registry import aten
from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.ops.families import KERNEL_CALL


@aten("kernel_call")
def kernel_call(
    b: Builder, arrays: Sequence[Value], written: Sequence[Value], call: int
) -> list[Value]:
    from fuser.frontends.torch.kernels import call_of  # which imports PyTorch

    return list(b.emit_node(KERNEL_CALL, *arrays, call=call_of(call)).outputs)
