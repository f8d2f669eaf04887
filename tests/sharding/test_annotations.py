"""ONNX's multi-device annotations: each wrong kind is named with its node, right ones are
layouts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, ShardingSpecProto, helper, numpy_helper

from fuser.errors import InvalidModelError, UnsupportedError, UsageError
from fuser.frontends.onnx.importer import import_onnx
from fuser.frontends.onnx.sharding.annotations import (
    Configuration,
    Reader,
    check_annotations,
    choose,
    layout_of,
)
from fuser.frontends.onnx.sharding.write import spec_of
from fuser.graph.sharding.layout import Layout, Split, normal
from tests.sharding.ranks import random_layout


def _model() -> ModelProto:
    """y = x [4, 6] @ w [6, 8], w by columns on two devices."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="/up")
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", 1, [4, 6])],
        [helper.make_tensor_value_info("y", 1, [4, 8])],
        [numpy_helper.from_array(np.ones((6, 8), np.float32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 21)])
    model.configuration.add(name="two", num_devices=2)
    note = model.graph.node[0].device_configurations.add(configuration_id="two")
    spec = note.sharding_spec.add(tensor_name="w", device=[0, 1])
    spec.sharded_dim.add(axis=1).simple_sharding.add(num_shards=2)
    return model


def _spec(model: ModelProto) -> ShardingSpecProto:
    return model.graph.node[0].device_configurations[0].sharding_spec[0]


def _note(model: ModelProto) -> object:
    return model.graph.node[0].device_configurations[0]


def _read(model: ModelProto) -> Reader:
    check_annotations(model)
    chosen = choose(model, 2)
    assert chosen is not None
    reader = Reader(chosen)
    import_onnx(model, seen=reader.seen)
    return reader


def test_a_spec_is_a_layout_of_an_operand() -> None:
    marks = _read(_model()).marks
    columns = Layout((normal([(6, None)]), normal([(8, Split(2, (0, 1)))])))
    assert list(marks.uses.values()) == [columns] and not marks.results


Change = Callable[[ModelProto], object]
WRONG: dict[str, tuple[Change, str]] = {
    "unknown configuration": (
        lambda m: setattr(_note(m), "configuration_id", "three"), "the model has not"),
    "twice for a configuration": (
        lambda m: m.graph.node[0].device_configurations.add(configuration_id="two"), "twice"),
    "negative stage": (lambda m: setattr(_note(m), "pipeline_stage", -1), "stage"),
    "unknown tensor": (lambda m: setattr(_spec(m), "tensor_name", "z"), "none of its tensors"),
    "two specs": (lambda m: _note(m).sharding_spec.append(_spec(m)), "two specs"),  # type: ignore[attr-defined]
    "device out of range": (lambda m: _spec(m).device.__setitem__(1, 2), "not among the 2"),
    "device twice": (lambda m: _spec(m).device.__setitem__(1, 0), "two shards"),
    "no such group": (lambda m: _spec(m).device.__setitem__(1, -1), "no group -1"),
    "group with a device's name": (
        lambda m: _spec(m).index_to_device_group_map.add(key=1, value=[1]), "negative"),
    "group twice": (
        lambda m: [_spec(m).index_to_device_group_map.add(key=-1, value=[1]) for _ in "ab"],
        "there twice"),
    "unused group": (
        lambda m: _spec(m).index_to_device_group_map.add(key=-1, value=[1]), "nothing is on"),
    "no axis": (lambda m: _spec(m).sharded_dim[0].ClearField("axis"), "no axis"),
    "axis twice": (lambda m: _spec(m).sharded_dim.append(_spec(m).sharded_dim[0]), "twice"),
    "axis beyond the rank": (lambda m: setattr(_spec(m).sharded_dim[0], "axis", 99), "axis 99"),
    "no shards": (lambda m: _spec(m).sharded_dim[0].ClearField("simple_sharding"), "no number"),
    "zero shards": (
        lambda m: setattr(_spec(m).sharded_dim[0].simple_sharding[0], "num_shards", 0),
        "in 0 shards"),
    "more shards than devices": (
        lambda m: setattr(_spec(m).sharded_dim[0].simple_sharding[0], "num_shards", 4),
        "4 shards on 2"),
    "blocks that are no multiple": (
        lambda m: setattr(_spec(m).sharded_dim[0].simple_sharding[0], "dim_value", 9),
        "would not be equal"),
    "another size": (
        lambda m: setattr(_spec(m).sharded_dim[0].simple_sharding[0], "dim_value", 6), "6 blocks"),
    "axis that does not divide": (
        lambda m: (
            setattr(_spec(m).sharded_dim[0].simple_sharding[0], "num_shards", 3),
            setattr(m.configuration[0], "num_devices", 3), _spec(m).device.append(2)),
        "multiple of 3"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_annotations_are_named_with_their_node(kind: str) -> None:
    model = _model()
    change, words = WRONG[kind]
    change(model)
    with pytest.raises(InvalidModelError, match=words) as caught:
        check_annotations(model)
        chosen = choose(model, model.configuration[0].num_devices)
        assert chosen is not None
        import_onnx(model, seen=Reader(chosen).seen)
    assert "MatMul node /up" in str(caught.value)


CONFIGURATIONS: dict[str, tuple[Change, str]] = {
    "old IR": (lambda m: setattr(m, "ir_version", 10), "IR version 10"),
    "no name": (lambda m: setattr(m.configuration[0], "name", ""), "no name"),
    "one name twice": (lambda m: m.configuration.add(name="two", num_devices=3), "one name"),
    "no devices": (lambda m: setattr(m.configuration[0], "num_devices", 0), "0 devices"),
    "other names": (lambda m: m.configuration[0].device.append("gpu"), "names 1"),
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_wrong_configurations(kind: str) -> None:
    model = _model()
    change, words = CONFIGURATIONS[kind]
    change(model)
    with pytest.raises(InvalidModelError, match=words):
        check_annotations(model)


def test_what_is_right_and_not_executed_says_so() -> None:
    model = _model()
    model.configuration[0].num_devices = 3
    with pytest.raises(UnsupportedError, match="only some of the 3 devices"):
        check_annotations(model)
        import_onnx(model, seen=Reader(Configuration("two", 3)).seen)


def test_a_configuration_is_chosen_by_devices_or_name() -> None:
    model = _model()
    model.configuration.add(name="four", num_devices=4)
    assert choose(model, 4) == choose(model, "four") == Configuration("four", 4)
    with pytest.raises(UsageError, match="no device configuration for 3"):
        choose(model, 3)
    model.configuration.add(name="other", num_devices=2)
    with pytest.raises(UsageError, match="several"):
        choose(model, 2)


def test_specs_of_layouts_mean_them() -> None:
    import random

    rng = random.Random(0)
    for ranks in (2, 3, 4):
        for _ in range(60):
            shape = tuple(rng.choice((1, 4, 6, 12)) for _ in range(rng.randint(0, 3)))
            layout = random_layout(rng, shape, ranks)
            spec = spec_of("x", layout, ranks)
            assert layout_of(spec, shape, ranks, {}, "here") == layout
