"""ONNX models become graphs: shape arithmetic, symbolic dims, what the source nodes count as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuser.errors import UnsupportedError
from fuser.frontends.onnx.importer import import_onnx, supported_ops
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.graph.passes import run_passes
from fuser.graph.passes.bind import bind
from models import TINY
from models import build as build_model

Array = np.ndarray[Any, Any]
F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def read(body: str, dims: dict[str, int] | None = None, opset: int = 18) -> Graph:
    """The graph of a model in ONNX text."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}]>\n'
    return import_onnx(onnx.parser.parse_model(head + body), dims)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_shape_arithmetic_leaves_no_nodes() -> None:
    graph = read("""
    g (float[batch, seq, 12] x) => (float[a, b, c, d] y) {
      shape = Shape(x)
      zero = Constant<value_int = 0>()
      one = Constant<value_int = 1>()
      axes = Constant<value_ints = [0]>()
      batch = Gather(shape, zero)
      seq = Gather(shape, one)
      b1 = Unsqueeze(batch, axes)
      s1 = Unsqueeze(seq, axes)
      heads = Constant<value_ints = [3, -1]>()
      wanted = Concat<axis = 0>(b1, s1, heads)
      y = Reshape(x, wanted)
    }""")
    assert ops(graph) == ["reshape"]
    assert str(graph.outputs[0].type) == "f32[batch, seq, 3, 4]"


def test_expand_with_where_equal_minus_one() -> None:
    """The idiom of torch.expand: -1 keeps a dim."""
    graph = read("""
    g (float[1, seq] x) => (float[a, b] y) {
      wanted = Constant<value_ints = [5, -1]>()
      minus = Constant<value_int = -1>()
      shape = Shape<start = 0>(wanted)
      ones = ConstantOfShape<value = int64[1] {1}>(shape)
      keep = Equal(wanted, minus)
      full = Where(keep, ones, wanted)
      y = Expand(x, full)
    }""")
    assert str(graph.outputs[0].type) == "f32[5, seq]"
    assert ops(graph) == ["reshape", "broadcast"]


def test_range_and_slice_with_symbols() -> None:
    graph = read(
        """
    g (float[batch, seq] x) => (int64[n] positions, float[n] first) <float[64] table = {}> {
      zero = Constant<value_int = 0>()
      one = Constant<value_int = 1>()
      shape = Shape(x)
      seq = Gather(shape, one)
      positions = Range(zero, seq, one)
      axes = Constant<value_ints = [0]>()
      start = Constant<value_ints = [0]>()
      end = Unsqueeze(seq, axes)
      first = Slice(table, start, end, axes)
    }""".replace(" = {}", " = {" + ",".join(["1"] * 64) + "}")
    )
    assert str(graph.outputs[0].type) == "i64[seq]"
    assert str(graph.outputs[1].type) == "f32[min(64, seq)]"
    found = evaluate(graph, {"x": np.zeros((1, 5), np.float32)})
    assert found["positions"].tolist() == [0, 1, 2, 3, 4] and found["first"].shape == (5,)


def test_a_dim_as_data_is_computed() -> None:
    graph = read("""
    g (float[n, 4] x) => (float[n, 4] y) {
      size = Size(x)
      scale = Cast<to = 1>(size)
      y = Div(x, scale)
    }""")
    x = np.ones((3, 4), np.float32)
    assert evaluate(graph, {"x": x})["y"][0, 0] == np.float32(1 / 12)
    assert "dims" in ops(graph)
    assert "dims" not in ops(run_passes(bind(graph, {"n": 3})))


def test_a_shape_that_data_decides_is_refused() -> None:
    body = """
    g (float[n, 4] x, int64[2] shape) => (float[a, b] y) { y = Reshape(x, shape) }"""
    with pytest.raises(UnsupportedError, match=r"the shape depends on data.*Reshape node y"):
        read(body)


def test_dims_bind_at_import() -> None:
    body = "g (float[batch, seq] x) => (float[batch, seq] y) { y = Relu(x) }"
    assert str(read(body, {"batch": 2}).outputs[0].type) == "f32[2, seq]"
    unnamed = "g (float[?, 3] x) => (float[a, b] y) { y = Relu(x) }"
    assert read(unnamed).symbols() == {"x_dim0"}


def test_functions_are_inlined() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.twice(x) }
    <domain: "local", opset_import: ["" : 18]>
    twice (a) => (b) { b = Add(a, a) }""")
    graph = import_onnx(model)
    assert ops(graph) == ["add"]
    assert [node.op_type for node in graph.source] == ["Add"]


def test_source_kinds() -> None:
    graph = read("""
    g (float[2, 3] x) => (float[a, b] y) <float[3] w = {1, 2, 3}> {
      half = Constant<value_float = 0.5>()
      scaled = Mul(w, half)
      flat = Flatten(x)
      same = Cast<to = 1>(flat)
      shape = Shape(x)
      zero = Constant<value_int = 0>()
      rows = Gather(shape, zero)
      turned = Transpose(same)
      back = Transpose(turned)
      y = Add(back, scaled)
    }""")
    kinds = [(node.op_type, node.kind) for node in graph.source]
    assert kinds == [
        ("Constant", "constant"),
        ("Mul", "constant"),
        ("Flatten", "view"),
        ("Cast", "view"),
        ("Transpose", "compute"),
        ("Transpose", "compute"),
        ("Add", "compute"),
    ]
    add = graph.source[-1]
    assert [str(type) for type in add.inputs] == ["f32[2, 3]", "f32[3]"]
    assert [str(type) for type in add.outputs] == ["f32[2, 3]"]


def test_a_tensor_read_twice_counts_once() -> None:
    graph = read("g (float[2] x) => (float[2] y) { y = Mul(x, x) }")
    assert len(graph.source[0].inputs) == 1


def test_origins_name_the_nodes() -> None:
    graph = read("g (float[2] x) => (float[2] y) { [fine] a = Neg(x) y = Sqrt(a) }")
    assert [node.origin for node in graph.nodes] == [("fine",), ("y",)]


def test_outputs_may_be_inputs_or_weights() -> None:
    graph = read("""
    g (float[2] x) => (float[2] y, float[1] z) <float[1] w = {7}> {
      y = Identity(x)
      z = Identity(w)
    }""")
    found = evaluate(run_passes(graph), {"x": np.ones(2, np.float32)})
    assert found["y"].tolist() == [1, 1] and found["z"].tolist() == [7]


# spellings by opset ------------------------------------------------------------------------------


def untyped(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose outputs have no declared types."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in copy.graph.output:
        info.ClearField("type")
    return copy


def run_node(
    op: str, feeds: Sequence[Array], opset: int, outputs: int = 1, **attrs: Any
) -> list[Array]:
    """One ONNX node at an opset, every operand an input, through all passes."""
    names = [f"x{i}" for i in range(len(feeds))]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, feeds, strict=True)
    ]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info(r, F32, None) for r in results]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    for inferred in onnx.shape_inference.infer_shapes(untyped(model)).graph.output:
        for info in graph.output:
            if info.name == inferred.name and inferred.type.tensor_type.elem_type:
                info.type.tensor_type.elem_type = inferred.type.tensor_type.elem_type
    del model.graph.output[:]
    model.graph.output.extend(graph.output)
    graph_ = run_passes(import_onnx(model), verify=True)
    found = evaluate(graph_, dict(zip(names, feeds, strict=True)))
    return [found[name] for name in results]


def softmax(x: Array, axes: tuple[int, ...]) -> Array:
    powers = np.exp(x - x.max(axes, keepdims=True))
    return np.asarray(powers / powers.sum(axes, keepdims=True))


def test_softmax_before_and_after_13(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(run_node("Softmax", [x], 12)[0], softmax(x, (1, 2)), rtol=1e-6)
    np.testing.assert_allclose(run_node("Softmax", [x], 13)[0], softmax(x, (2,)), rtol=1e-6)
    np.testing.assert_allclose(run_node("Softmax", [x], 11, axis=0)[0], softmax(x, (0, 1, 2)),
                               rtol=1e-6)  # fmt: skip


def test_softmax_is_safe_and_keeps_nan_for_masked_rows() -> None:
    x = np.array([[1e30, 0], [-np.inf, -np.inf]], np.float32)
    with np.errstate(invalid="ignore"):
        found = run_node("Softmax", [x], 13)[0]
    assert found[0].tolist() == [1, 0] and np.isnan(found[1]).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_old_broadcast_attribute(axis: int) -> None:
    x, b = np.ones((2, 2), np.float32), np.array([1, 2], np.float32)
    found = run_node("Add", [x, b], 6, broadcast=1, axis=axis)[0]
    assert found.tolist() == ((x + b[:, None]) if axis == 0 else (x + b)).tolist()


def test_attributes_of_old_opsets() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert run_node("Unsqueeze", [x], 11, axes=[0, 3])[0].shape == (1, 2, 3, 1)
    assert run_node("Squeeze", [x[None]], 11, axes=[0])[0].shape == (2, 3)
    assert run_node("Reshape", [x], 1, shape=[3, -1])[0].shape == (3, 2)
    assert run_node("Slice", [x], 9, starts=[1], ends=[99], axes=[1])[0].shape == (2, 2)
    assert run_node("ReduceSum", [x], 11, axes=[1], keepdims=0)[0].tolist() == [3, 12]
    assert run_node("Pad", [x], 10, pads=[0, 1, 0, 0], value=9.0)[0][0].tolist() == [9, 0, 1, 2]
    assert run_node("Clip", [x], 6, min=1.0, max=4.0)[0].max() == 4
    assert [y.shape for y in run_node("Split", [x], 11, 2, axis=1, split=[1, 2])] == [
        (2, 1),
        (2, 2),
    ]
    assert run_node("Dropout", [x], 7)[0].tolist() == x.tolist()
    assert run_node("Flatten", [x], 9, axis=0)[0].shape == (1, 6)


def test_pow_takes_integer_exponents() -> None:
    x = np.array([2, 3], np.float32)
    assert run_node("Pow", [x, np.array([2, 3])], 15)[0].tolist() == [4, 27]
    assert run_node("Pow", [np.array([2, 3]), np.array([2.0, 0.5])], 15)[0].tolist() == [4, 1]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 2, 3), (1, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((6, 5, 2, 3), (3,)),
    ],
)  # fmt: skip
def test_matmul_broadcasts_like_numpy(
    a: tuple[int, ...], b: tuple[int, ...], rng: np.random.Generator
) -> None:
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
    found = run_node("MatMul", [x, y], 13)[0]
    np.testing.assert_allclose(found, np.matmul(x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ij,k", [(3, 4), (5,)]),
        ("...ij,...jk", [(2, 3, 4), (2, 4, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], rng: np.random.Generator) -> None:
    feeds = [rng.standard_normal(shape) for shape in shapes]
    found = run_node("Einsum", feeds, 13, equation=equation)[0]
    np.testing.assert_allclose(found, np.einsum(equation, *feeds), rtol=1e-10)


def test_gemm_forms(rng: np.random.Generator) -> None:
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 2), (4, 3), (4,)))
    found = run_node("Gemm", [a, b, c], 13, transA=1, transB=1, alpha=0.5, beta=2.0)[0]
    np.testing.assert_allclose(found, 0.5 * a.T @ b.T + 2 * c, rtol=1e-5)


def test_fully_masked_attention_rows_are_zero(rng: np.random.Generator) -> None:
    q = rng.standard_normal((1, 1, 2, 4)).astype(np.float32)
    mask = np.array([[True, True], [False, False]])
    with np.errstate(invalid="ignore"):
        found = run_node("Attention", [q, q, q, mask], 23)[0]
    assert np.isfinite(found).all() and not found[0, 0, 1].any() and found[0, 0, 0].any()


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_counts(ceil_mode: int, include: int, rng: np.random.Generator) -> None:
    ort = pytest.importorskip("onnxruntime")
    x = rng.standard_normal((1, 2, 7, 8)).astype(np.float32)
    attrs = {
        "kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 0, 1, 2],
        "ceil_mode": ceil_mode, "count_include_pad": include,
    }  # fmt: skip
    node = helper.make_node("AveragePool", ["x"], ["y"], **attrs)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", F32, x.shape)],
        [helper.make_tensor_value_info("y", F32, [None] * 4)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        run_node("AveragePool", [x], 19, **attrs)[0], session.run(None, {"x": x})[0], rtol=1e-5
    )


# whole models ------------------------------------------------------------------------------------


def test_supported_ops_are_real() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = (*onnx.defs.get_all_schemas_with_history(), *state.get_all_operator_schema())
    known = {f"{s.domain}.{s.name}" if s.domain else s.name for s in schemas}
    known |= {"DistCollective", "trt.DistCollective"}  # TensorRT's
    own = {name for name in supported_ops() if name.startswith("tests.")}  # what tests register
    assert set(supported_ops()) - own <= known and len(supported_ops()) > 130


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet50"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_builders_keep_their_dtype(name: str, dtype: str) -> None:
    graph = run_passes(import_onnx(build_model(name, dtype, **TINY[name], batch=1)), verify=True)
    short = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    products = [node for node in graph.nodes if node.op in ("dot_general", "conv")]
    assert products and {node.output.dtype.name for node in products} == {short}


def test_weights_are_not_copied() -> None:
    array = np.zeros((64, 64), np.float32)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", F32, [1, 64])],
            [helper.make_tensor_value_info("y", F32, [1, 64])],
            [numpy_helper.from_array(array + np.arange(64, dtype=np.float32), "w")],
        )
    )
    graph = import_onnx(model)
    (before,) = [node.attrs["value"] for node in graph.nodes if node.op == "constant"]
    (after,) = [node.attrs["value"] for node in run_passes(graph).nodes if node.op == "constant"]
    assert np.shares_memory(before, after)
