"""Kinds about structure: names, order, operators, attributes, functions, subgraphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, ModelProto, TensorProto, helper

from tests.malformed.kinds import (
    F32,
    I64,
    INVALID,
    LIMIT,
    UNSUPPORTED,
    body,
    info,
    kind,
    model,
    node,
    relu,
    tensor,
)

BOOL = TensorProto.BOOL


@kind()
def cycle(folder: Path) -> ModelProto:
    return model(node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]),
                 node("Neg", ["b"], ["y"]))  # fmt: skip


@kind()
def node_that_reads_itself(folder: Path) -> ModelProto:
    return model(node("Add", ["x", "y"], ["y"]))


@kind()
def nodes_out_of_order(folder: Path) -> ModelProto:
    return model(node("Neg", ["a"], ["y"]), node("Relu", ["x"], ["a"]))


@kind()
def two_results_of_one_name(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"]))


@kind()
def result_named_like_an_input(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["x"]), outputs=[info("x")])


@kind()
def two_inputs_of_one_name(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x"), info("x")])


@kind()
def two_weights_of_one_name(folder: Path) -> ModelProto:
    weights = [tensor("w", np.ones((2, 3), np.float32)), tensor("w", np.zeros(3, np.float32))]
    return model(node("Add", ["x", "w"], ["y"]), initializer=weights)


@kind()
def two_outputs_of_one_name(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), outputs=[info("y"), info("y")])


@kind()
def output_that_nothing_computes(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["z"]))


@kind()
def operand_that_nothing_computes(folder: Path) -> ModelProto:
    return model(node("Add", ["x", "nowhere"], ["y"]))


@kind(0)
def no_outputs(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), outputs=[])


@kind()
def nameless_input(folder: Path) -> ModelProto:
    return model(node("Relu", [""], ["y"]), inputs=[info("")])


@kind()
def unknown_operator(folder: Path) -> ModelProto:
    return model(node("Frobnicate", ["x"], ["y"]))


@kind(UNSUPPORTED)
def unknown_domain(folder: Path) -> ModelProto:
    return model(node("Frobnicate", ["x"], ["y"], domain="local"))


@kind()
def domain_that_is_not_imported(folder: Path) -> ModelProto:
    return model(node("Frobnicate", ["x"], ["y"], domain="elsewhere"))


@kind(INVALID, UNSUPPORTED)
def opset_999(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), opset=999)


@kind()
def opset_0(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), opset=0)


@kind()
def negative_opset(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), opset=-5)


@kind()
def no_opset(folder: Path) -> ModelProto:
    made = relu()
    del made.opset_import[:]
    return made


@kind()
def two_opsets(folder: Path) -> ModelProto:
    made = relu()
    made.opset_import.add(domain="", version=7)
    return made


@kind()
def two_opsets_by_alias(folder: Path) -> ModelProto:
    made = relu()
    made.opset_import.add(domain="ai.onnx", version=7)
    return made


@kind(INVALID, UNSUPPORTED)
def ir_version_999(folder: Path) -> ModelProto:
    made = relu()
    made.ir_version = 999
    return made


@kind()
def too_few_operands(folder: Path) -> ModelProto:
    return model(node("Add", ["x"], ["y"]))


@kind()
def too_many_operands(folder: Path) -> ModelProto:
    return model(node("Relu", ["x", "x", "x"], ["y"]))


@kind()
def required_operand_left_out(folder: Path) -> ModelProto:
    return model(node("Add", ["x", ""], ["y"]))


@kind()
def too_many_results(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y", "z"]))


@kind()
def attribute_of_the_wrong_type(folder: Path) -> ModelProto:
    return model(node("Softmax", ["x"], ["y"], axis="last"))


@kind()
def attribute_that_says_another_type(folder: Path) -> ModelProto:
    made = model(node("Softmax", ["x"], ["y"], axis=1))
    made.graph.node[0].attribute[0].type = AttributeProto.FLOATS
    return made


@kind()
def unknown_attribute(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"], beta=1.0))


@kind()
def missing_attribute(folder: Path) -> ModelProto:
    return model(node("Cast", ["x"], ["y"]))


@kind()
def attribute_twice(folder: Path) -> ModelProto:
    made = model(node("Softmax", ["x"], ["y"], axis=1))
    made.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    return made


@kind()
def reference_to_an_attribute_outside_a_function(folder: Path) -> ModelProto:
    made = model(node("Softmax", ["x"], ["y"]))
    made.graph.node[0].attribute.add(name="axis", ref_attr_name="a", type=AttributeProto.INT)
    return made


@kind()
def axis_out_of_range(folder: Path) -> ModelProto:
    return model(node("Softmax", ["x"], ["y"], axis=7))


@kind()
def permutation_that_is_none(folder: Path) -> ModelProto:
    return model(node("Transpose", ["x"], ["y"], perm=[0, 0]))


@kind(INVALID, UNSUPPORTED)
def string_where_a_float_belongs(folder: Path) -> ModelProto:
    word = helper.make_tensor("w", TensorProto.STRING, [2, 3], [b"a"] * 6)
    return model(node("Add", ["x", "w"], ["y"]), initializer=[word])


@kind()
def integers_where_floats_belong(folder: Path) -> ModelProto:
    return model(node("Add", ["x", "w"], ["y"]), initializer=[tensor("w", np.ones((2, 3), int))])


@kind()
def output_of_another_type(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), outputs=[info("y", (2, 3), I64)])


@kind(0)
def output_of_another_shape(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), outputs=[info("y", (5, 7))])


@kind(0)
def output_of_another_rank(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), outputs=[info("y", (2, 3, 1))])


@kind()
def unknown_element_type(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", (2, 3), 77)])


@kind()
def no_element_type(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", (2, 3), 0)])


@kind()
def cast_to_nothing(folder: Path) -> ModelProto:
    return model(node("Cast", ["x"], ["y"], to=99))


@kind()
def input_of_a_negative_size(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", (-5, 3))])


# functions ----------------------------------------------------------------------------------------


def function(name: str, *calls: Any, opset: int = 18) -> FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], list(calls), imports)


@kind()
def function_that_calls_itself(folder: Path) -> ModelProto:
    made = function("F", node("F", ["a"], ["b"], domain="local"))
    return model(node("F", ["x"], ["y"], domain="local"), functions=[made])


@kind()
def functions_that_call_each_other(folder: Path) -> ModelProto:
    one = function("F", node("G", ["a"], ["b"], domain="local"))
    two = function("G", node("F", ["a"], ["b"], domain="local"))
    return model(node("F", ["x"], ["y"], domain="local"), functions=[one, two])


def _tower(levels: int, calls: int) -> ModelProto:
    made = [function("F0", node("Relu", ["a"], ["b"]))]
    for level in range(1, levels):
        names = ["a", *(f"t{i}" for i in range(calls - 1)), "b"]
        made.append(
            function(
                f"F{level}",
                *(node(f"F{level - 1}", [names[i]], [names[i + 1]], domain="local", label=f"c{i}")
                  for i in range(calls)),
            )
        )  # fmt: skip
    call = node(f"F{levels - 1}", ["x"], ["y"], domain="local")
    return model(call, functions=made)


@kind(LIMIT)
def functions_that_double(folder: Path) -> ModelProto:
    return _tower(40, 2)


@kind(LIMIT)
def functions_that_multiply(folder: Path) -> ModelProto:
    return _tower(7, 20)


@kind(LIMIT)
def functions_in_a_long_chain(folder: Path) -> ModelProto:
    return _tower(5000, 1)


@kind()
def two_functions_of_one_name(folder: Path) -> ModelProto:
    made = [function("F", node("Relu", ["a"], ["b"])), function("F", node("Neg", ["a"], ["b"]))]
    return model(node("F", ["x"], ["y"], domain="local"), functions=made)


@kind()
def function_with_an_unknown_operator(folder: Path) -> ModelProto:
    made = function("F", node("Frobnicate", ["a"], ["b"]))
    return model(node("F", ["x"], ["y"], domain="local"), functions=[made])


@kind()
def function_that_reads_outside(folder: Path) -> ModelProto:
    made = function("F", node("Add", ["a", "x"], ["b"]))
    return model(node("F", ["x"], ["y"], domain="local"), functions=[made])


# subgraphs ----------------------------------------------------------------------------------------


def _branch(*outputs: str, op: str = "Relu", reads: str = "x") -> Any:
    nodes = [node(op, [reads], [name], label=name) for name in outputs]
    return body(*nodes, inputs=[], outputs=[info(name) for name in outputs])


def _if(then: Any, other: Any, condition: Any = True) -> ModelProto:
    branch = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return model(branch, initializer=[tensor("c", condition)])


@kind()
def branch_that_reads_what_is_not(folder: Path) -> ModelProto:
    return _if(_branch("a", reads="nowhere"), _branch("b"))


@kind()
def branch_that_reads_the_other(folder: Path) -> ModelProto:
    return _if(_branch("a", reads="b"), _branch("b"))


@kind()
def branches_of_unequal_length(folder: Path) -> ModelProto:
    return _if(_branch("a", "c2"), _branch("b"))


@kind()
def condition_that_is_no_bool(folder: Path) -> ModelProto:
    return _if(_branch("a"), _branch("b"), np.float32(1))


@kind()
def branch_that_is_missing(folder: Path) -> ModelProto:
    branch = node("If", ["c"], ["y"], then_branch=_branch("a"))
    return model(branch, initializer=[tensor("c", True)])


@kind(INVALID, UNSUPPORTED)
def ten_thousand_nested_branches(folder: Path) -> bytes:
    """Written by hand: protobuf's own writer gives up on such a depth."""

    def field(number: int, data: bytes) -> bytes:
        size, length = b"", len(data)
        while True:
            size += bytes([length & 127 | (128 if length > 127 else 0)])
            length >>= 7
            if not length:
                return bytes([number << 3 | 2]) + size + data

    made = model(node("Relu", ["x"], ["y"]))
    inner = _branch("a").SerializeToString()
    plain = inner
    for _ in range(10_000):
        attributes = b"".join(
            field(5, field(1, name) + field(6, graph) + bytes([20 << 3 & 127 | 128, 1, 5]))
            for name, graph in ((b"then_branch", inner), (b"else_branch", plain))
        )
        call = field(1, b"c") + field(2, b"a") + field(4, b"If") + attributes
        inner = field(1, call) + field(2, b"body") + field(12, info("a").SerializeToString())
        if len(inner) > 1_000_000:
            break
    graph = field(1, field(1, b"x") + field(2, b"y") + field(4, b"Relu")) + field(2, b"g")
    del made.graph.node[:]
    return made.SerializeToString() + field(7, graph + inner)


def _nested(depth: int) -> ModelProto:
    inner = _branch("a")
    for _ in range(depth):
        branch = node("If", ["c"], ["a"], then_branch=inner, else_branch=_branch("a"))
        inner = body(branch, inputs=[], outputs=[info("a")])
    return _if(inner, _branch("b"))


@kind(0, INVALID, UNSUPPORTED)
def thirty_nested_branches(folder: Path) -> ModelProto:
    return _nested(30)


def loop(trips: Any, *, going: str = "on", body_nodes: Any = (), extra: Any = ()) -> ModelProto:
    """y = x, relu of relu of ..., `trips` times."""
    inner = body(
        *body_nodes, node("Identity", [going], ["on2"], label="i"),
        node("Relu", ["s"], ["s2"], label="r"),
        inputs=[info("n", (), I64), info("on", (), BOOL), info("s")],
        outputs=[info("on2", (), BOOL), info("s2")],
    )  # fmt: skip
    given = [] if trips is None else [tensor("trips", np.int64(trips))]
    name = "" if trips is None else "trips"
    call = node("Loop", [name, "", "x"], ["y"], body=inner)
    return model(*extra, call, initializer=given)


@kind(LIMIT)
def endless_loop(folder: Path) -> ModelProto:
    return loop(None)


@kind(LIMIT)
def loop_of_very_many_trips(folder: Path) -> ModelProto:
    return loop(2**63 - 1)


@kind()
def loop_that_reads_what_is_not(folder: Path) -> ModelProto:
    return loop(3, body_nodes=[node("Neg", ["nowhere"], ["q"])])


@kind()
def loop_body_with_too_few_inputs(folder: Path) -> ModelProto:
    made = loop(3)
    del made.graph.node[0].attribute[0].g.input[2:]
    return made


@kind(LIMIT)
def loops_in_loops(folder: Path) -> ModelProto:
    """1000 trips, six deep."""
    inner: Any = node("Relu", ["s"], ["s2"], label="r")
    for level in range(6):
        inside = body(
            inner, node("Identity", ["on"], ["on2"], label="i"),
            inputs=[info("n", (), I64), info("on", (), BOOL), info("s")],
            outputs=[info("on2", (), BOOL), info("s2")],
        )  # fmt: skip
        inner = node("Loop", ["trips", "", "s" if level < 5 else "x"],
                     ["s2" if level < 5 else "y"], body=inside)  # fmt: skip
    return model(inner, initializer=[tensor("trips", np.int64(1000))])


@kind()
def scan_of_unequal_lengths(folder: Path) -> ModelProto:
    inside = body(node("Add", ["a", "b"], ["c"]), inputs=[info("a", (3,)), info("b", (3,))],
                  outputs=[info("c", (3,))])  # fmt: skip
    call = node("Scan", ["x", "w"], ["y"], body=inside, num_scan_inputs=2)
    return model(call, initializer=[tensor("w", np.ones((5, 3), np.float32))])


__all__ = ["F32"]
