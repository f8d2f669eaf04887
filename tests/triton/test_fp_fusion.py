"""enable_fp_fusion: whether products are contracted with sums."""

from __future__ import annotations

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl


@triton.jit
def difference(a, x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    u, v = tl.load(a + at), tl.load(x + at)
    tl.store(out + at, u * v + (-u) * v)


@pytest.mark.parametrize(("given", "fused"), [({}, True), ({"enable_fp_fusion": True}, True),
                                              ({"enable_fp_fusion": False}, False)])  # fmt: skip
def test_products_are_contracted_unless_told_otherwise(
    given: dict[str, bool], fused: bool, rng: np.random.Generator
) -> None:
    a, x = rng.standard_normal((2, 64)).astype(np.float32)
    for _ in range(4):  # the later launches go the short way
        out = np.zeros(64, np.float32)
        difference[(1,)](a, x, out, BLOCK=64, **given)
        assert bool(np.any(out)) is fused
