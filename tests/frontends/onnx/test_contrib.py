"""The com.microsoft operators beside ONNX Runtime, whose they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fuser
from tests.processors import multiplies_bytes

ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def codes(*shape: int, dtype: Any = np.uint8) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def scale(*shape: int) -> Array:
    return rng.uniform(0.01, 0.03, shape).astype(np.float32)


def u8(value: int) -> Array:
    return np.asarray(value, np.uint8)


def i8(value: int) -> Array:
    return np.asarray(value, np.int8)


def ints(*values: Any) -> Array:
    return np.asarray(values, np.int32)


Operands = list[Array | None]
Case = tuple[str, Operands, dict[str, Any], int]

B, S, H, D = 2, 5, 4, 16  # batch, length, heads, width
SMALL = D // H


def caches(count: int, half: int) -> list[Array]:
    angles = np.arange(count)[:, None] / 10 ** (np.arange(half) / half)
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


def group(
    new: int, past: int, room: int, lengths: list[int], packed: bool = False, bias: bool = False,
    **attributes: Any,
) -> Case:  # fmt: skip
    """GroupQueryAttention: past entries of a cache that has room for more, and new tokens."""
    size, groups = 16, 2  # ONNX Runtime turns heads of a multiple of 16 only
    total = past + new
    batch = len(lengths)
    queries = normal(batch, new, (H + 2 * groups) * size if packed else H * size)
    pair: Operands = [None, None] if packed else [normal(batch, new, groups * size) for _ in "kv"]
    cache: Operands = [normal(batch, groups, room, size) for _ in "kv"]
    seen = np.asarray(lengths, np.int32) - 1
    operands = [queries, *pair, *cache, seen, np.asarray(total, np.int32)]
    if attributes.get("do_rotary"):
        operands += caches(64, size // 2)
    if bias:
        operands += [None] * (10 - len(operands)) + [normal(batch, 1, new, total)]
    return ("GroupQueryAttention", operands,
            {"num_heads": H, "kv_num_heads": groups, **attributes}, 3)  # fmt: skip


def n_bits(
    rows: int, depth: int, bits: int, block: int, zeros: str = "", bias: bool = False
) -> Case:
    blocks = -(-depth // block)
    operands: Operands = [
        normal(3, depth), codes(rows, blocks, block * bits // 8), scale(rows * blocks),
    ]  # fmt: skip
    if zeros == "packed":
        operands.append(codes(rows * -(-blocks * bits // 8)))
    elif zeros == "floats":
        operands.append(rng.integers(0, 1 << bits, (rows, blocks)).astype(np.float32))
    if bias:
        operands += [None] * (5 - len(operands)) + [normal(rows)]
    return ("MatMulNBits", operands,
            {"N": rows, "K": depth, "bits": bits, "block_size": block}, 1)  # fmt: skip


padding = np.asarray([[1] * S, [1, 1, 1, 0, 0]], np.int32)
CASES: dict[str, Case] = {
    "gelu": ("Gelu", [normal(3, 7)], {}, 1),
    "fast gelu": ("FastGelu", [normal(3, 7)], {}, 1),
    "fast gelu, bias": ("FastGelu", [normal(3, 7), normal(7)], {}, 1),
    "bias gelu": ("BiasGelu", [normal(2, 3, 7), normal(7)], {}, 1),
    "quick gelu": ("QuickGelu", [normal(3, 7)], {"alpha": 1.5}, 1),
    "skip norm": ("SkipLayerNormalization",
                  [normal(B, S, D), normal(B, S, D), normal(D), normal(D), normal(D)],
                  {"epsilon": 1e-5}, 4),
    "skip norm, broadcast": ("SkipLayerNormalization",
                             [normal(B, S, D), normal(1, S, D), normal(D)], {}, 1),
    "skip rms norm": ("SkipSimplifiedLayerNormalization",
                      [normal(B, S, D), normal(B, S, D), normal(D), normal(D)], {}, -4),
    "embeddings": ("EmbedLayerNormalization",
                   [ints(*rng.integers(0, 9, (B, S))), ints(*rng.integers(0, 2, (B, S))),
                    normal(9, D), normal(8, D), normal(2, D), normal(D), normal(D), padding],
                   {}, 3),
    "embeddings, no segments": ("EmbedLayerNormalization",
                                [ints(*rng.integers(0, 9, (B, S))), None, normal(9, D),
                                 normal(8, D), None, normal(D), normal(D), None,
                                 ints(*rng.integers(0, 8, (B, S)))], {}, 2),
    "fused matmul": ("FusedMatMul", [normal(2, 5, 3), normal(2, 4, 5)],
                     {"transA": 1, "transB": 1, "alpha": 0.5}, 1),
    "fused matmul, batch": ("FusedMatMul", [normal(3, 2, 4), normal(4, 2, 5)],
                            {"transBatchA": 1, "transBatchB": 1}, 1),
    "fused gemm": ("FusedGemm", [normal(3, 4), normal(4, 5), normal(5)],
                   {"activation": "Relu", "alpha": 0.5}, 1),
    "fused conv": ("FusedConv", [normal(1, 3, 6, 6), normal(4, 3, 3, 3), normal(4),
                                 normal(1, 4, 6, 6)],
                   {"activation": "Relu", "pads": [1, 1, 1, 1]}, 1),
    "fused conv, clip": ("FusedConv", [normal(1, 3, 6, 6), normal(4, 3, 3, 3)],
                         {"activation": "Clip", "activation_params": [-1.0, 2.0]}, 1),
    "4 bits": n_bits(6, 64, 4, 32),
    "4 bits, zeros": n_bits(7, 80, 4, 16, "packed"),
    "4 bits, floats": n_bits(5, 70, 4, 32, "floats", bias=True),
    "8 bits": n_bits(6, 64, 8, 32, "packed"),
    "attention": ("Attention", [normal(B, S, D), normal(D, 3 * D), normal(3 * D)],
                  {"num_heads": H}, 1),
    "attention, lengths": ("Attention",
                           [normal(B, S, D), normal(D, 3 * D), normal(3 * D), ints(5, 3)],
                           {"num_heads": H}, 1),
    "attention, mask": ("Attention",
                        [normal(B, S, D), normal(D, 3 * D), normal(3 * D), padding],
                        {"num_heads": H}, 1),
    "attention, past": ("Attention",
                        [normal(B, S, D), normal(D, 3 * D), normal(3 * D), None,
                         normal(2, B, H, 3, SMALL)], {"num_heads": H, "unidirectional": 1}, 2),
    "attention, bias": ("Attention",
                        [normal(B, S, D), normal(D, 3 * D), normal(3 * D), None, None,
                         normal(B, H, S, S)], {"num_heads": H, "scale": 0.3}, 1),
    "attention, sizes": ("Attention",
                         [normal(B, S, D), normal(D, 2 * D + 8), normal(2 * D + 8)],
                         {"num_heads": H, "qkv_hidden_sizes": [D, D, 8]}, 1),
    "heads": ("MultiHeadAttention", [normal(B, S, D), normal(B, 7, D), normal(B, 7, D)],
              {"num_heads": H}, 1),
    "heads, bias": ("MultiHeadAttention",
                    [normal(B, S, D), normal(B, S, D), normal(B, S, D), normal(3 * D), padding],
                    {"num_heads": H}, 1),
    "heads, past": ("MultiHeadAttention",
                    [normal(B, S, D), normal(B, S, D), normal(B, S, D), None, None,
                     normal(1, H, S, S + 3), normal(B, H, 3, SMALL), normal(B, H, 3, SMALL)],
                    {"num_heads": H, "unidirectional": 1}, 3),
    "heads, cross": ("MultiHeadAttention",
                     [normal(B, S, D), normal(B, H, 6, SMALL), normal(B, H, 6, SMALL)],
                     {"num_heads": H}, 1),
    "rotary": ("RotaryEmbedding", [normal(B, S, D), np.asarray([2]), *caches(16, SMALL // 2)],
               {}, 1),
    "rotary, positions": ("RotaryEmbedding",
                          [normal(B, H, S, SMALL), rng.integers(0, 16, (B, S)),
                           *caches(16, SMALL // 2)], {"interleaved": 1}, 1),
    "groups, prompt": group(5, 0, 0, [5, 5]),
    "groups, packed prompt": group(5, 0, 0, [5, 3], packed=True, do_rotary=1),
    "groups, step": group(1, 6, 6, [7, 7], do_rotary=1),
    "groups, rows of different lengths": group(1, 6, 6, [7, 4], do_rotary=1),
    "groups, room": group(1, 6, 12, [7, 5]),
    "groups, several": group(3, 4, 4, [7], do_rotary=1, rotary_interleaved=1),
    "groups, window": group(1, 9, 9, [10, 8], local_window_size=4),
    "groups, cap": group(4, 0, 0, [4, 4], softcap=2.0, scale=0.7),
    "qlinear add": ("QLinearAdd", [codes(3, 4), scale(), u8(120), codes(4), scale(), u8(3),
                                   scale(), u8(100)], {}, 1),
    "qlinear mul": ("QLinearMul", [codes(3, 4, dtype=np.int8), scale(), i8(5),
                                   codes(3, 4, dtype=np.int8), scale(), i8(-3),
                                   scale(), i8(0)], {}, 1),
    "qlinear sigmoid": ("QLinearSigmoid", [codes(3, 9), scale(), u8(100), np.float32(1 / 256),
                                           u8(0)], {}, 1),
    "qlinear leaky": ("QLinearLeakyRelu", [codes(3, 9), scale(), u8(100), scale(), u8(9)],
                      {"alpha": 0.2}, 1),
    "qlinear softmax": ("QLinearSoftmax", [codes(3, 9), scale(), u8(100), np.float32(1 / 256),
                                           u8(0)], {"opset": 13, "axis": 1}, 1),
    "qlinear global pool": ("QLinearGlobalAveragePool", [codes(2, 3, 4, 4), scale(), u8(100),
                                                         scale(), u8(120)], {}, 1),
    "qlinear pool": ("QLinearAveragePool", [codes(2, 3, 4, 4), scale(), u8(100), scale(),
                                            u8(120)], {"kernel_shape": [2, 2]}, 1),
    "qlinear concat": ("QLinearConcat", [scale(), u8(9), codes(2, 3), scale(), u8(7),
                                         codes(2, 2), scale(), u8(90)], {"axis": 1}, 1),
    "qlinear where": ("QLinearWhere", [np.asarray([[True, False]]), codes(3, 2), scale(), u8(7),
                                       codes(3, 2), scale(), u8(90), scale(), u8(3)], {}, 1),
    "integer to float": ("MatMulIntegerToFloat", [codes(3, 5), codes(5, 4, dtype=np.int8),
                                                  scale(), scale(4), u8(7), None, normal(4)],
                         {}, 1),
    "dynamic": ("DynamicQuantizeMatMul", [normal(3, 5), codes(5, 4), scale(1), u8(120),
                                          normal(4)], {}, 1),
    "quantised gemm": ("QGemm", [codes(3, 5), scale(), u8(7), codes(4, 5, dtype=np.int8),
                                 scale(), i8(3), ints(5, -700, 300, 2), scale(), u8(50)],
                       {"transB": 1}, 1),
    "quantised gemm, floats": ("QGemm", [codes(3, 5), scale(), u8(7), codes(5, 4), scale(),
                                         u8(3)], {}, 1),
    "quantize": ("QuantizeLinear", [normal(3, 4), scale(), np.asarray(900, np.uint16)], {}, 1),
    "dequantize": ("DequantizeLinear", [codes(3, 4, dtype=np.int16), scale(),
                                        np.asarray(9, np.int16)], {}, 1),
}  # fmt: skip
# Read by their value, or weights: constants of the model.
FIXED = {"GroupQueryAttention": (6,), "MatMulNBits": (1, 2, 3, 5)}


def model_of(case: Case, fixed: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    op, operands, attributes, results = case
    names = ["" if array is None else f"x{i}" for i, array in enumerate(operands)]
    outputs = [f"y{i}" for i in range(abs(results))]
    if results < 0:  # only the first and the last
        outputs = [outputs[0], *[""] * (len(outputs) - 2), outputs[-1]]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)
    arrays = {name: np.asarray(array) for name, array in zip(names, operands, strict=True) if name}
    constants = {
        f"x{i}": onnx.numpy_helper.from_array(arrays.pop(f"x{i}"), f"x{i}")
        for i in (FIXED.get(op, ()) if fixed or op == "GroupQueryAttention" else ())
        if f"x{i}" in arrays
    }
    graph = helper.make_graph(
        [node],
        "contrib",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in arrays.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
         for name in outputs if name],
        list(constants.values()),
    )  # fmt: skip
    for output in graph.output:
        output.ClearField("type")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), arrays


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str, device: Any) -> None:
    if name == "integer to float" and not multiplies_bytes():
        pytest.skip("ONNX Runtime's sums of bytes saturate on this processor")
    model, feeds = model_of(CASES[name], fixed=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feeds)
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for info, found in zip(typed.graph.output, session.get_outputs(), strict=True):
        kinds = {"float": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8,
                 "int32": TensorProto.INT32, "uint16": TensorProto.UINT16}  # fmt: skip
        info.type.tensor_type.elem_type = kinds[found.type[7:-1]]
    plan = fuser.compile(typed, device=device)
    assert plan.report().fallbacks == ()
    results = list(plan.run(feeds).values())
    if CASES[name][0] == "GroupQueryAttention":  # results of padding tokens mean nothing
        for row, last in enumerate(CASES[name][1][5]):
            results[0][row, last + 1 :] = expected[0][row, last + 1 :]
    for found, wanted in zip(results, expected, strict=True):
        assert found.shape == wanted.shape
        if wanted.dtype.kind in "iu":  # ties may round the other way
            off = 1 if wanted.dtype != np.int32 else 0
            assert np.abs(found.astype(np.int64) - wanted.astype(np.int64)).max() <= off
            assert (found != wanted).mean() < 0.05
        else:
            error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
            assert error < (1e-5 if device == "cpu" else 1e-4)
