"""The least time of a kernel: its operations at the peak rate, its bytes at that of the memory."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.graph.ir import Node
from fuser.graph.precision import CONTRACTIONS, operand_dtype
from fuser.runtime.plan_report import Device
from fuser.target import Target


def device_of(target: Target) -> Device:
    return Device(
        target.name, target.arch, target.units, target.flops_f32, target.flops_f16,
        target.bandwidth, target.l2_cache_bytes,
    )  # fmt: skip


def roofline_us(target: Target, nodes: Sequence[Node], flops: int, moved: int) -> float:
    """Microseconds. A kernel with a product of 16-bit operands has their peak rate."""
    half = any(node.op in CONTRACTIONS and operand_dtype(node).bits < 32 for node in nodes)
    rate = target.flops_f16 if half else target.flops_f32
    return max(flops / rate, moved / target.bandwidth) * 1e6
