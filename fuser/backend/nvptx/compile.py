"""Kernel in, PTX out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fuser.backend.module import CompiledKernel, TensorMap
from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.cluster.cluster import NeedsOneBlock
from fuser.backend.nvptx.cluster.cluster_plan import blocks_of, decide_blocks
from fuser.backend.nvptx.cluster.multicast import decide_multicast, multicast_shape_of
from fuser.backend.nvptx.emit import word, write
from fuser.backend.nvptx.emit.module import module_text, to_ptx
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import print_program
from fuser.backend.nvptx.layouts.assignment import of_caller
from fuser.backend.nvptx.layouts.dot_plan import UNIT_NAMES, decide_unit
from fuser.backend.nvptx.layouts.mma_units import known_unit
from fuser.backend.nvptx.lowering.builder import Attempt
from fuser.backend.nvptx.lowering.lower import Lowering
from fuser.backend.nvptx.pipeline import run_passes
from fuser.backend.text import symbolic_dims
from fuser.base.target import Target
from fuser.errors import LoweringError
from fuser.graph import dims
from fuser.graph.dims import DimExpr
from fuser.graph.sizes import moves, size_hint
from fuser.tilegen.ir import Kernel

MAX_WARPS = 32
"""Of a block."""
RECORDED = "recording"
"""The name under which a program is shown before any pass."""
Watch = Callable[[str, Program], None]
"""What sees the program after each pass, with the name of the pass."""


def lower_to_llvm(kernel: Kernel, target: Target) -> str:
    """The LLVM IR text that compile_kernel hands to LLVM. Raises LoweringError."""
    with symbolic_dims():
        return _text(*_fitting(kernel, target))


def lower_to_gpu(kernel: Kernel, target: Target) -> Program:
    """The GPU IR that the LLVM IR text is written from. Raises LoweringError."""
    with symbolic_dims() as read:
        program = _fitting(kernel, target)[0]
    return dataclasses.replace(program, sizes=list(read))


def mechanisms(kernel: Kernel, target: Target) -> list[Decision]:
    """Whether a kernel has each mechanism that it could have, and why. Raises LoweringError."""
    with symbolic_dims():
        low = _fitting(kernel, target)[1]
    units = {
        decide_unit(op, plan, low.warps, target): None for op, plan in low.assignment.dots.items()
    }
    return [*units, *low.decisions]


def gpu_text(kernel: Kernel, target: Target) -> str:
    """The text of a kernel's GPU IR. Raises LoweringError."""
    return print_program(lower_to_gpu(kernel, target))


def gpu_pass_texts(kernel: Kernel, target: Target) -> str:
    """A kernel's GPU IR as it was recorded and after each pass; of a pass that leaves it as it is,
    the name alone. Raises LoweringError."""
    texts: list[tuple[str, str]] = []

    def watch(name: str, program: Program) -> None:
        if name == RECORDED:  # with fewer stages, as the first try did not fit
            texts.clear()
        texts.append((name, print_program(program)))

    with symbolic_dims():
        _fitting(kernel, target, watch)
    before = ["", *(text for _, text in texts)]
    return "\n".join(
        f"# after {name}: no change" if text == last else f"# after {name}\n{text}"
        for last, (name, text) in zip(before, texts, strict=False)
    )


def compile_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """Compile a tile program to PTX. Raises LoweringError or CompileError."""
    with symbolic_dims() as read:
        program, low = _fitting(kernel, target)
        text = _text(program, low)
    ptx = to_ptx(text, target, _least_version(low))
    units = {plan.unit for plan in low.assignment.dots.values()}
    unit = next((name for name in UNIT_NAMES if name in units), "none")
    facts: dict[str, Any] = {
        "tensor_core": {"wide": "wgmma", "tf32": "mma", "fma": "none"}.get(unit, unit),
        "dot": unit,
        "shared_bytes": program.shared_bytes,
        "warps": low.warps,
        "cluster": low.order.cluster,
        "neighbours": low.multicast.shape,
        "stream_k": low.scheduler.blocks_per_sm,
        "blocks": size_hint(low.order.launch[0]) if low.scheduler.blocks else 0,
        "copies": "tma"
        if low.producer.streams
        else "cp.async"
        if low.assignment.staged
        else "none",
    }
    if kernel.scalars:
        facts["scalars"] = [value.name for value in kernel.scalars]
    if low.caller and low.kernel.schedule.blocks_per_sm:
        facts["blocks_wanted"] = low.kernel.schedule.blocks_per_sm
    if low.needs.notes:
        facts["fallback"] = list(dict.fromkeys(low.needs.notes))
    if dims.active() is not None:
        facts |= _open_facts(kernel, low, list(read))
    return CompiledKernel(
        name=kernel.name,
        target=target.arch,
        entry=word(kernel.name),
        code=ptx.encode(),
        grid=tuple(map(size_hint, kernel.grid)),
        launch=_numbers(low.order.launch),
        threads=low.threads,
        shared_bytes=program.shared_bytes,
        cluster=low.order.cluster,
        tensor_maps=tuple(map(_map_at_example, low.needs.tensor_maps)),
        sizes=tuple(map(size_hint, read)),
        pdl=low.follows_early,
        workspace_bytes=low.needs.workspace_bytes,
        facts=facts,
    )


def _least_version(low: Lowering) -> int:
    """The PTX version, times 10, that the matmuls need: mma.sync took floats of 8 bits in 8.4."""
    dots = low.assignment.dots.items()
    narrow = any(p.kind == "mma" and known_unit(op).truncates for op, p in dots)
    return 84 if narrow else 0


def _open_facts(kernel: Kernel, low: Lowering, read: list[DimExpr]) -> dict[str, Any]:
    """What a launch at other sizes takes: text of the parameters, the grids and tensor maps."""
    return {
        "sizes": list(map(str, read)),
        "grid": list(map(str, kernel.grid)),
        "launch": list(map(str, low.order.launch)),
        "maps": [
            {"shape": list(map(str, item.shape)), "strides": list(map(str, item.strides)),
             "offset": str(item.offset)}
            for item in low.needs.tensor_maps
        ],
        **({"moving": True} if moves(*read) else {}),
    }  # fmt: skip


def _map_at_example(item: TensorMap) -> TensorMap:
    return dataclasses.replace(
        item,
        shape=tuple(map(size_hint, item.shape)),
        strides=tuple(map(size_hint, item.strides)),
        offset=size_hint(item.offset),
    )


def _numbers(launch: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, z = map(size_hint, launch)
    return x, y, z


def _fitting(
    kernel: Kernel, target: Target, watch: Watch | None = None
) -> tuple[Program, Lowering]:
    """A kernel in the GPU IR, with as many stages as fit."""
    asked = kernel.schedule.warps
    if of_caller(kernel):
        warps = min(MAX_WARPS, 1 << (asked.bit_length() - 1))
        kernel = dataclasses.replace(
            kernel, schedule=dataclasses.replace(kernel.schedule, warps=warps)
        )
    stages = kernel.schedule.stages
    program, low = _lower(kernel, target, stages, watch=watch)
    while target.shared_bytes and program.shared_bytes > target.shared_bytes and stages > 1:
        stages -= 1
        program, low = _lower(kernel, target, stages, watch=watch)
    if target.shared_bytes and program.shared_bytes > target.shared_bytes and low.caller:
        program, low = _lower(kernel, target, 1, frugal=True, watch=watch)
        low.needs.notes.append("tiles in parts through shared memory")
    if kernel.schedule.warps < asked:
        low.needs.notes.append(f"{kernel.schedule.warps} of {asked} warps")
    if low.caller and low.attempt.stages < kernel.schedule.stages:
        low.needs.notes.append(f"{low.attempt.stages} of {kernel.schedule.stages} stages")
    if target.shared_bytes and program.shared_bytes > target.shared_bytes:
        raise LoweringError(
            f"kernel {kernel.name} needs {program.shared_bytes} bytes of shared memory, "
            f"{target.arch} has {target.shared_bytes}",
            hint="use smaller blocks or fewer stages",
        )
    return program, low


def _lower(
    kernel: Kernel,
    target: Target,
    stages: int,
    frugal: bool = False,
    watch: Watch | None = None,
) -> tuple[Program, Lowering]:
    against = ""
    try:
        blocks, multicast_shape = blocks_of(kernel, target), multicast_shape_of(kernel, target)
        low = Lowering(kernel, target, Attempt(stages, blocks, multicast_shape, frugal))
        low.run()
    except NeedsOneBlock as reason:
        against = str(reason)
        low = Lowering(kernel, target, Attempt(stages))
        low.run()
    shared = decide_blocks(kernel, target, low.cluster.blocks, against)
    multicast = decide_multicast(kernel, target, low.multicast.shape)
    low.decisions.add(*(item for item in (shared, multicast) if item is not None))
    program = low.recorded()
    if watch is not None:
        watch(RECORDED, program)
    for item, decision in run_passes(program, low.facts()):
        low.decisions.add(*([decision] if decision else []))
        if watch is not None:
            watch(item.name, program)
    return program, low


def _text(program: Program, low: Lowering) -> str:
    """The module of LLVM IR of a kernel."""
    return module_text(
        write(program, low.target), threads=low.threads, shared=bool(program.slots),
        blocks=program.resident, registers=low.kernel.schedule.max_registers,
        flags=low.needs.flags, tables=program.tables,
    )  # fmt: skip
