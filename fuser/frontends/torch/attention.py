"""Attention that PyTorch does not take apart, in graphs that Dynamo captured.

    scaled_dot_product_attention(q, k, v)   =>   attention(q, k, v)

For inference it is one operator. PyTorch by itself chooses among its kernels for the device, or
writes matmuls and a softmax, of 16-bit floats in float32.

In training nothing of size [length, length] is kept for the backward pass: of matmuls and a softmax
PyTorch keeps the results. The function here keeps q, k, v and the result, and has one operator as
its gradient, which the importer reads as matmuls and the softmax once more, layer by layer in one
plan. Attention that PyTorch chose a kernel for, within a function of its own
(`multi_head_attention_forward`), has the same gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fuser.graph.compose import attention_scale


@torch.library.custom_op("fuser::attention", mutates_args=())
def _whole(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool,
    scale: float | None, grouped: bool,
) -> torch.Tensor:  # fmt: skip
    """PyTorch's own. This, too, runs where a graph is left to PyTorch."""
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    ).contiguous()


@_whole.register_fake
def _(q: Any, k: Any, v: Any, *_: Any) -> Any:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@torch.library.custom_op("fuser::attention_backward", mutates_args=())
def _backward(
    grad: torch.Tensor, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    mask: torch.Tensor | None, causal: bool, scale: float | None, grouped: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of q, k and v where `out` has the gradient `grad`. This runs where a graph is
    left to PyTorch; kernels of fuser have the handler of this name in the importer."""
    wide = torch.promote_types(q.dtype, torch.float32)
    factor = attention_scale(q.shape[-1]) if scale is None else scale
    times = q.shape[-3] // k.shape[-3] if grouped else 1
    keys, values = k.to(wide), v.to(wide)
    if times != 1:
        keys, values = (x.repeat_interleave(times, -3) for x in (keys, values))
    scores = q.to(wide) @ keys.mT * factor
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.where(seen, -torch.inf)
    if mask is not None:
        scores = scores.where(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    p = scores.softmax(-1).nan_to_num(0.0)  # of a row that sees nothing
    common = (grad.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    ds = p * (grad.to(wide) @ values.mT - common) * factor
    dq, dk, dv = ds @ keys, ds.mT @ q.to(wide), p.mT @ grad.to(wide)
    if times != 1:
        apart = (*k.shape[:-2], times)
        dk, dv = (x.reshape(*apart, *x.shape[-2:]).sum(-3) for x in (dk, dv))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


@_backward.register_fake
def _(grad: Any, out: Any, q: Any, k: Any, v: Any, *_: Any) -> tuple[Any, Any, Any]:
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    return dq, dk, dv


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        causal: bool, scale: float | None, grouped: bool,
    ) -> torch.Tensor:  # fmt: skip
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )
        ctx.save_for_backward(out, q, k, v, mask)
        ctx.options = causal, scale, grouped
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        found = torch.ops.fuser.attention_backward(grad, *ctx.saved_tensors, *ctx.options)
        return (*found, None, None, None, None)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`scaled_dot_product_attention`. With a mask that has a gradient, or batches that are
    broadcast, it is taken apart by PyTorch; with dropout PyTorch chooses how."""
    learned = attn_mask is not None and attn_mask.requires_grad
    wanted = learned or any(x.requires_grad for x in (query, key, value))
    if not (wanted and torch.is_grad_enabled()):
        return _inferred(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if dropout_p or learned or not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        with contextlib.nullcontext() if dropout_p else sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
    apply: Any = _Attention.apply
    found: torch.Tensor = apply(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return found


def _inferred(
    q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None,
    grouped: bool,
) -> torch.Tensor:  # fmt: skip
    """Left to PyTorch where it converts operands by itself (autocast, heads that are broadcast)."""
    same = q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    alike = same or (grouped and q.shape[:-3] == k.shape[:-3] == v.shape[:-3])
    if dropout or not alike or torch.is_autocast_enabled(q.device.type):
        return scaled_dot_product_attention(
            q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped
        )
    found: torch.Tensor = _whole(q, k, v, mask, causal, scale, grouped)
    return found


def _cpu_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, rows: Any, dropout_p: float, is_causal: bool, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    return _gradients(grad, out, q, k, v, attn_mask, is_causal, scale, dropout_p)


def _flash_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, rows: Any, starts_q: Any, starts_k: Any,
    max_q: Any, max_k: Any, dropout_p: float, is_causal: bool, *given: Any,
    scale: float | None = None,
) -> Any:  # fmt: skip
    return _gradients(grad, out, q, k, v, None, is_causal, scale, dropout_p)


def _efficient_backward(
    grad: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, rows: Any, seed: Any, offset: Any,
    dropout_p: float, wanted: Any, is_causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if mask is not None and wanted[3]:
        return NotImplemented
    found = _gradients(grad, out, q, k, v, mask, is_causal, scale, dropout_p)
    return found if found is NotImplemented else (*found, None)


def _cudnn_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, rows: Any, seed: Any, offset: Any, mask: Any,
    starts_q: Any, starts_k: Any, max_q: Any, max_k: Any, dropout_p: float, is_causal: bool, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    return _gradients(grad, out, q, k, v, mask, is_causal, scale, dropout_p)


BACKWARD: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu_backward": _cpu_backward,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
"""What the gradients of PyTorch's kernels are taken apart into: none needs what they keep."""


def _gradients(
    grad: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None,
    dropout: float,
) -> Any:  # fmt: skip
    """NotImplemented with dropout: PyTorch's kernel draws it by itself."""
    if dropout:
        return NotImplemented
    grouped = q.shape[-3] != k.shape[-3]
    return torch.ops.fuser.attention_backward(grad, out, q, k, v, mask, causal, scale, grouped)
