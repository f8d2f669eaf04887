"""Weights that a model stores in few bits: packed in the plan, decoded in kernels, and right."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.backend.cpu import compile_kernel as compile_cpu
from fuser.backend.cpu.compile import decisions_text
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, X86_64_V3, X86_64_V4, Target
from fuser.dtypes import f16, f32
from fuser.frontends.onnx.model import open_model
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.graph.ops.registry import primitive
from fuser.graph.passes.keep_quantised import keep_quantised
from fuser.partition import Options, partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.rules.cpu.matmul import decoded_tile, packed_schedule
from tests.interpreted import run_partition
from tests.numerics import assert_close

NUMPY: dict[str, Any] = {
    "i8": np.int8, "u8": np.uint8, "i4": ml_dtypes.int4, "u4": ml_dtypes.uint4,
    "f4": ml_dtypes.float4_e2m1fn, "f8": ml_dtypes.float8_e4m3fn, "f8e5": ml_dtypes.float8_e5m2,
}  # fmt: skip
RANGES = {"i8": (-128, 128), "u8": (0, 256), "i4": (-8, 8), "u4": (0, 16)}


def stored(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    draw = np.random.default_rng(5)
    if kind in RANGES:
        return draw.integers(*RANGES[kind], shape).astype(NUMPY[kind])
    return (draw.standard_normal(shape) * 3).astype(NUMPY[kind])


def model_of(nodes: list[Any], inputs: dict[str, list[int]], arrays: dict[str, np.ndarray],
             half: bool = False) -> onnx.ModelProto:  # fmt: skip
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "packed",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def dequantised(
    kind: str, shape: tuple[int, ...], axis: int | None, block: int = 0, zeros: bool = False,
    half: bool = False,
) -> tuple[Any, dict[str, np.ndarray]]:  # fmt: skip
    """A DequantizeLinear that makes "w", and its initializers."""
    if axis is None:
        factors: tuple[int, ...] = ()
    elif block:
        factors = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape))
    else:
        factors = (shape[axis],)
    draw = np.random.default_rng(6)
    scale = np.asarray(draw.random(factors) * 0.02 + 0.001).astype(np.float16 if half else "f4")
    arrays = {"codes": stored(kind, shape), "scale": scale}
    if zeros:
        arrays["zero"] = np.asarray(draw.integers(*RANGES[kind], factors)).astype(NUMPY[kind])
    attrs = {} if axis is None else {"axis": axis}
    attrs |= {"block_size": block} if block else {}
    return helper.make_node("DequantizeLinear", list(arrays), ["w"], **attrs), arrays


def product(rows: int, *args: Any, turned: bool = False, **more: Any) -> onnx.ModelProto:
    """x [rows, k] @ w, w of `dequantised`, or its transpose."""
    node, arrays = dequantised(*args, **more)
    nodes, right = [node], "w"
    if turned:
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
        right = "t"
    nodes.append(helper.make_node("MatMul", ["x", right], ["y"]))
    inputs = {"x": [rows, args[1][1 if turned else 0]]}
    return model_of(nodes, inputs, arrays, bool(more.get("half")))


def n_bits(rows: int, k: int, n: int, block: int, bits: int, zeros: bool) -> onnx.ModelProto:
    """MatMulNBits."""
    draw = np.random.default_rng(7)
    blocks = -(-k // block)
    arrays = {
        "codes": draw.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8),
        "scale": (draw.random((n * blocks,)) * 0.02 + 0.001).astype(np.float32),
    }
    if zeros:
        arrays["zero"] = draw.integers(0, 256, n * -(-blocks * bits // 8), dtype=np.uint8)
    node = helper.make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft",
                            K=k, N=n, bits=bits, block_size=block)  # fmt: skip
    return model_of([node], {"x": [rows, k]}, arrays)


def convolution(*args: Any, image: tuple[int, int] = (3, 9), **more: Any) -> onnx.ModelProto:
    node, arrays = dequantised(*args, **more)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    return model_of([node, conv], {"x": [2, args[1][1], *image]}, arrays)


def feeds_of(graph: Graph) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(8)
    return {
        value.name: draw.standard_normal(value.type.static_shape).astype(value.dtype.numpy)
        for value in graph.inputs
    }


FORMS = {
    "i8 a column": ("i8", (200, 131), 1),
    "i8 one scale": ("i8", (200, 131), None),
    "u8 zeros": ("u8", (200, 131), 1, 0, True),
    "i4 blocks": ("i4", (200, 131), 0, 32),
    "u4 blocks zeros": ("u4", (203, 131), 0, 25, True),
    "u4 a column zeros": ("u4", (201, 131), 1, 0, True),
    "f8": ("f8", (200, 131), 1),
    "f8e5 blocks": ("f8e5", (200, 131), 0, 50),
    "f4 blocks": ("f4", (200, 131), 0, 20),
}


def check(model: onnx.ModelProto, depth: int, ratio: float, dtype: Any = f32) -> None:
    """The plan holds less than 1/ratio of the bytes of the folded weights (panels hang over odd
    sizes), and computes the product."""
    graph = open_model(model).graph({})
    assert sum(node.op == "dequantize" for node in graph.nodes) == 1
    (node,) = (node for node in graph.nodes if node.op == "dequantize")
    plan = fuser.compile(model, device="cpu")
    held = sum(array.nbytes for array in plan.program.constants)
    assert held < node.output.type.bytes / ratio
    # one region; a row by 4 bits has a kernel that splits it, where the processor has VNNI
    assert len({launch.kernel.name for launch in plan.program.launches}) == 1
    stays = 1 - 1 / ratio
    assert plan.report().bytes.packed > node.output.type.bytes * stays
    check_plan(model, depth, dtype)


def check_plan(model: onnx.ModelProto, depth: int, dtype: Any = f32, device: Any = "cpu") -> None:
    graph = open_model(model).graph({})
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds, float64=True)["y"]
    assert_close(fuser.compile(model, device=device).run(feeds)["y"], want, dtype, depth)


@pytest.mark.parametrize("rows", [1, 5, 30, 150])
@pytest.mark.parametrize("form", FORMS)
def test_products(form: str, rows: int) -> None:
    kind, shape, *more = FORMS[form]
    ratio = 2.2 if kind in ("i8", "u8", "f8", "f8e5") else 3.0
    check(product(rows, kind, shape, *more), shape[0], ratio)


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("bits, zeros", [(4, False), (4, True), (8, True), (2, False)])
def test_n_bits(rows: int, bits: int, zeros: bool) -> None:
    check(n_bits(rows, 200, 131, 32, bits, zeros), 200, 2.0 if bits == 8 else 3.0)


@pytest.mark.parametrize("rows", [1, 40])
def test_transposed_weights(rows: int) -> None:
    check(product(rows, "i4", (131, 203), 1, 32, turned=True), 203, 3.0)


@pytest.mark.parametrize("rows", [1, 40])
def test_float16(rows: int) -> None:
    check(product(rows, "i4", (200, 131), 0, 40, half=True), 200, 1.5, f16)


@pytest.mark.parametrize(
    "kind, axis, block, zeros",
    [("i8", 0, 0, False), ("i4", 0, 0, False), ("u8", None, 0, True), ("u4", 1, 8, True)],
)
def test_convolutions(kind: str, axis: int | None, block: int, zeros: bool) -> None:
    model = convolution(kind, (70, 40, 3, 3), axis, block, zeros)
    check(model, 40 * 9, 2.2 if block or kind in ("i8", "u8") else 3.0)


def test_convolutions_of_many_pixels_are_unpacked_on_a_cpu() -> None:
    """They wait for arithmetic; on a GPU the weights stay packed."""
    graph = open_model(convolution("i8", (70, 40, 3, 3), 0, image=(20, 21))).graph({})
    ops = {
        target.name: {n.op for r in partition(graph, target, Options()).regions for n in r.nodes}
        for target in (X86_64_V4, SM_90A)
    }
    assert "dequantize" in ops["cuda"] and "dequantize" not in ops["cpu"]
    check_plan(convolution("i8", (130, 140, 1, 1), 0, image=(20, 21)), 140)


def test_projections_of_one_tensor_are_one_product() -> None:
    """Q, K and V of packed weights: their codes lie side by side, as floats would."""
    arrays: dict[str, np.ndarray] = {}
    nodes = []
    for name, draw in (("q", 1), ("k", 2), ("v", 3)):
        rng = np.random.default_rng(draw)
        arrays[f"{name}.c"] = rng.integers(0, 256, (96, 4, 16), dtype=np.uint8)
        arrays[f"{name}.s"] = (rng.random(96 * 4) * 0.02 + 0.001).astype(np.float32)
        nodes.append(
            helper.make_node("MatMulNBits", ["x", f"{name}.c", f"{name}.s"], [name],
                             domain="com.microsoft", K=128, N=96, bits=4, block_size=32)
        )  # fmt: skip
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[1, 0]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    model = model_of(nodes, {"x": [5, 128]}, arrays)
    assert fuser.compile(model, device="cpu").report().kernels.after == 2
    check_plan(model, 512)


@pytest.mark.cuda
@pytest.mark.parametrize("form", FORMS)
def test_products_on_a_gpu(form: str) -> None:
    kind, shape, *more = FORMS[form]
    for rows in (1, 70):
        check_plan(product(rows, kind, shape, *more), shape[0], device="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["decode", "many", "half", "conv"])
def test_models_on_a_gpu(name: str) -> None:
    check_plan(MODELS[name](), 360, f16 if name == "half" else f32, device="cuda")


MODELS = {
    "decode": lambda: n_bits(1, 256, 131, 32, 4, True),
    "few": lambda: product(5, "f8", (200, 131), 1),
    "many": lambda: n_bits(70, 256, 131, 32, 4, False),
    "half": lambda: product(70, "i4", (256, 128), 0, 32, half=True),
    "conv": lambda: convolution("i4", (70, 40, 3, 3), 0),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", [X86_64_V3, X86_64_V4, SM_80, SM_90A], ids=lambda t: t.arch)
def test_programs_are_right(name: str, target: Target) -> None:
    """The tile programs for every target, interpreted."""
    graph = open_model(MODELS[name]()).graph({})
    feeds = feeds_of(graph)
    got = run_partition(partition(graph, target, Options()), feeds, target)["y"]
    want = evaluate(graph, feeds, float64=True)["y"]
    assert_close(got, want, graph.outputs[0].dtype, 360)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
def test_ptx_assembles(name: str, target: Target, tmp_path: Path) -> None:
    graph = open_model(MODELS[name]()).graph({})
    for program in emit_programs(partition(graph, target, Options()), target, verify=True):
        source = tmp_path / "kernel.ptx"
        source.write_bytes(compile_kernel(program.kernel, target).code)
        command = ["ptxas", f"-arch={target.arch}", "-v", str(source), "-o", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        log = done.stdout + done.stderr
        assert done.returncode == 0, log
        assert all(int(n) == 0 for n in re.findall(r"(\d+) bytes spill", log)), log


@pytest.mark.parametrize("name", MODELS)
def test_avx2_compiles(name: str) -> None:
    graph = open_model(MODELS[name]()).graph({})
    programs = emit_programs(partition(graph, X86_64_V3, Options()), X86_64_V3)
    assert all(compile_cpu(program.kernel, X86_64_V3).code for program in programs)


@pytest.mark.parametrize("zeros", [False, True])
def test_a_product_in_16_bits_is_kept_to_the_bit(zeros: bool, rng: np.random.Generator) -> None:
    """As exporters write it: codes, zero points and scales of float16, each step rounded there."""
    codes = rng.integers(-128, 128, (200, 131)).astype(np.int8)
    scale = (rng.random(131) * 0.02).astype(np.float16)
    zero = rng.integers(-100, 100, 131).astype(np.float16)
    nodes = [helper.make_node("Cast", ["codes"], ["c"], to=TensorProto.FLOAT16)]
    if zeros:
        nodes.append(helper.make_node("Sub", ["c", "zero"], ["d"]))
    nodes += [
        helper.make_node("Mul", ["d" if zeros else "c", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    arrays = {"codes": codes, "scale": scale} | ({"zero": zero} if zeros else {})
    graph = open_model(model_of(nodes, {"x": [3, 200]}, arrays, half=True)).graph({})
    (node,) = [node for node in graph.nodes if node.op == "dequantize"]
    operands = [value.constant for value in node.inputs]
    (found,) = primitive("dequantize").evaluate(operands, node.attrs)
    wanted = (codes.astype(np.float16) - (zero if zeros else np.float16(0))) * scale
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


def test_what_is_no_product_of_codes_is_folded() -> None:
    """Rounded to a grid that is not one: a weight off by one place must not be packed."""
    node, arrays = dequantised("i8", (200, 131), 1)
    noise = np.zeros((200, 131), np.float32)
    noise[3, 4] = 1e-4
    nodes = [
        node, helper.make_node("Add", ["w", "noise"], ["v"]),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": [3, 200]}, arrays | {"noise": noise})
    assert not any(node.op == "dequantize" for node in open_model(model).graph({}).nodes)


def test_small_weights_are_folded() -> None:
    graph = open_model(product(3, "i8", (20, 31), 1)).graph({})
    assert not any(node.op == "dequantize" for node in graph.nodes)
    assert keep_quantised(graph) is graph


def test_the_caller_may_round_the_other_operand() -> None:
    model = n_bits(40, 200, 131, 32, 4, False)
    graph = open_model(model).graph({})
    feeds = feeds_of(graph)
    want = evaluate(graph, feeds, float64=True)["y"]
    got = fuser.compile(model, device="cpu", precision="bf16").run(feeds)["y"]
    assert np.abs(got - want).max() < 8e-3 * np.abs(want).max()


@pytest.mark.parametrize("zeros", [False, True], ids=["signed", "zeros"])
def test_every_code_in_every_place_of_a_word(zeros: bool) -> None:
    """One row on a CPU: codes are masked where they stand in a word. All 16 in each of 8 places,
    exactly; nothing is decoded into memory first."""
    depth, columns, block = 64, 48, 32
    codes = (np.arange(columns)[:, None] + np.arange(depth)) % 16
    zero = np.arange(columns * 2).reshape(columns, 2) % 16
    scales = np.float32(2.0) ** (np.arange(columns * 2) % 5 - 2)
    arrays = {
        "w": (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8).reshape(columns, 2, block // 2),
        "s": scales,
    }
    if zeros:
        arrays["z"] = (zero[:, 0] | zero[:, 1] << 4).astype(np.uint8)
    node = helper.make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft",
                            K=depth, N=columns, bits=4, block_size=block)  # fmt: skip
    proto = model_of([node], {"x": [1, depth]}, arrays)
    plan = fuser.compile(proto, device="cpu", threads=1)
    less = np.repeat(zero if zeros else np.full((columns, 2), 8), block, axis=1)
    weights = (codes - less) * np.repeat(scales.reshape(columns, 2), block, axis=1)
    for k in range(depth):
        (y,) = plan.run({"x": np.eye(depth, dtype=np.float32)[k : k + 1]}).values()
        np.testing.assert_array_equal(y[0], weights[:, k])
    for target in (X86_64_V3, X86_64_V4):
        (program,) = emit_programs(partition(open_model(proto).graph({}), target), target)
        assert "\nscratch 0 bytes" in decisions_text(program.kernel, target)


@pytest.mark.parametrize("rows", [13, 96, 100, 197, 256, 1000])
@pytest.mark.parametrize("target", [X86_64_V3, X86_64_V4], ids=["avx2", "avx512"])
def test_blocks_of_many_rows_are_even(rows: int, target: Target) -> None:
    """No block of rows is mostly padding: 100 rows are two of 52 or 54, not 96 and then 4."""
    block = packed_schedule(target, rows, 2048, 2048, 32, 1).block("m")
    tile = decoded_tile(target, rows, 2048)[0]
    count = -(-rows // block)
    assert block < 96 + tile
    assert count * block - rows < count * tile
