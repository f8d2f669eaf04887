"""Models of many nodes of one kind: compiled in time that grows with their number, and right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

import fuser
from fuser import dtypes
from tests.numerics import assert_close


def value(name: str, shape: list[int] | None, kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[NodeProto], inputs: list[ValueInfoProto], outputs: list[str], **held: np.ndarray
) -> ModelProto:
    graph = helper.make_graph(
        nodes, "many", inputs, [value(name, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def branch(node: NodeProto) -> GraphProto:
    return helper.make_graph([node], "branch", [], [value(node.output[0], [4])])


def ifs_in_a_row(count: int) -> ModelProto:
    """Where data decides, both branches are computed, and each reads the value before twice."""
    nodes, last = [], "x"
    for i in range(count):
        taken = branch(helper.make_node("Relu", [last], [f"then{i}"]))
        other = branch(helper.make_node("Neg", [last], [f"else{i}"]))
        nodes.append(
            helper.make_node("If", ["c"], [f"if{i}"], then_branch=taken, else_branch=other)
        )
        last = f"if{i}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    return model(nodes, [value("x", [4]), value("c", [], TensorProto.BOOL)], ["y"])


def nested_ifs(depth: int) -> ModelProto:
    inner = helper.make_node("Relu", ["x"], ["y0"])
    for i in range(1, depth):
        other = branch(helper.make_node("Neg", ["x"], [f"else{i}"]))
        inner = helper.make_node(
            "If", ["c"], [f"y{i}"], then_branch=branch(inner), else_branch=other
        )
    inputs = [value("x", [4]), value("c", [], TensorProto.BOOL)]
    return model([inner], inputs, [f"y{depth - 1}"])


def slices_joined(count: int) -> ModelProto:
    nodes, held = [], {}
    for i in range(count):
        held[f"b{i}"], held[f"e{i}"] = np.array([3 * i]), np.array([3 * i + 3])
        nodes.append(helper.make_node("Slice", ["x", f"b{i}", f"e{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Sin", [f"s{i}"], [f"y{i}"]))
    nodes.append(helper.make_node("Concat", [f"y{i}" for i in range(count)], ["y"], axis=0))
    return model(nodes, [value("x", [3 * count])], ["y"], **held)


def split(count: int) -> ModelProto:
    names = [f"y{i}" for i in range(count)]
    node = helper.make_node("Split", ["x"], names, axis=0, num_outputs=count)
    return model([node], [value("x", [4 * count])], names)


def sums(count: int) -> ModelProto:
    names = [f"y{i}" for i in range(count)]
    nodes = [helper.make_node("Add", ["x", f"c{i}"], [f"y{i}"]) for i in range(count)]
    held = {f"c{i}": np.array([i], np.float32) for i in range(count)}
    return model(nodes, [value("x", [4])], names, **held)


def transposes(count: int) -> ModelProto:
    names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
    nodes = [
        helper.make_node("Transpose", [names[i]], [names[i + 1]], perm=[1, 0]) for i in range(count)
    ]
    return model(nodes, [value("x", [4, 8])], ["y"])


def reshapes(count: int) -> ModelProto:
    names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
    nodes = [
        helper.make_node("Reshape", [names[i], f"s{i % 2}"], [names[i + 1]]) for i in range(count)
    ]
    shapes = {"s0": np.array([8, 4]), "s1": np.array([2, 16])}
    return model(nodes, [value("x", [4, 8])], ["y"], **shapes)


def reshaped_transposes(count: int) -> ModelProto:
    """No two of them are one movement: each mixes the digits of a place further."""
    nodes, last = [], "x"
    for i in range(count):
        nodes.append(helper.make_node("Transpose", [last], [f"t{i}"], perm=[1, 0]))
        nodes.append(helper.make_node("Reshape", [f"t{i}", "shape"], [f"y{i}"]))
        last = f"y{i}"
    return model(nodes, [value("x", [6, 4])], [last], shape=np.array([6, 4]))


def sum_of_many(count: int) -> ModelProto:
    names = [f"x{i}" for i in range(count)]
    return model([helper.make_node("Sum", names, ["y"])], [value(n, [4]) for n in names], ["y"])


def product_of_matrices(count: int) -> ModelProto:
    letters = "abcdefghijklmnopqrstuvwxyz"
    equation = ",".join(letters[i : i + 2] for i in range(count)) + f"->a{letters[count]}"
    names = [f"x{i}" for i in range(count)]
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    return model([node], [value(name, [3, 3]) for name in names], ["y"])


def nested_loops(depth: int) -> ModelProto:
    """The innermost body runs 2 ** depth times."""

    def loop(level: int, state: str) -> NodeProto:
        name = f"{'b' * level}_"
        inner = (
            helper.make_node("Sin", [f"{name}s"], [f"{name}o"])
            if level == depth
            else loop(level + 1, f"{name}s")
        )
        body = helper.make_graph(
            [inner, helper.make_node("Identity", [f"{name}c"], [f"{name}d"])],
            "body",
            [
                value(f"{name}i", [], TensorProto.INT64),
                value(f"{name}c", [], TensorProto.BOOL),
                value(f"{name}s", [4]),
            ],
            [value(f"{name}d", [], TensorProto.BOOL), value(f"{name}o", [4])],
        )
        made = "y" if level == 1 else f"{'b' * (level - 1)}_o"
        return helper.make_node("Loop", ["trips", "", state], [made], body=body)

    return model([loop(1, "x")], [value("x", [4])], ["y"], trips=np.array(2))


@pytest.mark.parametrize(
    ("make", "count", "launches"),
    [
        (transposes, 501, 1),
        (reshapes, 501, 1),
        (reshaped_transposes, 60, 20),
        (sum_of_many, 300, 1),
        (product_of_matrices, 20, 19),
        (nested_loops, 5, 1),
        (ifs_in_a_row, 40, 1),
        (nested_ifs, 20, 1),
        (slices_joined, 130, 3),
        (split, 60, 6),
        (sums, 100, 10),
    ],
)
def test_many_nodes_of_a_kind(
    make: Callable[[int], ModelProto], count: int, launches: int, rng: np.random.Generator
) -> None:
    proto = make(count)
    feeds: dict[str, np.ndarray] = {}
    for given in proto.graph.input:
        tensor = given.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        if tensor.elem_type == TensorProto.BOOL:
            feeds[given.name] = np.array(True)
        else:
            feeds[given.name] = rng.standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    plan = fuser.compile(proto, device="cpu")
    found = plan.run(feeds)
    for output, expected in zip(proto.graph.output, session.run(None, feeds), strict=True):
        assert_close(found[output.name], expected, dtypes.f32)
    assert plan.launches <= launches


def test_a_contraction_of_many_axes(rng: np.random.Generator) -> None:
    """16 axes of 2, 14 of them folded, in the other order in the second operand."""
    letters = "abcdefghijklmnop"
    shape, equation = [2] * 16, f"{letters},{letters[::-1]}->ab"
    node = helper.make_node("Einsum", ["x", "w"], ["y"], equation=equation)
    proto = model([node], [value("x", shape), value("w", shape)], ["y"])
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name in "xw"}
    expected = np.einsum(equation, *(array.astype(np.float64) for array in feeds.values()))
    assert_close(fuser.compile(proto, device="cpu").run(feeds)["y"], expected, dtypes.f32, 2**14)
