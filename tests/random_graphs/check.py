"""Run a drawn graph by every route and hold the results against its bounds."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fuser.backend.compile_server import Request, compile_text
from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, Value
from fuser.graph.ops.registry import check_types
from fuser.graph.passes import run_passes
from fuser.partition import Options, partition
from fuser.partition.region import Partition
from fuser.pipeline.binding import bind_kernels
from fuser.pipeline.kernels import emit_programs
from fuser.pipeline.tuning import emitted
from fuser.runtime.plan import Plan
from fuser.tilegen.candidates import candidates
from fuser.tilegen.emit.contraction import matmul_of
from fuser.tilegen.program import TileProgram
from fuser.tilegen.text import canonical_text
from fuser.tilegen.verify import verify
from tests.interpreted import TARGETS, run_programs
from tests.poison import run_poisoned
from tests.random_graphs.bounds import Array, mismatches
from tests.random_graphs.coverage import RECORDER
from tests.random_graphs.draw import Drawing

KNOWN_LIMIT = "an index of more than"
"""What only lowering can tell of a chain of reshapes and transposes, which partition then cuts."""

TAKEN_APART: list[str] | None = None
"""Regions that fusion made and no emitter could express, where they are noted; None: they fail."""


class TakenApart(Exception):
    """The partitioner fused what no emitter can write as one kernel. Results stay right, as the
    compiler takes the region apart again, but what fuses is to be known before it is emitted."""


Results = dict[str, Array]
ON_GPU = "cuda "
"""How the names of routes begin that run on a GPU."""


@dataclass(frozen=True)
class Failure:
    """A route that went wrong: what it raised, or where it left the bounds."""

    route: str
    what: str
    trace: str = ""


def copied(graph: Graph) -> Graph:
    """The same graph in new nodes and values; passes may change what they are given."""
    twin = Graph(graph.name)
    table: dict[Value, Value] = {v: twin.add_input(v.name, v.type) for v in graph.inputs}
    for node in graph.nodes:
        made = twin.add(
            node.op, [table[v] for v in node.inputs], [v.type for v in node.outputs], **node.attrs
        )
        table |= dict(zip(node.outputs, made.outputs, strict=True))
    twin.outputs = [table[v] for v in graph.outputs]
    twin.output_names = list(graph.output_names)
    return twin


def prepared(graph: Graph, fusion: bool) -> Graph:
    """What is partitioned: the graph after the passes; without fusion the graph as it was drawn,
    so that the routes share little (but bound dims are constants by way of the passes)."""
    raw = copied(graph)
    return run_passes(raw) if fusion or any(node.op == "dims" for node in raw.nodes) else raw


def planned(
    graph: Graph, target: Target, fusion: bool, every_pass: bool = False
) -> tuple[Partition, list[TileProgram]]:
    """The regions of a prepared graph and their tile programs, noted if a recorder is at work.

    Raises TakenApart where fusion made a region that is no kernel, unless that is only noted."""
    options = Options(no_fusion=not fusion)
    if not RECORDER:
        cut = partition(graph, target, options)
        programs = emit_programs(cut, target, verify=every_pass)
    else:
        with RECORDER[0].calls():
            cut = partition(graph, target, options)
            programs = emit_programs(cut, target, verify=every_pass)
        RECORDER[0].made(cut, programs, target)
    for refusal in cut.refusals:
        if fusion and refusal.code == "not-emitted" and KNOWN_LIMIT not in refusal.reason:
            if TAKEN_APART is None:
                what = f"{refusal.producer} and {refusal.consumer}: {refusal.reason}"
                raise TakenApart(what)
            TAKEN_APART.append(refusal.reason)
    return cut, programs


class Native:
    """Compiles in this process (LLVM may end it), each distinct kernel once, and runs on the CPU or
    the GPU that the target is of. Code for sm_80 runs on later GPUs, too."""

    def __init__(self, target: Target | None = None, keep: int = 4000) -> None:
        from fuser.backend.cpu import host_target

        self.target = target or host_target()
        self.keep = keep
        self.kernels: dict[str, CompiledKernel] = {}
        self.compiled = 0

    def run(self, d: Drawing, fusion: bool) -> Results:
        graph = prepared(d.graph, fusion)
        cut, programs = planned(graph, self.target, fusion)
        kernels = [self._kernel(canonical_text(program.kernel)) for program in programs]
        bound = bind_kernels(graph.name, cut, programs, kernels, self.target).at()
        with Plan(bound, threads=1) as plan:
            return run_poisoned(plan, d.feeds)

    def _kernel(self, text: str) -> CompiledKernel:
        found = self.kernels.get(text)
        if found is None:
            if len(self.kernels) >= self.keep:
                self.kernels.clear()
            found = compile_text(Request(text, f"k{len(self.kernels)}", self.target))
            self.kernels[text] = found
            self.compiled += 1
        return found


def interpreted(
    d: Drawing, target: str, fusion: bool, every_pass: bool = False, tuned: int | None = None
) -> Results:
    """Through passes, partition, emitters and tile passes; the Tile IR interpreter runs it.
    every_pass: programs are verified after each tile pass, not only after the last. tuned: a seed
    to choose schedules by that tuning would try, instead of those of the rules."""
    graph = prepared(d.graph, fusion)
    check_types(graph)
    cut, programs = planned(graph, TARGETS[target], fusion, every_pass)
    if tuned is not None:
        programs = rescheduled(cut, programs, TARGETS[target], random.Random(tuned))
    for program in programs:
        verify(program.kernel)
    return run_programs(cut, d.feeds, programs)


def rescheduled(
    cut: Partition, programs: list[TileProgram], target: Target, source: random.Random
) -> list[TileProgram]:
    """The programs, each with a schedule that tuning may choose where one fits."""
    found = []
    for program in programs:
        alone = sum(other.region is program.region for other in programs) == 1
        rivals = candidates(program, target, matmul_of(program.region, target)) if alone else []
        other = None
        if rivals:
            other = emitted(cut, program, target, source.choice(rivals), verify=False)
        found.append(other or program)
    return found


def oracle(d: Drawing) -> Results:
    """NumPy in the graph's own dtypes: an evaluation order among others."""
    return evaluate(d.graph, d.feeds)


def compare(d: Drawing, results: Results, flushed: bool = False) -> str:
    """Where results leave the bounds; empty if nowhere. flushed: see `mismatches`."""
    for name, value in zip(d.graph.output_names, d.graph.outputs, strict=True):
        have, bound = results[name], d.bounds[value]
        if have.shape != value.shape or have.dtype != value.dtype.numpy:
            return f"{name} is {have.dtype}{list(have.shape)}, not {value.type}"
        wrong = mismatches(have, bound, flushed)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return (
                f"{name} ({value!r}): {int(wrong.sum())} of {wrong.size} elements are off; at {at} "
                f"{have[at]} is outside of [{bound.low[at]}, {bound.high[at]}]"
                f"{' or NaN' if bound.nan[at] else ''}"
            )
    return ""


def check(d: Drawing, routes: dict[str, Callable[[Drawing], Results]]) -> list[Failure]:
    """The routes that fail. exp2 of a GPU's special-function unit gives no subnormal numbers."""
    failures = [Failure("front end", what) for what in d.wrong[:1]]
    for name, route in routes.items():
        try:
            with np.errstate(all="ignore"):
                what = compare(d, route(d), flushed=name.startswith(ON_GPU))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            failures.append(Failure(name, what, traceback.format_exc()))
        else:
            if what:
                failures.append(Failure(name, what))
    return failures


def native_routes(native: Native, name: str) -> dict[str, Callable[[Drawing], Results]]:
    """Fused and unfused machine code."""
    return {
        f"{name} fused": lambda d: native.run(d, True),
        f"{name} unfused": lambda d: native.run(d, False),
    }


def routes_of(native: Native | None, seed: int) -> dict[str, Callable[[Drawing], Results]]:
    """NumPy, fused and unfused; by the interpreter without a native compiler."""
    if native is not None:
        return {"numpy": oracle, **native_routes(native, "native")}
    names = list(TARGETS)
    one, two = names[seed % len(names)], names[seed // len(names) % len(names)]
    every_pass = seed % 10 == 0
    routes = {
        "numpy": oracle,
        f"interpreted fused {one}": lambda d: interpreted(d, one, True, every_pass),
        f"interpreted unfused {two}": lambda d: interpreted(d, two, False, every_pass),
    }
    if seed % 6 == 1:
        routes[f"interpreted tuned {two}"] = lambda d: interpreted(d, two, True, tuned=seed)
    return routes


def natives_on_gpu() -> tuple[Native, Native]:
    """For the generation of this machine's GPU, and for sm_80. Raises DeviceError."""
    from fuser.runtime.cuda import device_target

    return Native(device_target()), Native(TARGETS["sm_80"])


def gpu_routes(
    natives: tuple[Native, Native], number: int
) -> dict[str, Callable[[Drawing], Results]]:
    """Fused and unfused on the GPU; every fourth graph as code for sm_80."""
    native = natives[number % 4 == 3]
    return native_routes(native, ON_GPU + native.target.arch)
