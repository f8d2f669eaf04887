"""python -m tests.random_graphs --count 100000 --seed 0 --jobs 8

Checks graphs number `seed` to `seed + count - 1` and prints what fails, with the graph made small.
Of every `--native-every` graphs one is compiled to machine code; the others run in the Tile IR
interpreter, on the schedules of a CPU and of two GPUs. Of every `--cuda-every` graphs one runs on
this machine's GPU as well. Graphs are checked in child processes, since LLVM may end a process, and
a fault of a kernel the use of a GPU. Exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

CHUNK = 200
DONE = "checked "
LOST = 251
"""The exit status of a child that can no longer use the GPU."""


def check_range(arguments: argparse.Namespace) -> int:
    """Check graphs in this process, printing failures; how many failed."""
    from fuser.graph.text import print_graph
    from tests.random_graphs.check import Native, check, gpu_routes, natives_on_gpu, routes_of
    from tests.random_graphs.draw import draw
    from tests.random_graphs.reduce import reduced

    first, count, native_every = arguments.seed, arguments.count, arguments.native_every
    native = Native() if native_every else None
    every = arguments.cuda_every
    natives = natives_on_gpu() if every else None
    failed = 0
    for seed in range(first, first + count):
        on_cpu = native if native_every and seed % native_every == 0 else None
        print(f"seed {seed}", file=sys.stderr, flush=True)  # what a dead process was at
        drawing = draw(seed, arguments.most_nodes)
        routes = routes_of(on_cpu, seed)
        if natives is not None and seed % every == 0:
            routes |= gpu_routes(natives, seed // every)
        failures = check(drawing, routes)
        failed += bool(failures)
        for failure in failures:
            print(f"FAILED {seed} {failure.route}: {failure.what}")
        if any("DeviceError" in failure.what for failure in failures):
            sys.exit(LOST)  # what follows would fail as well
        if failures:
            only = {failures[0].route: routes[failures[0].route]}
            small = reduced(drawing, lambda trial, only=only: bool(check(trial, only)))
            print(print_graph(small.graph))
            for name, array in small.feeds.items():
                print(f"  {name}: {array.dtype}{list(array.shape)} {array.reshape(-1)[:8]}")
            for failure in check(small, only):
                print(f"  {failure.what}\n{failure.trace}")
        sys.stdout.flush()
    print(f"{DONE}{count}", flush=True)
    return failed


def run_child(first: int, count: int, arguments: argparse.Namespace) -> tuple[int, str]:
    """(graphs that failed, what the child printed). A child that died fails the seed it was at."""
    command = [
        sys.executable, "-m", "tests.random_graphs", "--child", "--seed", str(first),
        "--count", str(count), "--native-every", str(arguments.native_every),
        "--most-nodes", str(arguments.most_nodes), "--cuda-every", str(arguments.cuda_every),
    ]  # fmt: skip
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.run(command, capture_output=True, text=True, env=environment)
    if f"{DONE}{count}" in child.stdout:
        return child.returncode, child.stdout.replace(f"{DONE}{count}\n", "")
    seeds = [line for line in child.stderr.splitlines() if line.startswith("seed ")]
    at = int(seeds[-1].removeprefix("seed ")) if seeds else first
    words = child.stderr[-1500:]
    text = child.stdout
    if child.returncode != LOST:
        text += f"FAILED {at}: the process died ({child.returncode})\n{words}\n"
    rest = first + count - at - 1
    if not seeds or not rest:
        return 1, text
    failed, more = run_child(at + 1, rest, arguments)
    return failed + 1, text + more


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--native-every", type=int, default=8, help="0: none")
    parser.add_argument("--cuda-every", type=int, default=0, help="0: none")
    parser.add_argument("--most-nodes", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no more after")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return min(check_range(arguments), LOST - 1)
    started = time.monotonic()
    last = arguments.seed + arguments.count
    done = failed = 0

    def work(first: int) -> tuple[int, int, str]:
        count = min(CHUNK, last - first)
        if time.monotonic() - started > arguments.seconds:
            return 0, 0, ""
        return (count, *run_child(first, count, arguments))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for future in as_completed(
            [pool.submit(work, n) for n in range(arguments.seed, last, CHUNK)]
        ):
            count, wrong, text = future.result()
            done, failed = done + count, failed + wrong
            if text:
                print(text, end="", flush=True)
            if count:
                spent = time.monotonic() - started
                print(f"{done} graphs, {failed} failed, {spent:.0f} s", file=sys.stderr, flush=True)
    print(f"{done} graphs, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
