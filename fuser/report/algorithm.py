"""How a kernel computes what it does, where that is not the sum that its operators spell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser.graph.ir import Graph
from fuser.graph.ops.families import CONTRACTIONS
from fuser.graph.sizes import size_hint
from fuser.partition.region import Region
from fuser.tilegen.program import TileProgram
from fuser.tilegen.work import count


def algorithms(graph: Graph, programs: Sequence[TileProgram]) -> dict[int, str]:
    """The algorithm of each region that has one by name, for all of its kernels: "winograd",
    "digits" (whole numbers for a row by 4-bit weights), "split k 4", "stream k"."""
    rules = ("split_k", "split_contractions")
    split = {name for item in graph.rewritten if item.rule in rules for name in item.nodes}
    found: dict[int, str] = {}
    for item in programs:
        if name := _algorithm(item, split):
            found.setdefault(item.region.id, name)
    return found


def _algorithm(item: TileProgram, split: set[str]) -> str:
    for name in ("winograd", "digits"):
        if name in item.rewrites:
            return name
    schedule, grid = item.kernel.schedule, item.kernel.grid
    keys = size_hint(grid[2]) if schedule.split_k > 1 and len(grid) > 2 else 1
    shared = max(keys, schedule.cluster, _parts(item.region, split))
    if shared > 1:
        return f"split k {shared}"
    return "stream k" if schedule.stream_k else ""


def _parts(region: Region, split: set[str]) -> int:
    """Into how many parts a pass has cut the sums of a matmul of the region."""
    for node in region.anchors:
        if node.op == "dot_general" and split.intersection(node.origin):
            shape = node.inputs[0].shape
            return size_hint(math.prod(shape[axis] for axis in node.attrs["lhs_batch"]))
    return 1


def computed(item: TileProgram, flops: int, known: dict[int, int]) -> int:
    """Operations of a kernel as it computes, of `flops` that its operators ask for: fewer by
    Winograd's transforms, and where attention leaves out keys that no row of a block sees. Of a
    kernel with dots only theirs count: the rest runs beside them. known: counts by the identity of
    a kernel's body, which equal kernels share."""
    if not any(node.op in CONTRACTIONS for node in item.region.nodes):
        return flops
    body = id(item.kernel.body)
    if body not in known:
        work = count(item.kernel, size_hint)
        known[body] = work.dots or work.flops
    return min(flops, known[body], size_hint(item.flops) or flops)  # tiles may be partly empty
