"""Packages that are written for Triton: each function through fuser and through the real Triton.

    python -m benchmarks.foreign --packages FOLDER...       # GPU: beside Triton
    python -m benchmarks.foreign --only fla liger --json rows.json
    python -m benchmarks.foreign --device cpu               # fuser alone, small sizes

The cases are in foreign_cases.py: forward and backward pass of functions of Liger-Kernel,
flash-linear-attention, conch, cut-cross-entropy and mlstm-kernels. --packages: folders that are
searched before the installed packages. A side is a process of its own with the same arguments; the
two take turns. First, --jobs processes compile all cases of a side into empty caches: `first` is
the time from the import of the package (PyTorch is there) to the first result, in seconds (fuser /
Triton), all configs compiled. Then each side tunes with its own configs, and is timed: `device`,
milliseconds of a call in a CUDA graph (or of calls in a row, marked with *, where a side cannot be
captured), and `wall`, of a call that is waited for. Ratios are Triton / fuser: above 1, fuser is
faster. `differ`: the largest relative difference of a result or gradient. Exit code 1 where one is
over its tolerance or fuser fails.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.foreign_cases import CASES, Case
from benchmarks.foreign_worker import compile_one, work

ROUNDS = 5
COMPILE_SECONDS = 120
"""For all cases of a side."""


@dataclass
class Row:
    """A case: by side, what its process said. differ: of results, the largest relative one."""

    case: Case
    sides: dict[str, dict[str, Any]] = field(default_factory=dict)
    differ: float = math.nan

    def ratio(self, what: str) -> float:
        have = [self.sides.get(name, {}).get(what, math.nan) for name in ("triton", "fuser")]
        return have[0] / have[1]

    @property
    def problem(self) -> str:
        """What is wrong on fuser's side."""
        if error := self.sides["fuser"].get("error"):
            return str(error)
        if "triton" in self.sides and "error" not in self.sides["triton"]:
            if not self.differ <= self.case.tolerance:
                return f"results differ by {self.differ:.1e}"
        return ""


class Process:
    """A side in a process of its own."""

    def __init__(self, name: str, device: str, configs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, name, device, configs, False)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, method: str, *arguments: Any) -> dict[str, Any]:
        try:
            self.connection.send((method, arguments))
            found: dict[str, Any] = self.connection.recv()
        except (EOFError, OSError):
            return {"error": f"the process ended with code {self.process.exitcode}"}
        return found

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def end(self) -> None:
        if self.alive:
            self.connection.send(None)
        self.process.join(20)


def difference(have: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest relative difference of tensors, in the norm; infinite where one has another
    shape or is not a number alone."""
    import torch

    if [item.shape for item in have] != [item.shape for item in want]:
        return math.inf
    largest = 0.0
    for ours, theirs in zip(have, want, strict=True):
        ours, theirs = ours.double(), theirs.double()
        alike = (ours == theirs) | (ours.isnan() & theirs.isnan())
        gap = torch.where(alike, 0.0, ours - theirs).norm()
        scale = torch.where(theirs.isfinite(), theirs, 0.0).norm()
        largest = max(largest, float(gap / scale.clamp_min(1e-30)) if gap != 0 else 0.0)
        if math.isnan(float(gap)):
            return math.inf
    return largest


def compile_all(
    side: str, device: str, configs: int, cases: Sequence[Case], jobs: int
) -> dict[str, dict[str, Any]]:
    """Fill the caches of a side in processes of their own; what is not done in time is left."""
    found: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + COMPILE_SECONDS
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        runs = [pool.apply_async(compile_one, (side, device, configs, case.key)) for case in cases]
        for case, run in zip(cases, runs, strict=True):
            try:
                found[case.key] = run.get(max(0.0, end - time.monotonic()))
            except multiprocessing.TimeoutError:
                found[case.key] = {"error": f"not compiled after {COMPILE_SECONDS} s"}
    return found


def measure(case: Case, processes: Mapping[str, Process], folder: Path, rounds: int) -> Row:
    import torch

    row = Row(case)
    paths = {name: folder / f"{name}.pt" for name in processes}
    for name, process in processes.items():
        row.sides[name] = process.ask("prepare", case.key, str(paths[name]))
    fine = [name for name, said in row.sides.items() if "error" not in said]
    if len(fine) == 2:
        row.differ = difference(*(torch.load(paths[name]) for name in ("fuser", "triton")))
    for name in fine:
        row.sides[name] |= processes[name].ask("graph")
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in fine}
    for _ in range(rounds):
        for name in fine:
            said = processes[name].ask("measure")
            row.sides[name] |= {key: said[key] for key in said.keys() & {"error"}}
            taken[name].append(said)
    for name, turns in taken.items():
        for what in ("device", "wall"):
            times = sorted(turn.get(what, math.nan) for turn in turns)
            row.sides[name][what] = times[len(times) // 2] if times else math.nan
    return row


# words --------------------------------------------------------------------------------------------


def line(row: Row) -> str:
    ours, theirs = row.sides["fuser"], row.sides.get("triton", {})
    plain = not ours.get("graph") and not theirs.get("graph")

    def pair(what: str, digits: int) -> str:
        return " / ".join(f"{side.get(what, math.nan):.{digits}f}" for side in (ours, theirs))

    cells = [
        row.case.package, row.case.name, pair("device", 3) + ("" if plain else " *"),
        f"{row.ratio('device'):.2f}", pair("wall", 3), f"{row.ratio('wall'):.2f}",
        pair("compile", 1), f"{row.differ:.0e}", row.problem or theirs.get("error", ""),
    ]  # fmt: skip
    return "| " + " | ".join(" ".join(str(cell).split())[:140] for cell in cells) + " |"


def kernel_lines(row: Row) -> list[str]:
    """A line for each kernel: its name, and milliseconds of a call by side."""
    sides = [row.sides.get(name, {}).get("kernels", {}) for name in ("fuser", "triton")]
    names = sorted(set().union(*sides), key=lambda name: -sides[0].get(name, 0.0))
    return [
        f"    {' / '.join(f'{side.get(name, math.nan):.4f}' for side in sides)}  {name[:60]}"
        for name in names
    ]


def summary(rows: Sequence[Row]) -> list[str]:
    said = []
    for what in ("device", "wall"):
        ratios = [ratio for row in rows if (ratio := row.ratio(what)) > 0]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            slower = sum(ratio < 0.995 for ratio in ratios)
            said.append(
                f"{what}: geometric mean {mean:.3f} over {len(ratios)} cases, least "
                f"{min(ratios):.2f}, {slower} below 0.995"
            )
    firsts = {
        name: sum(row.sides[name]["compile"] for row in rows if row.ratio("compile") > 0)
        for name in ("fuser", "triton")
    }
    said.append("first calls, s: " + ", ".join(f"{name} {s:.0f}" for name, s in firsts.items()))
    problems = sum(bool(row.problem) for row in rows)
    said.append(f"{len(rows)} cases, {problems} with a problem of fuser's")
    return said


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    found.add_argument("--packages", nargs="*", default=[], metavar="FOLDER")
    found.add_argument("--only", nargs="*", default=[], help="parts of packages and names")
    found.add_argument("--configs", type=int, default=4, help="of an autotuner; 0: all")
    found.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    found.add_argument("--rounds", type=int, default=ROUNDS)
    found.add_argument("--kernels", action="store_true", help="the time of each kernel, too")
    found.add_argument("--no-triton", action="store_true", help="fuser alone")
    found.add_argument("--json", help="write the rows to this file")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    folders = os.pathsep.join(str(Path(folder).resolve()) for folder in chosen.packages)
    sys.path[:0] = folders.split(os.pathsep) if folders else []
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folders, *sys.path]))
    cases = [
        case for case in CASES
        if not chosen.only or any(part.lower() in case.key.lower() for part in chosen.only)
    ]  # fmt: skip
    names = ["fuser"] if chosen.no_triton or chosen.device == "cpu" else ["fuser", "triton"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["FUSER_CACHE_DIR"] = str(folder / "fuser")
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        compiled = {
            name: compile_all(name, chosen.device, chosen.configs, cases, chosen.jobs)
            for name in names
        }
        print("| package | case | device, ms | ratio | wall, ms | ratio | first, s | differ | |")
        print("|---|---|---|---|---|---|---|---|---|")
        processes = {name: Process(name, chosen.device, chosen.configs) for name in names}
        rows = []
        for case in cases:
            for name, process in processes.items():
                if not process.alive:
                    processes[name] = Process(name, chosen.device, chosen.configs)
            stuck = [n for n in names if "not compiled" in compiled[n][case.key].get("error", "")]
            if stuck:
                row = Row(case, {name: dict(compiled[name][case.key]) for name in names})
                rows.append(row)
                print(line(row), flush=True)
                continue
            row = measure(case, processes, folder, chosen.rounds)
            for name in names:
                said = compiled[name][case.key]
                row.sides[name]["compile"] = said.get("load", math.nan) + said.get("first", 0.0)
            rows.append(row)
            print(line(row), flush=True)
            if chosen.kernels:
                for name in names:
                    row.sides[name] |= processes[name].ask("kernels")
                print("\n".join(kernel_lines(row)), flush=True)
        for process in processes.values():
            process.end()
    print("\n".join(["", *summary(rows)]))
    if chosen.json:
        records = [
            {"case": row.case.key, "differ": row.differ, "problem": row.problem, **row.sides}
            for row in rows
        ]
        Path(chosen.json).write_text(json.dumps(records, indent=1))
    return int(any(row.problem for row in rows))


if __name__ == "__main__":
    sys.exit(main())
