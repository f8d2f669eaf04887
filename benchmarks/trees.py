"""Two or more trees of fuser side by side on one GPU: is speed kept?

    python -m benchmarks.trees before=../old now=. --again before      # the cases of kernels.py
    python -m benchmarks.trees before=../old now=. --models            # whole models
    python -m benchmarks.trees before=../old now=. --files a.onnx      # any other, of fixed sizes

NAME=FOLDER: a checkout, or a folder that holds its fuser/ alone. Each tree has a process of its own
with this tree's benchmarks; the processes take turns, so that what the machine does meets all of
them. --again NAME runs a tree twice: how far its two columns are apart is the noise. A case whose
PTX is the same in all trees is counted and not run (--all runs it). Results are checked against
float32 or float64, those of files against a plan for the CPU, and 100 replays must give the same
bits. Times are medians, between events on the device; ratios are of the first tree: above 1, the
other is faster. Exit code 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROUNDS = 5


class Side:
    """A tree's process; it answers a line of JSON to a line of JSON."""

    def __init__(self, name: str, folder: Path, cache: Path) -> None:
        here = Path(__file__).resolve().parent.parent
        path = [str(folder.resolve()), str(here)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1",
                       "FUSER_CACHE_DIR": str(cache)}  # fmt: skip
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.trees", "--worker"], cwd=cache, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        return {"problem": f"{self.name} ended with {self.process.wait()}"}


def ask(sides: Sequence[Side], **request: Any) -> list[dict[str, Any]]:
    """The answers of all sides, which work at the same time."""
    for side in sides:
        side.send(**request)
    return [side.answer() for side in sides]


# in a tree's process ------------------------------------------------------------------------------


def work() -> None:
    """Answer requests until there are no more."""
    ready: dict[str, Callable[..., dict[str, Any]]] = {}
    plans: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            match request["do"]:
                case "compile":
                    answer = compile_cases(
                        request["group"], request["quick"], request["only"], plans
                    )
                case "compile models":
                    answer = compile_models(request["paths"], plans)
                case "prepare":
                    ready, answer = prepare(plans[request["name"]])
                case "prepare model":
                    ready, answer = prepare_model(request["name"], plans[request["name"]])
                case "prepare file":
                    ready, answer = prepare_file(request["name"], plans[request["name"]])
                case "free":
                    ready = {}
                    answer = free()
                case other:
                    answer = ready[other]()
        except Exception as error:  # a case must not cost the others
            traceback.print_exc(limit=-3)
            answer = {"problem": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
        print(json.dumps(answer), flush=True)


def free() -> dict[str, Any]:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()
    return {}


def facts_of(plan: Any) -> dict[str, Any]:
    """What identifies the code, and what it takes of the device."""
    kernels = [launch.kernel for launch in plan.program.launches]
    texts = [re.sub(rf"\b{re.escape(k.name)}\b", "kernel", str(k.code)) for k in kernels]
    facts = plan.executor.facts()
    return {
        "code": hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16],
        "kernels": plan.launches,
        "registers": [fact.get("registers", 0) for fact in facts],
        "shared": [kernel.shared_bytes for kernel in kernels],
        "local": sum(int(fact.get("local_bytes", 0)) for fact in facts),
    }


def compile_cases(group: str, quick: bool, only: str, plans: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.kernel_cases import GROUPS
    from benchmarks.kernels import compile_model, constants_of

    plans.clear()
    found: dict[str, Any] = {}
    cases = [case for case in GROUPS[group](quick) if re.search(only, f"{case.name} {case.dtype}")]
    models = [case.model(constants_of(case)) for case in cases]
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(compile_model, model) for model in models]
    for case, job in zip(cases, jobs, strict=True):
        name = f"{case.name} {case.dtype}"
        try:
            plan, _ = job.result()
        except Exception as error:
            found[name] = {"problem": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
            continue
        plans[name] = (case, plan)
        found[name] = facts_of(plan)
    return found


def prepare(pair: tuple[Any, Any]) -> tuple[dict[str, Callable[..., dict[str, Any]]], Any]:
    """Bind a case, check its result, capture it."""
    import torch

    import fuser
    from benchmarks import device_timing, kernels
    from benchmarks.kernel_cases import TORCH

    case, plan = pair
    constants = kernels.constants_of(case)
    count = device_timing.count_sets(case.bytes)
    plans = [plan]
    if constants:
        plans += [fuser.Plan(plan.program) for _ in range(min(count, kernels.PLANS) - 1)]
    bindings, outputs = [], []
    kind = TORCH[case.out]
    for index in range(count):
        tensors = case.draw(index + 2) | constants
        unset = math.nan if kind.is_floating_point else -1
        y = torch.full(case.result, unset, device="cuda", dtype=kind)
        inputs = {name: value for name, value in tensors.items() if name not in constants}
        bindings.append((kernels._bound(plans[index % len(plans)], inputs, y), inputs))
        outputs.append(y)

    def run(binding: Any) -> None:
        binding.run(torch.cuda.current_stream().cuda_stream)

    for (
        binding,
        _,
    ) in bindings:  # memory that a binding takes at its first run is no part of a graph
        run(binding)
    torch.cuda.synchronize()
    tensors = case.draw(2) | constants
    expected = case.reference({name: value.to(case.exact) for name, value in tensors.items()})
    error = kernels._error(outputs[0], expected)
    del tensors, expected
    first = hashlib.sha256(outputs[0].view(torch.uint8).cpu().numpy().tobytes()).hexdigest()
    graph, calls = device_timing.capture([functools.partial(run, b) for b, _ in bindings])
    graph.replay()
    replays = max(1, math.ceil(3.0 / max(1e-4, device_timing._elapsed(graph.replay, 1))))

    def time() -> dict[str, Any]:
        return {"ms": device_timing._elapsed(graph.replay, replays) / replays / calls}

    def end() -> dict[str, Any]:
        differing = device_timing.differing_runs(functools.partial(run, bindings[0][0]), outputs[0])
        for one in plans:
            one.close()
        return {"differing": differing, "facts": found}

    found = facts_of(plan)
    good = error < case.tolerance
    return {"time": time, "end": end}, {"error": error, "good": good, "bits": first[:16]}


def compile_models(paths: Mapping[str, str], plans: dict[str, Any]) -> dict[str, Any]:
    import fuser

    plans.clear()
    found: dict[str, Any] = {}
    for name, path in paths.items():
        plans[name] = fuser.compile(path, device="cuda")
        found[name] = facts_of(plans[name])
    return found


def prepare_model(name: str, plan: Any) -> tuple[dict[str, Callable[..., dict[str, Any]]], Any]:
    import torch

    from benchmarks import cuda

    case = cuda.CASES[name]
    feeds = case.feeds()
    with torch.no_grad():
        module = case.module().cuda()
        arguments = [torch.from_numpy(feed).cuda() for feed in feeds.values()]
        expected = cuda._float32_outputs(module, arguments)
    del module, arguments
    torch.cuda.empty_cache()
    return prepared(plan, feeds, list(expected), 100 if case.batch == 1 else 20)


def prepare_file(path: str, plan: Any) -> tuple[dict[str, Callable[..., dict[str, Any]]], Any]:
    import fuser

    feeds = plan.random_feeds()
    with fuser.compile(path, device="cpu") as reference:
        expected = list(reference.run(feeds).values())
    return prepared(plan, feeds, expected, 100)


def prepared(
    plan: Any, feeds: Any, expected: Sequence[Any], replays: int
) -> tuple[dict[str, Callable[..., dict[str, Any]]], Any]:
    from benchmarks import cuda

    outputs = plan.run(feeds)
    error = max(cuda._error(a, b) for a, b in zip(outputs.values(), expected, strict=True))

    def digest() -> str:
        return hashlib.sha256(b"".join(a.tobytes() for a in plan.run(feeds).values())).hexdigest()

    first = digest()

    def time() -> dict[str, Any]:
        return {"ms": plan.profile_device(feeds, iterations=100, warmup=10).median}

    def end() -> dict[str, Any]:
        differing = sum(digest() != first for _ in range(replays))
        plan.close()
        return {"differing": differing, "facts": found}

    found = facts_of(plan)
    good = error < cuda.TOLERANCE
    return {"time": time, "end": end}, {"error": error, "good": good, "bits": first[:16]}


# the comparison -----------------------------------------------------------------------------------


def compare(
    sides: Sequence[Side], label: str, name: str, facts: Sequence[dict[str, Any]], prepare: str
) -> dict[str, Any] | None:
    """Time one case on all sides and print its row; None if it failed."""
    problems = [f"{s.name}: {f['problem']}" for s, f in zip(sides, facts, strict=True)
                if "problem" in f]  # fmt: skip
    checks: list[dict[str, Any]] = []
    if not problems:
        checks = ask(sides, do=prepare, name=name)
        if any("problem" in check for check in checks):  # memory for one reference at a time
            ask(sides, do="free")
            checks = [ask([side], do=prepare, name=name)[0] for side in sides]
        problems = [f"{s.name}: {c['problem']}" for s, c in zip(sides, checks, strict=True)
                    if "problem" in c]  # fmt: skip
    if problems:
        print(f"| {label} | {'; '.join(problems)} |", flush=True)
        return None
    times: list[list[float]] = [[] for _ in sides]
    for turn in range(ROUNDS):
        order = list(enumerate(sides))
        for number, side in order if turn % 2 else reversed(order):
            times[number] += [answer["ms"] for answer in ask([side], do="time")]
    ends = ask(sides, do="end")
    ask(sides, do="free")
    if any("problem" in end for end in ends):
        print(f"| {label} | {'; '.join(end.get('problem', '') for end in ends)} |", flush=True)
        return None
    facts = [end["facts"] for end in ends]
    medians = [sorted(found)[ROUNDS // 2] for found in times]
    good = all(check["good"] for check in checks) and not any(end["differing"] for end in ends)
    ratios = [medians[0] / ms for ms in medians[1:]]
    bits = "same" if len({check["bits"] for check in checks}) == 1 else "differ"
    used = [f"{max(f['registers'], default=0)}r {max(f['shared'], default=0)}s {f['local']}l"
            for f in facts]  # fmt: skip
    columns = [
        label, *(f"{1e3 * ms:.2f}" for ms in medians), *(f"{ratio:.3f}" for ratio in ratios),
        f"{max(check['error'] for check in checks):.1e}", bits, ", ".join(dict.fromkeys(used)),
    ]  # fmt: skip
    print(f"| {' | '.join(columns)} |{'' if good else ' WRONG'}", flush=True)
    return {"name": name, "ms": medians, "ratios": ratios, "good": good, "facts": list(facts),
            "kernels": [fact["kernels"] for fact in facts]}  # fmt: skip


def heading(sides: Sequence[Side]) -> None:
    names = [side.name for side in sides]
    columns = ["case", *(f"{n}, us" for n in names), *(f"{names[0]} / {n}" for n in names[1:]),
               "error", "bits", "registers, shared, local"]  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)


def summarise(label: str, sides: Sequence[Side], rows: Sequence[dict[str, Any]]) -> None:
    for number, side in enumerate(sides[1:]):
        ratios = [row["ratios"][number] for row in rows]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            slower = sum(ratio < 0.97 for ratio in ratios)
            print(f"{label}: {side.name}: geometric mean {mean:.3f}, least {min(ratios):.3f},"
                  f" more than 3 % slower on {slower} of {len(ratios)}", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--again", default="", metavar="NAME", help="a tree that runs twice")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="whole models (all, or these)")
    parser.add_argument("--files", nargs="+", type=Path, metavar="ONNX", help="models of files")
    parser.add_argument("--group", nargs="*", metavar="NAME", help="groups of cases (all)")
    parser.add_argument("--quick", action="store_true", help="a few cases of each group")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name has this")
    parser.add_argument("--all", action="store_true", help="cases of the same code too")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return 0
    trees = dict(pair.split("=", 1) for pair in options.trees)
    if len(trees) < 2:
        parser.error("name two trees: before=FOLDER now=FOLDER")
    if options.again:
        trees |= {f"{options.again} again": trees[options.again]}
    with tempfile.TemporaryDirectory() as scratch:
        sides = []
        for name, folder in trees.items():
            cache = Path(scratch, name.replace(" ", "-"))
            cache.mkdir()
            sides.append(Side(name, Path(folder), cache))
        if options.files:
            rows = run_files(sides, options.files)
        elif options.models is not None:
            rows = run_models(sides, options.models, Path(scratch))
        else:
            rows = run_cases(sides, options)
        for side in sides:
            assert side.process.stdin is not None
            side.process.stdin.close()
            side.process.wait()
    summarise("all", sides, [row for row in rows if row])
    if options.json:
        options.json.write_text(json.dumps(rows) + "\n")
    return 0 if all(row and row["good"] for row in rows) else 1


def run_cases(sides: Sequence[Side], options: argparse.Namespace) -> list[dict[str, Any] | None]:
    from benchmarks.kernel_cases import GROUPS

    rows: list[dict[str, Any] | None] = []
    for group in options.group or GROUPS:
        found = ask(sides, do="compile", group=group, quick=options.quick, only=options.only)
        if any("problem" in answer for answer in found):
            print(group, *found, flush=True)
            rows.append(None)
            continue
        heading(sides)
        mine, equal = [], 0
        for name in found[0]:
            facts = [answer[name] for answer in found]
            if len({fact.get("code") for fact in facts}) == 1 and not options.all:
                equal += 1
                continue
            mine.append(compare(sides, f"{group} {name}", name, facts, "prepare"))
        print(f"{group}: code is the same in {equal} of {len(found[0])} cases", flush=True)
        summarise(group, sides, [row for row in mine if row])
        rows += mine
    return rows


def run_models(
    sides: Sequence[Side], names: Sequence[str], folder: Path
) -> list[dict[str, Any] | None]:
    from benchmarks import cuda

    names = names or list(cuda.CASES)
    with ProcessPoolExecutor(6, mp_context=get_context("spawn")) as exporters:
        jobs = {name: exporters.submit(cuda.write_model, name, str(folder)) for name in names}
        paths = {name: str(job.result()) for name, job in jobs.items()}
    return compare_models(sides, paths, "prepare model")


def run_files(sides: Sequence[Side], files: Sequence[Path]) -> list[dict[str, Any] | None]:
    rows = []
    for file in files:  # one after the other, as they may be large
        path = str(file.resolve())
        rows += compare_models(sides, {path: path}, "prepare file")
    return rows


def compare_models(
    sides: Sequence[Side], paths: Mapping[str, str], prepare: str
) -> list[dict[str, Any] | None]:
    """The plans of files by name."""
    found = ask(sides, do="compile models", paths=paths)
    heading(sides)
    return [
        compare(sides, f"{Path(name).stem} ({found[-1][name]['kernels']} kernels)", name,
                [answer[name] for answer in found], prepare)
        for name in paths
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
