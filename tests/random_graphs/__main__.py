"""python -m tests.random_graphs --count 100000 --seed 0 --jobs 8

Checks graphs number `seed` to `seed + count - 1` and prints what fails, with the graph made small.
Of every `--native-every` graphs one is compiled to machine code; the others run in the Tile IR
interpreter, on the schedules of a CPU and of two GPUs. Of every `--cuda-every` graphs one runs on
this machine's GPU as well. Graphs are checked in child processes, since LLVM may end a process, and
a fault of a kernel the use of a GPU; one that takes longer than `--limit` fails, and the run goes
on. A region that no emitter could express is listed; with `--strict` it fails. `--coverage` lists
what the graphs reach in the compiler, and how many of 100,000 do. The last lines are the seeds that
failed and a summary. Exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

CHUNK = 100
DONE = "checked "
FAILED = "FAILED "
APART = "taken apart: "
LOST = 251
"""The exit status of a child that can no longer use the GPU."""
PATIENCE = 4
"""Limits without a new graph after which a child is ended: one for the graph, the others to make it
small; what machine code or LLVM is at cannot be interrupted."""


class TimeExceeded(Exception):
    """A graph took longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeExceeded in the block once it has taken so long."""

    def end(*_: Any) -> None:
        raise TimeExceeded(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_range(arguments: argparse.Namespace) -> int:
    """Check graphs in this process, printing failures; how many failed."""
    from tests.random_graphs import check as checks
    from tests.random_graphs.check import Native, check, gpu_routes, natives_on_gpu, routes_of
    from tests.random_graphs.coverage import RECORDER, Recorder
    from tests.random_graphs.draw import draw

    first, count, native_every = arguments.seed, arguments.count, arguments.native_every
    native = Native() if native_every else None
    every = arguments.cuda_every
    natives = natives_on_gpu() if every else None
    if arguments.coverage:
        RECORDER.append(Recorder())
    failed = 0
    apart: list[str] = []
    checks.TAKEN_APART = None if arguments.strict else apart
    for seed in range(first, first + count):
        on_cpu = native if native_every and seed % native_every == 0 else None
        print(f"seed {seed}", file=sys.stderr, flush=True)  # what a dead process was at
        try:
            with limited(arguments.limit):
                drawing = draw(seed, arguments.most_nodes, arguments.edition)
                routes = routes_of(on_cpu, seed)
                if natives is not None and seed % every == 0:
                    routes |= gpu_routes(natives, seed // every)
                failures = check(drawing, routes)
        except Exception as error:  # the drawing itself, or the limit between two routes
            print(f"{FAILED}{seed} drawing: {type(error).__name__}: {error}", flush=True)
            failed += 1
            continue
        for recorder in RECORDER:
            recorder.next_graph()
        failed += bool(failures)
        for what in dict.fromkeys(apart):
            print(f"{APART}{seed} {what}", flush=True)
        apart.clear()
        for failure in failures:
            print(f"{FAILED}{seed} {failure.route}: {failure.what}", flush=True)
        if any("DeviceError" in failure.what for failure in failures):
            sys.exit(LOST)  # what follows would fail as well
        if failures:
            try:
                with limited(arguments.limit):
                    show(drawing, failures, routes)
            except TimeExceeded:
                print("  (not made small: it takes too long)")
        sys.stdout.flush()
    for recorder in RECORDER:
        print(recorder.dump())
    print(f"{DONE}{count}", flush=True)
    return failed


def show(drawing: Any, failures: Any, routes: Any) -> None:
    """Print the smallest graph that fails by the first route that did, and how it fails."""
    from fuser.graph.text import print_graph
    from tests.random_graphs.check import check
    from tests.random_graphs.reduce import reduced

    # what the front ends compose wrongly has no route
    name = next((f.route for f in failures if f.route in routes), next(iter(routes)))
    if any("TimeExceeded" in failure.what for failure in failures):
        print(print_graph(drawing.graph))
        return
    only = {name: routes[name]}
    small = reduced(drawing, lambda trial: bool(check(trial, only)))
    print(print_graph(small.graph))
    for name, array in small.feeds.items():
        print(f"  {name}: {array.dtype}{list(array.shape)} {array.reshape(-1)[:8]}")
    for failure in check(small, only):
        print(f"  {failure.what}\n{failure.trace}")


def run_child(first: int, count: int, arguments: argparse.Namespace) -> str:
    """What children printed that checked a range, another one going on where one died."""
    text = ""
    last = first + count
    while first < last:
        status, at, printed, words = one_child(first, last - first, arguments)
        if f"{DONE}{last - first}\n" in printed:
            return text + printed.replace(f"{DONE}{last - first}\n", "")
        text += printed
        if status != LOST:
            why = "no graph for too long" if status == -signal.SIGKILL else "the process died"
            text += f"{FAILED}{at} process: {why} ({status})\n{words}\n"
        first = at + 1
    return text


def one_child(first: int, count: int, arguments: argparse.Namespace) -> tuple[int, int, str, str]:
    """(exit status, the seed it was at, what it printed, its last words)."""
    command = [
        sys.executable, "-m", "tests.random_graphs", "--child", "--seed", str(first),
        "--count", str(count), "--native-every", str(arguments.native_every),
        "--most-nodes", str(arguments.most_nodes), "--cuda-every", str(arguments.cuda_every),
        "--limit", str(arguments.limit), "--edition", str(arguments.edition),
        *(["--coverage"] if arguments.coverage else []),
        *(["--strict"] if arguments.strict else []),
    ]  # fmt: skip
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    words: list[str] = []
    seen = {"at": first, "when": time.monotonic()}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        child = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.PIPE, text=True, env=environment,
            errors="replace",
        )  # fmt: skip

        def follow() -> None:
            assert child.stderr is not None
            for line in child.stderr:
                if line.startswith("seed "):
                    seen.update(at=int(line[5:]), when=time.monotonic())
                else:
                    words.append(line)
                    del words[:-40]

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        while True:
            try:
                status = child.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - seen["when"] > PATIENCE * arguments.limit + 60:
                    child.kill()
        reader.join(timeout=10)
        printed.seek(0)
        return status, int(seen["at"]), printed.read(), "".join(words)[-1500:]


def main() -> int:
    from tests.random_graphs.draw import EDITION

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--native-every", type=int, default=8, help="0: none")
    parser.add_argument("--cuda-every", type=int, default=0, help="0: none")
    parser.add_argument("--most-nodes", type=int, default=60)
    parser.add_argument("--edition", type=int, default=EDITION, help="of the drawing: 1, 2 or 3")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a graph may take")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no more after")
    parser.add_argument("--coverage", action="store_true", help="list what the graphs reach")
    parser.add_argument(
        "--strict", action="store_true", help="what fusion made and is taken apart again fails"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return min(check_range(arguments), LOST - 1)
    return run_all(arguments)


def run_all(arguments: argparse.Namespace) -> int:
    from tests.random_graphs.coverage import PREFIX, merged, report

    started = time.monotonic()
    last = arguments.seed + arguments.count
    done = 0
    failed: set[int] = set()
    apart = 0
    records: list[str] = []

    def work(first: int) -> tuple[int, str]:
        count = min(CHUNK, last - first)
        if time.monotonic() - started > arguments.seconds:
            return 0, ""
        return count, run_child(first, count, arguments)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for future in as_completed(
            [pool.submit(work, n) for n in range(arguments.seed, last, CHUNK)]
        ):
            count, text = future.result()
            lines = text.splitlines()
            records += [line for line in lines if line.startswith(PREFIX)]
            lines = [line for line in lines if not line.startswith(PREFIX)]
            done += count
            failed |= {int(line.split()[1]) for line in lines if line.startswith(FAILED)}
            apart += sum(line.startswith(APART) for line in lines)
            if lines:
                print("\n".join(lines), flush=True)
            if count:
                spent = time.monotonic() - started
                counted = f"{done} graphs, {len(failed)} failed, {spent:.0f} s"
                print(counted, file=sys.stderr, flush=True)
    if arguments.coverage:
        print(report(*merged(records)))
    if failed:
        print("failed seeds:", *sorted(failed))
    if apart:
        print(f"{apart} regions were taken apart")
    print(f"{done} graphs, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
