"""What the specification asks of attributes and operands: each model here breaks one thing, and the
same model without that is read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest

import fuser
from fuser.base.limits import Limits
from fuser.errors import FuserError, InvalidModelError, LimitError
from fuser.frontends.onnx.importer import import_onnx
from fuser.frontends.onnx.importer.constraints import CONSTRAINTS
from tests.malformed.bases import base

IMAGE = (1, 2, 8, 8)
f32 = np.float32


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def change(model: onnx.ModelProto, index: int | None, name: str, value: Any) -> onnx.ModelProto:
    """The model with another weight for operand `index`, or another attribute."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    node = changed.graph.node[0]
    if index is not None:
        (kept,) = (t for t in changed.graph.initializer if t.name == f"i{index}")
        kept.CopyFrom(onnx.numpy_helper.from_array(np.asarray(value), f"i{index}"))
        return changed
    others = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, onnx.helper.make_attribute(name, value)])
    return changed


conv = base("Conv", IMAGE, ones(4, 2, 3, 3), ones(4), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
pool = base("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], dilations=[1, 1])
turned = base("ConvTranspose", IMAGE, ones(2, 4, 3, 3), strides=[2, 2], output_padding=[1, 1])
sizes = base("Resize", IMAGE, None, None, ints(1, 2, 16, 16), mode="linear")
scales = base("Resize", IMAGE, None, np.array([1, 1, 2, 2], f32), mode="nearest")
split = base("Split", IMAGE, ints(2, 6), axis=2, outputs=2)
even = base("Split", IMAGE, axis=2, num_outputs=2, outputs=2)
top = base("TopK", IMAGE, ints(3), outputs=2, axis=-1)
dft = base("DFT", (1, 16, 1), np.array(16), np.array(1), onesided=1)
stft = base("STFT", (1, 64, 1), np.array(8), ones(16), np.array(16))
mel = base(
    "MelWeightMatrix", np.array(8), np.array(256), np.array(8192), f32(0), f32(4096)
)  # fmt: skip
blocks = base("DequantizeLinear", np.zeros((4, 4), np.uint8), ones(2, 4), axis=0, block_size=2)
rows = base("QuantizeLinear", (4, 4), ones(4), np.zeros(4, np.uint8), axis=0)
lstm = base("LSTM", (4, 2, 3), ones(1, 20, 3), ones(1, 20, 5), ones(1, 40), hidden_size=5)
heads = base("Attention", (1, 4, 8), (1, 4, 8), (1, 4, 8), q_num_heads=2, kv_num_heads=2, opset=23)
groups = base("GroupNormalization", IMAGE, ones(2), ones(2), num_groups=2)
batch = base("BatchNormalization", IMAGE, ones(2), ones(2), ones(2), ones(2))
roi = base("RoiAlign", IMAGE, ones(3, 4), ints(0, 0, 0), output_height=2, sampling_ratio=1)
grid = base("GridSample", IMAGE, (1, 4, 4, 2), mode="linear", padding_mode="zeros")
scatter = base("ScatterND", (4, 4), ints(0, 2).reshape(2, 1), ones(2, 4))
elements = base("ScatterElements", (4, 4), ints(0, 2).reshape(2, 1), ones(2, 1), axis=0)
columns = base("Col2Im", (1, 4, 9), ints(4, 4), ints(2, 2))
padded = base("Pad", IMAGE, ints(0, 0, 1, 1, 0, 0, 1, 1), f32(0), mode="reflect")
scores = base("SoftmaxCrossEntropyLoss", (3, 5), ints(0, 1, 2), ones(5), reduction="mean")

BROKEN: Mapping[str, tuple[onnx.ModelProto, int | None, str, Any]] = {
    "conv: a kernel of none": (conv, None, "kernel_shape", [0, 3]),
    "conv: a kernel of fewer axes": (conv, None, "kernel_shape", [3]),
    "conv: another kernel": (conv, None, "kernel_shape", [3, 2]),
    "conv: negative pads": (conv, None, "pads", [-1, 0, 0, 0]),
    "conv: fewer pads": (conv, None, "pads", [1, 1]),
    "conv: no stride": (conv, None, "strides", [0, 1]),
    "conv: a negative dilation": (conv, None, "dilations", [1, -1]),
    "conv: groups that do not divide": (conv, None, "group", 3),
    "conv: no group": (conv, None, "group", 0),
    "conv: a way to pad": (conv, None, "auto_pad", "SOME"),
    "conv: a bias of another size": (conv, 2, "", ones(3)),
    "conv: a weight of other channels": (conv, 1, "", ones(4, 3, 3, 3)),
    "transposed: negative padding": (turned, None, "output_padding", [-1, 0]),
    "transposed: an output of nothing": (turned, None, "output_shape", [0, 4]),
    "transposed: other channels": (turned, 1, "", ones(3, 4, 3, 3)),
    "pool: a window of none": (pool, None, "kernel_shape", [2, 0]),
    "pool: a stride more": (pool, None, "strides", [1, 1, 1]),
    "pool: an order": (pool, None, "storage_order", 2),
    "resize: negative sizes": (sizes, 3, "", ints(1, 2, 0, -4)),
    "resize: fewer sizes": (sizes, 3, "", ints(16, 16)),
    "resize: a mode": (sizes, None, "mode", "quintic"),
    "resize: coordinates": (sizes, None, "coordinate_transformation_mode", "polar"),
    "resize: a policy": (sizes, None, "keep_aspect_ratio_policy", "any"),
    "resize: an axis twice": (sizes, None, "axes", [0, 1, 2, 2]),
    "resize: a negative scale": (scales, 2, "", np.array([1, 1, -2, 1], f32)),
    "resize: a scale of zero": (scales, 2, "", np.array([1, 1, 0, 1], f32)),
    "resize: a scale of NaN": (scales, 2, "", np.array([1, 1, np.nan, 1], f32)),
    "resize: a scale without end": (scales, 2, "", np.array([1, 1, np.inf, 1], f32)),
    "resize: a way to round": (scales, None, "nearest_mode", "up"),
    "upsample: a scale below one": (
        base("Upsample", IMAGE, np.array([1, 1, 2, 2], f32), opset=9), 1, "",
        np.array([1, 1, 0.5, 1], f32),
    ),
    "split: parts of another sum": (split, 1, "", ints(2, 7)),
    "split: a negative part": (split, 1, "", ints(-1, 9)),
    "split: more parts": (split, 1, "", ints(2, 3, 3)),
    "split: another number of outputs": (even, None, "num_outputs", 7),
    "split: no outputs": (even, None, "num_outputs", 0),
    "top k: less than none": (top, 1, "", ints(-1)),
    "top k: more than there are": (top, 1, "", ints(9)),
    "top k: two counts": (top, 1, "", ints(1, 2)),
    "dft: a negative length": (dft, 1, "", np.array(-4)),
    "dft: no length": (dft, 1, "", np.array(0)),
    "dft: of the parts": (dft, 2, "", np.array(2)),
    "dft: outside": (dft, 2, "", np.array(5)),
    "stft: no step": (stft, 1, "", np.array(0)),
    "stft: a negative step": (stft, 1, "", np.array(-2)),
    "stft: frames longer than the signal": (stft, 3, "", np.array(65)),
    "stft: another window": (stft, 2, "", ones(15)),
    "window: a negative size": (base("HannWindow", np.array(8)), 0, "", np.array(-8)),
    "window: two sizes": (base("HammingWindow", np.array(8)), 0, "", ints(8, 8)),
    "blackman: a negative size": (base("BlackmanWindow", np.array(8)), 0, "", np.array(-1)),
    "mel: no bands": (mel, 0, "", np.array(0)),
    "mel: no rate": (mel, 2, "", np.array(0)),
    "mel: a negative length": (mel, 1, "", np.array(-16)),
    "mel: edges that change places": (mel, 3, "", f32(5000)),
    "dequantised: rows of scales": (blocks, 1, "", ones(7, 4)),
    "dequantised: columns of scales": (blocks, 1, "", ones(2, 3)),
    "dequantised: a negative block": (blocks, None, "block_size", -2),
    "quantised: scales": (rows, 1, "", ones(3)),
    "quantised: zero points": (rows, 2, "", np.zeros(3, np.uint8)),
    "quantised: an axis": (rows, None, "axis", 2),
    "lstm: a direction": (lstm, None, "direction", "sideways"),
    "lstm: another size": (lstm, None, "hidden_size", 6),
    "lstm: weights of another width": (lstm, 1, "", ones(1, 20, 4)),
    "lstm: a bias of one direction": (lstm, 3, "", ones(1, 20)),
    "lstm: one activation": (lstm, None, "activations", ["Tanh"]),
    "attention: no heads": (heads, None, "q_num_heads", 0),
    "attention: heads that do not divide": (heads, None, "kv_num_heads", 3),
    "attention: a mode": (heads, None, "qk_matmul_output_mode", 9),
    "attention: a negative cap": (heads, None, "softcap", -1.0),
    "groups that do not divide": (groups, None, "num_groups", 3),
    "no groups": (groups, None, "num_groups", 0),
    "batch normalisation: scales": (batch, 1, "", ones(1)),
    "batch normalisation: variances": (batch, 4, "", ones(3)),
    "instance normalisation: scales": (
        base("InstanceNormalization", IMAGE, ones(2), ones(2)), 1, "", ones(3)
    ),
    "layer normalisation: a larger scale": (
        base("LayerNormalization", (2, 4), ones(4)), 1, "", ones(3, 2, 4)
    ),
    "prelu: a larger slope": (base("PRelu", (2, 4), ones(4)), 1, "", ones(3, 2, 4)),
    "gemm: a larger bias": (base("Gemm", (2, 3), ones(3, 4), ones(4)), 2, "", ones(5, 2, 4)),
    "lrn: no size": (base("LRN", IMAGE, size=3), None, "size", 0),
    "roi: no height": (roi, None, "output_height", 0),
    "roi: negative samples": (roi, None, "sampling_ratio", -1),
    "roi: regions of five": (roi, 1, "", ones(3, 5)),
    "roi: fewer images": (roi, 2, "", ints(0, 0)),
    "roi: a scale of zero": (roi, None, "spatial_scale", 0.0),
    "grid: a mode": (grid, None, "mode", "best"),
    "grid: a way to pad": (grid, None, "padding_mode", "wrap"),
    "depth: a block of none": (
        base("DepthToSpace", (1, 8, 2, 2), blocksize=2), None, "blocksize", 0
    ),
    "depth: a negative block": (
        base("DepthToSpace", (1, 8, 2, 2), blocksize=2), None, "blocksize", -2
    ),
    "depth: a mode": (
        base("DepthToSpace", (1, 8, 2, 2), blocksize=2, mode="DCR"), None, "mode", "ABC"
    ),
    "space: a block that does not divide": (
        base("SpaceToDepth", IMAGE, blocksize=2), None, "blocksize", 3
    ),
    "scatter: a reduction": (scatter, None, "reduction", "mean"),
    "scatter: updates": (scatter, 2, "", ones(2, 3)),
    "scatter: tuples too long": (scatter, 1, "", np.zeros((2, 3), np.int64)),
    "elements: updates": (elements, 2, "", ones(2, 2)),
    "elements: indices of another rank": (elements, 1, "", ints(0, 2)),
    "columns: an image of nothing": (columns, 1, "", ints(0, 4)),
    "columns: negative blocks": (columns, 2, "", ints(-2, 2)),
    "columns: no stride": (columns, None, "strides", [0, 1]),
    "pad: a mode": (padded, None, "mode", "mirror"),
    "pad: fewer": (padded, 1, "", ints(1, 1)),
    "pad: two fills": (padded, 2, "", ones(2)),
    "loss: a reduction": (scores, None, "reduction", "product"),
    "loss: fewer weights": (scores, 2, "", ones(4)),
    "one hot: no depth": (base("OneHot", ints(1, 2), np.array(4), ones(2)), 1, "", np.array(0)),
    "one hot: three values": (base("OneHot", ints(1, 2), np.array(4), ones(2)), 2, "", ones(3)),
    "range: two starts": (base("Range", ints(0)[0], ints(9)[0], ints(2)[0]), 0, "", ints(0, 1)),
    "unsqueeze: an axis twice": (base("Unsqueeze", IMAGE, ints(0, 1)), 1, "", ints(0, 0)),
    "squeeze: an axis twice": (base("Squeeze", (1, 1, 3), ints(0, 1)), 1, "", ints(0, -3)),
    "transpose: no permutation": (
        base("Transpose", IMAGE, perm=[0, 2, 3, 1]), None, "perm", [0, 1, 1, 2]
    ),
    "transpose: fewer axes": (base("Transpose", IMAGE, perm=[0, 2, 3, 1]), None, "perm", [0, 1]),
    "reshape: two sizes to find": (base("Reshape", IMAGE, ints(2, -1)), 1, "", ints(-1, -1)),
    "reshape: a negative size": (base("Reshape", IMAGE, ints(2, -1)), 1, "", ints(-2, -64)),
    "expand: a matrix of sizes": (
        base("Expand", (1, 8), ints(4, 8)), 1, "", ints(4, 8).reshape(1, 2)
    ),
    "tile: a negative number": (base("Tile", (2, 2), ints(1, 2)), 1, "", ints(1, -2)),
    "cumsum: an axis outside": (base("CumSum", IMAGE, np.array(1)), 1, "", np.array(4)),
    "softmax: an axis outside": (base("Softmax", IMAGE, axis=1), None, "axis", 4),
    "gather: an axis outside": (base("Gather", IMAGE, ints(0), axis=1), None, "axis", -5),
    "concat: an axis outside": (base("Concat", IMAGE, IMAGE, axis=1), None, "axis", 9),
    "flatten: an axis outside": (base("Flatten", IMAGE, axis=1), None, "axis", 5),
    "norm: a power": (base("LpNormalization", IMAGE, p=2), None, "p", 3),
    "gelu: an approximation": (base("Gelu", IMAGE, approximate="tanh"), None, "approximate", "x"),
    "shift: a direction": (
        base("BitShift", np.array([1], np.uint8), np.array([1], np.uint8), direction="LEFT"),
        None, "direction", "UP",
    ),
    "constant: two values": (
        base("ConstantOfShape", ints(2), value=onnx.numpy_helper.from_array(ones(1))),
        None, "value", onnx.numpy_helper.from_array(ones(2)),
    ),
    "constant: a negative size": (base("ConstantOfShape", ints(2)), 0, "", ints(-2)),
    "determinant: not square": (base("Det", ones(3, 3)), 0, "", ones(3, 4)),
    "sequences: of nothing": (
        base("ReverseSequence", (4, 2), ints(1, 4), time_axis=0, batch_axis=1), 1, "", ints(1, 5)
    ),
    "mod: fractions without fmod": (base("Mod", (3,), ones(3), fmod=1), None, "fmod", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_the_specification_forbids_is_refused(name: str) -> None:
    model, index, attribute, value = BROKEN[name]
    assert import_onnx(model).outputs  # nothing else is wrong
    with pytest.raises(InvalidModelError) as caught:
        import_onnx(change(model, index, attribute, value))
    assert "malformed" not in str(caught.value), caught.value
    assert model.graph.node[0].op_type in str(caught.value) or "specification" in str(caught.value)


def test_every_rule_is_of_an_operator_that_there_is() -> None:
    schemas = onnx.defs.get_all_schemas_with_history()
    assert set(CONSTRAINTS) <= {schema.name for schema in schemas if not schema.domain}


def test_symbolic_sizes_and_operands_of_data_say_nothing() -> None:
    """What is not known when a model is read is not held against the rules."""
    model = base("Conv", ("n", "c", "h", "w"), ones(4, 2, 3, 3), group=1)
    with pytest.raises(InvalidModelError, match="channels"):
        import_onnx(model, {"c": 3})
    assert import_onnx(model, {"c": 2}).outputs
    fed = base("TopK", (4,), ints(3), outputs=2)
    fed.graph.input.append(onnx.helper.make_tensor_value_info("i1", onnx.TensorProto.INT64, [1]))
    del fed.graph.initializer[:]
    with pytest.raises(FuserError, match="depends on"):
        import_onnx(fed)
    for given, ok in ((3, True), (5, False), (-1, False)):
        if ok:
            assert import_onnx(fed, values={"i1": ints(given)}).outputs
        else:
            with pytest.raises(InvalidModelError, match=f"k is {given}"):
                import_onnx(fed, values={"i1": ints(given)})


ON_THE_HOST = {
    "a negative size": (base("RandomNormal", shape=[2, 3]), None, "shape", [2, -3]),
    "a spread": (base("RandomNormalLike", (2, 4), scale=1.0), None, "scale", float("inf")),
    "bounds": (base("RandomUniform", shape=[2], low=0.0), None, "low", float("nan")),
    "boxes of five": (
        base("NonMaxSuppression", ones(1, 6, 4), ones(1, 1, 6), ints(2)), 0, "", ones(1, 6, 5)
    ),
    "other scores": (
        base("NonMaxSuppression", ones(1, 6, 4), ones(1, 1, 6), ints(2)), 1, "", ones(1, 1, 7)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_operators_on_the_host_are_held_against_the_rules(name: str) -> None:
    model, index, attribute, value = ON_THE_HOST[name]
    feeds = {info.name: ones(2, 4) for info in model.graph.input}
    assert fuser.InferenceSession(model, device="cpu").run(None, feeds)
    broken = fuser.InferenceSession(change(model, index, attribute, value), device="cpu")
    with pytest.raises(InvalidModelError):
        broken.run(None, feeds)


@pytest.mark.parametrize(
    "model",
    [
        base("RandomNormal", shape=[1 << 20, 1 << 20]),
        base("RandomUniform", shape=[1 << 25]),
        base("RandomUniformLike", (1 << 12, 1 << 12)),
        base("SequenceConstruct", (1 << 20,)),
    ],
    ids=lambda model: model.graph.node[0].op_type,
)
def test_results_on_the_host_are_held_against_the_limit(model: onnx.ModelProto) -> None:
    feeds = {info.name: ones(2, 4) for info in model.graph.input}
    session = fuser.InferenceSession(model, device="cpu", limits=Limits(bytes=50_000_000))
    if model.graph.node[0].op_type == "SequenceConstruct":
        assert len(session.run(None, {"i0": ones(1 << 20)})[0]) == 1
        return
    if feeds:  # one element that says it is many
        feeds = {"i0": np.broadcast_to(f32(1), (1 << 12, 1 << 12))}
    with pytest.raises(LimitError, match="what the host computes takes"):
        session.run(None, feeds)


GROWING = {
    "numbers": ("NonZero", 1, ones(2, 4)),
    "letters": ("StringConcat", 2, np.full((8,), "abcd", object)),
}


@pytest.mark.parametrize("name", GROWING)
def test_what_grows_by_the_operator_is_held_against_the_limit(name: str) -> None:
    """Each operator on the host adds to what it gets: no shape tells before."""
    op, count, x = GROWING[name]
    names = ["x", *(f"t{i}" for i in range(60))]
    nodes = [onnx.helper.make_node(op, [a] * count, [b]) for a, b in pairwise(names)]
    kind = onnx.TensorProto.STRING if op == "StringConcat" else onnx.TensorProto.FLOAT
    info = onnx.helper.make_tensor_value_info("x", kind, x.shape)
    last = onnx.ValueInfoProto(name=names[-1])
    graph = onnx.helper.make_graph(nodes, "g", [info], [last])
    imports = [onnx.helper.make_opsetid("", 22)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = fuser.InferenceSession(model, device="cpu", limits=Limits(bytes=1_000_000))
    with pytest.raises(LimitError, match="between operators on the host takes"):
        session.run(None, {"x": x})


@pytest.mark.parametrize("cut", [0, 1, 7, 23, 25])
@pytest.mark.parametrize("op", ["SequenceConstruct", "NonZero", "Unique", "RandomNormalLike"])
def test_weights_of_operators_on_the_host_are_whole(op: str, cut: int) -> None:
    """A weight f32[2, 3] of another number of bytes than 24."""
    made = base(op, ones(2, 3))
    made.graph.initializer[0].raw_data = bytes(cut)
    with pytest.raises(InvalidModelError):
        fuser.InferenceSession(made, device="cpu").run(None, {})


def test_a_sequence_is_counted_by_its_tensors() -> None:
    """Sixty sequences of the same tensors take the memory of those, not sixty times as much."""
    names = [f"t{i}" for i in range(60)]
    nodes = [onnx.helper.make_node("SequenceConstruct", ["x"] * 4, ["t0"])]
    nodes += [onnx.helper.make_node("SequenceInsert", [a, "x"], [b]) for a, b in pairwise(names)]
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [10_000])
    kind = onnx.helper.make_tensor_sequence_value_info(names[-1], onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(nodes, "g", [info], [kind])
    imports = [onnx.helper.make_opsetid("", 22)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = fuser.InferenceSession(model, device="cpu", limits=Limits(bytes=1_000_000))
    (found,) = session.run(None, {"x": ones(10_000)})
    assert len(found) == 63


def test_bodies_of_loops_have_what_the_node_feeds() -> None:
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["go"], ["on"])], "body",
        [onnx.helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("go", 9))],
        [onnx.helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, [])],
    )  # fmt: skip
    model = base("Loop", np.array(3), np.array(True), (2,), body=body)
    with pytest.raises(InvalidModelError, match="the body has 2 inputs, not 3"):
        fuser.compile(model, device="cpu")
