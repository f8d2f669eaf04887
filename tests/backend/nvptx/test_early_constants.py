"""Constants that are asked for before the wait for the previous kernel."""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel, gpu_text
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.prefetch import launch_overlap_plan as launch
from fuser.backend.nvptx.prefetch.early_constants import request_constants
from fuser.backend.nvptx.simulate import SimulationError, simulate
from fuser.base.target import SM_90A
from fuser.dtypes import f16
from fuser.errors import VerifyError
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.text import print_kernel
from tests.backend.nvptx import kernels
from tests.backend.nvptx.test_simulate import arrays_of

PTXAS = shutil.which("ptxas")


def with_weights(kernel: Kernel, early: bool) -> Kernel:
    """The kernel with constants as its right operand and bias."""
    made = parse_kernel(re.sub(r"(buffer x[12]): input", r"\1: constant", print_kernel(kernel)))
    made.schedule = dataclasses.replace(made.schedule, early_constants=early)
    return made


KERNELS: dict[str, tuple[Callable[[], Kernel], str]] = {
    "copies": (functools.partial(
        kernels.matmul, 20, 32, 130, f16, (32, 32, 32), warps=2, roles=False),
        "1 loads, 2 copies"),
    "boxes": (functools.partial(kernels.matmul, 64, 64, 448, f16, (64, 64, 64), stages=3),
        "1 loads, 1 boxes of the first stages"),
    "fewer than stages": (functools.partial(
        kernels.matmul, 64, 64, 128, f16, (64, 64, 64), stages=4),
        "1 loads, 1 boxes of the first stages"),
    "few rows": (functools.partial(
        kernels.matmul, 1, 64, 1024, f16, (16, 64, 64), stages=9, roles=False),
        "1 loads, 8 copies"),
    "boxes of few rows": (functools.partial(
        kernels.matmul, 2, 64, 2048, f16, (64, 64, 64), stages=9, roles=True),
        "1 loads, 1 boxes of the first stages"),
    "multicast": (functools.partial(
        kernels.matmul, 128, 64, 192, f16, (64, 64, 64), stages=2, neighbours=(2, 1)),
        "1 loads, 1 boxes of the first stages"),
}  # fmt: skip


@functools.cache
def text_of(name: str, early: bool = True) -> str:
    return gpu_text(with_weights(KERNELS[name][0](), early), SM_90A)


@pytest.mark.parametrize("name", KERNELS)
def test_results_do_not_change(name: str, rng: np.random.Generator) -> None:
    """Bit by bit, with copies that come late; and the wait is where the pass says."""
    kernel = with_weights(KERNELS[name][0](), True)
    arrays = arrays_of(kernel, rng)
    plain = {key: array.copy() for key, array in arrays.items()}
    early = parse_program(text_of(name))
    verify(early)
    simulate(early, arrays, seed=1, late=True)
    simulate(parse_program(text_of(name, False)), plain, seed=2)
    for key, array in arrays.items():
        assert array.tobytes() == plain[key].tobytes()
    assert np.abs(arrays["y"].astype(float)).max() > 0


@pytest.mark.parametrize("name", KERNELS)
def test_it_says_what_moved(name: str) -> None:
    most = launch.early(with_weights(KERNELS[name][0](), True))
    decision = request_constants(parse_program(text_of(name, False)), most)
    assert decision.applied and decision.reason == KERNELS[name][1]


def test_few_rows_ask_for_all_stages() -> None:
    """Eight kibibytes each: more than the 32 that stand in the way of nothing else's data."""
    text = text_of("few rows")
    assert text[: text.index("await_previous")].count("copy_async") == 8
    text = text_of("boxes of few rows")
    assert re.search(r"for 576, .* body \(%\w+\.early", text)


def test_a_large_kernel_of_constants_starts_early() -> None:
    """24 MiB of weights for a row; with rows of data as large it is a launch beside them."""
    for rows, early in ((1, True), (1024, False)):
        kernel = with_weights(kernels.matmul(rows, 3072, 4096, f16, (16, 64, 64)), True)
        assert compile_kernel(kernel, SM_90A).pdl == early


def test_inputs_are_not_asked_for_early() -> None:
    """The same kernel without constants stays as it is."""
    text = gpu_text(KERNELS["boxes"][0](), SM_90A)
    program = parse_program(text)
    decision = request_constants(program, launch.FIRST)
    assert not decision.applied and decision.reason == "the producer fetches no constants"
    again = gpu_text(with_weights(kernels.transpose(50, 90, f16, (64, 64)), True), SM_90A)
    assert "await_previous" in again
    assert not request_constants(parse_program(again), launch.FIRST).applied


MUTANTS = {
    "a box": ("boxes", r"(?s)(    await_previous \(\) [^\n]*\n)(    for .*?\n    \}\n)", r"\2\1"),
    "a copy": ("copies", r"(  await_previous .*\n)((?:.*\n)*?  copy_async &x0.*\n)", r"\2\1"),
    "a load of the consumers": (
        "boxes", r"(    await_previous \(x0.*\n)((?:.*\n)*?    %\w+ = load_lines .*\n)", r"\2\1"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_what_moves_too_far_is_found(name: str, rng: np.random.Generator) -> None:
    """What is not constant, before the wait: by the verifier and by the simulator."""
    kernel, old, new = MUTANTS[name]
    text, count = re.subn(old, new, text_of(kernel), count=1)
    assert count
    program = parse_program(text)
    message = "is touched before the previous kernel has ended"
    with pytest.raises(VerifyError, match=message):
        verify(program)
    with pytest.raises(SimulationError, match=message):
        simulate(program, arrays_of(with_weights(KERNELS[kernel][0](), True), rng))


def test_a_ring_that_is_shorter_than_thought_is_found(rng: np.random.Generator) -> None:
    """Boxes for more stages than there are: one comes over another that nobody has read."""
    text = re.sub(r"for 256(, \(0, 0, 0\), \(\) body)", r"for 512\1", text_of("boxes"))
    assert text != text_of("boxes")
    with pytest.raises(SimulationError, match="overwrites what fetch"):
        simulate(parse_program(text), arrays_of(with_weights(KERNELS["boxes"][0](), True), rng))


@pytest.mark.skipif(PTXAS is None, reason="there is no ptxas")
@pytest.mark.parametrize("name", ["copies", "boxes"])
def test_ptx_asks_before_it_waits(name: str, tmp_path: Path) -> None:
    compiled = compile_kernel(with_weights(KERNELS[name][0](), True), SM_90A)
    before, _, behind = compiled.code.decode().rpartition("griddepcontrol.wait")
    assert re.search(r"cp\.async\.(ca|cg|bulk)", before)
    if name == "boxes":  # the consumers' wait comes last, and they ask before it
        assert "cp.async.bulk" not in behind and before.count("griddepcontrol.wait;") == 1
    source = tmp_path / "kernel.ptx"
    source.write_bytes(compiled.code)
    done = subprocess.run(
        [str(PTXAS), "-arch=sm_90a", source, "-o", tmp_path / "cubin", "-v"], capture_output=True
    )
    assert done.returncode == 0 and b" 0 bytes spill stores" in done.stderr, done.stderr
