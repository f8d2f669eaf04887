"""The end of a compile: kernels bound to values, and the report of what fusion saved."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from fuser import report as reports
from fuser.backend.module import CompiledKernel
from fuser.graph.ir import Value
from fuser.partition.region import Partition
from fuser.runtime.memory import aligned_array
from fuser.runtime.program import Program, Step, TensorSpec, assemble
from fuser.target import Target
from fuser.tilegen.program import Argument, Packing, TileProgram


def bind_program(
    name: str, cut: Partition, programs: list[TileProgram], kernels: list[CompiledKernel],
    target: Target,
) -> Program:  # fmt: skip
    """Bind every kernel buffer to a graph value, a packed constant or a workspace of its region."""
    constants: dict[Hashable, np.ndarray] = {}
    sizes: dict[Hashable, int] = {}
    steps = []
    for program, kernel in zip(programs, kernels, strict=True):
        keys: list[Hashable] = []
        zeroed: list[Hashable] = []
        for argument in program.arguments:
            value, key = argument.value, _key(program, argument)
            if value is not None and value.constant is not None:
                if key not in constants:
                    packing = argument.packing or Packing()
                    constants[key] = packing.apply(value.constant, aligned_array)
            else:
                sizes[key] = max(
                    sizes.get(key, 0), argument.buffer.size * argument.buffer.dtype.bytes
                )
            keys.append(key)
            if argument.zeroed:
                zeroed.append(key)
        cost = (
            max(program.flops / target.flops_f32, program.region.bytes() / target.bandwidth)
            * target.units
        )
        steps.append(Step(kernel, tuple(keys), tuple(zeroed), program.region.name, cost))
    for value in cut.graph.outputs:
        if value.constant is not None:
            constants.setdefault(value, np.ascontiguousarray(value.constant))
    return assemble(
        target,
        steps,
        [(value, _spec(value, value.name)) for value in cut.graph.inputs],
        [
            (value, _spec(value, label))
            for value, label in zip(cut.graph.outputs, cut.graph.output_names, strict=True)
        ],
        constants,
        sizes,
        name,
    )


def _key(program: TileProgram, argument: Argument) -> Hashable:
    if argument.value is None:
        return (program.region.id, argument.workspace)
    if argument.packing is None or argument.value.constant is None:
        copy = argument.buffer.dtype
        return argument.value if copy is argument.value.dtype else (argument.value, copy.name)
    return (argument.value, argument.packing)


def _spec(value: Value, name: str) -> TensorSpec:
    return TensorSpec(name, value.dtype, value.shape)


def report_on(
    cut: Partition, programs: list[TileProgram], program: Program,
    dims: dict[str, int], seconds: float, cache_hits: int,
) -> reports.Report:  # fmt: skip
    read = [
        argument.value
        for item in programs
        for argument in item.arguments
        if argument.value is not None and argument.value.constant is not None
    ]
    flops = {region.id: 0 for region in cut.regions}
    for item in programs:
        flops[item.region.id] += item.flops
    schedules: dict[int, dict[str, Any]] = {}
    for item in programs:  # of several programs of a region the first does the work
        schedules.setdefault(item.region.id, item.kernel.schedule.to_dict())
    return reports.Report(
        model=program.name,
        device=f"{program.target.name} ({program.target.arch})",
        kernels=reports.Saving(len(reports.nodes_before(cut.graph)), len(program.launches)),
        bytes=reports.Traffic(
            reports.bytes_before(cut.graph),
            sum(region.bytes() for region in cut.regions),
            reports.bytes_floor(cut.graph, read),
        ),
        compile_s=seconds,
        cache_hits=cache_hits,
        peak_memory_bytes=program.peak_memory_bytes,
        regions=tuple(
            reports.RegionReport(
                region.id, region.kind, region.origin, region.bytes(), flops[region.id],
                schedules.get(region.id, {}),
            )
            for region in cut.regions
        ),
        dims=dims,
    )  # fmt: skip
