"""The cases of benchmarks.kernels: small ONNX graphs, the peers' calls and the references."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch.nn.attention import SDPBackend, sdpa_kernel

TORCH = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i8": torch.int8,
    "i32": torch.int32, "f8e4m3": torch.float8_e4m3fn,
}  # fmt: skip
ONNX = {
    "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "f32": TensorProto.FLOAT,
    "i8": TensorProto.INT8, "i32": TensorProto.INT32, "f8e4m3": TensorProto.FLOAT8E4M3FN,
}  # fmt: skip
NUMPY = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
OPSET = 25

Tensors = Mapping[str, torch.Tensor]
Call = Callable[[Tensors, torch.Tensor], Any]


@dataclass
class Case:
    """One graph. shapes: its inputs. constants: inputs that are initializers instead. work: flops
    or bytes of one run (`unit` says which). peers take tensors by name and a tensor to write into
    (or return their result). reference takes float32 or float64 tensors. tolerance: of
    ||out - reference|| / ||reference||."""

    group: str
    name: str
    dtype: str
    nodes: Sequence[Any]
    shapes: Mapping[str, tuple[int, ...]]
    result: tuple[int, ...]
    work: float
    unit: str
    peers: Mapping[str, Call]
    reference: Callable[[Tensors], torch.Tensor]
    constants: frozenset[str] = frozenset()
    exact: torch.dtype = torch.float32
    scales: Mapping[str, float] = field(default_factory=dict)
    compiled: Callable[[Tensors], torch.Tensor] | None = None
    sums: str = ""
    """The dtype of the result, where it is not that of the inputs."""

    @property
    def tolerance(self) -> float:
        return {"bf16": 6e-3, "f16": 1e-3, "f32": 1e-5, "i8": 1e-12}.get(self.dtype, 6e-3)

    def model(self, constants: Tensors) -> ModelProto:
        kind = ONNX[self.dtype]
        inputs = [
            helper.make_tensor_value_info(name, kind, shape)
            for name, shape in self.shapes.items()
            if name not in self.constants
        ]
        weights = []
        for name in self.constants:
            array = constants[name].float().cpu().numpy().astype(NUMPY[self.dtype])
            weights.append(numpy_helper.from_array(array, name))
        output = helper.make_tensor_value_info("y", ONNX[self.out], self.result)
        graph = helper.make_graph(list(self.nodes), "kernel", inputs, [output], weights)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12
        )

    def draw(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(seed)
        if self.dtype == "i8":
            return {
                name: torch.randint(
                    -127, 128, shape, device="cuda", generator=generator, dtype=torch.int8
                )
                for name, shape in self.shapes.items()
            }
        return {
            name: (
                torch.randn(shape, device="cuda", generator=generator) * self.scales.get(name, 1.0)
            ).to(TORCH[self.dtype])
            for name, shape in self.shapes.items()
        }

    @property
    def out(self) -> str:
        return self.sums or self.dtype

    @property
    def bytes(self) -> int:
        """Of inputs and output."""
        read = sum(int(np.prod(shape)) for shape in self.shapes.values())
        written = int(np.prod(self.result))
        return read * TORCH[self.dtype].itemsize + written * TORCH[self.out].itemsize


def _node(kind: str, inputs: Sequence[str], output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(kind, list(inputs), [output], name=output, **attributes)


# matrix products ----------------------------------------------------------------------------------

SHAPES = [
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 8192, 8192), (4096, 768, 768), (4096, 3072, 768), (4096, 768, 3072),
    (2048, 11008, 4096), (128, 768, 768), (128, 3072, 768), (1, 4096, 4096), (8, 4096, 4096),
    (16, 4096, 4096), (64, 4096, 4096), (1000, 1000, 1000), (4095, 4097, 129),
]  # fmt: skip
QUICK_SHAPES = [
    (512, 512, 512), (4096, 4096, 4096), (4096, 768, 768), (128, 768, 768), (16, 4096, 4096),
]  # fmt: skip


def _mm(t: Tensors, nt: bool) -> torch.Tensor:
    return t["a"] @ (t["b"].t() if nt else t["b"])


def _gemm(group: str, m: int, n: int, k: int, dtype: str, nt: bool, constant: bool = False) -> Case:
    shape = (n, k) if nt else (k, n)
    nodes = [_node("Transpose", ["b"], "bt", perm=[1, 0])] if nt else []
    nodes.append(_node("MatMul", ["a", "bt" if nt else "b"]))

    def peer(t: Tensors, y: torch.Tensor) -> Any:
        return torch.mm(t["a"], t["b"].t() if nt else t["b"], out=y)

    series = ("NT" if nt else "NN") + (" constant" if constant else "")
    return Case(
        group, f"{m}x{n}x{k} {series}", dtype, nodes, {"a": (m, k), "b": shape}, (m, n),
        2.0 * m * n * k, "TFLOP/s", {"cuBLAS": peer}, functools.partial(_mm, nt=nt),
        frozenset({"b"} if constant else ()), torch.float64 if dtype == "f32" else torch.float32,
        {"b": k**-0.5}, functools.partial(_mm, nt=nt),
    )  # fmt: skip


def gemm(quick: bool) -> Iterator[Case]:
    for m, n, k in QUICK_SHAPES if quick else SHAPES:
        for nt in (False, True):
            yield _gemm("gemm", m, n, k, "bf16", nt)
        if not quick:
            yield _gemm("gemm", m, n, k, "f16", True)
            if m * n * k < 1 << 36:
                yield _gemm("gemm", m, n, k, "bf16", False, constant=True)


def gemm_f32(quick: bool) -> Iterator[Case]:
    shapes = [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (4096, 768, 768)]
    for m, n, k in shapes[1:3] if quick else shapes:
        for nt in (False,) if quick else (False, True):
            yield _gemm("gemm-f32", m, n, k, "f32", nt)


def gemm_i8(quick: bool) -> Iterator[Case]:
    """Bytes times constant bytes, in int32."""
    shapes = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 3072, 768), (32, 4096, 4096)]
    for m, n, k in shapes[:1] if quick else shapes:
        nodes = [_node("Transpose", ["b"], "bt", perm=[1, 0]), _node("MatMulInteger", ["a", "bt"])]

        def peer(t: Tensors, y: torch.Tensor) -> Any:
            return torch._int_mm(t["a"], t["b"].t(), out=y)

        yield Case(
            "gemm-i8", f"{m}x{n}x{k} NT constant", "i8", nodes, {"a": (m, k), "b": (n, k)}, (m, n),
            2.0 * m * n * k, "TFLOP/s", {"torch._int_mm": peer}, functools.partial(_mm, nt=True),
            frozenset({"b"}), torch.float64, sums="i32",
        )  # fmt: skip


def gemm_f8(quick: bool) -> Iterator[Case]:
    """float8 codes of scale 1 times constant ones, in bfloat16."""
    shapes = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 3072, 768), (128, 4096, 4096)]
    one = helper.make_tensor("one", TensorProto.BFLOAT16, (), [1.0])
    for m, n, k in shapes[:1] if quick else shapes:
        nodes = [
            _node("Constant", [], "s", value=one), _node("DequantizeLinear", ["a", "s"], "da"),
            _node("DequantizeLinear", ["b", "s"], "db"),
            _node("Transpose", ["db"], "bt", perm=[1, 0]), _node("MatMul", ["da", "bt"]),
        ]  # fmt: skip
        peers = {
            f"scaled_mm{' fast' * fast}": functools.partial(_scaled_mm, fast=fast)
            for fast in (False, True)
        }
        yield Case(
            "gemm-f8", f"{m}x{n}x{k} NT constant", "f8e4m3", nodes, {"a": (m, k), "b": (n, k)},
            (m, n), 2.0 * m * n * k, "TFLOP/s", peers, functools.partial(_mm, nt=True),
            frozenset({"b"}), sums="bf16",
        )  # fmt: skip


def _scaled_mm(t: Tensors, y: torch.Tensor, fast: bool) -> Any:
    one = torch.ones((), device="cuda")
    return torch._scaled_mm(
        t["a"], t["b"].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


CODES = (8192, 14336)
"""k and n: 59 MB with 4 bits, more than an L2 holds."""


def gemm_codes(quick: bool) -> Iterator[Case]:
    """bfloat16 times constant weights of 4 bits with a scale for each 32 of k, and of 8 bits with
    one for a column."""
    for m, bits in ((1, 4),) if quick else ((1, 4), (8, 4), (1, 8), (8, 8)):
        yield _codes(m, *CODES, bits)


def _codes(m: int, k: int, n: int, bits: int) -> Case:
    @functools.cache
    def drawn() -> tuple[np.ndarray, np.ndarray]:
        """The codes [k, n], and scales [k / 32, n], or [n]."""
        draw, most = np.random.default_rng(bits), 1 << bits - 1
        codes = draw.integers(-most, most, (k, n), dtype=np.int8)
        scales = draw.random((k // 32, n) if bits == 4 else n, np.float32) * 0.1 / most
        return codes, scales.astype(NUMPY["bf16"])

    @functools.cache
    def packed() -> tuple[torch.Tensor, torch.Tensor]:
        """Those as PyTorch's kernels take them."""
        codes, scales = drawn()
        factors = torch.from_numpy(scales.astype(np.float32)).bfloat16().cuda()
        columns = torch.from_numpy(np.ascontiguousarray(codes.T)).cuda()
        if bits == 8:
            return columns, factors
        plain = (columns + 8).to(torch.uint8)
        pairs = plain[:, ::2] << 4 | plain[:, 1::2]
        pack = torch.ops.aten._convert_weight_to_int4pack
        return pack(pairs, 8), torch.stack([factors, torch.zeros_like(factors)], 2)

    def nodes() -> list[Any]:
        codes, scales = drawn()
        kind = TensorProto.INT4 if bits == 4 else TensorProto.INT8
        plain = codes.reshape(-1)
        raw = (plain[::2] & 15 | plain[1::2] << 4).tobytes() if bits == 4 else codes.tobytes()
        constants = {
            "q": helper.make_tensor("q", kind, codes.shape, raw, raw=True),
            "s": numpy_helper.from_array(scales, "s"),
        }
        attributes = {"axis": 0, "block_size": 32} if bits == 4 else {"axis": 1}
        return [
            *(_node("Constant", [], name, value=value) for name, value in constants.items()),
            _node("DequantizeLinear", ["q", "s"], "w", **attributes), _node("MatMul", ["a", "w"]),
        ]  # fmt: skip

    def peer(t: Tensors, y: torch.Tensor) -> Any:
        weights, factors = packed()
        if bits == 4:
            return torch.ops.aten._weight_int4pack_mm(t["a"], weights, 32, factors)
        return torch.ops.aten._weight_int8pack_mm(t["a"], weights, factors)

    def reference(t: Tensors) -> torch.Tensor:
        codes, scales = drawn()
        wide = torch.from_numpy(scales.astype(np.float32)).cuda()
        wide = wide.repeat_interleave(32, 0) if bits == 4 else wide
        return t["a"] @ (torch.from_numpy(codes).cuda() * wide)

    name = f"{m}x{n}x{k} {bits} bits"
    size = k * n * bits / 8 + 2 * (k // 32 * n if bits == 4 else n)
    return Case(
        "gemm-codes", name, "bf16", _Late(nodes), {"a": (m, k)}, (m, n), size, "GB/s",
        {"torch": peer}, reference,
    )  # fmt: skip


class _Late(Sequence[Any]):
    """Nodes with large constants, made when they are looked at."""

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self.make = functools.cache(make)

    def __getitem__(self, at: Any) -> Any:
        return self.make()[at]

    def __len__(self) -> int:
        return len(self.make())


EPILOGUE_SHAPES = [
    (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
    (4096, 768, 768), (4096, 3072, 768), (4096, 768, 3072), (2048, 11008, 4096),
    (128, 768, 768), (128, 3072, 768), (16, 4096, 4096), (1000, 1000, 1000),
]  # fmt: skip


def gemm_epilogue(quick: bool) -> Iterator[Case]:
    for m, n, k in QUICK_SHAPES[1:4] if quick else EPILOGUE_SHAPES:
        for kind in ("bias+relu", "bias+gelu", "bias+residual", "swiglu"):
            yield _epilogue(m, n, k, kind)


def _epilogue(m: int, n: int, k: int, kind: str) -> Case:
    product = _node("MatMul", ["a", "b"], "p")
    shapes: dict[str, tuple[int, ...]] = {"a": (m, k), "b": (k, n)}
    peers: dict[str, Call] = {}
    flops = 2.0 * m * n * k
    if kind == "swiglu":
        # A gate and a value, both [k, n]
        shapes["c"] = (k, n)
        nodes = [
            product, _node("MatMul", ["a", "c"], "q"), _node("Sigmoid", ["p"], "s"),
            _node("Mul", ["p", "s"], "g"), _node("Mul", ["g", "q"]),
        ]  # fmt: skip
        flops *= 2

        def compute(t: Tensors) -> torch.Tensor:
            return F.silu(t["a"] @ t["b"]) * (t["a"] @ t["c"])
    else:
        shapes["bias"] = (n,)
        add = _node("Add", ["p", "bias"], "s")
        if kind == "bias+relu":
            nodes = [product, add, _node("Relu", ["s"])]
        elif kind == "bias+gelu":
            # The spelling that cuBLASLt has an epilogue for
            nodes = [product, add, _node("Gelu", ["s"], approximate="tanh")]
        else:
            shapes["r"] = (m, n)
            nodes = [product, add, _node("Add", ["s", "r"])]

        def compute(t: Tensors) -> torch.Tensor:
            if kind == "bias+residual":
                return torch.addmm(t["bias"], t["a"], t["b"]) + t["r"]
            s = torch.addmm(t["bias"], t["a"], t["b"])
            return F.relu(s) if kind == "bias+relu" else F.gelu(s, approximate="tanh")

        if kind != "bias+residual":

            def fused(t: Tensors, y: torch.Tensor) -> Any:
                return torch._addmm_activation(
                    t["bias"], t["a"], t["b"], use_gelu=kind == "bias+gelu"
                )

            peers["cuBLASLt"] = fused
    peers["eager"] = lambda t, y: compute(t)
    return Case(
        "gemm-epilogue", f"{m}x{n}x{k} {kind}", "bf16", nodes, shapes, (m, n), flops, "TFLOP/s",
        peers, compute, scales={"b": k**-0.5, "c": k**-0.5}, compiled=compute,
    )  # fmt: skip


# rows ---------------------------------------------------------------------------------------------

ROWS = [(262144, 256), (65536, 1024), (16384, 4096), (4096, 16384), (1024, 65536), (512, 768)]
KINDS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm", "bias_gelu")


def rows(quick: bool) -> Iterator[Case]:
    for dtype in ("bf16",) if quick else ("f32", "bf16"):
        for kind in KINDS:
            for shape in ROWS[1:4:2] if quick else ROWS:
                yield _row(kind, shape, dtype)


def _row(kind: str, shape: tuple[int, int], dtype: str) -> Case:
    count, columns = shape
    line = (columns,)
    table: dict[str, tuple[list[Any], dict[str, tuple[int, ...]], Any]] = {
        "softmax": (
            [_node("Softmax", ["x"], axis=-1)], {}, lambda t: F.softmax(t["x"], -1)
        ),
        "log_softmax": (
            [_node("LogSoftmax", ["x"], axis=-1)], {}, lambda t: F.log_softmax(t["x"], -1)
        ),
        "layer_norm": (
            [_node("LayerNormalization", ["x", "scale", "bias"], axis=-1, epsilon=1e-5)],
            {"scale": line, "bias": line},
            lambda t: F.layer_norm(t["x"], line, t["scale"], t["bias"], 1e-5),
        ),
        "rms_norm": (
            [_node("RMSNormalization", ["x", "scale"], axis=-1, epsilon=1e-5)],
            {"scale": line}, lambda t: F.rms_norm(t["x"], line, t["scale"], 1e-5),
        ),
        "add_layer_norm": (
            [_node("Add", ["x", "r"], "s"),
             _node("LayerNormalization", ["s", "scale", "bias"], axis=-1, epsilon=1e-5)],
            {"r": shape, "scale": line, "bias": line},
            lambda t: F.layer_norm(t["x"] + t["r"], line, t["scale"], t["bias"], 1e-5),
        ),
        "bias_gelu": (
            [_node("Add", ["x", "bias"], "s"), _node("Gelu", ["s"])],
            {"bias": line}, lambda t: F.gelu(t["x"] + t["bias"]),
        ),
    }  # fmt: skip
    nodes, more, compute = table[kind]

    def triton(t: Tensors, y: torch.Tensor) -> None:
        from benchmarks.triton_rows import run

        run(kind, dict(t), y)

    moved = (3 if kind == "add_layer_norm" else 2) * count * columns
    return Case(
        "rows", f"{kind} {count}x{columns}", dtype, nodes, {"x": shape, **more}, shape,
        moved * (4.0 if dtype == "f32" else 2.0), "GB/s",
        {"eager": lambda t, y: compute(t), "Triton": triton}, compute, compiled=compute,
        exact=torch.float64 if dtype == "f32" else torch.float32,
    )  # fmt: skip


# attention ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heads:
    """Shapes and options of an attention."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    groups: int = 0
    causal: bool = False
    mask: tuple[int, ...] = ()
    softcap: float = 0.0
    window: int = -1


ATTENTION = [
    Heads(32, 12, 128, 128, 64),
    Heads(8, 16, 512, 512, 64),
    Heads(8, 16, 2048, 2048, 64),
    Heads(4, 16, 4096, 4096, 64, causal=True),
    Heads(1, 16, 16384, 16384, 64),
    Heads(8, 16, 512, 512, 128),
    Heads(4, 16, 4096, 4096, 128),
    Heads(4, 16, 4096, 4096, 128, causal=True),
    Heads(1, 16, 16384, 16384, 128),
    Heads(1, 16, 16384, 16384, 128, causal=True),
    Heads(4, 8, 2048, 2048, 256),
    Heads(4, 8, 2048, 2048, 256, causal=True),
    Heads(4, 16, 2048, 2048, 64, mask=(1, 1, 2048, 2048)),
    Heads(4, 16, 2048, 2048, 128, mask=(1, 1, 2048, 2048)),
    Heads(2, 32, 2048, 2048, 128, groups=8, causal=True),
    Heads(4, 16, 4096, 4096, 128, causal=True, mask=(1, 16, 1, 4096), softcap=30.0, window=1024),
    Heads(1, 4, 64, 4096, 128),
]


def attention(quick: bool) -> Iterator[Case]:
    for heads in ATTENTION[2:8:4] + ATTENTION[7:8] if quick else ATTENTION:
        yield _attention("attention", heads)


def decode(quick: bool) -> Iterator[Case]:
    yield _attention("decode", Heads(1, 32, 1, 4096, 128))
    yield _attention("decode", Heads(16, 32, 1, 4096, 128))
    if not quick:
        yield _attention("decode", Heads(8, 32, 1, 4096, 128, groups=8))


def _attention(group: str, h: Heads) -> Case:
    groups = h.groups or h.heads
    shapes: dict[str, tuple[int, ...]] = {
        "q": (h.batch, h.heads, h.queries, h.width),
        "k": (h.batch, groups, h.keys, h.width),
        "v": (h.batch, groups, h.keys, h.width),
    }
    attributes: dict[str, Any] = {"is_causal": 1} if h.causal else {}
    if h.softcap:
        attributes["softcap"] = h.softcap
    if h.window >= 0:
        attributes["left_window_size"] = h.window
    if h.mask:
        shapes["mask"] = h.mask
    node = _node("Attention", [*shapes], "y", **attributes)

    def library(backend: SDPBackend) -> Call:
        def call(t: Tensors, y: torch.Tensor) -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    t["q"], t["k"], t["v"], t.get("mask"), is_causal=h.causal,
                    enable_gqa=bool(h.groups),
                )  # fmt: skip

        return call

    peers = {}
    if not h.softcap and h.window < 0:
        peers["cuDNN"] = library(SDPBackend.CUDNN_ATTENTION)
        memory = SDPBackend.EFFICIENT_ATTENTION if h.mask else SDPBackend.FLASH_ATTENTION
        peers["efficient" if h.mask else "flash"] = library(memory)
    flops = 4.0 * h.batch * h.heads * h.queries * h.keys * h.width / (2 if h.causal else 1)
    if h.window >= 0:
        flops = 4.0 * h.batch * h.heads * h.queries * h.width * h.window
    read = 2.0 * h.batch * groups * h.keys * h.width * 2
    words = (
        ["causal"] * h.causal + ["mask"] * bool(h.mask) + [f"groups {h.groups}"] * (h.groups > 0)
    )
    words += [f"cap window {h.window}"] * (h.window >= 0)
    words += [f"{h.queries} queries"] * (h.queries not in (1, h.keys))
    sizes = f"{h.batch}x{h.heads}x{h.keys}x{h.width}"
    return Case(
        group, " ".join((sizes, *words)), "bf16", [node], shapes, shapes["q"],
        read if group == "decode" else flops, "GB/s" if group == "decode" else "TFLOP/s", peers,
        functools.partial(_exact_attention, h=h),
    )  # fmt: skip


def _exact_attention(t: Tensors, h: Heads) -> torch.Tensor:
    """One batch element at a time, for memory."""
    results = []
    for b in range(h.batch):
        q, k, v = t["q"][b], t["k"][b], t["v"][b]
        if h.groups:
            k, v = (x.repeat_interleave(h.heads // h.groups, 0) for x in (k, v))
        scores = (q * h.width**-0.5) @ k.transpose(1, 2)
        if h.softcap:
            scores = torch.tanh(scores / h.softcap) * h.softcap
        if h.mask:
            scores += t["mask"][0]
        row = torch.arange(h.queries, device="cuda")[:, None]
        column = torch.arange(h.keys, device="cuda")[None]
        if h.causal:
            scores.masked_fill_(column > row, float("-inf"))
        if h.window >= 0:
            scores.masked_fill_(column < row - h.window, float("-inf"))
        results.append(torch.softmax(scores, -1) @ v)
    return torch.stack(results)


# convolutions -------------------------------------------------------------------------------------

# channels, height and width, filters, kernel, stride, residual
CONVOLUTIONS = [
    (64, 56, 64, 3, 1, False), (128, 28, 128, 3, 1, False), (256, 14, 256, 3, 1, False),
    (512, 7, 512, 3, 1, False), (128, 56, 128, 3, 2, False), (256, 56, 64, 1, 1, False),
    (512, 28, 128, 1, 1, False), (1024, 14, 256, 1, 1, False), (2048, 7, 512, 1, 1, False),
    (64, 56, 256, 1, 1, True), (128, 28, 512, 1, 1, True), (256, 14, 1024, 1, 1, True),
    (512, 7, 2048, 1, 1, True),
]  # fmt: skip


def conv(quick: bool) -> Iterator[Case]:
    for batch in (1, 32):
        for shape in (CONVOLUTIONS[0], CONVOLUTIONS[2], CONVOLUTIONS[7]) if quick else CONVOLUTIONS:
            yield _conv(batch, *shape)


def _conv(
    batch: int,
    channels: int,
    size: int,
    filters: int,
    kernel: int,
    stride: int,
    residual: bool,
    group: str = "conv",
) -> Case:
    """Inputs and output are NHWC; the transposes in the graph say so."""
    padding, out = kernel // 2, (size + 2 * (kernel // 2) - kernel) // stride + 1
    result = (batch, out, out, filters)
    shapes: dict[str, tuple[int, ...]] = {
        "x": (batch, size, size, channels), "w": (filters, channels, kernel, kernel),
        "b": (filters,),
    }  # fmt: skip
    nodes = [
        _node("Transpose", ["x"], "xt", perm=[0, 3, 1, 2]),
        _node("Conv", ["xt", "w", "b"], "c", pads=[padding] * 4, strides=[stride] * 2),
    ]
    if residual:
        shapes["z"] = result
        nodes += [_node("Transpose", ["z"], "zt", perm=[0, 3, 1, 2])]
        nodes += [_node("Add", ["c", "zt"], "s")]
    nodes += [_node("Relu", ["s" if residual else "c"], "r")]
    nodes += [_node("Transpose", ["r"], perm=[0, 2, 3, 1])]

    def operands(t: Tensors) -> tuple[torch.Tensor, ...]:
        w = t["w"]
        if not w.is_contiguous(memory_format=torch.channels_last):
            w = w.to(memory_format=torch.channels_last)
        return t["x"].permute(0, 3, 1, 2), w, t["b"]

    def compute(t: Tensors) -> torch.Tensor:
        x, w, b = operands(t)
        c = F.conv2d(x, w, b, stride, padding)
        if residual:
            c = c + t["z"].permute(0, 3, 1, 2)
        return F.relu(c).permute(0, 2, 3, 1)

    def fused(t: Tensors, y: torch.Tensor) -> Any:
        x, w, b = operands(t)
        shape: tuple[Any, ...] = ([stride] * 2, [padding] * 2, [1, 1], 1)
        if residual:
            z = t["z"].permute(0, 3, 1, 2)
            return torch.cudnn_convolution_add_relu(x, w, z, 1.0, b, *shape).permute(0, 2, 3, 1)
        return torch.cudnn_convolution_relu(x, w, b, *shape).permute(0, 2, 3, 1)

    flops = 2.0 * batch * out * out * filters * channels * kernel * kernel
    words = f"{batch}x{channels}x{size} {kernel}x{kernel}/{stride} {filters}"
    return Case(
        group, words + (" residual" if residual else ""), "f16", nodes, shapes, result, flops,
        "TFLOP/s", {"cuDNN fused": fused, "eager": lambda t, y: compute(t)}, compute,
        frozenset({"w", "b"}), scales={"w": (channels * kernel**2) ** -0.5}, compiled=compute,
    )  # fmt: skip


# sizes that nobody chose --------------------------------------------------------------------------

DRAWN, SEED = 96, 5
ROUND = (64, 128, 256, 512, 768, 1024, 1280, 2048, 2560, 3072, 4096, 5120, 8192, 11008)


def drawn(quick: bool) -> Iterator[Case]:
    """Matmuls and convolutions of drawn sizes: the rules are made with those above in mind."""
    rng = random.Random(SEED)
    for _ in range(16 if quick else DRAWN):
        rows = rng.choice((rng.randint(1, 64), rng.randint(65, 1024), rng.choice(ROUND)))
        n, k = (rng.choice((rng.choice(ROUND), 8 * rng.randint(8, 640))) for _ in "nk")
        dtype = rng.choice(("f16", "bf16", "f16", "bf16", "f32"))
        if 2.0 * rows * n * k < 4e11:
            yield _gemm("drawn", rows, n, k, dtype, rng.random() < 0.5, rng.random() < 0.5)
    for _ in range(8 if quick else DRAWN // 3):
        size, kernel = rng.choice((7, 14, 20, 28, 40, 56)), rng.choice((1, 1, 3, 3, 5))
        channels, filters = (8 * rng.randint(2, 64) for _ in "cf")
        batch, stride = rng.choice((1, 1, 2, 8, 32)), rng.choice((1, 1, 2))
        yield _conv(batch, channels, size, filters, kernel, stride, False, "drawn")


GROUPS: Mapping[str, Callable[[bool], Iterator[Case]]] = {
    "gemm": gemm,
    "gemm-epilogue": gemm_epilogue,
    "gemm-f32": gemm_f32,
    "gemm-i8": gemm_i8,
    "gemm-f8": gemm_f8,
    "gemm-codes": gemm_codes,
    "rows": rows,
    "attention": attention,
    "decode": decode,
    "conv": conv,
    "drawn": drawn,
}
