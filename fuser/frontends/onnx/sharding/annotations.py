"""The multi-device annotations of ONNX (IR version 11), checked and as layouts.

A model names its configurations (how many devices); a node says for a configuration how its
tensors are divided. onnx.checker looks at none of it, so everything is checked here: what is wrong
is an InvalidModelError that names the node, what is right and not executed an UnsupportedError.

    sharding_spec: tensor "w", device [0, 1], axis 1 in 2 shards      device 0 has the first columns
    device [-1, -2], -1 -> [0, 1], -2 -> [2, 3]                       shards with a copy
    axis 1: 3 blocks in 1 shard, 4 blocks in 2                        Q, K and V side by side

Source: onnx.proto (MultiDeviceConfiguration), docs/proposals/ShardingFormalism.md of ONNX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from onnx import ModelProto, NodeProto, ShardedDimProto, ShardingSpecProto

from fuser.errors import InvalidModelError, UnsupportedError, UsageError
from fuser.graph.ir import Graph, Value
from fuser.graph.ops.registry import build
from fuser.graph.sharding.layout import Layout, Split, independent, normal, whole
from fuser.graph.sharding.wishes import Marks

IR_VERSION = 11
"""The first that has configurations."""


@dataclass(frozen=True)
class Configuration:
    """A set of devices that a model is annotated for."""

    name: str
    devices: int


def configurations(model: ModelProto) -> list[Configuration]:
    """Those of a model. Raises InvalidModelError."""
    found: dict[str, Configuration] = {}
    for item in model.configuration:
        where = f"device configuration {item.name!r}"
        if model.ir_version < IR_VERSION:
            raise InvalidModelError(
                f"IR version {model.ir_version} has no device configurations", where=where,
                hint=f"they came with version {IR_VERSION}",
            )  # fmt: skip
        if not item.name:
            raise InvalidModelError("a device configuration has no name")
        if item.name in found:
            raise InvalidModelError("two device configurations have one name", where=where)
        if item.num_devices < 1:
            raise InvalidModelError(f"it has {item.num_devices} devices", where=where)
        if item.device and len(item.device) != item.num_devices:
            what = f"it has {item.num_devices} devices and names {len(item.device)}"
            raise InvalidModelError(what, where=where)
        found[item.name] = Configuration(item.name, item.num_devices)
    return list(found.values())


def choose(model: ModelProto, devices: int | str) -> Configuration | None:
    """The configuration of that name, or for so many devices; None where the model has none at
    all. Raises UsageError, InvalidModelError."""
    found = configurations(model)
    if isinstance(devices, int) and devices < 1:
        raise UsageError(f"there cannot be {devices} devices")
    fits = [c for c in found if devices in (c.name, c.devices)]
    if len(fits) == 1:
        return fits[0]
    listed = ", ".join(f"{c.name!r} ({c.devices} devices)" for c in found)
    if fits:
        raise UsageError(f"several configurations are for {devices} devices", hint=listed)
    if found or isinstance(devices, str):
        raise UsageError(
            f"the model has no device configuration for {devices}",
            hint=f"it has: {listed}" if listed else "it has none: give a number of devices",
        )
    return None


def check_annotations(model: ModelProto) -> None:
    """Everything that can be told without the shapes of tensors, for all configurations. Raises
    InvalidModelError."""
    known = {c.name: c for c in configurations(model)}
    for number, node in enumerate(model.graph.node):
        where = _where(node, number)
        met = Counter(item.configuration_id for item in node.device_configurations)
        for item in node.device_configurations:
            name = item.configuration_id
            if name not in known:
                what = f"it is annotated for the configuration {name!r}, which the model has not"
                raise InvalidModelError(what, where=where)
            if met[name] > 1:
                raise InvalidModelError(f"it is annotated twice for {name!r}", where=where)
            if item.pipeline_stage < 0:
                raise InvalidModelError(f"its stage is {item.pipeline_stage}", where=where)
            tensors = Counter(spec.tensor_name for spec in item.sharding_spec)
            for spec in item.sharding_spec:
                if not spec.tensor_name or spec.tensor_name not in (*node.input, *node.output):
                    what = f"the spec of {spec.tensor_name!r} is for none of its tensors"
                    raise InvalidModelError(what, where=where)
                if tensors[spec.tensor_name] > 1:
                    raise InvalidModelError(f"two specs of {spec.tensor_name!r}", where=where)
                try:
                    _check_spec(spec, known[name].devices)
                except InvalidModelError as error:
                    error.where = f"{where}, spec of {spec.tensor_name!r}"
                    raise


def _where(node: NodeProto, number: int) -> str:
    return f"{node.op_type} node {node.name or next(iter(node.output), number)}"


def _check_spec(spec: ShardingSpecProto, devices: int) -> None:
    _device_groups(spec, devices)
    axes = [dim.axis for dim in spec.sharded_dim]
    if len(set(axes)) < len(axes):
        raise InvalidModelError(f"an axis of {axes} is divided twice")
    for dim in spec.sharded_dim:
        if not dim.HasField("axis"):
            raise InvalidModelError("a divided dim has no axis")
        if not dim.simple_sharding:
            raise InvalidModelError(f"axis {dim.axis} has no number of shards")
        for factor in dim.simple_sharding:
            if factor.num_shards < 1:
                raise InvalidModelError(f"axis {dim.axis} is in {factor.num_shards} shards")
            if factor.HasField("dim_value") and factor.dim_value % factor.num_shards:
                what = f"{factor.dim_value} blocks of axis {dim.axis} in {factor.num_shards} shards"
                raise InvalidModelError(f"{what}: they would not be equal")
    shards = prod(factor.num_shards for dim in spec.sharded_dim for factor in dim.simple_sharding)
    if spec.sharded_dim and shards != len(spec.device):
        raise InvalidModelError(f"{shards} shards on {len(spec.device)} devices or groups")


def _device_groups(spec: ShardingSpecProto, devices: int) -> list[tuple[int, ...]]:
    """The devices of each shard. Raises InvalidModelError."""
    groups: dict[int, tuple[int, ...]] = {}
    for entry in spec.index_to_device_group_map:
        if entry.key >= 0:
            raise InvalidModelError(f"{entry.key} cannot name a group: names are negative")
        if entry.key in groups:
            raise InvalidModelError(f"the group {entry.key} is there twice")
        groups[entry.key] = tuple(entry.value)
    found = []
    for index in spec.device:
        if index < 0 and index not in groups:
            raise InvalidModelError(f"there is no group {index} of devices")
        found.append(groups[index] if index < 0 else (index,))
    if unused := sorted(set(groups) - set(spec.device)):
        raise InvalidModelError(f"nothing is on the group {unused[0]} of devices")
    flat = [device for group in found for device in group]
    for device in flat:
        if not 0 <= device < devices:
            raise InvalidModelError(f"device {device} is not among the {devices}")
    if len(set(flat)) < len(flat):
        raise InvalidModelError(f"a device of {flat} has two shards")
    if len({len(group) for group in found}) > 1 or not all(found):
        raise InvalidModelError("groups of devices differ in size")
    return found


@dataclass
class Reader:
    """Turns the annotations of a configuration into marks, while the model is imported: `seen` is
    for `import_onnx`. dims: sizes of symbolic dims."""

    configuration: Configuration
    dims: Mapping[str, int] = field(default_factory=dict)
    marks: Marks = field(init=False)
    stages: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.marks = Marks(self.configuration.devices)

    def seen(
        self, node: NodeProto, name: str, graph: Graph, first: int,
        values: MutableMapping[str, Value],
    ) -> None:  # fmt: skip
        for spec in self._specs(node, name):
            tensor = spec.tensor_name
            value = values[tensor]
            where = f"{node.op_type} node {name}, spec of {tensor!r}"
            layout = layout_of(spec, value.shape, self.configuration.devices, self.dims, where)
            made = graph.nodes[first:]
            if tensor in node.output:
                if value.node not in made:  # the node does nothing: its result gets a place
                    value = values[tensor] = build(
                        graph, "reshape", value, origin=(name,), shape=value.shape
                    )
                self.marks.results[value] = layout
            else:
                for reader in made:
                    if value in reader.inputs:
                        self.marks.uses[reader, value] = layout

    def _specs(self, node: NodeProto, name: str) -> Iterator[ShardingSpecProto]:
        for item in node.device_configurations:
            if item.configuration_id == self.configuration.name:
                if item.HasField("pipeline_stage"):
                    self.stages.add(item.pipeline_stage)
                if len(self.stages) > 1:
                    raise UnsupportedError(
                        "pipeline stages are not executed", where=f"{node.op_type} node {name}",
                        hint="annotate one stage, or none",
                    )  # fmt: skip
                yield from item.sharding_spec


def layout_of(
    spec: ShardingSpecProto, shape: Sequence[int], devices: int, dims: Mapping[str, int], where: str
) -> Layout:
    """The layout that a spec means for a tensor of that shape. Raises InvalidModelError,
    UnsupportedError for tensors that only some devices have."""
    groups = _device_groups(spec, devices)
    if spec.device and sum(map(len, groups)) != devices:
        raise UnsupportedError(
            f"only some of the {devices} devices have the tensor", where=where,
            hint="let the spec name all of them, in groups of copies",
        )  # fmt: skip
    rank_of = {device: number for number, group in enumerate(groups) for device in group}
    axes = list(whole(shape).axes)
    counts = [f.num_shards for dim in spec.sharded_dim for f in dim.simple_sharding]
    step, splits = prod(counts), []
    for count in counts:  # shards are numbered row-major, in the order of the spec
        step //= count
        splits.append(Split(count, tuple(rank_of[r] // step % count for r in range(devices))))
    if splits and not independent(splits):
        raise InvalidModelError("the shards are not spread evenly", where=where)
    pending = iter(splits)
    met = set()
    for dim in spec.sharded_dim:
        if not -len(shape) <= dim.axis < len(shape):
            raise InvalidModelError(f"axis {dim.axis} of a tensor {list(shape)}", where=where)
        axis = dim.axis % len(shape)
        if axis in met:
            raise InvalidModelError(f"axis {axis} is divided twice", where=where)
        met.add(axis)
        sizes = _blocks(dim, shape[axis], dims, where)
        factors = []
        for size, factor in zip(sizes, dim.simple_sharding, strict=True):
            split = next(pending)
            if size % factor.num_shards:
                what = f"axis {axis} of {list(shape)} is no multiple of {factor.num_shards} shards"
                raise InvalidModelError(what, where=where)
            factors.append((size, split if split.count > 1 else None))
        axes[axis] = normal(factors)
    return Layout(tuple(axes))


def _blocks(dim: ShardedDimProto, size: int, dims: Mapping[str, int], where: str) -> list[int]:
    """The factors of an axis. One that is not told is what the others leave."""
    found: list[int | None] = []
    for factor in dim.simple_sharding:
        told: Any = factor.dim_value if factor.HasField("dim_value") else None
        if factor.HasField("dim_param") and factor.dim_param:
            told = dims.get(factor.dim_param)
        found.append(told)
    known = prod(item for item in found if item is not None)
    open_ones = found.count(None)
    if open_ones > 1 or known < 1 or size % known or (not open_ones and known != size):
        shown = " x ".join("?" if item is None else str(item) for item in found)
        raise InvalidModelError(f"axis {dim.axis} of {size} is no {shown} blocks", where=where)
    return [size // known if item is None else item for item in found]
