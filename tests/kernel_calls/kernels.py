"""Kernels as users write them, and what they compute, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import fuser.triton as triton
import fuser.triton.language as tl

Array = Any


@triton.jit
def rms_norm(x, w, out, inverse, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    v = tl.load(x + row * columns + at, mask=mask, other=0.0).to(tl.float32)
    r = 1 / tl.sqrt(tl.sum(v * v, axis=0) / columns + eps)
    tl.store(inverse + row, r)
    weight = tl.load(w + at, mask=mask, other=0.0)
    tl.store(out + row * columns + at, v * r * weight, mask=mask)


@triton.jit
def rms_norm_backward(dy, x, w, inverse, dx, dw, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    g = tl.load(dy + row * columns + at, mask=mask, other=0.0)
    v = tl.load(x + row * columns + at, mask=mask, other=0.0)
    weight = tl.load(w + at, mask=mask, other=0.0)
    r = tl.load(inverse + row)
    n = v * r
    inner = tl.sum(g * weight * n, axis=0) / columns
    tl.store(dx + row * columns + at, (g * weight - n * inner) * r, mask=mask)
    tl.atomic_add(dw + at, g * n, mask=mask)


@triton.jit
def attention(
    q, k, v, out, rows, keys, scale,
    stride_h, stride_m, stride_kh, stride_n, stride_oh, stride_om,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * M + tl.arange(0, M)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    at = head * stride_h + m[:, None] * stride_m + d[None, :]
    here = m[:, None] < rows
    query = tl.load(q + at, mask=here, other=0.0)
    best = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(0, keys, N):
        n = start + tl.arange(0, N)
        there = head * stride_kh + n[:, None] * stride_n + d[None, :]
        key = tl.load(k + there, mask=n[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale
        scores = tl.where(n[None, :] < keys, scores, float("-inf"))
        top = tl.maximum(best, tl.max(scores, 1))
        p = tl.exp(scores - top[:, None])
        shrink = tl.exp(best - top)
        value = tl.load(v + there, mask=n[:, None] < keys, other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p, value)
        total = total * shrink + tl.sum(p, 1)
        best = top
    to = head * stride_oh + m[:, None] * stride_om + d[None, :]
    tl.store(out + to, acc / total[:, None], mask=here)


@triton.jit
def int8_matmul(
    x, codes, scale, out, rows, columns, depth,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """out = x @ (codes * scale), scale by column of the weights; TRANSPOSED: x @ (...).T."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    acc = tl.zeros([M, N], tl.float32)
    for start in range(0, depth, K):
        k = start + tl.arange(0, K)
        inside = (m[:, None] < rows) & (k[None, :] < depth)
        left = tl.load(x + m[:, None] * depth + k[None, :], mask=inside, other=0.0)
        if TRANSPOSED:
            place = n[None, :] * depth + k[:, None]
        else:
            place = k[:, None] * columns + n[None, :]
        held = (k[:, None] < depth) & (n[None, :] < columns)
        right = tl.load(codes + place, mask=held, other=0).to(tl.float32)
        if TRANSPOSED:
            right *= tl.load(scale + k, mask=k < depth, other=0.0)[:, None]
        acc += tl.dot(left, right)
    if not TRANSPOSED:
        acc *= tl.load(scale + n, mask=n < columns, other=0.0)[None, :]
    kept = (m[:, None] < rows) & (n[None, :] < columns)
    tl.store(out + m[:, None] * columns + n[None, :], acc, mask=kept)


@triton.jit
def add_scaled(x, y, out, n, s, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) * s + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def add_in_place(x, n, amount, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(x + at, tl.load(x + at, mask=mask) + amount, mask=mask)


@triton.jit
def sum_and_product(x, y, total, product, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    a, b = tl.load(x + at, mask=mask), tl.load(y + at, mask=mask)
    tl.store(total + at, a + b, mask=mask)
    tl.store(product + at, a * b, mask=mask)


@triton.jit
def first_half(x, out, n, BLOCK: tl.constexpr):
    """Writes the first n elements of out, and no others."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def blocks(n: int, block: int) -> tuple[int]:
    return (triton.cdiv(n, block),)


def rms_norm_of(x: Array, w: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w.astype(np.float64)


def attention_of(q: Array, k: Array, v: Array, scale: float) -> Array:
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * scale
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def int8_matmul_of(x: Array, codes: Array, scale: Array) -> Array:
    return x.astype(np.float64) @ (codes * scale.astype(np.float64))
