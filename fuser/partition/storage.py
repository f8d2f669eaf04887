"""Copies of values for matmuls that round their operands: rounded once, where they are made.

    region: %y = norm %x              region: %y = norm %x, also stored as bfloat16
    region: dot_general %y, %w   =>   region: dot_general %y (the copy), %w
Rounding twice is rounding once, so results do not change; every block of the matmul reads half the
bytes and rounds nothing. A value that only matmuls read is stored as the copy alone.

Images, which convolutions and pools hand on channels last (layout.py), are stored as the copy alone
whoever reads them: residual sums and pools then read rounded values as well. That is a part of what
`precision="bf16"` means: such kernels wait for memory. What grouped convolutions read stays as it
is.
"""

from __future__ import annotations

from collections.abc import Collection

from fuser.dtypes import DType, f32, i32
from fuser.graph.ir import Value
from fuser.graph.ops.families import CONTRACTIONS
from fuser.graph.work import operand_dtype
from fuser.partition.nodes import VIEW
from fuser.partition.region import Region

ON_TILES = ("map", "reduce", "contraction", "conv", "attention", "window", "gather")
"""Kinds of regions that read and write every value through the emitter, which knows its copies."""


def choose_copies(
    regions: list[Region], graph_outputs: set[Value], images: Collection[Value] = (),
    operands: DType | None = None,
) -> tuple[dict[Value, DType], set[Value]]:  # fmt: skip
    """(the dtype of the copy of each value that has one, the values stored as copies alone).
    images: values that are stored as `operands`, if matmuls round to that."""
    made = {
        value
        for region in regions
        if region.kind in ON_TILES
        for value in region.outputs
        if value.dtype in (f32, i32)
    }
    copies: dict[Value, DType] = {}
    plain = set(graph_outputs)
    for region in regions:
        for value in made.intersection(region.inputs):
            rounded, other = _reads(region, value)
            for dtype in rounded:
                if copies.setdefault(value, dtype) is not dtype:
                    plain.add(value)
            if other or not rounded:
                plain.add(value)
    narrow = set(copies) - plain
    if operands is not None:
        whole = {value for region in regions if _reads_whole(region) for value in region.inputs}
        for value in made.intersection(images) - whole - graph_outputs:
            if value.dtype is f32 and copies.setdefault(value, operands) is operands:
                narrow.add(value)
    return copies, narrow


def _reads_whole(region: Region) -> bool:
    """Whether a region's inputs stay as they are: a grouped convolution rounds nothing, and would
    widen every element once a tap."""
    convs = [node for node in region.nodes if node.op == "conv"]
    return region.kind not in ON_TILES or any("operands" not in node.attrs for node in convs)


def _reads(region: Region, value: Value) -> tuple[set[DType], bool]:
    """The dtypes to which matmuls of a region round the value, and whether it is also read else:
    movement does not count as reading."""
    rounded: set[DType] = set()
    other = False
    same = {value}
    for node in region.nodes:
        if same.isdisjoint(node.inputs):
            continue
        if node.op in VIEW:
            same.update(node.outputs)
        elif node.op in CONTRACTIONS and "operands" in node.attrs:
            rounded.add(operand_dtype(node))
        else:
            other = True
    return rounded, other or not same.isdisjoint(region.outputs)
