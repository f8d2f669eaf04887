"""A matmul in the block language as people write it: pointers, masks, a loop over k."""

# The language reads the annotations of kernels, which are not types: mypy leaves this file out.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fuser.triton as triton
import fuser.triton.language as tl


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    a = a_ptr + rows[:, None] * sam + ks[None, :] * sak
    b = b_ptr + ks[:, None] * sbk + columns[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        inside = K - k * BK
        x = tl.load(a, mask=(rows[:, None] < M) & (ks[None, :] < inside), other=0.0)
        y = tl.load(b, mask=(ks[:, None] < inside) & (columns[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
        a += BK * sak
        b += BK * sbk
    c = c_ptr + rows[:, None] * scm + columns[None, :] * scn
    tl.store(c, acc, mask=(rows[:, None] < M) & (columns[None, :] < N))


def launch(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], blocks: str) -> Callable[[], Any]:
    """A call that multiplies a [m, k] and b [k, n] in "M,N,K" blocks, and gives the result."""
    high, wide, deep = map(int, blocks.split(","))
    (m, k), n = a.shape, b.shape[1]
    c = np.zeros((m, n), a.dtype)
    grid = (triton.cdiv(m, high), triton.cdiv(n, wide))

    def call() -> Any:
        matmul[grid](a, b, c, m, n, k, k, 1, n, 1, n, 1, BM=high, BN=wide, BK=deep)
        return c

    return call
