"""Products of 8-bit operands on tensor cores: integers exactly, floats within their bound."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, X86_64_V3, Target
from fuser.dtypes import BY_NAME, DType, f32, i8, i32, u8
from fuser.errors import LoweringError, ShapeError
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.ops.registry import build
from fuser.graph.passes import run_passes
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen import ops
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.text import print_kernel
from fuser.tilegen.verify import verify
from tests import interpreted
from tests.backend.cuda_launch import context, run_on_device
from tests.backend.nvptx import kernels

SM_89 = dataclasses.replace(SM_80, arch="sm_89", shared_bytes=101376)
FLOATS = ["f8e4m3fn", "f8e5m2"]
SHAPES = [
    ((256, 384, 512), (128, 128, 128), {"warps": 8, "transpose_b": True}),
    ((1000, 1008, 272), (64, 64, 128), {"transpose_b": True}),
    ((300, 200, 416), (128, 64, 128), {"transpose_b": True, "roles": False}),
    ((4096, 1024, 256), (128, 128, 128), {"transpose_b": True, "persistent": True, "teams": 2}),
    ((16, 256, 1024), (16, 32, 256), {"transpose_b": True}),
    ((99, 77, 101), (64, 64, 32), {"transpose_b": True}),
    ((128, 192, 160), (64, 64, 32), {}),
    ((130, 96, 100), (32, 32, 64), {"transpose_a": True}),
    ((128, 128, 4096), (64, 64, 128), {"transpose_b": True, "cluster": 4}),
    ((256, 380, 2048), (64, 64, 128), {"transpose_b": True, "stream_k": 1}),
    ((1300, 1536, 1040), (128, 128, 128), {"transpose_b": True, "stream_k": 1, "teams": 2}),
]


def eight(
    dtype: DType, codes: str, size: tuple[int, int, int], blocks: tuple[int, int, int],
    options: dict[str, int],
) -> Kernel:  # fmt: skip
    out = f32 if codes else i32
    kernel = kernels.matmul(
        *size, dtype, blocks, epilogue=False, out=out, codes=codes, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    verify(kernel)
    return kernel


def arrays_of(kernel: Kernel, codes: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    found = {}
    for buffer in kernel.buffers:
        if buffer.role == "output":
            found[buffer.name] = np.zeros(buffer.size, buffer.dtype.numpy)
        elif codes:
            numbers = rng.standard_normal(buffer.size).astype(BY_NAME[codes].numpy)
            found[buffer.name] = numbers.view(np.uint8)
        else:
            low, high = buffer.dtype.lowest, buffer.dtype.highest
            found[buffer.name] = rng.integers(low, high + 1, buffer.size, buffer.dtype.numpy)
    return found


@pytest.mark.parametrize(
    "dtype, codes, sums, name",
    [(i8, "", "s32", "s8"), (u8, "", "s32", "u8"),
     (u8, "f8e4m3fn", "f32", "e4m3"), (u8, "f8e5m2", "f32", "e5m2")],
)  # fmt: skip
def test_instructions(dtype: DType, codes: str, sums: str, name: str) -> None:
    """Asynchronous products on Hopper, mma.sync for small tiles and older GPUs."""
    options = {"warps": 8, "transpose_b": True}
    kernel = eight(dtype, codes, (256, 256, 512), (128, 128, 128), options)
    ptx = compile_kernel(kernel, SM_90A).code.decode()
    assert f"wgmma.mma_async.sync.aligned.m64n128k32.{sums}.{name}.{name} " in ptx
    small = eight(dtype, codes, (16, 256, 512), (16, 64, 128), {"transpose_b": True})
    for target in (SM_89, SM_90A) if codes else (SM_80, SM_89, SM_90A):
        ptx = compile_kernel(small, target).code.decode()
        assert re.search(rf"mma\.sync\S*m16n8k32\S*{name}\.{name}\.{sums}", ptx)
        assert "ldmatrix" in ptx


@pytest.mark.parametrize("codes", FLOATS)
def test_floats_below_their_first_gpu(codes: str) -> None:
    kernel = eight(u8, codes, (64, 64, 64), (64, 64, 64), {"transpose_b": True})
    with pytest.raises(LoweringError, match=f"sm_80 does not multiply {codes}"):
        compile_kernel(kernel, SM_80)
    from fuser.backend.cpu import compile_kernel as compile_for_cpu

    with pytest.raises(LoweringError, match=f"a CPU does not multiply {codes}"):
        compile_for_cpu(kernel, X86_64_V3)


@pytest.mark.parametrize("codes", FLOATS)
def test_codes_in_the_interpreter_and_text(codes: str, rng: np.random.Generator) -> None:
    kernel = eight(u8, codes, (24, 16, 64), (8, 16, 32), {"transpose_b": True})
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    arrays = arrays_of(kernel, codes, rng)
    run(kernel, arrays)
    a, b = (arrays[name].view(BY_NAME[codes].numpy).astype(np.float64) for name in ("x0", "x1"))
    expected = a.reshape(24, 64) @ b.reshape(16, 64).T
    np.testing.assert_allclose(arrays["y"].reshape(24, 16), expected, rtol=1e-5, atol=1e-5)


def integer_model(
    m: int, n: int, k: int, kind: int, rng: np.random.Generator, zero: bool = False
) -> ModelProto:
    weights = rng.integers(-127, 128, (k, n)).astype(np.int8)
    inputs = [helper.make_tensor_value_info("a", kind, (m, k))]
    if zero:
        inputs.append(helper.make_tensor_value_info("zero", kind, ()))
    node = helper.make_node("MatMulInteger", ["a", "b", "zero"] if zero else ["a", "b"], ["y"])
    graph = helper.make_graph(
        [node], "product", inputs, [helper.make_tensor_value_info("y", TensorProto.INT32, (m, n))],
        [numpy_helper.from_array(weights, "b")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
@pytest.mark.parametrize("size", [(512, 512, 512), (100, 77, 130)])
def test_integer_products_of_models(
    size: tuple[int, int, int], target: Target, rng: np.random.Generator
) -> None:
    """MatMulInteger multiplies bytes: one kernel of i8 operands, weights with k inner."""
    graph = run_passes(import_onnx(integer_model(*size, TensorProto.INT8, rng), {}))
    (program,) = emit_programs(partition(graph, target), target, verify=True)
    (dot,) = (op for op in program.kernel.walk() if isinstance(op, ops.Dot))
    assert (dot.a.dtype, dot.b.dtype, dot.acc.dtype) == (i8, i8, i32)
    facts = compile_kernel(program.kernel, target).facts
    assert facts["dot"] in ("mma", "wgmma") and facts["copies"] != "none"
    weights = next(a for a in program.arguments if a.packing is not None)
    assert weights.packing is not None
    packed = weights.packing.apply(weights.value.constant)  # type: ignore[union-attr]
    assert packed.dtype == np.int8 and packed.shape == (1, size[1], -(-size[2] // 32) * 32)


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda t: t.arch)
@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8])
@pytest.mark.parametrize("size", [(64, 64, 128), (33, 50, 130)])
def test_zero_points(
    size: tuple[int, int, int], kind: int, target: Target, rng: np.random.Generator
) -> None:
    """Exactly x - zero times the weights, over all bytes, by the Tile IR."""
    graph = run_passes(import_onnx(integer_model(*size, kind, rng, zero=True), {}))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (size[0], size[2])).astype(dtype)
    feeds = {"a": x, "zero": np.array(info.max - 3, dtype)}
    cut = partition(graph, target)
    interpreted.check(cut, feeds, target, tolerance=0.0)
    programs = [program.kernel for program in emit_programs(cut, target)]
    dots = [op for kernel in programs for op in kernel.walk() if isinstance(op, ops.Dot)]
    assert [dot.a.dtype for dot in dots] == [i8]


# 8-bit floats of models ---------------------------------------------------------------------------


def float_model(
    size: tuple[int, int, int], rng: np.random.Generator, result: int = TensorProto.FLOAT16,
    kinds: tuple[int, int] = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FN),
    constant: bool = True, transposed: bool = False,
) -> ModelProto:  # fmt: skip
    """y = dequantised a @ dequantised b; the scale of a is an input."""
    m, n, k = size
    shape = (n, k) if transposed else (k, n)
    a, b = (helper.make_tensor_value_info(name, kind, s)
            for name, kind, s in zip("ab", kinds, ((m, k), shape), strict=True))  # fmt: skip
    dtype = helper.tensor_dtype_to_np_dtype(kinds[1])
    weights = rng.standard_normal(shape).astype(dtype)
    scale = numpy_helper.from_array(np.array(0.3, helper.tensor_dtype_to_np_dtype(result)), "sb")
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "sa"], ["da"]),
        helper.make_node("DequantizeLinear", ["b", "sb"], ["db"]),
    ]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["db"], ["bt"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["da", "bt" if transposed else "db"], ["y"]))
    inputs = [a, helper.make_tensor_value_info("sa", result, ())]
    held = [scale]
    if constant:
        held.append(helper.make_tensor("b", kinds[1], shape, weights.tobytes(), raw=True))
    else:
        inputs.append(b)
    graph = helper.make_graph(
        nodes, "product", inputs, [helper.make_tensor_value_info("y", result, (m, n))], held
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("result", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
@pytest.mark.parametrize("transposed", [False, True])
def test_float_products_of_models(
    result: int, kind: int, transposed: bool, rng: np.random.Generator
) -> None:
    """Codes times codes in one kernel, scaled after the product; closer to the truth than the
    product of rounded operands."""
    size = (128, 128, 256)
    kinds = (kind, kind)
    model = float_model(size, rng, result, kinds, transposed=transposed)
    graph = run_passes(import_onnx(model, {}))
    cut = partition(graph, SM_90A)
    (program,) = emit_programs(cut, SM_90A, verify=True)
    (dot,) = (op for op in program.kernel.walk() if isinstance(op, ops.Dot))
    assert dot.codes == ("f8e4m3fn" if kind == TensorProto.FLOAT8E4M3FN else "f8e5m2")
    assert compile_kernel(program.kernel, SM_90A).facts["copies"] != "none"
    numbers = rng.standard_normal((size[0], size[2])).astype(helper.tensor_dtype_to_np_dtype(kind))
    half = helper.tensor_dtype_to_np_dtype(result)
    feeds = {"a": numbers.view(np.uint8), "sa": np.array(0.7, half)}
    interpreted.check(cut, feeds, SM_90A, tolerance=4e-3 if half == np.float16 else 2e-2)
    (rewritten,) = evaluate(cut.graph, feeds).values()
    (exact,) = evaluate(graph, feeds, float64=True).values()
    step = 2.0**-11 if half == np.float16 else 2.0**-8
    error = np.abs(rewritten.astype(np.float64) - exact)
    assert error.max() <= np.abs(exact).max() * 4 * step


@pytest.mark.parametrize(
    "options, target",
    [
        ({"result": TensorProto.FLOAT}, SM_90A),
        ({"constant": False}, SM_90A),
        ({"kinds": (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2)}, SM_90A),
        ({}, SM_80),
    ],
)
def test_other_float_products_are_decoded(
    options: dict[str, Any], target: Target, rng: np.random.Generator
) -> None:
    """float32 results, products of activations (attention), two kinds of floats, older GPUs."""
    model = float_model((128, 128, 256), rng, **options)
    cut = partition(run_passes(import_onnx(model, {})), target)
    for program in emit_programs(cut, target):
        assert all(not op.codes for op in program.kernel.walk() if isinstance(op, ops.Dot))


def test_codes_must_be_bytes() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(i8, (4, 4)))
    axes = {"lhs_contract": (1,), "rhs_contract": (0,), "lhs_batch": (), "rhs_batch": ()}
    with pytest.raises(ShapeError, match="holds no codes of f8e5m2"):
        build(graph, "dot_general", x, x, **axes, codes="f8e5m2")


# on a GPU -----------------------------------------------------------------------------------------


@pytest.fixture(params=(SM_80, SM_89, SM_90A), ids=lambda t: t.arch)
def target(request: pytest.FixtureRequest) -> Target:
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    return request.param


@pytest.mark.cuda
@pytest.mark.parametrize("size, blocks, options", SHAPES)
@pytest.mark.parametrize("dtype", [i8, u8], ids=str)
def test_integers(
    dtype: DType, size: tuple[int, int, int], blocks: tuple[int, int, int],
    options: dict[str, int], target: Target, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Every byte from the lowest to the highest, to the last bit."""
    kernel = eight(dtype, "", size, blocks, options)
    arrays = arrays_of(kernel, "", rng)
    found = run_on_device(kernel, compile_kernel(kernel, target), arrays)
    run(kernel, arrays)
    np.testing.assert_array_equal(found["y"], arrays["y"])


@pytest.mark.cuda
@pytest.mark.parametrize("size, blocks, options", SHAPES)
@pytest.mark.parametrize("codes", FLOATS)
def test_floats(
    codes: str, size: tuple[int, int, int], blocks: tuple[int, int, int],
    options: dict[str, int], target: Target, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Every instruction, 32 of k, may lose what lies 14 bits below the terms of its block of k;
    between blocks sums are float32."""
    if target.sm < 89:
        pytest.skip("no products of 8-bit floats")
    kernel = eight(u8, codes, size, blocks, options)
    arrays = arrays_of(kernel, codes, rng)
    found = run_on_device(kernel, compile_kernel(kernel, target), arrays)
    run(kernel, arrays)
    exact = arrays["y"].copy()
    for name in ("x0", "x1"):
        array = arrays[name].view(BY_NAME[codes].numpy)
        array[...] = np.abs(array.astype(np.float32))
    run(kernel, arrays)
    bound = arrays["y"] * (blocks[2] / 32 * 2.0**-13)
    np.testing.assert_array_less(np.abs(found["y"] - exact), bound + 1e-30)
