"""`fuser shard`: a model with the annotations that divide its matmuls by columns, then rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, ShardingSpecProto

from fuser.errors import UnsupportedError, UsageError
from fuser.frontends.onnx.importer import import_onnx
from fuser.frontends.onnx.importer.reader import node_name
from fuser.frontends.onnx.model import Model, open_model
from fuser.frontends.onnx.sharding.annotations import IR_VERSION
from fuser.frontends.onnx.sharding.find import Pair, find_pairs
from fuser.graph.ir import Node
from fuser.graph.sharding.layout import Axis, Layout, whole

MATMULS = ("MatMul", "Gemm")
"""Operators whose weights are annotated: others have theirs elsewhere."""


@dataclass(frozen=True)
class Division:
    """What annotations divide: groups of matmuls that take one all-reduce, or none; the matmuls in
    them; and the other matmuls with weights, which every rank computes."""

    groups: int
    matmuls: int
    whole: int


def annotate(
    model: ModelProto, devices: int, dims: Mapping[str, int] | None = None, name: str = "",
    in_place: bool = False,
) -> tuple[ModelProto, Division]:  # fmt: skip
    """A copy of a model with a configuration for so many devices, and what it divides.

    dims: sizes of symbolic dims, for which the division is tried; name: of the configuration, by
    default tensor_parallel_N; in_place: the model itself is changed.

    Raises UsageError for a number of devices that is none or a name that is taken, UnsupportedError
    where nothing can be divided, and what importing raises.
    """
    copy = model if in_place else ModelProto()
    if not in_place:
        copy.CopyFrom(model)
    return copy, annotate_model(open_model(copy), devices, dims, name)


def annotate_model(
    opened: Model, devices: int, dims: Mapping[str, int] | None = None, name: str = ""
) -> Division:
    """`annotate` of a model that was read, in place; its weights may be in the file."""
    model = opened.proto
    name = name or f"tensor_parallel_{devices}"
    if devices < 2:
        raise UsageError(f"nothing is to be divided over {devices} devices", hint="give 2 or more")
    if name in {item.name for item in model.configuration}:
        raise UsageError(f"the model has a device configuration {name!r} already")
    protos = _with_names(model)
    weights = opened.mapped.weights if opened.mapped else None
    graph = import_onnx(model, opened.bind(dims or {}), weights=weights)
    found, matmuls = find_pairs(graph, devices)
    pairs = [pair for pair in found if _is_written(pair, protos)]
    if not any(pair.rows for pair in pairs):
        raise UnsupportedError(
            f"no matmuls of the model divide over {devices} devices",
            hint="a pair of MatMul or Gemm with constant weights is wanted, and sizes and heads "
            "that are multiples of the devices",
        )
    for pair in pairs:
        _write(pair, protos, name, devices)
    model.configuration.add(name=name, num_devices=devices)
    model.ir_version = max(model.ir_version, IR_VERSION)
    divided = {node for pair in pairs for node, _ in (*pair.columns, *pair.rows)}
    return Division(len(pairs), len(divided), matmuls - len(divided))


def _with_names(model: ModelProto) -> dict[str, NodeProto]:
    """The nodes by name. Names that are there twice get a number."""
    counts = Counter(node_name(node, number) for number, node in enumerate(model.graph.node))
    found: dict[str, NodeProto] = {}
    for number, node in enumerate(model.graph.node):
        called = node_name(node, number)
        if counts[called] > 1:
            node.name = called = f"{called}_{number}"
        found[called] = node
    return found


def _proto(node: Node, protos: Mapping[str, NodeProto]) -> NodeProto | None:
    return protos.get(node.origin[0]) if node.origin else None


def _is_written(pair: Pair, protos: Mapping[str, NodeProto]) -> bool:
    """Whether annotations can say it: matmuls are nodes, outputs are results of nodes."""
    matmuls = [_proto(node, protos) for node, _ in (*pair.columns, *pair.rows)]
    if not all(proto and proto.op_type in MATMULS and not proto.domain for proto in matmuls):
        return False
    return all(value.node and _proto(value.node, protos) for value, _ in pair.outputs)


def _write(pair: Pair, protos: Mapping[str, NodeProto], name: str, devices: int) -> None:
    def put(node: Node, tensor: str, layout: Layout) -> None:
        proto = _proto(node, protos)
        assert proto is not None
        held = [c for c in proto.device_configurations if c.configuration_id == name]
        item = held[0] if held else proto.device_configurations.add(configuration_id=name)
        if tensor not in {spec.tensor_name for spec in item.sharding_spec}:
            item.sharding_spec.append(spec_of(tensor, layout, devices))

    def weights(node: Node, factors: Axis, of_result: bool) -> None:
        proto = _proto(node, protos)
        assert proto is not None
        turned = any(a.name == "transB" and a.i for a in proto.attribute)
        axes = list(whole(node.inputs[1].shape).axes)
        contracted = node.attrs["rhs_contract"][0]
        axes[1 - contracted if of_result else contracted] = factors
        # What the matmul reads may be the transpose of what the node is given.
        if turned and contracted == 0:
            axes.reverse()
        put(node, proto.input[1], Layout(tuple(axes)))

    for node, factors in pair.columns:
        proto = _proto(node, protos)
        assert proto is not None
        weights(node, factors, True)
        shape = whole(node.output.shape).axes
        put(node, proto.output[0], Layout((*shape[:-1], factors)))
    for node, factors in pair.rows:
        proto = _proto(node, protos)
        assert proto is not None
        weights(node, factors, False)
        put(node, proto.output[0], whole(node.output.shape))
    for value, layout in pair.outputs:
        proto = _proto(value.node, protos) if value.node else None
        if proto is not None and value.node is not None:
            put(value.node, proto.output[value.index], layout)
    for node, value, layout in pair.inputs:
        proto = _proto(node, protos)
        if proto is not None and value.name in proto.input:
            put(node, value.name, layout)


def spec_of(tensor: str, layout: Layout, devices: int) -> ShardingSpecProto:
    """The spec that means a layout."""
    spec = ShardingSpecProto(tensor_name=tensor)
    splits = layout.splits
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(devices):
        groups.setdefault(tuple(split.places[rank] for split in splits), []).append(rank)
    for number, places in enumerate(itertools.product(*(range(s.count) for s in splits))):
        ranks = groups[places]
        if len(ranks) == 1:
            spec.device.append(ranks[0])
        else:
            spec.device.append(-1 - number)
            spec.index_to_device_group_map.add(key=-1 - number, value=ranks)
    for axis, factors in enumerate(layout.axes):
        if any(split for _, split in factors):
            _add_dim(spec, axis, factors)
    return spec


def _add_dim(spec: ShardingSpecProto, axis: int, factors: Sequence[tuple[int, object]]) -> None:
    dim = spec.sharded_dim.add(axis=axis)
    for size, split in factors:
        count = getattr(split, "count", 1)
        block = dim.simple_sharding.add(num_shards=count)
        if len(factors) > 1:
            block.dim_value = size
