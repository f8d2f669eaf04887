"""Why kernels have the schedules they have: the rules that chose, what else there was, limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from fuser.backend import nvptx
from fuser.base.config import Config
from fuser.base.target import Target
from fuser.errors import LoweringError, UsageError
from fuser.graph.sizes import size_hint
from fuser.graph.units import byte_size, counted, duration
from fuser.partition import cost
from fuser.partition.forced import computed, nearest_node
from fuser.partition.region import Partition, Region
from fuser.partition.rows import MOST_ROW_BYTES
from fuser.pipeline.tuning import is_static, recall, tuning_material
from fuser.report.partition_text import names
from fuser.runtime.cache import KernelCache
from fuser.tilegen.candidates import ranked
from fuser.tilegen.emit import emit
from fuser.tilegen.emit.contraction import matmul_of
from fuser.tilegen.passes import run_passes
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules import recorded
from fuser.tilegen.rules.asked import Asked
from fuser.tilegen.schedule import Schedule, settings


@dataclass(frozen=True)
class Candidate:
    """A schedule, its cost in microseconds (tilegen/rules/cost.py; None: kernels of the kind have
    none), and whether the rules chose it."""

    schedule: dict[str, Any]
    cost: float | None
    chosen: bool


@dataclass(frozen=True)
class KernelChoice:
    """One kernel of a region. schedule: what is used; reason: one line of the rule, where it has
    one; rules: what was asked, in order; candidates: the choice of the rules, then those that
    tuning tries; tuned: what was measured, if anything; limits: what bounds it, in lines;
    mechanisms: of a GPU, whether each applies ("applied") and why or why not ("reason")."""

    name: str
    region: str
    kind: str
    nodes: tuple[str, ...]
    schedule: dict[str, Any]
    reason: str
    rules: tuple[dict[str, Any], ...]
    candidates: tuple[Candidate, ...]
    tuned: str
    limits: tuple[str, ...]
    mechanisms: tuple[dict[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `fuser explain --kernel --json` has it."""
        return {
            **vars(self), "nodes": list(self.nodes), "rules": list(self.rules),
            "candidates": [vars(item) for item in self.candidates], "limits": list(self.limits),
            "mechanisms": list(self.mechanisms),
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.name}: {names(self.nodes)}", f"  schedule   {self._shown(self.schedule)}"]
        for before, rule in zip((None, *self.rules), self.rules, strict=False):
            if before is not None and before["answer"] == rule["answer"]:
                lines.append(f"  rule       {rule['function']} changes nothing")
                continue
            asked = ", ".join(f"{name} {value}" for name, value in rule["arguments"].items())
            why = f": {rule['reason']}" if rule["reason"] else ""
            lines += [f"  rule       {rule['function']}{why}", f"    asked    {asked}"]
        lines.append(f"  tuned      {self.tuned}")
        lines += [f"  limit      {line}" for line in self.limits]
        for made in self.mechanisms:
            mark = "yes" if made["applied"] else "no"
            lines.append(f"  mechanism  {made['mechanism']}: {mark}, {made['reason']}")
        if len(self.candidates) > 1:
            lines.append("  candidates of tuning, with their cost in microseconds")
        for item in self.candidates if len(self.candidates) > 1 else ():
            number = "unknown" if item.cost is None else f"{item.cost:.2f}"
            mark = "  (the rules' choice)" if item.chosen else ""
            lines.append(f"    {number:>8}  {self._shown(item.schedule)}{mark}")
        return "\n".join(lines)

    def _shown(self, schedule: dict[str, Any]) -> str:
        device = "cuda" if self.mechanisms else "cpu"
        return ", ".join(f"{name} {value}" for name, value in settings(schedule, device).items())


def kernel_choices(cut: Partition, name: str, target: Target) -> list[KernelChoice]:
    """The choices of the kernels that a name means: a region ("contraction_1", "1"), a symbol as
    profilers show it, or an ONNX node. Raises LoweringError, and UsageError for another name."""
    return [choice for region in _found(cut, name) for choice in _choices(cut, region, target)]


def _found(cut: Partition, name: str) -> list[Region]:
    """The regions that a name means."""
    for region in cut.regions:
        if name in (region.name, str(region.id)) or name.startswith(f"{region.name}_"):
            return [region]
    found = [region for region in cut.regions if name in computed(region.nodes)]
    if not found:
        known = [region.name for region in cut.regions]
        known += sorted({node for region in cut.regions for node in region.origin})
        raise UsageError(f"there is no kernel {name!r}", hint=nearest_node(name, known))
    return found


def _choices(cut: Partition, region: Region, target: Target) -> Iterator[KernelChoice]:
    with recorded() as asked:
        programs = emit(region, cut, target)
    for program in programs:
        run_passes(program.kernel)
    for number, program in enumerate(programs):
        alone = len(programs) == 1
        schedule, tuned = program.kernel.schedule, "a region of several kernels is not tuned"
        if alone:
            schedule, tuned = _tuned(program, target)
        yield KernelChoice(
            program.kernel.name if not alone else region.name, region.name, region.kind,
            region.origin, schedule.to_dict(), program.kernel.schedule.reason,
            tuple(map(_rule, asked)) if not number else (),
            _candidates(program, target) if alone and not program.kernel.row_order else (), tuned,
            tuple(_limits(cut, program, target, schedule)),
            _mechanisms(program, target, schedule),
        )  # fmt: skip


def _mechanisms(
    program: TileProgram, target: Target, schedule: Schedule
) -> tuple[dict[str, Any], ...]:
    """What the back end decides of a GPU's kernel with the schedule in use."""
    if not target.is_cuda:
        return ()
    kernel = replace(program.kernel, schedule=schedule)
    try:
        return tuple(map(vars, nvptx.mechanisms(kernel, target)))
    except LoweringError as error:
        return ({"mechanism": "lowering", "applied": False, "reason": str(error)},)


def _rule(asked: Asked) -> dict[str, Any]:
    answer = asked.answer
    return {
        "rule": asked.rule, "function": asked.function, "arguments": asked.arguments,
        "answer": answer.to_dict() if isinstance(answer, Schedule) else answer,
        "reason": answer.reason if isinstance(answer, Schedule) else "",
    }  # fmt: skip


def _tuned(program: TileProgram, target: Target) -> tuple[Schedule, str]:
    """The schedule in use, and what tuning remembers of the kernel."""
    own, config = program.kernel.schedule, Config.from_environment()
    if not is_static(program.kernel):
        return own, "kernels of open sizes are not tuned"
    if program.kernel.row_order:
        return own, "kernels of batch invariant numerics are not tuned"
    cache = KernelCache(config.cache_dir) if config.cache else None
    found = recall(cache, tuning_material(program.kernel, target))
    if found is None:
        return own, "nothing is remembered (fuser run --tune measures)"
    if found.schedule is None:
        return own, f"the best of {found.tried + 1} measured: the rules' schedule is kept"
    return found.schedule, f"{found.gain:.2f} times as fast as the rules' ({found.tried} measured)"


def _candidates(program: TileProgram, target: Target) -> tuple[Candidate, ...]:
    found = ranked(program, target, matmul_of(program.region, target))
    return tuple(
        Candidate(schedule.to_dict(), cost and round(cost, 3), not number)
        for number, (schedule, cost) in enumerate(found)
    )


def _limits(
    cut: Partition, program: TileProgram, target: Target, schedule: Schedule
) -> Iterator[str]:
    """What bounds a kernel: its time, its programs, registers, the row that it keeps."""
    region = program.region
    work = cost.work_seconds(target, region.nodes)
    moved = region.bytes() / target.bandwidth
    most = "operations" if work > moved else "bytes"
    launch = cost.kernel_seconds(target, 0.0, 0)
    yield (
        f"time: operations {duration(work)}, bytes {duration(moved)}, launch {duration(launch)};"
        f" {most} decide" + ("" if max(work, moved) > launch else ", and take less than the launch")
    )
    programs, units = prod(map(size_hint, program.kernel.grid)), target.workers
    place = "multiprocessor" if target.is_cuda else "core"
    yield f"programs: {programs:,} on {counted(units, place)}" + (
        ", some of which are idle" if programs < units else ""
    )
    if region.kind == "contraction" and not target.is_cuda and matmul_of(region, target):
        lanes = target.lanes(32)
        vectors = schedule.block("m") * -(-schedule.block("n") // lanes)
        yield (
            f"registers: {vectors} vectors of {lanes} sums of {target.vector_registers}, of which"
            f" {target.tile_vectors} at most hold sums"
        )
    if "total" in dict(schedule.blocks):
        bytes, most_bytes = 4 * schedule.block("total"), MOST_ROW_BYTES[target.name]
        yield f"row: {byte_size(bytes)}; {byte_size(most_bytes)} stay on chip"
    if target.is_cuda:
        yield (
            f"shared memory: {byte_size(target.shared_bytes)} a block, {schedule.warps} warps of"
            f" 64, {schedule.stages} stages"
        )
