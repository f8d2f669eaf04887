"""Physical axis orders: channels last around convolutions.

A convolution reads all channels of a pixel together, so [n, c, h, w] is stored as [n, h, w, c]
wherever both the writer and the readers are kernels of ours. Maps, pooling and residual sums
between convolutions follow, so that no kernel only transposes. Model inputs and outputs stay as
they are given; what ranks exchange, and what kernels of users are given, is row-major.
"""

from __future__ import annotations

from fuser.graph.ir import Value
from fuser.graph.sizes import same_shape
from fuser.partition.grouping import Grouping
from fuser.partition.nodes import is_map
from fuser.partition.region import Region

FOLLOWING = ("map", "gather", "reduce", "window")
IN_ORDER = ("collective", "kernel")
"""Regions that read and write row-major memory."""


def channels_last(rank: int) -> tuple[int, ...]:
    """(0, 2, 3, 1) for rank 4."""
    return (0, *range(2, rank), 1)


def choose_layouts(grouping: Grouping, regions: list[Region]) -> dict[Value, tuple[int, ...]]:
    """The axis order of every value between regions that is not row-major."""
    exchanged = [region for region in regions if region.kind in IN_ORDER]
    fixed = grouping.graph_outputs | {value for region in exchanged for value in region.inputs}
    movable = {
        value
        for region in regions
        for value in region.outputs
        if value not in fixed and value.type.rank >= 3 and region.kind not in IN_ORDER
    }
    chosen: set[Value] = set()
    for region in regions:
        if region.kind == "conv" or (region.kind == "window" and _is_spatial(region)):
            chosen |= {value for value in _images(grouping, region) if value in movable}
    changed = bool(chosen)
    while changed:
        changed = False
        for region in regions:
            if region.kind not in FOLLOWING:
                continue
            shapes = {v.shape for v in (*region.inputs, *region.outputs) if v in chosen}
            if not shapes:
                continue
            for value in (*region.inputs, *region.outputs):
                follows = value.shape in shapes or _same_channels(value, shapes)
                if value in movable and value not in chosen and follows:
                    chosen.add(value)
                    changed = True
    return {value: channels_last(value.type.rank) for value in chosen}


def _is_spatial(region: Region) -> bool:
    """Whether the window is 1 along batch and channels."""
    window = region.anchors[0].attrs["window"]
    return len(window) >= 3 and all(extent == 1 for extent in window[:2])


def _images(grouping: Grouping, region: Region) -> set[Value]:
    """The values of a convolution or pooling region that have its batch and channel axes."""
    anchor = region.anchors[0]
    rank = anchor.output.type.rank
    found = {value for value in region.outputs if value.type.rank == rank}
    found |= {v for v in _behind_maps(grouping, anchor.inputs[0]) if v.type.rank == rank}
    found |= {value for value in region.inputs if same_shape(value.shape, anchor.output.shape)}
    return found


def _behind_maps(grouping: Grouping, value: Value) -> set[Value]:
    """The values in memory that pointwise code of the region turns into the operand."""
    found: set[Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        node = current.node
        if node is not None and node in grouping.virtual and (is_map(node) or node.op == "pad"):
            stack.extend(node.inputs)
        else:
            found.add(current)
    return found


def _same_channels(value: Value, shapes: set[tuple[int, ...]]) -> bool:
    """Whether the value has the batch and channel dims of an image, with other spatial dims."""
    return any(len(s) == value.type.rank and same_shape(s[:2], value.shape[:2]) for s in shapes)
