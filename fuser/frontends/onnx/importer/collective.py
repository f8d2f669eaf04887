"""DistCollective: collectives that a model spells itself, as TensorRT has them.

Every rank runs the same nodes on its own tensors. Source: the operator's page in TensorRT's
documentation (10.16 and later): parts are concatenated and cut along the first dimension.
"""

from __future__ import annotations

from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph.builder import Builder
from fuser.graph.ir import Value

FOLDS = ("sum", "prod", "max", "min", "avg")


def _groups(node: OnnxNode) -> tuple[tuple[int, ...], ...]:
    """The ranks that exchange: all, or those listed, in groups of `group_size`."""
    ranks = int(node.attr("nb_rank", 1))
    listed = [int(rank) for rank in node.attr("groups", ())] or list(range(ranks))
    size = int(node.attr("group_size", 0)) or len(listed)
    if ranks < 1 or size < 1 or len(listed) % size or len(set(listed)) < len(listed):
        raise InvalidModelError(f"{listed} in groups of {size} are no ranks", where=node.where)
    if sorted(listed) != list(range(ranks)):
        raise node.unsupported(f"only the ranks {listed} of {ranks} take part")
    return tuple(tuple(listed[at : at + size]) for at in range(0, ranks, size))


@onnx_op("DistCollective")
@onnx_op("DistCollective", domain="trt")
def dist_collective(b: Builder, node: OnnxNode) -> Value:
    kind = str(node.required("collective_operation")).lower()
    how = str(node.attr("reduce_op", "none")).lower()
    groups, x = _groups(node), node.x
    members = len(groups[0])
    if kind in ("all_reduce", "reduce", "reduce_scatter") and how not in FOLDS:
        raise InvalidModelError(f"reduce_op {how!r} of {kind}", where=node.where)
    fold = "sum" if how == "avg" else how
    match kind:
        case "all_reduce" | "reduce":  # what other ranks get of a reduce is not said
            found = b.emit("all_reduce", x, fold=fold, groups=groups)
        case "all_gather":
            parts = b.emit("all_gather", x, groups=groups)
            return b.reshape(parts, (_first(x, node) * members, *x.type.shape[1:]))
        case "broadcast":
            root = int(node.attr("root", -1))
            if not all(root in group for group in groups):
                raise InvalidModelError(f"root {root} is not in every group", where=node.where)
            return b.emit("rank_broadcast", x, groups=groups, root=root)
        case "reduce_scatter":
            rows = _first(x, node)
            if rows % members:
                raise InvalidModelError(f"{rows} rows for {members} ranks", where=node.where)
            parts = b.reshape(x, (members, rows // members, *x.type.shape[1:]))
            found = b.emit("reduce_scatter", parts, fold=fold, groups=groups)
        case _:
            raise node.unsupported(f"collective_operation {kind!r}")
    return b.map("div", found, members) if how == "avg" else found


def _first(x: Value, node: OnnxNode) -> int:
    if not x.type.rank:
        raise InvalidModelError("a scalar has no first dimension", where=node.where)
    return x.shape[0]
