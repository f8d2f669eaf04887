"""Random kernels of users: compiled, they do what the interpreter does."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.backend.llvm import host_features
from fuser.base.target import X86_64_V3, Target
from fuser.tilegen import interpret
from fuser.tilegen.ir import Kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.text import print_kernel
from fuser.tilegen.verify import verify
from tests.backend.cpu import native
from tests.backend.cpu.user_kernels import SCALARS, Author, memory


def check(kernel: Kernel, seed: int, target: Target = native.HOST) -> None:
    verify(kernel)
    want, have = memory(kernel, seed), memory(kernel, seed)
    with np.errstate(all="ignore"):
        interpret.run(kernel, want, scalars=SCALARS, races=False)
    native.run_in_place(kernel, have, scalars=SCALARS, target=target)
    for name, array in want.items():
        np.testing.assert_array_equal(have[name], array, err_msg=f"{name}\n{print_kernel(kernel)}")


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_user_kernels(first: int) -> None:
    for seed in range(first, first + 20):
        check(Author(seed).kernel(), seed)


@pytest.mark.parametrize("first", range(1000, 1040, 20))
def test_user_kernels_behind_the_passes(first: int) -> None:
    for seed in range(first, first + 20):
        kernel = Author(seed).kernel()
        run_passes(kernel)
        check(kernel, seed)


@pytest.mark.skipif("avx2" not in host_features(), reason="the code is for AVX2")
@pytest.mark.parametrize("first", range(3200, 3240, 20))
def test_user_kernels_of_another_processor(first: int) -> None:
    """Vectors of half the length, and no registers for masks."""
    for seed in range(first, first + 20):
        check(Author(seed).kernel(), seed, X86_64_V3)
