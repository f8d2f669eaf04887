"""The kernel of `benchmarks.launch_cost` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    first, second = (tl.load(x + at, mask=inside), tl.load(y + at, mask=inside))
    tl.store(out + at, first + second, mask=inside)
