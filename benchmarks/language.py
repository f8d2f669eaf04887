"""The tutorials of the block language: fuser, Triton on the same source, and the libraries.

    python -m benchmarks.language                     # the GPU where there is one, else the CPU
    python -m benchmarks.language --group matmul --quick --json rows.json
    python -m benchmarks.language --device cpu

A tutorial is loaded twice, for Triton with the import replaced (benchmarks/tutorial_modules.py).
Each side runs every config of the tutorial's table, and is timed with its own best, in turns with
the others: on a GPU under CUDA graphs with inputs that rotate past the L2, on a CPU by the clock,
the least of the rounds. With --untuned both have the config that the tutorial would choose.
Results are compared with float64, and must be the same bits when they are computed again. `first`
is the time of the first call in seconds, compiling included, with empty kernel caches; `all` that
of all configs; Triton's stand in brackets. Ratios are time of a peer / time of fuser: above 1,
fuser is faster. Exit code 1 on a wrong result.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.language_cases import Arrays, Case
from benchmarks.language_more import GROUPS
from benchmarks.tutorial_modules import load

CPU_ROUNDS = 7
CPU_SECONDS = 0.1
"""A turn on a CPU."""
SETS = 16
"""Of inputs at most."""


@dataclass
class Side:
    """One implementation of a case. call: on one set of arrays. first, all: seconds of first calls.
    error: against float64. repeats: whether bits do."""

    name: str
    call: Callable[[Arrays], Any]
    config: Any = None
    first: float = math.nan
    all: float = math.nan
    milliseconds: float = math.nan
    error: float = math.nan
    repeats: bool = True
    refused: list[str] = field(default_factory=list)


@dataclass
class Row:
    case: Case
    sides: list[Side] = field(default_factory=list)
    problem: str = ""

    def rate(self, side: Side) -> float:
        scale = {"TFLOP/s": 1e12}.get(self.case.unit, 1e9)
        return self.case.work / (side.milliseconds * 1e-3) / scale

    @property
    def ratio(self) -> float:
        times = {side.name: side.milliseconds for side in self.sides}
        ours = times.pop("fuser", math.nan)
        return min(times.values(), default=math.nan) / ours

    def ratio_to(self, name: str) -> float:
        times = {side.name: side.milliseconds for side in self.sides}
        return times.get(name, math.nan) / times.get("fuser", math.nan)

    @property
    def wrong(self) -> bool:
        """fuser's result is."""
        ours = next((side for side in self.sides if side.name == "fuser"), None)
        fine = ours is not None and ours.error <= self.case.tolerance and ours.repeats
        return bool(self.problem) or not fine

    def record(self) -> dict[str, Any]:
        case = self.case
        return {
            "tutorial": case.tutorial, "name": case.name, "dtype": case.dtype, "unit": case.unit,
            "work": case.work, "problem": self.problem, "ratio": self.ratio,
            "tolerance": case.tolerance, "wrong": self.wrong,
            "sides": [
                {key: value for key, value in asdict(side).items() if key != "call"}
                | {"rate": self.rate(side)}
                for side in self.sides
            ],
        }  # fmt: skip


# devices ------------------------------------------------------------------------------------------


class Gpu:
    """Timing under CUDA graphs."""

    name = "cuda"

    def sets(self, case: Case) -> int:
        from benchmarks.device_timing import count_sets

        return min(SETS, count_sets(case.bytes))

    def finish(self) -> None:
        import torch

        torch.cuda.synchronize()

    def copy(self, out: Any) -> Any:
        return out.clone()

    def same(self, a: Any, b: Any) -> bool:
        import torch

        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))

    def time(self, sides: dict[str, list[Callable[[], Any]]]) -> dict[str, float]:
        from benchmarks.device_timing import time_sides

        return time_sides(sides)

    def describe(self) -> str:
        import torch

        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


class Cpu:
    """Timing by the clock."""

    name = "cpu"

    def sets(self, case: Case) -> int:
        return 1

    def finish(self) -> None:
        pass

    def copy(self, out: Any) -> Any:
        return out.copy()

    def same(self, a: Any, b: Any) -> bool:
        return bool(a.tobytes() == b.tobytes())

    def time(self, sides: dict[str, list[Callable[[], Any]]]) -> dict[str, float]:
        best = dict.fromkeys(sides, math.inf)
        for _ in range(CPU_ROUNDS):
            for name, calls in sides.items():
                end = time.perf_counter() + CPU_SECONDS
                while True:
                    begun = time.perf_counter()
                    calls[0]()
                    now = time.perf_counter()
                    best[name] = min(best[name], (now - begun) * 1e3)
                    if now > end:
                        break
        return best

    def describe(self) -> str:
        from fuser.backend.cpu.host import host_target

        return f"{host_target().arch}, {os.cpu_count()} cores"


Device = Gpu | Cpu


# measuring ----------------------------------------------------------------------------------------


def language_side(
    name: str, module: ModuleType, case: Case, sets: Sequence[Arrays], device: Device, tuned: bool
) -> Side:
    """The tutorial's function with its best config. Raises what the first config raises."""
    side = Side(name, lambda t: None)
    chosen = case.preferred(module)
    configs = list(getattr(module, case.table)[device.name])
    chosen = configs[0] if chosen is None else chosen
    configs = [chosen, *(item for item in configs if item is not chosen)] if tuned else [chosen]
    calls: dict[str, list[Callable[[], Any]]] = {}
    side.all = 0.0
    for number, config in enumerate(configs):
        began = time.perf_counter()
        try:
            case.call(module, sets[0], config)
            device.finish()
        except Exception as error:
            if number == 0:
                raise
            side.refused.append(f"{config}: {type(error).__name__}: {str(error)[:200]}")
            continue
        spent = time.perf_counter() - began
        side.all += spent
        side.first = spent if number == 0 else side.first
        calls[str(number)] = [partial(case.call, module, t, config) for t in sets]
    times = device.time(calls) if len(calls) > 1 else {"0": 0.0}
    side.config = configs[int(min(times, key=lambda key: times[key]))]
    side.call = lambda t: case.call(module, t, side.config)
    return side


def graph_side(case: Case, sets: Sequence[Arrays]) -> Side | None:
    """fuser's graph kernel for the same function, on the same arrays; None where it is several."""
    import fuser
    from fuser.runtime.launch import load_kernel

    assert case.graph is not None
    inputs = [sets[0][name] for name in case.shapes]
    began = time.perf_counter()
    plan = fuser.trace(case.graph, *inputs, device="cpu").plan
    spent = time.perf_counter() - began
    launches = plan.program.launches
    spaces = {ref.space for launch in launches for ref in launch.arguments}
    if len(launches) != 1 or not spaces <= {"input", "output"} or launches[0].zeros:
        return None
    kernel = load_kernel(launches[0].kernel, "cpu")

    def call(t: Arrays) -> None:
        sources = [t[name] for name in case.shapes]
        arrays = [sources[r.index] if r.space == "input" else t["out"]
                  for r in launches[0].arguments]  # fmt: skip
        kernel.launch([array.ctypes.data for array in arrays])  # type: ignore[call-arg]

    return Side("fuser graph", call, first=spent)


def peer_sides(case: Case, sets: Sequence[Arrays], device: Device) -> list[Side]:
    found = [Side(name, call) for name, call in case.peers.items()]
    if device.name == "cpu" and case.graph is not None:
        graph = graph_side(case, sets)
        found += [] if graph is None else [graph]
    return found


def measure(
    case: Case, modules: dict[str, ModuleType], device: Device, options: argparse.Namespace
) -> Row:
    row = Row(case)
    sets = [case.draw(seed, device.name) for seed in range(device.sets(case))]
    for name, module in modules.items():
        try:
            row.sides.append(language_side(name, module, case, sets, device, not options.untuned))
        except Exception as error:  # a case must not cost the table
            words = f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:300]}"
            row.problem = words if name == "fuser" else row.problem
            print(f"  {case.name}: no {words}", flush=True)
    row.sides += peer_sides(case, sets, device)
    for side in list(row.sides):
        try:
            check(case, side, sets[0], device)
        except Exception as error:
            print(f"  {case.name}: no {side.name}: {str(error).splitlines()[0][:200]}", flush=True)
            row.sides.remove(side)
    calls = {side.name: [partial(side.call, t) for t in sets] for side in row.sides}
    times = device.time(calls) if calls else {}
    for side in row.sides:
        side.milliseconds = times[side.name]
    return row


def check(case: Case, side: Side, arrays: Arrays, device: Device) -> None:
    """Fill in the error of a side, and whether its bits repeat."""
    found = []
    for _ in range(2):
        arrays["out"][...] = math.nan
        returned = side.call(arrays)
        device.finish()
        wrote = returned is None or returned is arrays["out"]
        found.append(device.copy(arrays["out"] if wrote else returned))
    side.repeats = device.same(*found)
    side.error = case.error(arrays, found[0])
    if not side.error <= case.tolerance:
        print(f"  {case.name}: {side.name} is off by {side.error:.1e}, "
              f"allowed {case.tolerance:.1e}", flush=True)  # fmt: skip


# output -------------------------------------------------------------------------------------------

HEAD = "| case | dtype | fuser | peers | / Triton | / best | error | first s | all s | config |"


def show(row: Row) -> str:
    case = row.case
    head = f"| {case.name} | {case.dtype} |"
    ours = next((side for side in row.sides if side.name == "fuser"), None)
    if ours is None:
        return f"{head} {row.problem or 'no result'} |"
    peers = ", ".join(f"{side.name} {row.rate(side):.4g}" for side in row.sides if side is not ours)
    triton = next((side for side in row.sides if side.name == "Triton"), Side("", lambda t: None))
    marks = " WRONG" * row.wrong + f" {len(ours.refused)} refused" * bool(ours.refused)
    config = " ".join(f"{key}={value}" for key, value in (ours.config or {}).items())
    return (
        f"{head} {row.rate(ours):.4g} {case.unit} | {peers} | {row.ratio_to('Triton'):.2f} |"
        f" {row.ratio:.2f} | {ours.error:.1e}{marks} | {ours.first:.2f} ({triton.first:.2f}) |"
        f" {ours.all:.2f} ({triton.all:.2f}) | {config} |"
    )


def summarise(rows: Sequence[Row], name: str) -> str:
    ratios = [row.ratio_to(name) for row in rows]
    ratios = [ratio for ratio in ratios if not math.isnan(ratio)]
    if not ratios:
        return f"{name}: no ratios"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    reached = sum(ratio >= 1 for ratio in ratios)
    return f"{name} / fuser: geometric mean {mean:.2f}, least {min(ratios):.2f}, " \
           f"at least 1 on {reached} of {len(ratios)} cases"  # fmt: skip


def start(device: Device) -> dict[str, str]:
    """Whether each spelling works here: its name, or "not installed". Starting up (imports,
    the driver, worker processes) is no part of what is timed."""
    found: dict[str, str] = {}
    for name, spelling in (("fuser", "fuser"), ("Triton", "triton")):
        if spelling == "triton" and device.name == "cpu":
            continue
        if spelling == "triton" and importlib.util.find_spec("triton") is None:
            found[name] = "not installed"
            continue
        module = load("01_vector_add", spelling)  # type: ignore[arg-type]
        module.check(n=1000, device=device.name)
        found[name] = spelling
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="the GPU where there is one")
    parser.add_argument("--group", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this")
    parser.add_argument("--quick", action="store_true", help="a case or two of each group")
    parser.add_argument("--untuned", action="store_true", help="the config a tutorial chooses")
    parser.add_argument("--keep-caches", action="store_true", help="use the caches there are")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    options = parser.parse_args()
    if not options.keep_caches:
        folder = tempfile.mkdtemp(prefix="fuser-benchmark-")
        os.environ["FUSER_CACHE_DIR"] = str(Path(folder, "fuser"))
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "triton"))
    if options.device is None:
        load("01_vector_add")
        options.device = sys.modules["workbench"].default_device()
    device: Device = Gpu() if options.device == "cuda" else Cpu()
    spellings = start(device)
    print(f"{device.describe()}, {spellings}", flush=True)
    rows: list[Row] = []
    for group in options.group:
        cases = [c for c in GROUPS[group](device.name, options.quick) if options.only in c.name]
        print(f"\n{group}\n\n{HEAD}\n" + "| --- " * 10 + "|", flush=True)
        modules: dict[str, dict[str, ModuleType]] = {}
        for case in cases:
            if case.tutorial not in modules:
                modules[case.tutorial] = {
                    name: load(case.tutorial, spelling)  # type: ignore[arg-type]
                    for name, spelling in spellings.items()
                    if spelling != "not installed"
                }
            rows.append(measure(case, modules[case.tutorial], device, options))
            print(show(rows[-1]), flush=True)
            if options.json:
                table = [row.record() for row in rows]
                options.json.write_text(json.dumps(table, indent=1, default=str) + "\n")
    print()
    names = {side.name for row in rows for side in row.sides} - {"fuser"}
    for name in sorted(names):
        print(summarise(rows, name))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
