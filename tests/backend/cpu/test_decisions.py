"""What the CPU back end tells of its decisions: values, dots, nests."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from fuser.backend.cpu.compile import decisions_text
from fuser.base.target import TARGETS, X86_64_V3, X86_64_V4, Target
from fuser.dtypes import bf16, f32
from fuser.tilegen.ir import Kernel
from tests.backend.nvptx import kernels
from tests.golden import Golden

KERNELS: dict[str, tuple[Callable[[], Kernel], Target]] = {
    "softmax": (functools.partial(kernels.softmax, 40, 1000, f32, (1, 1024)), X86_64_V3),
    "columns": (
        functools.partial(kernels.reduce_axis, "max", f32, 300, 40, (512, 16), 0),
        X86_64_V4,
    ),
    "matmul": (functools.partial(kernels.matmul, 96, 64, 128, f32, (48, 32, 64)), X86_64_V3),
    "attention": (functools.partial(kernels.attention, 2, 64, 100, 64, f32), X86_64_V4),
    "transpose": (functools.partial(kernels.transpose, 100, 90, f32, (64, 64)), X86_64_V3),
    "amx": (functools.partial(kernels.matmul, 96, 64, 128, bf16, (48, 32, 64)), TARGETS["amx"]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_decisions(name: str, golden: Golden) -> None:
    make, target = KERNELS[name]
    golden.text(f"cpu/{name}.txt", decisions_text(make(), target))
