"""Valid models of one operator each, for `corruptions.py` to spoil."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper


def base(op: str, *operands: Any, outputs: int = 1, opset: int = 22, **attrs: Any) -> ModelProto:
    """A node of these operands: a tuple is the shape of an input, an array a weight, None is left
    out."""
    names, inputs, weights = [], [], []
    for index, operand in enumerate(operands):
        name = f"i{index}" if operand is not None else ""
        names.append(name)
        if isinstance(operand, tuple):
            inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, operand))
        elif operand is not None:
            weights.append(numpy_helper.from_array(np.asarray(operand), name))
    results = [f"o{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    infos = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph([node], "g", inputs, infos, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _scan() -> ModelProto:
    """Sums of rows, and a typed output."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Mul", ["e", "e"], ["r"])],
        "body",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "se"],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "tr"],
    )
    made = base(
        "Scan", (3,), (4, 3), outputs=2, body=body, num_scan_inputs=1, scan_input_axes=[0],
        scan_output_axes=[0],
    )  # fmt: skip
    for output, shape in zip(made.graph.output, ([3], [4, 3]), strict=True):
        output.CopyFrom(helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, shape))
    return made


def few() -> Mapping[str, ModelProto]:
    """Operators whose sizes, axes and counts are attributes and operands: the start of a corpus
    that needs no loading."""
    image = (1, 2, 8, 8)
    return {
        "Conv": base("Conv", image, _ones(4, 2, 3, 3), pads=[1, 1, 1, 1], strides=[1, 1]),
        "ConvTranspose": base("ConvTranspose", image, _ones(2, 4, 3, 3), strides=[2, 2], group=1),
        "MaxPool": base("MaxPool", image, outputs=2, kernel_shape=[2, 2], strides=[2, 2]),
        "AveragePool": base("AveragePool", image, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        "Resize": base("Resize", image, None, None, np.array([1, 2, 16, 16]), mode="linear"),
        "Upsample": base("Upsample", image, np.array([1, 1, 2, 2], np.float32), opset=9),
        "Pad": base("Pad", image, np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="wrap"),
        "Slice": base("Slice", image, np.array([0]), np.array([9]), np.array([2]), np.array([2])),
        "Split": base("Split", image, axis=2, num_outputs=2, outputs=2),
        "Tile": base("Tile", image, np.array([1, 2, 1, 2])),
        "Expand": base("Expand", (1, 8), np.array([4, 8])),
        "Reshape": base("Reshape", image, np.array([2, -1]), allowzero=0),
        "Transpose": base("Transpose", image, perm=[0, 2, 3, 1]),
        "TopK": base("TopK", image, np.array([3]), outputs=2, axis=-1),
        "DFT": base("DFT", (1, 16, 1), np.array(16), np.array(1), onesided=1),
        "STFT": base("STFT", (1, 64, 1), np.array(8), _ones(16), np.array(16)),
        "HannWindow": base("HannWindow", np.array(16), periodic=1),
        "MelWeightMatrix": base(
            "MelWeightMatrix", np.array(8), np.array(16), np.array(8192), np.float32(0),
            np.float32(4096),
        ),
        "LSTM": base("LSTM", (4, 2, 3), _ones(1, 20, 3), _ones(1, 20, 5), hidden_size=5),
        "Attention": base(
            "Attention", (1, 4, 8), (1, 4, 8), (1, 4, 8), q_num_heads=2, kv_num_heads=2, opset=23
        ),
        "Gather": base("Gather", image, np.array([0, 3]), axis=2),
        "ScatterND": base("ScatterND", (4, 4), np.array([[0], [2]]), _ones(2, 4)),
        "OneHot": base("OneHot", np.array([1, 2]), np.array(4), _ones(2), axis=-1),
        "Range": base("Range", np.array(0), np.array(9), np.array(2)),
        "ConstantOfShape": base("ConstantOfShape", np.array([2, 3])),
        "GroupNormalization": base("GroupNormalization", image, _ones(2), _ones(2), num_groups=2),
        "LRN": base("LRN", image, size=3),
        "DepthToSpace": base("DepthToSpace", (1, 8, 2, 2), blocksize=2),
        "QuantizeLinear": base("QuantizeLinear", (4, 4), _ones(4), np.zeros(4, np.uint8), axis=1),
        "Einsum": base("Einsum", (2, 3), _ones(3, 4), equation="ij,jk->ik"),
        "Unsqueeze": base("Unsqueeze", image, np.array([0])),
        "CumSum": base("CumSum", image, np.array(1)),
        "GridSample": base("GridSample", image, (1, 4, 4, 2)),
        "Multinomial": base("Multinomial", (2, 4), sample_size=3),
        "NonZero": base("NonZero", image),
        "Unique": base("Unique", (8,), outputs=4),
        "RandomNormal": base("RandomNormal", shape=[2, 3], mean=0.5),
        "Scan": _scan(),
    }  # fmt: skip


@cache
def many() -> Mapping[str, ModelProto]:
    """One model of each operator, those of the onnx package's node tests: their integer inputs,
    which say shapes, axes and counts, are weights."""
    from onnx.backend.test.loader import load_model_tests

    found: dict[str, ModelProto] = dict(few())
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        for case in load_model_tests(kind="node"):
            nodes = case.model.graph.node
            if len(nodes) != 1:
                continue
            key = case.name.removeprefix("test_") if nodes[0].op_type in found else nodes[0].op_type
            made = ModelProto()
            made.CopyFrom(case.model)
            feeds = case.data_sets[0][0]
            for info, array in zip(list(made.graph.input), feeds, strict=False):
                if isinstance(array, np.ndarray) and (array.dtype.kind in "iu" or not array.ndim):
                    made.graph.initializer.append(numpy_helper.from_array(array, info.name))
                    made.graph.input.remove(info)
            found[key] = made
    return found
