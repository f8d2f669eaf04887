"""What it is worth to ask for constants before the wait for the kernel in front, by kind of kernel.

    python -m benchmarks.early_constants
    python -m benchmarks.early_constants --kernels 64

Chains of one kernel with weights of its own each time, which are not in the L2, in a CUDA graph
whose launches overlap: microseconds a kernel without (`early_constants=False`) and with, in turns,
twice for the noise. Outputs must have the same bits. Needs a GPU of compute capability 9.0, torch
and cuda-python; without a GPU, `--check` compiles all cases and says what moves.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import sys
from collections.abc import Callable

from fuser.backend.nvptx import compile_kernel, lower_to_gpu
from fuser.backend.nvptx.prefetch import launch_overlap_plan as launch
from fuser.backend.nvptx.prefetch.early_constants import request_constants
from fuser.base.target import SM_90A
from fuser.dtypes import f16, f32
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.text import print_kernel
from tests.backend.nvptx import kernels

matmul = functools.partial(kernels.matmul, epilogue=False)
CASES: dict[str, Callable[[], Kernel]] = {
    "one row, cp.async": functools.partial(
        matmul, 1, 1024, 1024, f16, (16, 32, 64), stages=4, roles=False),
    "16 rows, cp.async": functools.partial(
        matmul, 16, 2304, 768, f16, (16, 32, 64), stages=4, roles=False),
    "16 rows, float32": functools.partial(matmul, 16, 768, 768, f32, (16, 32, 32), roles=False),
    "128 rows, producer": functools.partial(matmul, 128, 2304, 768, f16, (64, 64, 64), stages=6),
    "512 rows, producer": functools.partial(matmul, 512, 768, 768, f16, (64, 64, 64), stages=6),
    "128 rows, bias": functools.partial(
        kernels.matmul, 128, 768, 768, f16, (64, 64, 64), stages=6),
    "layernorm": functools.partial(kernels.layernorm, 128, 768, f16, (1, 1024)),
}  # fmt: skip


def case(make: Callable[[], Kernel], early: bool) -> Kernel:
    """A kernel whose inputs but the first are constants."""
    text = re.sub(r"(buffer x[12]): input", r"\1: constant", print_kernel(make()))
    kernel = parse_kernel(text)
    kernel.schedule = dataclasses.replace(
        kernel.schedule, launch_overlap=True, early_constants=early
    )
    return kernel


def measure(make: Callable[[], Kernel], count: int) -> str:
    """The times of a chain of `count` kernels, as a row."""
    import torch

    from benchmarks.device_timing import time_sides
    from tests.backend.cuda_launch import Loaded

    drawn = torch.Generator("cuda").manual_seed(0)
    sides, results = {}, {}
    buffers = case(make, False).buffers
    types = {"f16": torch.float16, "f32": torch.float32}
    sets = [
        [torch.randn(b.size, device="cuda", generator=drawn).to(types[b.dtype.name]) * 0.1
         for b in buffers]
        for _ in range(count)
    ]  # fmt: skip
    for name in ("late", "early", "late again", "early again"):
        early = name.startswith("early")
        loaded = Loaded(compile_kernel(case(make, early), SM_90A))

        def call(tensors: list[torch.Tensor], loaded: Loaded = loaded) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            loaded.launch([t.data_ptr() for t in tensors], stream, overlap=True)

        sides[name] = [functools.partial(call, tensors) for tensors in sets]
        for run in sides[name]:
            run()
        torch.cuda.synchronize()
        results[name] = [tensors[-1].clone() for tensors in sets]
    same = all(torch.equal(a, b) for a, b in zip(results["late"], results["early"], strict=True))
    times = time_sides(sides)
    row = " | ".join(f"{1e3 * ms:.2f}" for ms in times.values())
    ratio = (times["late"] + times["late again"]) / (times["early"] + times["early again"])
    return f"{row} | {ratio:.3f} | {'yes' if same else 'NO'} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=100, help="of a chain")
    parser.add_argument("--check", action="store_true", help="compile only; needs no GPU")
    options = parser.parse_args()
    good = True
    if not options.check:
        print("| kernel | late, us | early, us | late | early | ratio | same bits |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, make in CASES.items():
        if options.check:
            early = case(make, True)
            program = lower_to_gpu(case(make, False), SM_90A)
            decision = request_constants(program, launch.early(early))
            compile_kernel(early, SM_90A)
            good = good and decision.applied
            print(f"{name}: {decision.reason}")
            continue
        row = measure(make, options.kernels)
        good = good and "NO" not in row
        print(f"| {name} | {row}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
