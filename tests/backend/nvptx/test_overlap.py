"""Kernels that start while the one before them still runs."""

from __future__ import annotations

import dataclasses
import re

from fuser.backend.nvptx import compile_kernel
from fuser.dtypes import f32
from fuser.target import SM_80, SM_90A
from tests.backend.nvptx import kernels


def test_nothing_is_read_before_the_wait() -> None:
    softmax = kernels.softmax(77, 4096, f32, (1, 4096), 8)
    matmul = kernels.matmul(256, 256, 256, blocks=(64, 64, 32))
    for kernel in (matmul, softmax):
        compiled = compile_kernel(kernel, SM_90A)
        before, after = compiled.code.decode().split("griddepcontrol.wait")
        assert compiled.pdl and "launch_dependents" in before
        assert not re.search(r"ld\.global|cp\.async|st\.global", before)
        assert re.search(r"ld\.global|cp\.async", after)
        # what the kernel before writes while this one is there is not read-only
        assert "ld.global.nc" not in after
        assert not compile_kernel(kernel, SM_80).pdl
        extra = {**kernel.schedule.extra, "overlap": False}
        kernel.schedule = dataclasses.replace(kernel.schedule, extra=extra)
        assert not compile_kernel(kernel, SM_90A).pdl
