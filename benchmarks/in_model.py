"""Which schedules do the rules miss? Each kernel of a model with other schedules, in its place.

    python -m benchmarks.in_model bert.onnx --device cuda --dim batch=1 --dim sequence=128
    python -m benchmarks.in_model vit.onnx --device cuda --top 3 --most 80 --kernel conv
    python -m benchmarks.in_model mlp.onnx --device cpu --threads 1

The kernels that take longest come first. For each, other schedules take its place, wherever the
model has it, and the whole run is timed; the best stays for the kernels behind it, if it gains more
than the noise. A kernel that is tuned alone (`fuser run --tune`) finds its data in memory and
nothing around it; here it has what the kernel in front has left in the caches, and starts under the
end of that. Outputs are compared with those of the rules' kernels; a schedule that is wrong is
reported and not used, and the exit code is 1.

Times are milliseconds of a run: on a GPU between events, with the data in place, the lower median
of some rounds. Long runs of a GPU at its power limit are 10 % faster behind a pause: `--events`
compares a kernel's own time there. What is found is a reason to look at the rules; nothing is kept.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from fuser.backend.module import CompiledKernel
from fuser.backend.workers import CompileJob, compile_each
from fuser.base.target import Target
from fuser.frontends.onnx.model import open_model
from fuser.partition import partition
from fuser.partition.region import Partition
from fuser.pipeline.compiler import compile_source
from fuser.pipeline.devices import choose_target
from fuser.pipeline.kernels import emit_programs
from fuser.pipeline.options import CompileOptions
from fuser.pipeline.tuning import agrees, emitted
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program
from fuser.tilegen.candidates import ranked
from fuser.tilegen.emit.contraction import matmul_of
from fuser.tilegen.program import TileProgram
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.text import canonical_text

NOISE = 0.004
"""Part of a run below which a gain is not told from chance."""
SECONDS = 20.0
"""Most that the compile of one candidate may take."""
TILES = ((16, 32), (16, 64), (32, 32), (32, 64), (64, 32), (64, 64), (64, 96), (64, 128), (64, 192),
         (128, 64), (128, 96), (128, 128))  # fmt: skip
STAGES = (3, 4, 6, 9, 12, 16)
ROWS = ((1, 1), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2), (4, 4), (8, 4))
QUERIES = ((64, 4), (128, 8))
KEYS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
"""(Rows, warps) and keys of a block of attention."""
RING = 216 << 10


@dataclass(frozen=True)
class Tried:
    """One schedule in its place. cost: what is compared, in milliseconds."""

    cost: float
    schedule: Schedule
    kernel: CompiledKernel
    right: bool


def schedules(program: TileProgram, target: Target, most: int) -> list[Schedule]:
    """At most `most` other schedules, the tuner's first, then any that may fit, drawn by chance."""
    own = program.kernel.schedule
    ranks = ranked(program, target, matmul_of(program.region, target), most)
    likely = [schedule for schedule, _ in ranks[1 : 1 + most // 3]]
    others = list(_others(own, target))
    random.Random(0).shuffle(others)
    table = {_key(schedule): schedule for schedule in [*likely, *others]}
    table.pop(_key(own), None)
    return list(table.values())[:most]


def _others(own: Schedule, target: Target) -> Iterator[Schedule]:
    names = [name for name, _ in own.blocks]
    if not target.is_cuda:
        return
    yield replace(own, launch_overlap=True)
    yield replace(own, launch_overlap=False)
    plain = replace(own, persistent=False, stream_k=0, cluster=1, consumer_groups=1)
    if "rows" in names:
        for rows, warps in ROWS:
            yield replace(_with(own, rows=rows), warps=warps)
    elif {"m", "n", "k"} <= set(names):
        for (m, n), k, stages, warps in product(TILES, (16, 32, 64, 128), STAGES, (2, 4, 8)):
            lines, tile = m + n, m * n
            wide = warps == 8 and tile >= 64 * 128
            if lines * k * stages * 2 <= RING and (warps == 4 or wide or (warps == 2 and k == 16)):
                yield replace(_with(plain, m=m, n=n, k=k), stages=stages, warps=warps)
    elif {"m", "n"} <= set(names):
        for (rows, warps), keys, stages in product(QUERIES, KEYS, (2, 3)):
            yield replace(_with(plain, m=rows, n=keys), warps=warps, stages=stages)
    else:
        for stages in (1, 2, 3, 4):
            yield replace(own, stages=stages)


def _with(schedule: Schedule, **blocks: int) -> Schedule:
    return replace(
        schedule, blocks=tuple((name, blocks.get(name, size)) for name, size in schedule.blocks)
    )


def _key(schedule: Schedule) -> str:
    return repr(replace(schedule, reason=""))


def shown(schedule: Schedule) -> str:
    """What differs from kernel to kernel, in one line."""
    return " ".join(f"{key}={value}" for key, value in schedule.to_dict().items())


class Model:
    """A model, its program as it is so far, and the other programs of each of its kernels.

    others: by the text of the rules' kernel. They are emitted from a graph of their own, as what is
    compiled gives its constants away.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        dims = {name: int(size) for name, size in (item.split("=") for item in options.dim)}
        self.target = choose_target(options.device, options.threads)
        source = open_model(options.model)
        cut = partition(source.graph(source.bind(dims)), self.target)
        self.programs = emit_programs(cut, self.target)
        self.others: dict[str, list[TileProgram]] = {}
        for program in self.programs:
            text = canonical_text(program.kernel)
            if text not in self.others and options.kernel in program.region.name:
                self.others[text] = list(self._emitted(program, cut))
        plan = compile_source(
            open_model(options.model),
            CompileOptions(device=options.device, threads=options.threads),
            dims=dims,
        )
        with plan:
            self.feeds = plan.random_feeds()
            self.expected = plan.run(self.feeds)
            self.program: Program = plan.program
            self.milliseconds = [ms for _, ms in plan.profile_kernels(self.feeds)]
            self.now = self.time(plan, range(0))
        if len(self.programs) != len(self.program.launches):
            raise SystemExit("a plan with kernels of parts, or without some, is not searched")

    def _emitted(self, program: TileProgram, cut: Partition) -> Iterator[TileProgram]:
        for schedule in schedules(program, self.target, self.options.most):
            other = emitted(cut, program, self.target, schedule, verify=False)
            if other is not None and _operands(other) == _operands(program):
                yield other

    def time(self, plan: Plan, at: Sequence[int]) -> float:
        """Milliseconds of a run, or with --events of the launches `at`."""
        if self.options.events and at:
            each = plan.profile_kernels(self.feeds, iterations=self.options.iterations)
            return sum(each[number][1] for number in at)
        runs = [
            plan.profile_device(self.feeds, iterations=self.options.iterations, warmup=10).median
            for _ in range(self.options.rounds)
        ]
        return min(runs)

    def groups(self) -> list[list[int]]:
        """Launches of the same kernel, those that take longest together first."""
        found: dict[str, list[int]] = {}
        for number, program in enumerate(self.programs):
            text = canonical_text(program.kernel)
            if self.others.get(text):
                found.setdefault(text, []).append(number)
        return sorted(found.values(), key=lambda at: -sum(self.milliseconds[n] for n in at))

    def search(self, at: Sequence[int]) -> list[Tried]:
        """Try the other schedules of one kernel, the best first."""
        others = self.others[canonical_text(self.programs[at[0]].kernel)]
        jobs = [CompileJob(o.kernel, self.target, "a candidate", SECONDS, True) for o in others]
        tried = []
        for other, kernel in zip(others, compile_each(jobs), strict=True):
            if isinstance(kernel, CompiledKernel) and self.has_room(at, kernel):
                with Plan(self.having(at, kernel), threads=self.options.threads) as plan:
                    outputs = plan.run(self.feeds)
                    right = agrees(outputs, self.expected, self.target)
                    cost = self.time(plan, at)
                tried.append(Tried(cost, other.kernel.schedule, kernel, right))
        return sorted(tried, key=lambda item: item.cost)

    def has_room(self, at: Sequence[int], kernel: CompiledKernel) -> bool:
        """Whether the workspace of the kernels there is enough for another one's."""
        launches = (self.program.launches[number] for number in at)
        return all(kernel.workspace_bytes <= now.kernel.workspace_bytes for now in launches)

    def having(self, at: Sequence[int], kernel: CompiledKernel) -> Program:
        """The program with another kernel at some places, which has room there."""
        launches = list(self.program.launches)
        for number in at:
            now = launches[number]
            # a workspace is the last argument (runtime/program.py)
            less = bool(now.kernel.workspace_bytes) and not kernel.workspace_bytes
            count = len(now.arguments) - less
            launches[number] = replace(
                now, kernel=kernel, arguments=now.arguments[:count], sizes=now.sizes[:count]
            )
        return replace(self.program, launches=tuple(launches))


def _operands(program: TileProgram) -> list[object]:
    return [(a.value, a.buffer.size, a.packing) for a in program.arguments]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, help="of a CPU; default: one a core")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--kernel", default="", metavar="PART", help="only kernels with this name")
    parser.add_argument("--top", type=int, default=7, help="kernels to search")
    parser.add_argument("--most", type=int, default=40, help="schedules of a kernel")
    parser.add_argument("--rounds", type=int, default=2, help="of each the lower median counts")
    parser.add_argument("--iterations", type=int, default=60, help="runs of a round")
    parser.add_argument("--events", action="store_true", help="compare the kernel's own time")
    options = parser.parse_args()
    model, wrong = Model(options), 0
    begun = model.now
    print(f"{options.model.name}: {begun:.4f} ms by the rules")
    for at in model.groups()[: options.top]:
        own, name = model.programs[at[0]].kernel.schedule, model.program.launches[at[0]].name
        each = 1e3 * sum(model.milliseconds[number] for number in at) / len(at)
        print(f"\n{len(at)} x {name}, {each:.1f} us each with events between: {shown(own)}")
        if options.events:
            with Plan(model.program, threads=options.threads) as plan:
                model.now = model.time(plan, at)
        tried = model.search(at)
        for item in tried[:6]:
            gain = 1e3 * (model.now - item.cost) / len(at)
            print(f"  {item.cost:.4f} ms {gain:+.2f} us each  {shown(item.schedule)}")
        for item in tried:
            if not item.right:
                wrong += 1
                print(f"  WRONG {shown(item.schedule)}", file=sys.stderr)
        best = next((item for item in tried if item.right), None)
        if best is not None and best.cost < (1 - NOISE) * model.now:
            model.program, model.now = model.having(at, best.kernel), best.cost
    if not options.events:
        print(f"\n{options.model.name}: {begun:.4f} to {model.now:.4f} ms")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
