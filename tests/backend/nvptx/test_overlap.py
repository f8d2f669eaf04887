"""Kernels that start while the one before them still runs."""

from __future__ import annotations

import dataclasses
import re

import pytest

from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A
from fuser.dtypes import f32
from fuser.tilegen.parse import parse_kernel
from tests.backend.nvptx import kernels

CACHE = """kernel @append grid(4) {
  schedule(blocks = ((rows, 1)), warps = 1)
  buffer x: input f16[256]
  buffer cache: output f16[67108864]
  view &x0: x[4, 64] strides(64, 1)
  view &cache1: cache[4, ROWS, 64] strides(16777216, 64, 1) offset(6400)

  %p = program_id {axis = 0} : index
  %v = load &x0, [%p, #0] : tile<64xf16>
  store &cache1, [%p, 0, #0], %v
}
"""


@pytest.mark.parametrize(("rows", "early"), [(1, True), (200000, False)])
def test_what_counts_is_what_a_kernel_touches(rows: int, early: bool) -> None:
    """One row of a large cache is written in no time; all of it is not."""
    kernel = parse_kernel(CACHE.replace("ROWS", str(rows)))
    assert compile_kernel(kernel, SM_90A).pdl == early


def test_nothing_is_read_before_the_wait() -> None:
    softmax = kernels.softmax(77, 4096, f32, (1, 4096), 8)
    matmul = kernels.matmul(256, 256, 256, blocks=(64, 64, 32))
    for kernel in (matmul, softmax):
        compiled = compile_kernel(kernel, SM_90A)
        before, after = compiled.code.decode().split("griddepcontrol.wait")
        assert compiled.pdl and "launch_dependents" in before
        assert not re.search(r"ld\.global|cp\.async|st\.global", before)
        assert re.search(r"ld\.global|cp\.async", after)
        # what the previous kernel writes while this one is there is not read-only
        assert "ld.global.nc" not in after
        assert not compile_kernel(kernel, SM_80).pdl
        kernel.schedule = dataclasses.replace(kernel.schedule, launch_overlap=False)
        assert not compile_kernel(kernel, SM_90A).pdl
