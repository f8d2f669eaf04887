"""Kernels of users (`fuser/frontends/torch/kernels.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.frontends.torch.importer.registry import aten
from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.ops.kernel_call import OP


@aten("kernel_call")
def kernel_call(
    b: Builder, arrays: Sequence[Value], written: Sequence[Value], call: int
) -> list[Value]:
    from fuser.frontends.torch.kernels import call_of  # which imports PyTorch

    return list(b.emit_node(OP, *arrays, call=call_of(call)).outputs)
