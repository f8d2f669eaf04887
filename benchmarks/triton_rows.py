"""Row kernels in Triton, one program a row (or a few): what a user would write by hand."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _rows(
    x, residual, scale, shift, y, rows, columns,
    KIND: tl.constexpr, BLOCK: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    inside = (at < columns) & (row < rows)
    place = row * columns + at
    if KIND == "softmax" or KIND == "log_softmax":
        v = tl.load(x + place, inside, other=float("-inf")).to(tl.float32)
        v = v - tl.max(v, 1)[:, None]
        e = tl.exp(v)
        s = tl.sum(e, 1)[:, None]
        r = e / s if KIND == "softmax" else v - tl.log(s)
    else:
        v = tl.load(x + place, inside, other=0.0).to(tl.float32)
        if KIND == "add_layer_norm":
            v += tl.load(residual + place, inside, other=0.0).to(tl.float32)
        if KIND == "rms_norm":
            c = v
        else:
            c = tl.where(inside, v - tl.sum(v, 1)[:, None] / columns, 0.0)
        r = c * tl.rsqrt(tl.sum(c * c, 1)[:, None] / columns + 1e-5)
        r = r * tl.load(scale + at, at < columns, other=0.0).to(tl.float32)
        if KIND != "rms_norm":
            r += tl.load(shift + at, at < columns, other=0.0).to(tl.float32)
    tl.store(y + place, r.to(y.dtype.element_ty), inside)


@triton.jit
def _bias_gelu(x, bias, y, size, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < size, other=0.0).to(tl.float32)
    v += tl.load(bias + at % columns, at < size, other=0.0).to(tl.float32)
    r = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
    tl.store(y + at, r.to(y.dtype.element_ty), at < size)


def run(kind: str, t: dict[str, Any], y: torch.Tensor) -> None:
    """Launch the kernel of a kind on tensors x [rows, columns], r, scale and bias into y."""
    x = t["x"]
    rows, columns = x.shape
    if kind == "bias_gelu":
        _bias_gelu[(triton.cdiv(x.numel(), 2048),)](
            x, t["bias"], y, x.numel(), columns, BLOCK=2048, num_warps=8
        )
        return
    block = triton.next_power_of_2(columns)
    height = max(1, 1024 // block)
    warps = 4 if block <= 2048 else 8 if block <= 8192 else 16 if block <= 32768 else 32
    _rows[(triton.cdiv(rows, height),)](
        x, t.get("r", x), t.get("scale", x), t.get("bias", x), y, rows, columns,
        KIND=kind, BLOCK=block, HEIGHT=height, num_warps=warps,
    )  # fmt: skip
