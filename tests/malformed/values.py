"""Kinds about sizes and the values of operands: bombs, and operands that no operator accepts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.malformed.kinds import (
    I64,
    INVALID,
    LIMIT,
    UNSUPPORTED,
    info,
    kind,
    model,
    node,
    tensor,
)

HUGE = (INVALID, UNSUPPORTED, LIMIT)


def one(op: str, *operands: Any, shape: Any = (2, 3), opset: int = 18, **attrs: Any) -> ModelProto:
    """y = op(x, constants...)."""
    weights = [tensor(f"w{i}", value) for i, value in enumerate(operands) if value is not None]
    names = [f"w{i}" if value is not None else "" for i, value in enumerate(operands)]
    return model(node(op, ["x", *names], ["y"], **attrs), inputs=[info("x", shape)],
                 initializer=weights, opset=opset)  # fmt: skip


def made_of(op: str, *operands: Any, **attrs: Any) -> ModelProto:
    """y = x + op(constants...)[0]."""
    weights = [tensor(f"w{i}", value) for i, value in enumerate(operands)]
    made = node(op, [w.name for w in weights], ["big"], **attrs)
    total = node("ReduceMax", ["big"], ["top"], keepdims=0)
    floats = node("Cast", ["top"], ["scalar"], to=TensorProto.FLOAT)
    return model(made, total, floats, node("Add", ["x", "scalar"], ["y"]), initializer=weights)


# bombs --------------------------------------------------------------------------------------------


@kind(*HUGE)
def bomb_constant_of_shape(folder: Path) -> ModelProto:
    return made_of("ConstantOfShape", np.array([1 << 20, 1 << 20, 1 << 10]))


@kind(*HUGE)
def bomb_random(folder: Path) -> ModelProto:
    return model(node("RandomNormal", [], ["y"], shape=[1 << 20, 1 << 20]), inputs=[])


@kind(*HUGE)
def bomb_range(folder: Path) -> ModelProto:
    return made_of("Range", np.int64(0), np.int64(1 << 50), np.int64(1))


@kind(*HUGE)
def bomb_expand(folder: Path) -> ModelProto:
    return one("Expand", np.array([1 << 20, 1 << 20, 2, 3]))


@kind(*HUGE)
def bomb_tile(folder: Path) -> ModelProto:
    return one("Tile", np.array([1 << 24, 1 << 24]))


@kind(*HUGE)
def bomb_tile_of_a_constant(folder: Path) -> ModelProto:
    return made_of("Tile", np.ones((2, 3), np.float32), np.array([1 << 24, 1 << 24]))


@kind(*HUGE)
def bomb_pad(folder: Path) -> ModelProto:
    return one("Pad", np.array([0, 1 << 40, 0, 1 << 40]))


@kind(*HUGE)
def bomb_resize(folder: Path) -> ModelProto:
    return one("Resize", None, np.array([1, 1, 1e9, 1e9], np.float32), shape=(1, 1, 4, 4))


@kind(*HUGE)
def bomb_one_hot(folder: Path) -> ModelProto:
    call = node("OneHot", ["x", "w0", "w1"], ["y"])
    weights = [tensor("w0", np.int64(1 << 45)), tensor("w1", np.array([0, 1], np.float32))]
    return model(call, inputs=[info("x", (4,), I64)], initializer=weights)


@kind(*HUGE)
def bomb_outer_product(folder: Path) -> ModelProto:
    steps = [node("Mul", ["x", "w"], ["a0"], label="m")]
    for i in range(12):
        steps.append(node("Unsqueeze", [f"a{i}", "last"], [f"b{i}"], label=f"u{i}"))
        steps.append(node("Mul", [f"b{i}", "w"], [f"a{i + 1}"], label=f"m{i}"))
    steps.append(node("Identity", ["a12"], ["y"]))
    weights = [tensor("w", np.ones(100, np.float32)), tensor("last", np.array([-1]))]
    return model(*steps, inputs=[info("x", (100,))], initializer=weights)


@kind(*HUGE)
def bomb_doubled_constants(folder: Path) -> ModelProto:
    """Each concat doubles a constant: 2**60 bytes in the end."""
    steps = [node("Concat", ["w", "w"], ["c0"], axis=0, label="c")]
    steps += [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0, label=f"c{i}")
              for i in range(55)]  # fmt: skip
    steps += [node("ReduceSum", ["c55"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])]
    return model(*steps, initializer=[tensor("w", np.ones(8, np.float32))])


@kind(*HUGE)
def bomb_input(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", (1 << 30, 1 << 30))])


@kind(*HUGE)
def bomb_input_that_wraps(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", (1 << 62, 1 << 62))])


@kind(*HUGE)
def bomb_split_into_many(folder: Path) -> ModelProto:
    names = [f"y{i}" for i in range(20000)]
    call = node("Split", ["x"], names, num_outputs=len(names), axis=1)
    return model(call, inputs=[info("x", (1 << 20, len(names)))],
                 outputs=[info(name, None) for name in names[:2]])  # fmt: skip


@kind(*HUGE)
def bomb_convolution(folder: Path) -> ModelProto:
    call = node("Conv", ["x", "w"], ["y"], pads=[1 << 30] * 4)
    weight = tensor("w", np.ones((1, 1, 1, 1), np.float32))
    return model(call, inputs=[info("x", (1, 1, 4, 4))], initializer=[weight])


@kind(0, *HUGE)
def bomb_unique_dims(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", ["(" * 5000 + "n" + ")" * 5000])])


@kind(0, *HUGE)
def bomb_dim_name(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", ["*".join(["(a+b+c+d)"] * 12)])])


@kind(0, *HUGE)
def bomb_dim_power(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", ["9**9**9"])])


@kind(0, *HUGE)
def bomb_dim_sum(folder: Path) -> ModelProto:
    return model(node("Relu", ["x"], ["y"]), inputs=[info("x", ["+".join(["a"] * 20000)])])


@kind(0, *HUGE)
def chain_of_shape_arithmetic(folder: Path) -> ModelProto:
    """Five thousand additions between a constant and the shape that it becomes."""
    steps = [node("Shape", ["x"], ["s0"], label="s")]
    steps += [node("Add", [f"s{i}", "zero"], [f"s{i + 1}"], label=f"a{i}") for i in range(5000)]
    steps.append(node("Reshape", ["x", "s5000"], ["y"]))
    zero = tensor("zero", np.zeros(2, int))
    return model(*steps, inputs=[info("x", ["n", "m"])], initializer=[zero])


@kind(0, *HUGE)
def chain_of_many_nodes(folder: Path) -> ModelProto:
    names = ["x", *(f"t{i}" for i in range(2000)), "y"]
    return model(*(node("Sin", [a], [b], label=b) for a, b in pairwise(names)))


# operands -----------------------------------------------------------------------------------------


@kind()
def reshape_to_another_size(folder: Path) -> ModelProto:
    return one("Reshape", np.array([4, 4]))


@kind()
def reshape_with_two_unknowns(folder: Path) -> ModelProto:
    return one("Reshape", np.array([-1, -1]))


@kind()
def reshape_to_a_negative_size(folder: Path) -> ModelProto:
    return one("Reshape", np.array([-7, 6]))


@kind()
def expand_that_does_not_fit(folder: Path) -> ModelProto:
    return one("Expand", np.array([5, 7]))


@kind()
def product_of_unequal_depth(folder: Path) -> ModelProto:
    return one("MatMul", np.ones((4, 2), np.float32))


@kind()
def sum_of_unequal_shapes(folder: Path) -> ModelProto:
    return one("Add", np.ones((2, 4), np.float32))


@kind()
def concat_of_unequal_ranks(folder: Path) -> ModelProto:
    return one("Concat", np.ones((2, 3, 1), np.float32), axis=1)


@kind()
def split_into_another_sum(folder: Path) -> ModelProto:
    return one("Split", np.array([1, 4]), axis=1)


@kind()
def slice_without_a_step(folder: Path) -> ModelProto:
    return one("Slice", np.array([0]), np.array([2]), np.array([1]), np.array([0]))


@kind()
def slice_along_an_axis_twice(folder: Path) -> ModelProto:
    return one("Slice", np.array([0, 1]), np.array([2, 2]), np.array([1, 1]))


@kind(0)  # reads nothing there; an index may be an input as well
def gather_beyond_the_end(folder: Path) -> ModelProto:
    return one("Gather", np.array([9]), axis=0)


@kind()
def tile_a_negative_number_of_times(folder: Path) -> ModelProto:
    return one("Tile", np.array([-1, 2]))


@kind()
def pad_below_nothing(folder: Path) -> ModelProto:
    return one("Pad", np.array([-9, 0, 0, 0]))


@kind()
def top_k_of_too_many(folder: Path) -> ModelProto:
    made = one("TopK", np.array([9]), axis=1)
    made.graph.node[0].output.append("z")
    return made


def conv(**attrs: Any) -> ModelProto:
    call = node("Conv", ["x", "w"], ["y"], **attrs)
    weight = tensor("w", np.ones((4, 2, 3, 3), np.float32))
    return model(call, inputs=[info("x", (1, 2, 8, 8))], initializer=[weight])


@kind()
def convolution_without_a_stride(folder: Path) -> ModelProto:
    return conv(strides=[0, 1])


@kind()
def convolution_with_a_negative_stride(folder: Path) -> ModelProto:
    return conv(strides=[-1, 1])


@kind()
def convolution_without_a_dilation(folder: Path) -> ModelProto:
    return conv(dilations=[0, 1])


@kind()
def convolution_of_no_groups(folder: Path) -> ModelProto:
    return conv(group=0)


@kind()
def convolution_of_negative_groups(folder: Path) -> ModelProto:
    return conv(group=-1)


@kind()
def convolution_of_too_many_groups(folder: Path) -> ModelProto:
    return conv(group=3)


@kind()
def convolution_with_another_kernel(folder: Path) -> ModelProto:
    return conv(kernel_shape=[5, 5])


@kind()
def convolution_with_too_few_pads(folder: Path) -> ModelProto:
    return conv(pads=[1, 1])


@kind()
def pool_of_no_size(folder: Path) -> ModelProto:
    return one("MaxPool", shape=(1, 2, 8, 8), kernel_shape=[0, 2])


@kind()
def pool_of_the_wrong_rank(folder: Path) -> ModelProto:
    return one("MaxPool", shape=(1, 2, 8, 8), kernel_shape=[2])


@kind()
def einsum_that_is_none(folder: Path) -> ModelProto:
    return one("Einsum", equation="ij,jk->->ik")


@kind()
def einsum_of_too_many(folder: Path) -> ModelProto:
    return one("Einsum", equation="ij,jk->ik")


@kind()
def range_without_a_step(folder: Path) -> ModelProto:
    return made_of("Range", np.int64(0), np.int64(9), np.int64(0))


@kind()
def depth_to_space_that_does_not_divide(folder: Path) -> ModelProto:
    return one("DepthToSpace", shape=(1, 5, 2, 2), blocksize=2)


@kind()
def quantised_by_a_float(folder: Path) -> ModelProto:
    return one("QuantizeLinear", np.float32(1), np.float32(0))


@kind()
def normalised_by_the_wrong_scale(folder: Path) -> ModelProto:
    return one("LayerNormalization", np.ones(5, np.float32))


@kind()
def lstm_of_another_width(folder: Path) -> ModelProto:
    return one("LSTM", np.ones((1, 16, 9), np.float32), np.ones((1, 16, 4), np.float32),
               shape=(5, 2, 3), hidden_size=4)  # fmt: skip


@kind()
def sparse_weight_out_of_range(folder: Path) -> ModelProto:
    made = model(node("Add", ["x", "w"], ["y"]))
    sparse = helper.make_sparse_tensor(
        tensor("w", np.ones(2, np.float32)), tensor("", np.array([0, 99])), [2, 3]
    )
    made.graph.sparse_initializer.append(sparse)
    return made


@kind()
def control_characters_in_a_name(folder: Path) -> ModelProto:
    return model(node("Add", ["x", "no\nway\x1b[31m\r"], ["y"]))


@kind()
def a_name_of_a_million_letters(folder: Path) -> ModelProto:
    return model(node("Add", ["x", "n" * 1_000_000], ["y"]))
