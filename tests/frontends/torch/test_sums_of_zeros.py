"""Sums of nothing but -0: 0, as in PyTorch and NumPy, whatever makes them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fuser
from tests.random_torch.check import Module

f = torch.nn.functional
SUMS: dict[str, Callable[[Any], Any]] = {
    "sum": torch.sum, "first": lambda x: x.sum(0), "last": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1), "mean of all": torch.mean, "less mean": lambda x: x - x.mean(0),
    "nansum": lambda x: x.nansum(-1), "cumsum": lambda x: x.cumsum(0),
    "cumsum last": lambda x: x.cumsum(-1), "var_mean": lambda x: torch.var_mean(x, -1)[1],
    "pool of one": lambda x: f.avg_pool1d(x[None], 1, 1), "trace": torch.trace,
    "pool": lambda x: f.avg_pool1d(x[None], min(2, x.shape[-1]), 1),
    "adaptive": lambda x: f.adaptive_avg_pool1d(x[None], 1),
    "cross_entropy": lambda x: f.cross_entropy(x[:, :1], torch.zeros(len(x), dtype=torch.int64)),
    "matrix by vector": lambda x: x @ torch.ones(x.shape[-1], dtype=x.dtype),
    "einsum": lambda x: torch.einsum("ij,ij->i", x, torch.ones_like(x)),
    "cosine": lambda x: f.cosine_similarity(x, x + 1, dim=-1),
    "repeated": lambda x: x.expand(3, *x.shape).sum(0), "product": lambda x: x.prod(-1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x[:, :1], -1),
    "index_add": lambda x: x.index_add(0, torch.zeros(len(x), dtype=torch.int64), x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3), (3, 5), (17, 33)])
def test_sign_is_that_of_eager(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.full(shape, -0.0, dtype=dtype)

    def every(x: Any) -> tuple[Any, ...]:
        return tuple(make(x) for make in SUMS.values())

    with torch.no_grad():
        want = every(x)
        have = fuser.compile(Module(every), example_inputs=(x,), device="cpu")(x)
    signs = zip(SUMS, want, have, strict=True)
    assert not [n for n, a, b in signs if not torch.equal(torch.signbit(a), torch.signbit(b))]


@pytest.mark.parametrize("numerics", ["model", "strict"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (5, 2), (2, 300)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_sign_is_that_of_numpy(device: str, shape: tuple[int, int], numerics: Any) -> None:
    def every(x: Any) -> tuple[Any, ...]:
        return (np.sum(x), np.sum(x, 0), np.sum(x, 1), np.mean(x, 1), x - np.mean(x, 0))

    x = np.full(shape, -0.0, np.float32)
    have = fuser.jit(every, device=device, numerics=numerics)(x)
    assert [np.signbit(y).tolist() for y in have] == [np.signbit(y).tolist() for y in every(x)]
