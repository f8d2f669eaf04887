"""The cases of benchmarks.foreign: functions of packages that are written for Triton.

A case names a function as `module:name`, and makes its arguments. Sizes are those of a layer of a
model with a width of 4096; on a CPU they are small, since there only the numbers are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


class Maker:
    """Random arguments of a case on a device. Floats are of `dtype` if nothing else is said."""

    def __init__(self, device: str, seed: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator().manual_seed(seed)
        small = device == "cpu"
        self.rows, self.width, self.classes = (24, 256, 999) if small else (4096, 4096, 32000)
        self.batch, self.tokens, self.heads, self.dim = (
            (1, 75, 2, 32) if small else (4, 2048, 16, 64)
        )

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Any:
        values = scale * torch.randn(shape, generator=self.generator)
        return values.to(dtype or self.dtype).to(self.device)

    def unit(self, *shape: int, dtype: torch.dtype | None = None) -> Any:
        """Between 0 and 1."""
        return self.normal(*shape, dtype=torch.float32).sigmoid().to(dtype or self.dtype)

    def decay(self, *shape: int, dtype: torch.dtype | None = None) -> Any:
        """Logarithms of factors a little below 1."""
        values = torch.nn.functional.logsigmoid(self.normal(*shape, dtype=torch.float32)) / 16
        return values.to(dtype or self.dtype)

    def sphere(self, *shape: int) -> Any:
        """Vectors of length 1."""
        return torch.nn.functional.normalize(self.normal(*shape), dim=-1)

    def labels(self, rows: int, count: int) -> Any:
        return torch.randint(0, count, (rows,), generator=self.generator).to(self.device)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Any:
        return torch.randint(low, high, shape, generator=self.generator).to(dtype).to(self.device)

    def heads_of(self, *, dim: int | None = None) -> Any:
        """[batch, tokens, heads, dim]"""
        return self.normal(self.batch, self.tokens, self.heads, dim or self.dim)

    def per_head(self) -> tuple[int, int, int]:
        return self.batch, self.tokens, self.heads

    def angles(self, length: int, dim: int) -> Any:
        steps = torch.arange(length)[:, None] * 10000.0 ** -(torch.arange(0, dim, 2) / dim)
        return steps.to(self.device)


@dataclass(frozen=True)
class Case:
    """package: the top-level name. function: `module:name`. arguments: by position. learn: whether
    floating-point arguments get gradients. tolerance: of the relative difference of the norms."""

    package: str
    name: str
    function: str
    arguments: Callable[[Maker], Sequence[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    learn: bool = True
    dtype: torch.dtype = torch.bfloat16
    tolerance: float = 2e-2

    @property
    def key(self) -> str:
        return f"{self.package}: {self.name}"


def _liger(name: str, function: str, arguments: Callable[[Maker], Sequence[Any]]) -> Case:
    return Case("liger_kernel", name, f"liger_kernel.ops.{function}.apply", arguments)


def _turn(m: Maker, layers: int = 0) -> tuple[Any, Any]:
    angles = torch.cat([m.angles(m.tokens, m.dim)] * 2, -1)[None]
    if layers:
        angles = angles.expand(layers, m.batch, -1, -1).contiguous()
    return angles.cos().to(m.dtype), angles.sin().to(m.dtype)


def _by_heads(m: Maker, heads: int | None = None) -> Any:
    return m.normal(m.batch, heads or m.heads, m.tokens, m.dim)


def _log_softmax(m: Maker) -> Any:
    return m.normal(m.rows, m.classes, dtype=torch.float32).log_softmax(-1)


LIGER = (
    _liger("RMSNorm", "rms_norm:LigerRMSNormFunction",
           lambda m: (m.normal(m.rows, m.width), m.normal(m.width), 1e-6, 0.0, "llama", False)),
    _liger("add + RMSNorm", "fused_add_rms_norm:LigerFusedAddRMSNormFunction",
           lambda m: (m.normal(m.rows, m.width), m.normal(m.rows, m.width), m.normal(m.width), 1e-6,
                      0.0, "llama", False)),
    _liger("layer norm", "layer_norm:LigerLayerNormFunction",
           lambda m: (m.normal(m.rows, m.width), m.normal(m.width), m.normal(m.width), 1e-5)),
    _liger("group norm", "group_norm:LigerGroupNormFunction",
           lambda m: (m.normal(m.batch * 4, 64, m.rows), m.normal(64), m.normal(64), 64, 16, 1e-5)),
    _liger("poly norm", "poly_norm:LigerPolyNormFunction",
           lambda m: (m.normal(m.rows, m.width), m.normal(3), m.normal(), 1e-6, False)),
    _liger("dynamic tanh", "dyt:LigerDyTFunction",
           lambda m: (m.normal(m.rows, m.width), m.normal(1), m.normal(m.width),
                      m.normal(m.width))),
    _liger("SwiGLU", "swiglu:LigerSiLUMulFunction",
           lambda m: (m.normal(m.rows, m.width), m.normal(m.rows, m.width))),
    _liger("GeGLU", "geglu:LigerGELUMulFunction",
           lambda m: (m.normal(m.rows, m.width), m.normal(m.rows, m.width))),
    _liger("squared ReLU", "relu_squared:LigerReLUSquaredFunction",
           lambda m: (m.normal(m.rows, m.width),)),
    _liger("RoPE", "rope:LigerRopeFunction",
           lambda m: (_by_heads(m), _by_heads(m, 2), *_turn(m))),
    _liger("multimodal RoPE", "qwen2vl_mrope:LigerQwen2VLMRopeFunction",
           lambda m: (_by_heads(m), _by_heads(m, 2), *_turn(m, 3),
                      [m.dim // 8, m.dim // 8, m.dim // 4])),
    _liger("softmax", "softmax:LigerSoftmaxFunction", lambda m: (m.normal(m.rows, m.width),)),
    _liger("sparsemax", "sparsemax:LigerSparsemaxFunction",
           lambda m: (m.normal(m.rows, m.width), -1)),
    _liger("cross entropy", "cross_entropy:LigerCrossEntropyFunction",
           lambda m: (m.normal(m.rows, m.classes), m.labels(m.rows, m.classes), None, -100, 0.0,
                      0.0, "mean", None, False)),
    _liger("linear cross entropy",
           "fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction",
           lambda m: (m.normal(m.rows, m.width), m.normal(m.classes, m.width, scale=m.width**-0.5),
                      m.labels(m.rows, m.classes))),
    _liger("KL divergence", "kl_div:LigerKLDivLossFunction",
           lambda m: (_log_softmax(m), _log_softmax(m).exp().detach(), "batchmean", False, 1e-10)),
    _liger("JSD", "jsd:LigerJSDFunction",
           lambda m: (_log_softmax(m), _log_softmax(m).detach(), None, 0.5)),
    _liger("total variation", "tvd:LigerTVDLossFunction",
           lambda m: (_log_softmax(m).exp(), _log_softmax(m).exp().detach(), None)),
    _liger("multi-token attention",
           "multi_token_attention:LigerMultiTokenAttentionFunction",
           lambda m: (m.normal(2, 4, m.rows // 8, m.rows // 8), m.normal(4, 4, 3, 3, scale=0.2),
                      m.normal(4), 1, 1)),
)  # fmt: skip


def _fla(
    name: str, function: str, arguments: Callable[[Maker], Sequence[Any]], **options: Any
) -> Case:
    return Case("fla", name, f"fla.{function}", arguments, options)


def _three(m: Maker) -> tuple[Any, Any, Any]:
    return m.heads_of(), m.heads_of(), m.heads_of()


def _delta(m: Maker) -> tuple[Any, Any, Any, Any]:
    """Queries, normalised keys, values, and factors."""
    beta = m.unit(*m.per_head())
    return m.heads_of(), m.sphere(*m.per_head(), m.dim), m.heads_of(), beta


def _rwkv7(m: Maker) -> Sequence[Any]:
    toward = m.sphere(*m.per_head(), m.dim)
    size = (*m.per_head(), m.dim)
    return (m.heads_of(), m.decay(*size) * 4, m.heads_of(), m.heads_of(), -toward,
            toward * m.unit(*size))  # fmt: skip


FLA = (
    _fla("chunked GLA", "ops.gla:chunk_gla",
         lambda m: (*_three(m), m.decay(*m.per_head(), m.dim))),
    _fla("recurrent GLA", "ops.gla:fused_recurrent_gla",
         lambda m: (*_three(m), m.decay(*m.per_head(), m.dim))),
    _fla("chunked simple GLA", "ops.simple_gla:chunk_simple_gla",
         lambda m: (*_three(m), m.decay(*m.per_head()))),
    _fla("parallel simple GLA", "ops.simple_gla.parallel:parallel_simple_gla",
         lambda m: (*_three(m), m.decay(*m.per_head()))),
    _fla("chunked retention", "ops.retention:chunk_retention", _three),
    _fla("parallel retention", "ops.retention:parallel_retention", _three),
    _fla("delta rule", "ops.delta_rule:chunk_delta_rule", _delta),
    _fla("gated delta rule", "ops.gated_delta_rule:chunk_gated_delta_rule",
         lambda m: (*_delta(m)[:3], m.decay(*m.per_head(), dtype=torch.float32),
                    m.unit(*m.per_head()))),
    _fla("KDA", "ops.kda:chunk_kda",
         lambda m: (m.sphere(*m.per_head(), m.dim), *_delta(m)[1:3],
                    m.decay(*m.per_head(), m.dim, dtype=torch.float32), m.unit(*m.per_head()))),
    _fla("chunked HGRN", "ops.hgrn:chunk_hgrn",
         lambda m: (m.normal(m.batch, m.tokens, m.width // 2),
                    m.decay(m.batch, m.tokens, m.width // 2))),
    _fla("recurrent HGRN", "ops.hgrn:fused_recurrent_hgrn",
         lambda m: (m.normal(m.batch, m.tokens, m.width // 2),
                    m.decay(m.batch, m.tokens, m.width // 2))),
    _fla("gated slot attention", "ops.gsa:chunk_gsa",
         lambda m: (*_three(m), m.heads_of(), m.decay(*m.per_head(), m.dim))),
    _fla("RWKV 6", "ops.rwkv6:chunk_rwkv6",
         lambda m: (*_three(m), m.decay(*m.per_head(), m.dim), m.normal(m.heads, m.dim))),
    _fla("RWKV 7", "ops.rwkv7:chunk_rwkv7", _rwkv7),
    _fla("attention", "ops.attn.parallel:parallel_attn", _three),
    _fla("attention in a window", "ops.attn.parallel:parallel_attn", _three, window_size=256),
    _fla("forgetting attention", "ops.forgetting_attn.parallel:parallel_forgetting_attn",
         lambda m: (*_three(m), m.decay(*m.per_head()))),
    _fla("linear attention", "ops.linear_attn:chunk_linear_attn",
         lambda m: (*_three(m), None, None, False, False)),
    _fla("lightning attention", "ops.lightning_attn:chunk_lightning_attn",
         lambda m: (*_three(m), 3, 12)),
    _fla("layer norm", "modules.layernorm:layer_norm",
         lambda m: (m.normal(m.rows, m.width), m.normal(m.width), m.normal(m.width))),
    _fla("add + RMSNorm", "modules.layernorm:rms_norm",
         lambda m: (m.normal(m.rows, m.width), m.normal(m.width), None,
                    m.normal(m.rows, m.width))),
    _fla("gated RMSNorm", "modules.fused_norm_gate:rms_norm_gated",
         lambda m: (m.normal(m.rows, m.width), m.normal(m.rows, m.width), m.normal(m.width), None)),
    _fla("L2 norm", "modules.l2norm:l2norm", lambda m: (m.normal(m.rows * 16, m.dim),)),
    _fla("SwiGLU", "modules.activations:swiglu",
         lambda m: (m.normal(m.rows, m.width), m.normal(m.rows, m.width))),
    _fla("log sigmoid", "modules.activations:logsigmoid",
         lambda m: (m.normal(m.rows, m.width), 16.0)),
    _fla("causal convolution", "modules.convolution:causal_conv1d",
         lambda m: (m.normal(m.batch, m.tokens, m.width // 2), m.normal(m.width // 2, 4),
                    m.normal(m.width // 2)), activation="silu"),
    _fla("token shift", "modules.token_shift:token_shift",
         lambda m: (m.normal(m.batch, m.tokens, m.width // 2),)),
    _fla("rotary embedding", "modules.rotary:rotary_embedding",
         lambda m: (m.heads_of(), *(item[0, :, : m.dim // 2].contiguous().detach()
                                    for item in _turn(m)))),
    _fla("cross entropy", "modules.fused_cross_entropy:cross_entropy_loss",
         lambda m: (m.normal(m.rows, m.classes), m.labels(m.rows, m.classes))),
    _fla("mean pooling", "ops.utils.pooling:mean_pooling", lambda m: (m.heads_of(), 64)),
)  # fmt: skip


def _conch(
    name: str, function: str, arguments: Callable[[Maker], Sequence[Any]], **changes: Any
) -> Case:
    return Case("conch", name, f"conch.ops.{function}", arguments, learn=False,
                **({"dtype": torch.float16} | changes))  # fmt: skip


def _paged(m: Maker) -> dict[str, Any]:
    """A cache in pages of 32 tokens, and its tables."""
    page, heads, dim = 32, max(1, m.heads // 4), max(64, m.dim)
    pages = -(-m.tokens // page)
    table = torch.randperm(m.batch * pages, generator=m.generator).to(torch.int32)
    lengths = torch.full((m.batch,), m.tokens, dtype=torch.int32, device=m.device)
    return {
        "key": m.normal(m.batch * pages, page, heads, dim),
        "value": m.normal(m.batch * pages, page, heads, dim),
        "table": table.reshape(m.batch, pages).to(m.device),
        "lengths": lengths,
    }


def _paged_decode(m: Maker) -> Sequence[Any]:
    cache = _paged(m)
    query = m.normal(m.batch, m.heads, max(64, m.dim))
    return query, cache["key"], cache["value"], cache["table"], cache["lengths"]


def _varlen(m: Maker) -> Sequence[Any]:
    cache = _paged(m)
    query = m.normal(m.batch * m.tokens, m.heads, max(64, m.dim))
    starts = torch.arange(0, m.batch * m.tokens + 1, m.tokens, dtype=torch.int32, device=m.device)
    return (query, cache["key"], cache["value"], starts, m.tokens, cache["lengths"], m.tokens,
            cache["table"], None, True)  # fmt: skip


def _four_bits(m: Maker) -> Sequence[Any]:
    packed = m.integers(-(1 << 31), 1 << 31, m.width // 8, m.width)
    scales = m.unit(m.width // 128, m.width) / 8
    return m.normal(m.rows // 8, m.width), packed, scales, None, 4, 8, 128


def _bytes_of(m: Maker) -> Sequence[Any]:
    a, b = (m.integers(-127, 128, *shape, dtype=torch.int8)
            for shape in ((m.rows, m.width), (m.width, m.width)))  # fmt: skip
    scales = (m.unit(1, dtype=torch.float32), m.unit(1, dtype=torch.float32))
    return a, b.T.contiguous().T, *scales, torch.float16


def _positions(m: Maker) -> Sequence[Any]:
    count = m.batch * m.tokens
    table = m.angles(m.tokens, m.dim)
    positions = torch.arange(m.tokens, device=m.device).repeat(m.batch)
    return (positions, m.normal(count, m.heads * m.dim), m.normal(count, m.heads * m.dim), m.dim,
            torch.cat([table.cos(), table.sin()], -1).to(m.dtype))  # fmt: skip


CONCH = (
    _conch("SiLU and multiply", "activation.silu_and_mul:silu_and_mul",
           lambda m: (m.normal(m.rows, 2 * m.width),)),
    _conch("GELU and multiply", "activation.gelu_tanh_and_mul:gelu_tanh_and_mul",
           lambda m: (m.normal(m.rows, 2 * m.width),)),
    _conch("RMSNorm", "normalization.rms_norm:rms_norm",
           lambda m: (m.normal(m.rows, m.width), m.normal(m.width), 1e-6)),
    _conch("Gemma RMSNorm", "normalization.gemma_rms_norm:gemma_rms_norm",
           lambda m: (m.normal(m.rows, m.width), m.normal(m.width), 1e-6)),
    _conch("rotary embedding", "embedding.rotary_embedding:rotary_embedding", _positions),
    _conch("int8 quantisation", "quantization.int8:scaled_int8_quant",
           lambda m: (m.normal(m.rows, m.width), m.unit(1, dtype=torch.float32))),
    _conch("4-bit weights", "quantization.gemm:mixed_precision_gemm", _four_bits),
    _conch("int8 matmul", "quantization.gemm:scaled_gemm", _bytes_of),
    _conch("paged attention", "attention.paged_attention:paged_attention", _paged_decode),
    _conch("attention of many lengths", "attention.varlen_attention:varlen_attention", _varlen),
)  # fmt: skip


def _gates(m: Maker) -> Sequence[Any]:
    size = m.batch, m.heads // 2, m.tokens // 64 * 64
    q, k, v = (m.normal(*size, 2 * m.dim) for _ in range(3))
    return q, k, v, m.normal(*size), m.normal(*size) + 3


def _loss(m: Maker) -> Sequence[Any]:
    return (m.normal(m.rows, m.width // 2), m.normal(m.classes, m.width // 2, scale=0.02),
            m.labels(m.rows, m.classes))  # fmt: skip


OTHERS = (
    Case("cut_cross_entropy", "linear cross entropy",
         "cut_cross_entropy.linear_cross_entropy:linear_cross_entropy", _loss),
    Case("mlstm_kernels", "chunkwise mLSTM, large chunks",
         "mlstm_kernels.torch.chunkwise.triton_xl_chunk:mlstm_chunkwise__xl_chunk", _gates,
         {"chunk_size": 64, "autocast_kernel_dtype": torch.bfloat16}),
    Case("mlstm_kernels", "chunkwise mLSTM",
         "mlstm_kernels.torch.chunkwise.triton_limit_chunk:mlstm_chunkwise__limit_chunk", _gates,
         {"autocast_kernel_dtype": torch.bfloat16}),
)  # fmt: skip

CASES = (*LIGER, *FLA, *CONCH, *OTHERS)
BY_KEY = {case.key: case for case in CASES}
