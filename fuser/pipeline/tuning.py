"""Tuning: measured schedules in place of those of the rules, remembered beside the kernels.

For each distinct kernel the candidates (tilegen/candidates.py) are compiled in the workers. Each
must give what the rules' kernel gives, within the tolerance that outputs of plans are compared
with; then they are timed in rounds, each once a round. One that is faster in nearly every round,
and by more than NOISE, is the winner; otherwise the rules keep their choice. Either is stored in
the kernel cache under the text of the rules' kernel, the target and the version of the code
generator.

Compiles without tuning look there too: what was measured once is used from then on, by every model
that has the kernel. Plans say which of their kernels were tuned (`Tuned`).

What is timed is one program of several launches of the kernel, each on memory of its own, so that
none finds its inputs in a cache: a CUDA graph by the device's clock, or native calls on a CPU.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fuser.backend.module import CompiledKernel
from fuser.backend.workers import CompileJob, compile_all, material_of
from fuser.base.limits import check_time, current, kernel_time
from fuser.base.target import Target
from fuser.dtypes import DType
from fuser.errors import FuserError
from fuser.partition.region import Partition
from fuser.pipeline.plan_cache import note_schedules, remembered_schedules
from fuser.report.compare import compare, tolerance_of
from fuser.report.report import Tuned
from fuser.runtime.cache import KernelCache
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program, Step, TensorSpec, assemble
from fuser.tilegen.candidates import candidates
from fuser.tilegen.coverage import prove_region
from fuser.tilegen.emit import emit
from fuser.tilegen.emit.contraction import matmul_of
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.program import Packing, TileProgram
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import INDEX

if TYPE_CHECKING:
    from fuser.runtime.cuda import CudaExecutor

NOISE = 0.03
"""Part of a kernel's time below which a gain is not told from chance."""
ROUNDS = 6
"""Measurements of each candidate: a round measures every candidate once."""
ROUND_SECONDS = 0.03
"""About how long a candidate is measured in a round."""
HOPELESS = 1.3
"""Times the best one: a candidate slower than that in the first round gets no second."""
CPU_CACHE = 32 << 20
"""Bytes that rotated inputs should exceed on a CPU."""
MOST_BYTES = 1 << 28
"""Memory that the launches of one candidate may take."""
MOST_LAUNCHES = 32

_log = logging.getLogger("fuser")


@dataclass(frozen=True)
class Choice:
    """What was remembered, or measured, of a kernel: the schedule (None: that of the rules), how
    many times as fast it is, and how many candidates were measured."""

    schedule: Schedule | None
    gain: float
    tried: int
    measured: bool


def apply_tuning(
    cut: Partition, programs: Sequence[TileProgram], target: Target, cache: KernelCache | None,
    *, measure: bool, workers: int | None = None, threads: int | None = None, device: int = 0,
    progress: Callable[[str], None] | None = None, verify: bool = False,
) -> tuple[list[TileProgram], tuple[Tuned, ...]]:  # fmt: skip
    """The programs, with remembered schedules where there are any, and a record of each kernel that
    has one or was measured. measure: whether kernels of which nothing is remembered are measured.

    Regions of several kernels, and kernels of symbolic sizes, stay as they are; so do all where
    numerics are batch invariant, as what is fastest follows from the number of rows. Raises
    FuserError where compiling the rules' own kernels fails.
    """
    if cut.graph.numerics.batch_invariant:
        if measure:
            _log.warning("schedules are not tuned: numerics are batch invariant")
        return list(programs), ()
    if not measure and not _any_remembered(cache):
        return list(programs), ()
    counts = Counter(program.region.id for program in programs)
    known: dict[str, Choice | None] = {}
    result: list[TileProgram] = []
    records: list[Tuned] = []
    for number, program in enumerate(programs):
        result.append(program)
        if counts[program.region.id] > 1 or not is_static(program.kernel):
            continue
        if program.region.kind == "collective":
            continue
        material = tuning_material(program.kernel, target)
        if material not in known:
            known[material] = recall(cache, material)
            if known[material] is None and measure:
                if progress is not None:
                    progress(f"tuning kernel {number + 1} of {len(programs)}")
                choice = measured_choice(
                    cut, program, target, cache, workers=workers, threads=threads, device=device,
                    verify=verify,
                )  # fmt: skip
                known[material] = choice
                remember(cache, material, choice)
        found = known[material]
        if found is None:
            continue
        if found.schedule is not None:
            other = emitted(cut, program, target, found.schedule, verify=verify)
            if other is None:
                _log.warning("a remembered schedule of %s does not fit it", program.region.name)
                continue
            result[-1] = other
        elif not measure:
            continue  # the rules were right: nothing to say
        records.append(
            Tuned(
                kernel=program.region.name,
                rule=program.kernel.schedule.to_dict(),
                chosen=(found.schedule or program.kernel.schedule).to_dict(),
                gain=found.gain, candidates=found.tried, remembered=not found.measured,
            )
        )  # fmt: skip
    return result, tuple(records)


def is_static(kernel: Kernel) -> bool:
    """Whether all sizes of a kernel are numbers."""
    sizes = [*kernel.grid, *(buffer.size for buffer in kernel.buffers)]
    return all(isinstance(size, int) for size in sizes)


# memory -------------------------------------------------------------------------------------------


def tuning_material(kernel: Kernel, target: Target) -> str:
    """The key material under which a kernel's choice is remembered."""
    return "schedule of\n" + material_of(CompileJob(kernel, target))


def _any_remembered(cache: KernelCache | None) -> bool:
    """Whether the cache has any schedules: where nothing was ever tuned, no kernel is looked up."""
    return cache is not None and bool(remembered_schedules(cache))


def remember(cache: KernelCache | None, material: str, choice: Choice) -> None:
    """Store what was measured."""
    if cache is None:
        return
    schedule = None if choice.schedule is None else dataclasses.asdict(choice.schedule)
    header = {"schedule": schedule, "gain": choice.gain, "candidates": choice.tried}
    cache.put_bytes(material, header, b"")
    note_schedules(cache)


def recall(cache: KernelCache | None, material: str) -> Choice | None:
    """What is remembered; an entry that makes no sense is reported, and not used."""
    if cache is None or not cache.holds(material):
        return None
    found = cache.get_bytes(material)
    try:
        if found is None:
            raise ValueError("it is damaged")
        header, _ = found
        schedule = header["schedule"]
        return Choice(
            None if schedule is None else schedule_of(schedule), float(header["gain"]),
            int(header["candidates"]), measured=False,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        _log.warning("a remembered schedule is ignored: %s", error)
        return None


def schedule_of(record: Mapping[str, Any]) -> Schedule:
    """The inverse of dataclasses.asdict. Raises KeyError, TypeError or ValueError."""
    schedule = Schedule(
        **{
            **record,
            "blocks": tuple((str(name), int(size)) for name, size in record["blocks"]),
            "neighbours": tuple(record.get("neighbours", (1, 1))),
            "k_panels": tuple(panels) if (panels := record.get("k_panels")) else None,
        }
    )
    numbers = [schedule.warps, schedule.stages, schedule.split_k, schedule.cluster]
    numbers += [schedule.consumer_groups]
    numbers += schedule.neighbours
    numbers += [size for _, size in schedule.blocks]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise ValueError(f"{json.dumps(dict(record))} is no schedule")
    if not (isinstance(schedule.stream_k, int) and 0 <= schedule.stream_k <= 8):
        raise ValueError(f"{json.dumps(dict(record))} is no schedule")
    if not (isinstance(schedule.group, int) and isinstance(schedule.blocks_per_sm, int)):
        raise ValueError(f"{json.dumps(dict(record))} is no schedule")
    return schedule


# measuring ----------------------------------------------------------------------------------------


def emitted(
    cut: Partition, program: TileProgram, target: Target, schedule: Schedule, *, verify: bool
) -> TileProgram | None:
    """The program of the same region with another schedule; None where it does not fit."""
    try:
        with kernel_time():
            others = emit(program.region, cut, target, schedule)
            for other in others:
                run_passes(other.kernel, verify=verify)
            prove_region(others)
    except (FuserError, ArithmeticError, AssertionError, LookupError, ValueError):
        return None  # emitters take for granted what the rules see to
    return others[0] if len(others) == 1 else None


def measured_choice(
    cut: Partition, program: TileProgram, target: Target, cache: KernelCache | None, *,
    workers: int | None, threads: int | None, device: int, verify: bool,
) -> Choice:  # fmt: skip
    """Compile, check and time the candidates of a kernel."""
    check_time()
    rivals = []
    for candidate in candidates(program, target, matmul_of(program.region, target)):
        other = emitted(cut, program, target, candidate, verify=verify)
        if other is not None:
            rivals.append((other.kernel.schedule, other))
    kernels = _compiled([p for p in (program, *(r for _, r in rivals))], target, cache, workers)
    rule = kernels[0]
    assert rule is not None
    fields = [(s, p, k) for (s, p), k in zip(rivals, kernels[1:], strict=True) if k is not None]
    if not fields:
        return Choice(None, 1.0, 0, measured=True)
    count = launches(program, target)
    arrays = Arrays(count)
    plans: list[Plan] = []
    schedules: list[Schedule | None] = []
    expected: dict[str, np.ndarray] = {}
    try:
        entries: list[tuple[Schedule | None, TileProgram, CompiledKernel]] = [
            (None, program, rule), *fields
        ]  # fmt: skip
        for schedule, one, kernel in entries:
            check_time()
            try:
                plan = Plan(timed_program(one, kernel, target, arrays, count), threads=threads,
                            device=device)  # fmt: skip
            except FuserError:
                if schedule is None:
                    raise
                continue  # the driver refuses it, or there is no room
            results = plan.executor.run(arrays.feeds[: len(plan.inputs)])
            outputs = {s.name: array for s, array in zip(plan.outputs, results, strict=True)}
            if schedule is None:
                expected = outputs
            elif not agrees(outputs, expected, target):
                _log.warning(
                    "a candidate of %s with %s is wrong and is not used", program.region.name,
                    schedule.to_dict(),
                )  # fmt: skip
                plan.close()
                continue
            plans.append(plan)
            schedules.append(schedule)
        times = race(plans, arrays.feeds)
    finally:
        for plan in plans:
            plan.close()
    winner, gain = decide(times)
    return Choice(schedules[winner], gain, len(plans) - 1, measured=True)


def _compiled(
    programs: Sequence[TileProgram], target: Target, cache: KernelCache | None, workers: int | None
) -> list[CompiledKernel | None]:
    """The kernels, all in parallel; None for those that do not compile, but for the first, whose
    error is raised."""
    seconds = current().kernel_seconds
    jobs = [
        CompileJob(program.kernel, target, program.region.name, seconds if number else 0.0)
        for number, program in enumerate(programs)
    ]
    try:
        return list(compile_all(jobs, cache, workers))
    except FuserError:
        found: list[CompiledKernel | None] = list(compile_all(jobs[:1], cache, workers))
        for job in jobs[1:]:
            try:
                found += compile_all([job], cache, workers)
            except FuserError:
                found.append(None)
        return found


class Arrays:
    """Inputs and constants of a kernel, by what they are, the same for all candidates: `count` sets
    of inputs of equal content. feeds: all inputs, in the order in which they were first asked for.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.feeds: list[np.ndarray] = []
        self.keys: list[tuple[Hashable, TensorSpec]] = []
        self._rng = np.random.default_rng(0)
        self._known: set[Hashable] = set()

    def input(self, key: Hashable, dtype: DType, size: int, *, indices: bool) -> None:
        """See to it that there are inputs under (set, key)."""
        if key in self._known:
            return
        self._known.add(key)
        array = self._draw(dtype, size, indices)
        for number in range(self.count):
            spec = TensorSpec(f"in{len(self.keys)}", dtype, (size,))
            self.keys.append(((number, key), spec))
            self.feeds.append(array if number == 0 else array.copy())

    def _draw(self, dtype: DType, size: int, indices: bool) -> np.ndarray:
        if dtype.is_float:
            wide = np.float64 if dtype.bits == 64 else np.float32
            draw = self._rng.random if indices else self._rng.standard_normal
            return draw(size, wide).astype(dtype.numpy)
        if indices:
            return np.zeros(size, dtype.numpy)  # the only index that every table has
        low, high = (0, 1) if dtype.kind == "bool" else (0 if dtype.kind == "uint" else -8, 8)
        return self._rng.integers(low, high + 1, size).astype(dtype.numpy)


def timed_program(
    program: TileProgram, kernel: CompiledKernel, target: Target, arrays: Arrays, count: int
) -> Program:
    """A program of `count` launches of a kernel, each on memory of its own."""
    indices = has_lookups(program.kernel)
    constants: dict[Hashable, np.ndarray] = {}
    sizes: dict[Hashable, int] = {}
    outputs: list[tuple[Hashable, TensorSpec]] = []
    operands: list[Hashable] = []
    for position, argument in enumerate(program.arguments):
        buffer, value = argument.buffer, argument.value
        key: Hashable = (value, buffer.dtype.name)
        if value is None:
            key = ("workspace", argument.workspace)
        elif value.constant is not None:
            key = ("constant", position)
            packed = (argument.packing or Packing()).apply(value.constant)
            for number in range(count):
                constants[number, key] = packed.copy() if number else np.ascontiguousarray(packed)
        elif buffer.role == "output":
            for number in range(count):
                spec = TensorSpec(f"out{len(outputs)}", buffer.dtype, (buffer.size,))
                outputs.append(((number, key), spec))
        else:
            arrays.input(key, buffer.dtype, buffer.size, indices=indices)
        for number in range(count):
            sizes[number, key] = buffer.size * buffer.dtype.bytes
        operands.append(key)
    zeroed = [k for k, a in zip(operands, program.arguments, strict=True) if a.zeroed]
    steps = [
        Step(
            kernel, tuple((number, key) for key in operands),
            tuple((number, key) for key in zeroed),
        )
        for number in range(count)
    ]  # fmt: skip
    return assemble(target, steps, arrays.keys, outputs, constants, sizes, program.region.name)


def has_lookups(kernel: Kernel) -> bool:
    """Whether an index of the kernel depends on data."""
    return any(
        value.dtype is not INDEX
        for op in kernel.walk()
        for _, content in op.fields()
        for item in (content if isinstance(content, tuple) else (content,))
        if isinstance(item, Index)
        for value in item.values()
    )


def launches(program: TileProgram, target: Target) -> int:
    """Launches whose data together do not fit the caches, and fit the memory."""
    each = sum(b.size * b.dtype.bytes for b in program.kernel.buffers)
    cached = target.l2_cache_bytes if target.is_cuda else CPU_CACHE
    wanted = math.ceil(2.5 * cached / max(1, each))
    return max(1, min(wanted, MOST_LAUNCHES, MOST_BYTES // max(1, each)))


def agrees(
    outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], target: Target
) -> bool:
    """Whether a candidate gives what the rules' kernel gives."""
    names = {array.dtype.name for array in expected.values()}
    tolerance = tolerance_of(names, target.name)
    return compare(outputs, expected, tolerance=tolerance).ok


def race(plans: Sequence[Plan], feeds: Sequence[np.ndarray]) -> list[list[float]]:
    """Seconds of each plan in each round; one time only of those that are far behind."""
    times: list[list[float]] = [[] for _ in plans]
    running = list(range(len(plans)))
    for round_number in range(ROUNDS):
        check_time()
        for number in running:
            found = times[number]
            repeats = 1 if not found else max(1, min(10, round(ROUND_SECONDS / found[0])))
            found.append(replay_seconds(plans[number], feeds, repeats))
        if round_number == 0:
            best = min(item[0] for item in times)
            running = [n for n in running if n == 0 or times[n][0] <= HOPELESS * best]
    return times


def replay_seconds(plan: Plan, feeds: Sequence[np.ndarray], repeats: int) -> float:
    """The median of some runs of all launches; on a GPU on the inputs that are there."""
    executor = plan.executor
    if isinstance(executor, CpuExecutor):
        times = executor.time_replays(feeds[: len(plan.inputs)], repeats, 1)
    else:
        times = cast("CudaExecutor", executor).time_replays(None, repeats, 1)
    return float(np.median(times))


def decide(times: Sequence[Sequence[float]]) -> tuple[int, float]:
    """(which is chosen, how many times as fast as the first it is): the first, the rules' choice,
    unless another is faster by more than NOISE, and in all rounds but one."""
    base = times[0]
    best, gain = 0, 1.0
    for number, found in enumerate(times):
        if len(found) < len(base):
            continue
        faster = sum(a < b for a, b in zip(found, base, strict=True))
        ratio = float(np.median(base) / np.median(found))
        if faster >= len(base) - 1 and ratio > max(gain, 1 + NOISE):
            best, gain = number, ratio
    return best, gain
