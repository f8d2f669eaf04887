"""Random tile programs of callers: their PTX assembles, and on a GPU they do what the interpreter
does, bit by bit (random_kernels.py)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.graph.sizes import Sizes
from fuser.tilegen.interpret import run
from fuser.tilegen.verify import verify
from tests.backend.cuda_launch import context, run_on_device
from tests.backend.nvptx.random_kernels import (
    as_symbols,
    random_arrays,
    random_kernel,
    random_scalars,
)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas")
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize("seed", range(8))
def test_assembles(seed: int, target: Target, tmp_path: Path) -> None:
    with Sizes({}) as sizes:
        kernel = random_kernel(seed, as_symbols(sizes) if seed % 2 else int)
        verify(kernel)
        compiled = compile_kernel(kernel, target)
    file = tmp_path / "kernel.ptx"
    file.write_bytes(compiled.code)
    command = ["ptxas", "-O1", f"-arch={target.arch}", file, "-o", tmp_path / "cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(200))
def test_results(seed: int) -> None:
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    kernel = random_kernel(seed)
    given, expected = random_arrays(kernel, seed), random_arrays(kernel, seed)
    with np.errstate(all="ignore"):
        run(kernel, expected, scalars=random_scalars(seed), races=False)
    with Sizes({}) as sizes:
        made = random_kernel(seed, as_symbols(sizes) if seed % 2 else int)
        compiled = compile_kernel(made, SM_90A if seed % 4 else SM_80)
    found = run_on_device(kernel, compiled, given, scalars=random_scalars(seed))
    for name, want in expected.items():
        np.testing.assert_array_equal(found[name], want, err_msg=name)
