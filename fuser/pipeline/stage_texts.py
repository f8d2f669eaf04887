"""The text of kernels after each stage: what `fuser dump` prints and FUSER_DUMP writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuser.backend import cpu, nvptx
from fuser.base.target import Target
from fuser.errors import UsageError
from fuser.graph.text import print_graph
from fuser.partition.region import Partition
from fuser.report.partition_text import explain
from fuser.runtime.terminal import WIDTH
from fuser.tilegen.program import TileProgram
from fuser.tilegen.text import print_kernel

GPU_STAGES = ("gpu-passes", "gpu", "ptx")


def kernel_text(program: TileProgram, stage: str, target: Target) -> str:
    """The text of one tile program: tile, llvm; gpu-passes, gpu, ptx or cpu, asm. Raises
    UsageError."""
    if stage == "tile":
        return print_kernel(program.kernel)
    if stage == "llvm":
        lower = nvptx.lower_to_llvm if target.is_cuda else cpu.lower_to_llvm
        return lower(program.kernel, target)
    if (stage in GPU_STAGES) != target.is_cuda:
        other = "--device cpu" if target.is_cuda else "--device cuda"
        raise UsageError(f"stage {stage} is not of {target.arch}", hint=f"use {other}")
    if stage == "gpu-passes":
        return nvptx.gpu_pass_texts(program.kernel, target)
    if stage == "gpu":
        return nvptx.gpu_text(program.kernel, target)
    if stage == "cpu":
        return cpu.decisions_text(program.kernel, target)
    if target.is_cuda:
        return nvptx.compile_kernel(program.kernel, target).code.decode()
    return cpu.assembly(program.kernel, target)


def write_stages(
    folder: Path, cut: Partition, programs: Sequence[TileProgram], target: Target
) -> None:
    """Write graph.txt, regions.txt and a file a stage of a kernel into folder/NAME of the graph."""
    inside = folder / "".join(c if c.isalnum() else "_" for c in cut.graph.name)
    try:
        inside.mkdir(parents=True, exist_ok=True)
        (inside / "graph.txt").write_text(print_graph(cut.graph))
        (inside / "regions.txt").write_text(explain(cut, verbose=True, most=WIDTH))
        machine = ("gpu", "llvm", "ptx") if target.is_cuda else ("cpu", "llvm", "asm")
        for number, program in enumerate(programs):
            for stage in ("tile", *machine):
                file = inside / f"{number:03}_{program.kernel.name}.{stage}"
                file.write_text(kernel_text(program, stage, target))
    except OSError as error:
        raise UsageError(f"FUSER_DUMP={folder} cannot be written: {error.strerror}") from error
