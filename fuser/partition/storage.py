"""Copies of values for products that round their operands: rounded once, where they are made.

    region: %y = norm %x              region: %y = norm %x, also stored as bfloat16
    region: dot_general %y, %w   =>   region: dot_general %y (the copy), %w
Rounding twice is rounding once, so results do not change; every block of the product reads half the
bytes and rounds nothing. A value that only products read is stored as the copy alone.
"""

from __future__ import annotations

from fuser.dtypes import DType, f32, i32
from fuser.graph.ir import Value
from fuser.graph.precision import PRODUCTS, operand_dtype
from fuser.partition.nodes import VIEW
from fuser.partition.region import Region

WRITERS = ("map", "reduce", "contraction", "conv", "attention", "window", "gather")


def choose_copies(
    regions: list[Region], graph_outputs: set[Value]
) -> tuple[dict[Value, DType], set[Value]]:
    """(the dtype of the copy of each value that has one, the values stored as copies alone)."""
    made = {
        value
        for region in regions
        if region.kind in WRITERS
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
    return copies, set(copies) - plain


def _reads(region: Region, value: Value) -> tuple[set[DType], bool]:
    """The dtypes to which products of a region round the value, and whether it is also read else:
    movement does not count as reading."""
    rounded: set[DType] = set()
    other = False
    same = {value}
    for node in region.nodes:
        if same.isdisjoint(node.inputs):
            continue
        if node.op in VIEW:
            same.update(node.outputs)
        elif node.op in PRODUCTS and "operands" in node.attrs:
            rounded.add(operand_dtype(node))
        else:
            other = True
    return rounded, other or not same.isdisjoint(region.outputs)
