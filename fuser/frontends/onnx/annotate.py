"""A model written back with the kernel of each node, for viewers.

Nodes get metadata: "namespace" is the region that computes them, by which viewers such as Model
Explorer fold a graph; "fuser.kernels" lists all regions that have a part of them. Runtimes pass
over metadata, so that the model means what it meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from fuser.errors import UsageError
from fuser.frontends.onnx.importer import load_model
from fuser.frontends.onnx.importer.reader import node_name

NAMESPACE, KERNELS = "namespace", "fuser.kernels"
MOST_BYTES = (2 << 30) - (1 << 20)
"""A file has no more, as protobuf ends at 2 GiB. Larger weights go beside it."""


def annotate(
    model: ModelProto, homes: Mapping[str, str], regions: Mapping[str, Sequence[str]]
) -> list[str]:
    """Put regions into the metadata of the nodes. homes: the region of each node by its name, as
    the importer gives names; regions: all that have a part of it.

    A node that stands for several of the importer's (a function) goes to the first of theirs.
    Returns the names of `homes` that no node of the model has: weights, and what is inside
    functions of the model.
    """
    left = dict.fromkeys(homes)
    parts: dict[str, list[str]] = {}
    for name in homes:
        if "." in name:
            for at, letter in enumerate(name):
                if letter == ".":
                    parts.setdefault(name[:at], []).append(name)
    for index, node in enumerate(_nodes(model.graph)):
        name = node_name(node, index)
        names = [name] if name in homes else parts.get(name, [])
        found = dict.fromkeys(region for one in names for region in regions[one])
        for one in names:
            left.pop(one, None)
        kept = [entry for entry in node.metadata_props if entry.key not in (NAMESPACE, KERNELS)]
        if found:
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
            node.metadata_props.add(key=NAMESPACE, value=homes[names[0]])
            node.metadata_props.add(key=KERNELS, value=", ".join(found))
    return list(left)


def annotate_file(
    source: Path, target: Path, homes: Mapping[str, str], regions: Mapping[str, Sequence[str]]
) -> list[str]:
    """`annotate` of a model file into another. Weights stand in it, or beside it in NAME.data where
    one file cannot hold them. Raises what reading raises, UsageError where it cannot be written."""
    model = load_model(source)
    left = annotate(model, homes, regions)
    weights = target.with_name(target.name + ".data")
    try:
        if model.ByteSize() < MOST_BYTES:
            target.write_bytes(model.SerializeToString())
        else:
            weights.unlink(missing_ok=True)  # onnx appends
            onnx.save(model, target, save_as_external_data=True, location=weights.name)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    return left


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, those of the bodies of loops and branches among them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _nodes(inner)
