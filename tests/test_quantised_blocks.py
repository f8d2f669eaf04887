"""Products of quantised activations: exact integers inside, one kernel a product, and right."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.backend.cpu import host_target
from fuser.base.target import SM_80, SM_90A, X86_64_V3, Target, cpu_target
from fuser.frontends.onnx.model import open_model
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, Node
from fuser.graph.numerics import using
from fuser.partition import Options, partition
from fuser.pipeline.kernels import emit_programs
from tests.interpreted import run_partition
from tests.numerics import assert_close

VNNI = cpu_target(
    "x86-64-v4", "+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx512vnni", 2, 512
)  # fmt: skip
AMX = cpu_target(
    "x86-64-v4", "+avx512f,+avx512vl,+avx512dq,+avx512bw,+amx-tile,+amx-int8", 2, 512
)  # fmt: skip
TARGETS = {"avx2": X86_64_V3, "vnni": VNNI, "amx": AMX, "sm_80": SM_80, "sm_90a": SM_90A}
INFO = helper.make_tensor_value_info
TYPES = {
    np.int32: TensorProto.INT32,
    np.uint8: TensorProto.UINT8,
    np.int8: TensorProto.INT8,
    np.float32: TensorProto.FLOAT,
}


class Model:
    """Nodes and initializers under construction."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.draw = np.random.default_rng(3)

    def add(self, op: str, inputs: list[str], output: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attrs))
        return output

    def keep(self, **arrays: Any) -> list[str]:
        self.arrays |= {name: np.asarray(array) for name, array in arrays.items()}
        return list(arrays)

    def quantised(self, name: str, source: str, scale: float, zero: int, kind: Any = np.uint8,
                  ) -> str:  # fmt: skip
        """source rounded to a grid: QuantizeLinear and DequantizeLinear."""
        factors = self.keep(**{f"{name}.s": np.float32(scale), f"{name}.z": kind(zero)})
        codes = self.add("QuantizeLinear", [source, *factors], f"{name}.q")
        return self.add("DequantizeLinear", [codes, *factors], name)

    def weights(self, name: str, shape: tuple[int, ...], axis: int, kind: Any = np.int8) -> str:
        low, high = (-8, 8) if kind is ml_dtypes.int4 else (-127, 128)
        codes = self.draw.integers(low, high, shape).astype(kind)
        scale = (self.draw.random(shape[axis]) * 0.004 + 0.001).astype(np.float32)
        zero = np.zeros(shape[axis], kind)
        if kind is np.uint8:
            codes = (self.draw.integers(-100, 101, shape) + 110).astype(np.uint8)
            zero = np.full(shape[axis], 110, np.uint8)
        names = self.keep(**{f"{name}.c": codes, f"{name}.s": scale, f"{name}.z": zero})
        return self.add("DequantizeLinear", names, name, axis=axis)

    def build(self, inputs: dict[str, tuple[Any, list[int]]], output: Any) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "quantised",
            [INFO(name, TYPES[kind], shape) for name, (kind, shape) in inputs.items()],
            [INFO("y", TYPES[output], None)],
            [numpy_helper.from_array(array, name) for name, array in self.arrays.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def matmul(kind: Any = np.uint8, zero: int = 120, weights: Any = np.int8, rows: int = 17,
           rounds: bool = False) -> onnx.ModelProto:  # fmt: skip
    """DequantizeLinear of both operands, a product, and perhaps a QuantizeLinear."""
    m = Model()
    factors = m.keep(xs=np.float32(0.02), xz=kind(zero))
    x = m.add("DequantizeLinear", ["x", *factors], "xf")
    y = m.add("MatMul", [x, m.weights("w", (203, 131), 1, weights)], "yf" if rounds else "y")
    if rounds:
        m.add("QuantizeLinear", [y, *m.keep(ys=np.float32(0.3), yz=np.uint8(130))], "y")
    return m.build({"x": (kind, [rows, 203])}, np.uint8 if rounds else np.float32)


def conv(kind: Any = np.uint8, zero: int = 120, weights: Any = np.int8, size: int = 3,
         **attrs: Any) -> onnx.ModelProto:  # fmt: skip
    m = Model()
    factors = m.keep(xs=np.float32(0.02), xz=kind(zero))
    x = m.add("DequantizeLinear", ["x", *factors], "xf")
    w = m.weights("w", (33, 40, size, size), 0, weights)
    m.add("Conv", [x, w, *m.keep(b=m.draw.random(33).astype(np.float32))], "c", **attrs)
    m.add("Relu", ["c"], "y")
    return m.build({"x": (kind, [2, 40, 9, 7])}, np.float32)


FORMS = {
    "u8": lambda: matmul(),
    "i8 without zero": lambda: matmul(np.int8, 0),
    "i8": lambda: matmul(np.int8, -7),
    "u8 weights": lambda: matmul(weights=np.uint8),
    "i4 weights": lambda: matmul(weights=ml_dtypes.int4),
    "one row": lambda: matmul(rows=1),
    "conv": lambda: conv(pads=[1, 1, 1, 1]),
    "conv i8": lambda: conv(np.int8, -7, pads=[2, 0, 1, 1]),
    "conv i8 without zero": lambda: conv(np.int8, 0, pads=[1, 1, 1, 1]),
    "conv strides": lambda: conv(pads=[1, 1, 1, 1], strides=[2, 2]),
    "conv 1x1": lambda: conv(size=1),
    "conv u8 weights": lambda: conv(weights=np.uint8, pads=[1, 1, 1, 1]),
}


def feeds_of(graph: Graph) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(8)
    feeds = {}
    for value in graph.inputs:
        shape, kind = value.type.static_shape, value.dtype.numpy
        whole = value.dtype.is_integer
        low, high = (value.dtype.lowest, value.dtype.highest + 1) if whole else (0, 0)
        array = draw.integers(low, high, shape) if whole else draw.standard_normal(shape)
        feeds[value.name] = array.astype(kind)
    return feeds


def products(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op in ("dot_general", "conv")]


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    """Exact sums, scaled once: as near to the real result as three roundings, where the processor
    multiplies bytes; else float32, and Winograd's algorithm."""
    model = FORMS[form]()
    graph = open_model(model).graph({})
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds, float64=True)["y"]
    (node,) = products(partition(graph, host_target(), Options()).graph)
    terms = 1 if node.attrs.get("operands") == "i8" else 1500
    got = fuser.compile(model, device="cpu").run(feeds)["y"]
    assert_close(got, want, graph.outputs[0].dtype, terms)


@pytest.mark.cuda
@pytest.mark.parametrize("form", FORMS)
def test_forms_on_a_gpu(form: str) -> None:
    model = FORMS[form]()
    graph = open_model(model).graph({})
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds, float64=True)["y"]
    got = fuser.compile(model, device="cuda").run(feeds)["y"]
    assert_close(got, want, graph.outputs[0].dtype, 360)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_programs_are_right(form: str, name: str) -> None:
    """The tile programs for every target, interpreted. What multiplies bytes is given bytes."""
    target = TARGETS[name]
    graph = open_model(FORMS[form]()).graph({})
    feeds = feeds_of(graph)
    cut = partition(graph, target, Options())
    (node,) = products(cut.graph)
    narrow = name in ("vnni", "amx") or (target.is_cuda and node.op == "dot_general")
    assert node.attrs.get("operands") == ("i8" if narrow else None)
    want = evaluate(graph, feeds, float64=True)["y"]
    terms = 360 if narrow else 1500  # float32, and Winograd's algorithm
    assert_close(run_partition(cut, feeds, target)["y"], want, graph.outputs[0].dtype, terms)


@pytest.mark.parametrize("name", ["vnni", "amx", "sm_80", "sm_90a"])
def test_programs_compile(name: str) -> None:
    target: Target = TARGETS[name]
    from fuser.backend import cpu, nvptx

    compile_kernel = nvptx.compile_kernel if target.is_cuda else cpu.compile_kernel
    for form in ("u8", "conv", "conv i8"):
        cut = partition(open_model(FORMS[form]()).graph({}), target, Options())
        for program in emit_programs(cut, target, verify=True):
            assert compile_kernel(program.kernel, target).code


def test_the_result_is_rounded_where_the_real_one_is() -> None:
    """Codes differ from those of the real result by one, and only next to a tie."""
    model = matmul(rounds=True, rows=150)
    graph = open_model(model).graph({})
    feeds = feeds_of(graph)
    got = fuser.compile(model, device="cpu").run(feeds)["y"].astype(int)
    weights = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    scale = weights["w.s"].astype(np.float64)
    real = (feeds["x"].astype(int) - 120) @ weights["w.c"].astype(int)
    level = real * np.float64(np.float32(0.02)) * scale / np.float64(np.float32(0.3))
    want = np.clip(np.rint(level) + 130, 0, 255)
    off = got != want
    assert np.abs(got - want).max() <= 1
    assert (np.abs(np.abs(level - np.floor(level)) - 0.5)[off] < 1e-4).all()
    assert off.mean() < 1e-3


def test_a_product_between_quantised_tensors_is_one_kernel() -> None:
    graph = open_model(matmul(rounds=True)).graph({})
    assert len(partition(graph, VNNI, Options()).regions) == 1


def qlinear(size: int, groups: int = 1, channels: int = 40) -> onnx.ModelProto:
    """QLinearConv of small weights, so that float32 holds its sums."""
    m = Model()
    codes = m.draw.integers(-30, 31, (channels, channels // groups, size, size)).astype(np.int8)
    names = m.keep(
        xs=np.float32(0.02), xz=np.uint8(3), w=codes, ws=np.float32(0.01), wz=np.int8(0),
        ys=np.float32(0.5), yz=np.uint8(7), b=m.draw.integers(-99, 99, channels).astype(np.int32),
    )  # fmt: skip
    m.add("QLinearConv", ["x", *names], "y", pads=[size // 2] * 4, group=groups)
    return m.build({"x": (np.uint8, [2, channels, 9, 7])}, np.uint8)


def integer_matmul(size: int, depth: int = 203) -> onnx.ModelProto:
    m = Model()
    codes = m.draw.integers(-size, size + 1, (depth, 131)).astype(np.int8)
    m.add("MatMulInteger", ["x", *m.keep(w=codes, z=np.uint8(200))], "y")
    return m.build({"x": (np.uint8, [17, depth])}, np.int32)


@pytest.mark.parametrize("name", ["avx2", "vnni"])
@pytest.mark.parametrize(
    "model, exact",
    [
        (lambda: qlinear(3), True), (lambda: qlinear(1), True), (lambda: qlinear(3, 40), True),
        (lambda: integer_matmul(30), True), (lambda: integer_matmul(127, 1200), False),
    ],
)  # fmt: skip
def test_sums_that_float32_holds(model: Any, exact: bool, name: str) -> None:
    """The same integers, by float32 products where these cannot round."""
    graph = open_model(model()).graph({})
    feeds = feeds_of(graph)
    cut = partition(graph, TARGETS[name], Options())
    (node,) = products(cut.graph)
    if "operands" not in node.attrs:
        assert (node.inputs[0].dtype.name, bool(node.attrs.get("exact"))) == (
            ("f32", True) if exact else ("i32", False)
        )
    got = run_partition(cut, feeds, TARGETS[name])["y"]
    np.testing.assert_array_equal(got, evaluate(graph, feeds)["y"])


def residual_block(channels: int = 32) -> onnx.ModelProto:
    """1x1, 3x3 and 1x1 convolutions with a residual, every tensor quantised."""
    m = Model()

    def layer(name: str, x: str, size: int) -> str:
        w = m.weights(f"{name}.w", (channels, channels, size, size), 0)
        return m.add("Conv", [x, w], name, pads=[size // 2] * 4)

    x = m.quantised("x0", "x", 0.03, 128)
    y = m.quantised("q1", m.add("Relu", [layer("c1", x, 1)], "r1"), 0.1, 0)
    y = m.quantised("q2", m.add("Relu", [layer("c2", y, 3)], "r2"), 0.2, 0)
    y = m.quantised("q3", layer("c3", y, 1), 0.3, 120)
    m.quantised("y", m.add("Relu", [m.add("Add", [y, x], "sum")], "r3"), 0.2, 0)
    return m.build({"x": (np.float32, [1, channels, 10, 9])}, np.float32)


def test_a_quantised_residual_block() -> None:
    """A kernel a convolution where bytes are multiplied; steps of the grid apart at most where a
    rounding goes the other way."""
    model = residual_block()
    graph = open_model(model).graph({})
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds, float64=True)["y"]
    off = np.abs(fuser.compile(model, device="cpu").run(feeds)["y"] - want)
    assert off.max() <= 0.2 * 1.01 and (off > 1e-4).mean() < 5e-3
    with using("fast"):  # divisions by scales are products, which convolutions repeat
        cut = partition(open_model(model).graph({}), VNNI, Options())
    assert len(cut.regions) == 3
    assert {node.attrs.get("operands") for node in products(cut.graph)} == {"i8"}


def test_a_zero_point_that_comes_at_run_time_is_not_padded_with() -> None:
    """ConvInteger of what DynamicQuantizeLinear gives, with padding."""
    m = Model()
    m.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]))
    codes = m.draw.integers(-127, 128, (12, 6, 3, 3)).astype(np.int8)
    m.add("ConvInteger", ["q", *m.keep(w=codes), "z"], "i", pads=[1, 1, 1, 1])
    m.add("Cast", ["i"], "f", to=TensorProto.FLOAT)
    m.add("Mul", ["f", "s"], "y")
    model = m.build({"x": (np.float32, [1, 6, 7, 5])}, np.float32)
    graph = open_model(model).graph({})
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds)["y"]
    assert_close(fuser.compile(model, device="cpu").run(feeds)["y"], want, graph.outputs[0].dtype)


def decoder_block(width: int = 128, hidden: int = 256) -> onnx.ModelProto:
    """RMSNorm, a gated feed-forward of 4-bit weights and a residual, for one token."""
    m = Model()

    def linear(name: str, x: str, k: int, n: int) -> str:
        codes = m.draw.integers(0, 256, (n, k // 32, 16), dtype=np.uint8)
        scales = (m.draw.random(n * k // 32) * 0.01).astype(np.float32)
        names = m.keep(**{f"{name}.c": codes, f"{name}.s": scales})
        return m.add("MatMulNBits", [x, *names], name, domain="com.microsoft", K=k, N=n, bits=4,
                     block_size=32)  # fmt: skip

    gamma = m.keep(gamma=m.draw.random(width).astype(np.float32))
    x = m.add("SimplifiedLayerNormalization", ["x", *gamma], "norm", axis=-1, epsilon=1e-5)
    gate, up = linear("gate", x, width, hidden), linear("up", x, width, hidden)
    act = m.add("Mul", [m.add("Sigmoid", [gate], "sig"), gate], "silu")
    down = linear("down", m.add("Mul", [act, up], "act"), hidden, width)
    m.add("Add", [down, "x"], "y")
    return m.build({"x": (np.float32, [1, width])}, np.float32)


def test_a_decoder_block_of_packed_weights() -> None:
    """The norm, the gate with both of its products, and the last product with the residual."""
    model = decoder_block()
    graph = open_model(model).graph({})
    plan = fuser.compile(model, device="cpu")
    assert len({launch.kernel.name for launch in plan.program.launches}) == 3
    assert plan.report().bytes.packed > 3 * 128 * 256 * 3
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds, float64=True)["y"]
    assert_close(plan.run(feeds)["y"], want, graph.outputs[0].dtype, 512)
