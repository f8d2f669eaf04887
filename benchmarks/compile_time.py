"""Processor time of compiling single kernels, stage by stage, in one thread.

    python -m benchmarks.compile_time                 # GPU code for sm_90a; needs no GPU
    python -m benchmarks.compile_time --device cpu

The kernels are those of benchmarks.kernel_cases (GPU only) and of the models in models/ at full
width. ptxas stands for the driver's compiler where it is installed: both are the same assembler.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import models
from fuser.backend import cpu, llvm, nvptx
from fuser.backend.cpu.compile import machine as cpu_machine
from fuser.backend.nvptx.emit.module import machine as gpu_machine
from fuser.base.target import SM_90A, Target
from fuser.frontends.onnx.model import open_model
from fuser.partition import partition
from fuser.tilegen.emit import emit
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.passes import run_passes as run_tile_passes
from fuser.tilegen.text import print_kernel

LAYERS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "bert": ({"layers": 1}, {"batch": 1, "sequence": 128}),
    "gpt2": ({"layers": 1}, {"batch": 1, "sequence": 512}),
    "llama": ({"layers": 1}, {"batch": 1, "sequence": 512}),
    "vit": ({"layers": 1}, {"batch": 1}),
    "resnet50": ({}, {"batch": 1}),
    "mobilenet": ({}, {"batch": 1}),
    "conv_block": ({}, {"batch": 1}),
    "mlp": ({}, {"batch": 64}),
    "softmax": ({}, {"batch": 1}),
    "layernorm": ({}, {"batch": 1}),
    "attention": ({}, {"batch": 1}),
}
"""Sizes of the builders (full width; one layer has every kernel) and of their symbolic dims."""


@dataclass
class Row:
    """Seconds of one kernel by stage, and a digest of its code."""

    source: str
    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    digest: str = ""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def model_protos(names: Sequence[str], dtype: str) -> Iterator[tuple[str, Any, dict[str, int]]]:
    for name in names:
        sizes, dims = LAYERS[name]
        yield name, models.build(name, dtype, **sizes), dims


def case_protos(every: int) -> Iterator[tuple[str, Any, dict[str, int]]]:
    """Every `every`th case of each group of benchmarks.kernel_cases. Needs torch."""
    import torch

    from benchmarks.kernel_cases import GROUPS

    for group, cases in GROUPS.items():
        for case in list(cases(False))[::every]:
            generator = torch.Generator().manual_seed(1)
            constants = {
                name: torch.randn(case.shapes[name], generator=generator) for name in case.constants
            }
            yield f"{group} {case.name}", case.model(constants), {}


def kernels_of(proto: Any, dims: dict[str, int], target: Target) -> Iterator[tuple[Kernel, float]]:
    """(kernel, seconds in Tile IR: its emission, passes, text and parsing), each distinct once."""
    cut = partition(open_model(proto).graph(dims), target)
    for region in cut.regions:
        started = time.process_time()
        programs = emit(region, cut, target)
        emitted = (time.process_time() - started) / max(1, len(programs))
        for program in programs:
            started = time.process_time()
            run_tile_passes(program.kernel)
            program.kernel.name = "kernel"
            text = print_kernel(program.kernel)
            kernel = parse_kernel(text)
            yield kernel, emitted + time.process_time() - started


def compile_stages(
    kernel: Kernel, target: Target, ptxas: str | None
) -> tuple[dict[str, float], bytes]:
    """Seconds by stage, and the object or PTX."""
    spent: dict[str, float] = {}
    gpu = target.is_cuda

    def stage(name: str, call: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = call()
        spent[name] = time.process_time() - started
        return result

    lower = nvptx.lower_to_llvm if gpu else cpu.lower_to_llvm
    where = gpu_machine(target) if gpu else cpu_machine(target)
    made = llvm.target_machine(where)
    text = stage("lower", lambda: lower(kernel, target))
    module = stage("optimise", lambda: llvm.compile_module(text, where, 3 if gpu else 2))
    emit_code = made.emit_assembly if gpu else made.emit_object
    code = stage("emit", lambda: emit_code(module))
    code = code.encode() if gpu else code
    if gpu and ptxas:
        spent["ptxas"] = assemble(code, target, ptxas)
    return spent, code


def assemble(ptx: bytes, target: Target, ptxas: str) -> float:
    """Seconds of processor time of ptxas."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_bytes(ptx)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [ptxas, f"-arch={target.arch}", str(source), "-o", str(Path(folder) / "cubin")]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_table(rows: Sequence[Row], worst: int) -> None:
    stages = list(rows[0].seconds)
    print(f"{len(rows)} distinct kernels, seconds of processor time\n")
    print(f"| | {' | '.join(stages)} | all |\n|{' --- |' * (len(stages) + 2)}")

    def line(name: str, pick: Callable[[list[float]], float]) -> None:
        found = [pick(sorted(row.seconds[stage] for row in rows)) for stage in stages]
        found.append(pick(sorted(row.total for row in rows)))
        print(f"| {name} | {' | '.join(f'{seconds:.3f}' for seconds in found)} |")

    line("median", median)
    line("nine of ten below", lambda values: values[len(values) * 9 // 10])
    line("most", max)
    for stage in [*stages, "all"]:
        print(f"\nmost of {stage}:")
        seconds = {id(row): row.seconds.get(stage, row.total) for row in rows}
        for row in sorted(rows, key=lambda row: -seconds[id(row)])[:worst]:
            print(f"  {seconds[id(row)]:.3f} {row.source}: {row.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--models", nargs="*", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--every", type=int, default=4, help="of the kernel cases; 0: none")
    parser.add_argument("--worst", type=int, default=10, help="kernels to name for each stage")
    parser.add_argument("--no-ptxas", action="store_true", help="leave the assembler out")
    parser.add_argument("--save", type=Path, help="write Tile IR and code of each kernel here")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    target = SM_90A if gpu else cpu.host_target()
    ptxas = None if options.no_ptxas else shutil.which("ptxas")
    protos = list(case_protos(options.every)) if gpu and options.every else []
    found = iter([*protos])
    rows: list[Row] = []
    seen: set[str] = set()
    llvm.target_machine(gpu_machine(target) if gpu else cpu_machine(target))
    gc.freeze()
    for origin in (found, model_protos(options.models, "float16" if gpu else "float32")):
        for source, proto, dims in origin:
            for kernel, tile_seconds in kernels_of(proto, dims, target):
                text = print_kernel(kernel)
                if text in seen:
                    continue
                seen.add(text)
                spent, code = compile_stages(kernel, target, ptxas)
                row = Row(source, " ".join(map(str, kernel.grid)), {"tile": tile_seconds} | spent)
                row.digest = hashlib.sha256(code).hexdigest()[:12]
                rows.append(row)
                if options.save:
                    options.save.mkdir(parents=True, exist_ok=True)
                    stem = hashlib.sha256(text.encode()).hexdigest()[:12]
                    (options.save / f"{stem}.tile").write_text(text)
                    (options.save / f"{stem}.{'ptx' if gpu else 'o'}").write_bytes(code)
    if not rows:
        print("no kernels")
        return 1
    print_table(rows, options.worst)
    return 0


if __name__ == "__main__":
    sys.exit(main())
