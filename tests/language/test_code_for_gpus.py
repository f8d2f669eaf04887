"""Kernels that are launched on the CPU here are compiled for GPUs too: code, without a launch.

Symbolic sizes come to the GPU's code by other ways in kernels of users than in those of graphs: as
the ends of loops over arrays, say, and nowhere else.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import pytest

from fuser.base.target import SM_80, SM_90A
from fuser.language import variants
from fuser.language.arguments import Arguments
from fuser.language.compile import Options
from fuser.language.functions import Function
from fuser.language.variants import Variant, make_variant
from tests.language.test_arrays import calls
from tests.language.test_tutorials import NAMES, SIZES, load


@pytest.fixture
def ptx(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The PTX for both targets of every kernel that the test compiles."""
    found: list[str] = []

    def make(
        function: Function, arguments: Arguments, grid: Sequence[int], options: Options
    ) -> Variant:
        for target in (SM_80, SM_90A):
            code = variants.code_for(function, arguments, grid, options, target).compiled.code
            found.append(code if isinstance(code, str) else code.decode())
        return make_variant(function, arguments, grid, options)

    monkeypatch.setattr(variants, "make_variant", make)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_tutorials(name: str, ptx: list[str]) -> None:
    load(name).check(device="cpu", **SIZES[name][1])
    assert ptx
    for text, sm in zip(ptx, itertools.cycle(("sm_80", "sm_90a"))):
        assert f".target {sm}" in text


def test_a_size_that_only_ends_a_loop(ptx: list[str]) -> None:
    x, out = np.arange(10, dtype=np.float32).reshape(5, 2), np.zeros(2, np.float32)
    calls[(1,)](x, out)
    assert out.tolist() == [20, 25]
    for text in ptx:
        size = re.search(r"ld\.param\.b32 \t(%r\d+), \[calls_kernel_param_2\]", text)
        assert size and re.search(rf"(setp|max)\.\S+ \t.*{size[1]}\b", text)
