"""Single kernels on one GPU: fuser and the libraries in one process, in turns, under CUDA graphs.

    python -m benchmarks.kernels                       # every group
    python -m benchmarks.kernels --group gemm rows --quick
    python -m benchmarks.kernels --group gemm-epilogue rows --compile 600

--compile adds torch.compile with max-autotune as a peer and spends so many seconds on it: its
candidates are compiled by a process for each core, then timed one by one. Cases that come after
that run without it; the last line counts them.

Every case is a small ONNX graph through `fuser.compile`, bound to tensors of the GPU. Inputs are
random and rotate through several sets, so that none is in the L2 when it is read. The first set's
output is compared with a float32 or float64 reference, and must be the same bits in 100 replays of
a graph after all timed runs. Ratios are time of the best peer / time of fuser: above 1, fuser is
faster. Exit code 1 on a wrong result.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import fuser
from benchmarks.device_timing import copy_bandwidth, count_sets, differing_runs, time_sides
from benchmarks.kernel_cases import GROUPS, TORCH, Case
from fuser.errors import DeviceError

PLANS = 8
"""Copies of constant weights at most."""
CASE_SECONDS = 90
"""A case that takes longer hangs."""


@dataclass
class Row:
    """One case. milliseconds: of fuser and each peer. error, peer_error: against the reference."""

    group: str
    name: str
    dtype: str
    unit: str
    work: float
    milliseconds: dict[str, float] = field(default_factory=dict)
    error: float = math.nan
    peer_error: float = math.nan
    repeats: bool = True
    kernels: int = 0
    facts: list[dict[str, Any]] = field(default_factory=list)
    schedules: list[dict[str, Any]] = field(default_factory=list)
    compile_s: float = math.nan
    peer_compile_s: float = math.nan
    problem: str = ""

    def rate(self, side: str) -> float:
        """In the row's unit."""
        scale = 1e12 if self.unit == "TFLOP/s" else 1e9
        return self.work / (self.milliseconds[side] * 1e-3) / scale

    @property
    def best(self) -> str:
        peers = {name: t for name, t in self.milliseconds.items() if name != "fuser"}
        return min(peers, key=lambda name: peers[name]) if peers else ""

    @property
    def ratio(self) -> float:
        if not self.best or "fuser" not in self.milliseconds:
            return math.nan
        return self.milliseconds[self.best] / self.milliseconds["fuser"]


def compile_model(model: Any) -> tuple[Any, float]:
    """(plan, seconds)."""
    started = time.perf_counter()
    plan = fuser.compile(model, device="cuda")
    return plan, time.perf_counter() - started


def constants_of(case: Case) -> dict[str, torch.Tensor]:
    return {name: value for name, value in case.draw(1).items() if name in case.constants}


def measure(case: Case, compiled: Any, options: argparse.Namespace) -> Row:
    row = Row(case.group, case.name, case.dtype, case.unit, case.work)
    plan, row.compile_s = compiled
    constants = constants_of(case)
    row.kernels = plan.launches
    row.schedules = [region.schedule for region in plan.report().regions]
    row.facts = [
        {**launch.kernel.facts, **found, "threads": launch.kernel.threads}
        for launch, found in zip(plan.program.launches, plan.executor.facts(), strict=True)
    ]
    for fact in row.facts:
        fact.pop("log", None)
    count = count_sets(case.bytes)
    plans = [plan]
    if constants:
        plans += [fuser.Plan(plan.program) for _ in range(min(count, PLANS) - 1)]
    layout = {"memory_format": torch.channels_last} if case.group == "conv" else {}
    copies = [
        {
            name: value.clone(**(layout if value.dim() == 4 else {}))
            for name, value in constants.items()
        }
        for _ in plans
    ]
    sets, outputs = [], []
    for index in range(count):
        sets.append(case.draw(index + 2) | copies[index % len(plans)])
        kind = TORCH[case.out]
        unset = math.nan if kind.is_floating_point else -1
        outputs.append(torch.full(case.result, unset, device="cuda", dtype=kind))

    bindings = []
    for index, (tensors, y) in enumerate(zip(sets, outputs, strict=True)):
        inputs = {name: value for name, value in tensors.items() if name not in constants}
        bindings.append(_bound(plans[index % len(plans)], inputs, y))

    def run(binding: Any) -> None:
        binding.run(torch.cuda.current_stream().cuda_stream)

    expected = case.reference({name: value.to(case.exact) for name, value in sets[0].items()})
    run(bindings[0])
    torch.cuda.synchronize()
    first = outputs[0].clone()
    row.error = _error(first, expected)
    sides: dict[str, list[Callable[[], Any]]] = {"fuser": [partial(run, b) for b in bindings]}
    results = torch.empty_like(outputs[0])
    peers = dict(case.peers)
    if options.compile > 0 and case.compiled is not None:
        torch._dynamo.reset()
        best = torch.compile(case.compiled, mode="max-autotune-no-cudagraphs", dynamic=False)
        peers["torch.compile"] = lambda t, y: best(t)
    for name, peer in peers.items():
        started = time.perf_counter()
        try:
            returned = peer(sets[0], results)
            torch.cuda.synchronize()
        except Exception as error:
            print(f"  {case.name}: no {name}: {str(error).splitlines()[0][:120]}", flush=True)
            continue
        if name == "torch.compile":
            row.peer_compile_s = time.perf_counter() - started
            options.compile -= row.peer_compile_s
        error = _error(results if returned is None else returned, expected)
        if not error < 3 * case.tolerance:
            print(f"  {case.name}: {name} is off by {error:.1e}", flush=True)
        if not row.peer_error < error:
            row.peer_error = error
        sides[name] = [partial(peer, t, y) for t, y in zip(sets, _spare(outputs), strict=True)]
    del expected
    row.milliseconds = time_sides(sides)
    row.repeats = differing_runs(partial(run, bindings[0]), outputs[0]) == 0
    row.repeats &= torch.equal(outputs[0], first)
    for one in plans:
        one.close()
    return row


def _bound(plan: Any, inputs: dict[str, torch.Tensor], y: torch.Tensor) -> Any:
    """The plan on tensors; by address where they have a dtype that DLPack does not."""
    if all(tensor.dtype.itemsize > 1 or tensor.dtype == torch.int8 for tensor in inputs.values()):
        return plan.bind(inputs, {"y": y})
    sources = [inputs[spec.name].data_ptr() for spec in plan.inputs]
    return SimpleNamespace(run=partial(plan.run_at, sources, [y.data_ptr()]))


def _spare(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Other tensors for the peers' results."""
    return [torch.empty_like(y) for y in outputs]


def _error(result: torch.Tensor, expected: torch.Tensor) -> float:
    result, expected = result.double(), expected.double()
    return float(torch.linalg.norm(result - expected) / torch.linalg.norm(expected))


def print_row(row: Row) -> None:
    head = f"| {row.name} | {row.dtype} |"
    if row.problem:
        print(f"{head} {row.problem} |", flush=True)
        return
    peers = ", ".join(
        f"{name} {row.rate(name):.0f}" for name in row.milliseconds if name != "fuser"
    )
    kinds = "+".join(str(fact.get("dot", "none")) for fact in row.facts)
    registers = "+".join(str(fact.get("registers", "?")) for fact in row.facts)
    spills = sum(int(fact.get("local_bytes", 0)) for fact in row.facts)
    warnings = sorted({code for fact in row.facts for code in fact.get("warnings", ())})
    marks = [f"spills {spills}"] * bool(spills) + warnings + ["not repeatable"] * (not row.repeats)
    print(
        f"{head} {row.rate('fuser'):.0f} | {peers} | {row.ratio:.2f} | {row.error:.1e} |"
        f" {_schedule(row)} | {row.kernels} | {kinds} {registers} {' '.join(marks)} |"
        f" {row.compile_s:.2f} |",
        flush=True,
    )


def _schedule(row: Row) -> str:
    words = []
    for table, fact in zip(row.schedules, row.facts, strict=False):
        blocks = "x".join(str(v) for key, v in table.items() if key.startswith("block_"))
        more = f" {table.get('warps')}w {table.get('stages')}s"
        if table.get("split_k", 1) > 1:
            more += f" split {table['split_k']}"
        if fact.get("stream_k"):
            more += " cut"
        copies = fact.get("copies", "none")
        words.append(blocks + more + (f" {copies}" if copies != "none" else ""))
    return "; ".join(words)


def wrong(row: Row, tolerance: float) -> bool:
    return bool(row.problem) or not row.error < tolerance or not row.repeats


def summarise(name: str, rows: Sequence[Row]) -> str:
    ratios = [row.ratio for row in rows if not math.isnan(row.ratio)]
    if not ratios:
        return f"{name}: no ratios"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (
        f"{name}: geometric mean {mean:.2f}, least {min(ratios):.2f}, at least 1 on"
        f" {sum(ratio >= 1 for ratio in ratios)} of {len(ratios)} cases"
    )


def run_group(name: str, options: argparse.Namespace) -> tuple[list[Row], bool]:
    """The rows, and whether one of them is wrong."""
    cases = [case for case in GROUPS[name](options.quick) if options.only in case.name]
    print(f"\n{name}: fuser and peers in {cases[0].unit if cases else ''}", flush=True)
    print(
        "| case | dtype | fuser | peers | ratio | error | schedule | kernels | code | compile s |"
    )
    print("| --- " * 10 + "|", flush=True)
    rows, failed = [], False
    with ThreadPoolExecutor(options.jobs) as pool:
        models = [case.model(constants_of(case)) for case in cases]
        jobs: list[Future[Any]] = [pool.submit(compile_model, model) for model in models]
        wait(jobs)  # PyTorch may not wait for the device while a plan captures its graph
        for case, job in zip(cases, jobs, strict=True):
            faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
            try:
                compiled = job.result()
                row = measure(case, compiled, options)
            except Exception as error:  # one case must not cost the table
                words = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                row = Row(name, case.name, case.dtype, case.unit, case.work, problem=words)
                lost = isinstance(error, DeviceError) or "CUDA error" in str(error)
                if lost:
                    print_row(row)
                    rows.append(row)
                    failed = True
                    print("the GPU was lost; the rest of the group is left out", flush=True)
                    break
            rows.append(row)
            failed = failed or wrong(row, case.tolerance)
            print_row(row)
            if wrong(row, case.tolerance) and not row.problem:
                print(f"WRONG {row.name}: error {row.error:.1e}, repeats {row.repeats}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(summarise(name, rows), flush=True)
    return rows, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--group", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this")
    parser.add_argument("--quick", action="store_true", help="a few cases of each group")
    parser.add_argument(
        "--compile", type=float, default=0, metavar="SECONDS", help="torch.compile max-autotune too"
    )
    parser.add_argument("--jobs", type=int, default=6, help="compiles at once (1: honest times)")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    bandwidth = copy_bandwidth()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
        f"cuDNN {torch.backends.cudnn.version()}, copy {bandwidth / 1e12:.2f} TB/s, "
        f"{os.cpu_count()} CPUs",
        flush=True,
    )
    rows, failed = [], False
    with torch.no_grad():
        for name in options.group:
            found, bad = run_group(name, options)
            rows += found
            failed = failed or bad
            torch.cuda.empty_cache()
            if options.json:
                table = [asdict(row) | {"ratio": row.ratio} for row in rows]
                options.json.write_text(json.dumps(table, indent=1) + "\n")
    print()
    for name in options.group:
        print(summarise(name, [row for row in rows if row.group == name]))
    seconds = sorted(row.compile_s / max(1, row.kernels) for row in rows if row.kernels)
    if seconds:
        middle, most = seconds[len(seconds) // 2], seconds[-1]
        print(f"compile seconds a kernel, {options.jobs} at once: {middle:.2f}, most {most:.2f}")
    spent = sorted(row.peer_compile_s for row in rows if not math.isnan(row.peer_compile_s))
    if spent:
        print(
            f"torch.compile took part in {len(spent)} of {len(rows)} cases, {sum(spent):.0f} s;"
            f" median {spent[len(spent) // 2]:.1f} s, most {spent[-1]:.1f} s"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
