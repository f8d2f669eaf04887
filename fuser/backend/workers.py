"""Compile kernels in worker processes: LLVM can abort a process, and compiling is slow.

jobs = [CompileJob(kernel, target) for kernel in kernels]
compiled = compile_all(jobs, cache)          # in the order of jobs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fuser.backend.module import CompiledKernel
from fuser.target import Target
from fuser.tilegen.ir import Kernel


class KernelStore(Protocol):
    """What compile_all needs of a cache; `fuser.runtime.cache.KernelCache` is one."""

    def get(self, material: str) -> CompiledKernel | None: ...
    def put(self, material: str, kernel: CompiledKernel) -> None: ...


@dataclass(frozen=True)
class CompileJob:
    """A kernel to compile. `where` names the region and its ONNX nodes for errors."""

    kernel: Kernel
    target: Target
    where: str = ""


@dataclass
class CompileStats:
    """How a compile_all went: jobs, distinct kernels, and how many of those the cache held."""

    jobs: int = 0
    distinct: int = 0
    cache_hits: int = 0
    seconds: float = 0.0


def compile_all(
    jobs: Sequence[CompileJob],
    cache: KernelStore | None = None,
    processes: int | None = None,
    *,
    reproduction_folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    stats: CompileStats | None = None,
) -> list[CompiledKernel]:
    """Compile every job, in their order; equal kernels are compiled once.

    processes: at most this many workers, default min(cores, 8). progress(done, distinct) is called
    as kernels finish. Raises CompileError for a kernel that fails or kills its worker; its `where`
    names the kernel and the folder that reproduces it.
    """
    raise NotImplementedError


def shutdown() -> None:
    """End the worker processes; the next compile_all starts new ones."""
