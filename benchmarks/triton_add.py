"""The kernel of `benchmarks.launch_cost` in Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def add(x: Any, y: Any, out: Any, n: Any, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    first, second = (tl.load(x + at, mask=inside), tl.load(y + at, mask=inside))
    tl.store(out + at, first + second, mask=inside)
