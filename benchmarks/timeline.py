"""What each kernel adds to a run on a GPU, where kernels overlap.

    python -m benchmarks.timeline bert.onnx --dim batch=1 --dim sequence=128
    python -m benchmarks.timeline --case vit                  # a model of benchmarks.cuda
    python -m benchmarks.timeline --decode 4 --batch 16       # a decode step, four layers

Events between kernels keep them from starting under the end of the one in front. CUPTI, which
PyTorch's profiler asks, tells when each began and ended within the CUDA graph that a plan replays.
A kernel adds the time from the end of the one before it to its own end; its duration contains what
it waits. Medians of the runs, microseconds; then kernels of one name and launch together, those
that add most first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import fuser

RUNS = 24
SETTLING = 2
"""Runs at the beginning that are left out."""

Event = dict[str, Any]


def events_of(run: Callable[[], object]) -> list[Event]:
    """The kernels that were run, in the order of their start. Times are microseconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.zeros(1, device="cuda")
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        found = json.loads(path.read_text())["traceEvents"]
    kernels = [event for event in found if event.get("cat") == "kernel"]
    if not kernels:
        raise SystemExit("the profiler saw no kernel")
    return sorted(kernels, key=lambda event: float(event["ts"]))


def runs_of(events: list[Event], count: int) -> list[list[Event]]:
    """The kernels run by run: of `count` launches each, beginning with the first kernel's name."""
    first = events[0]["name"]
    starts = [at for at, event in enumerate(events) if event["name"] == first]
    runs = [events[at : at + count] for at in starts if at + count <= len(events)]
    whole = [run for run in runs if [e["name"] for e in run] == [e["name"] for e in events[:count]]]
    return whole[SETTLING:] or whole


def end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])


def show(label: str, runs: list[list[Event]], most: int) -> None:
    """The first kernels one by one, then all by name."""
    span = median(end(run[-1]) - float(run[0]["ts"]) for run in runs)
    print(f"{label}: {len(runs[0])} kernels, {len(runs)} runs, {span:.1f} us")
    total: dict[str, list[float]] = {}
    for at, event in enumerate(runs[0]):
        lasts = median(float(run[at]["dur"]) for run in runs)
        adds = median(end(run[at]) - end(run[at - 1]) for run in runs) if at else lasts
        facts = event["args"]
        kind = (
            f"{event['name']} grid {facts.get('grid')} threads {facts.get('block')} "
            f"registers {facts.get('registers per thread')} shared {facts.get('shared memory')}"
        )
        total.setdefault(kind, []).append(adds)
        if at < most:
            print(f"  lasts {lasts:7.2f}  adds {adds:7.2f}  {kind}")
    print("together:")
    for kind, each in sorted(total.items(), key=lambda item: -sum(item[1])):
        print(f"  {sum(each):8.1f} us in {len(each):3d}, {sum(each) / len(each):7.2f} each  {kind}")


def decode(layers: int, batch: int, length: int, bits: int) -> tuple[Callable[[], object], int]:
    """Decode steps of a Llama with so many layers, and how many kernels each has. bits: of its
    weights, 0 for float16."""
    import numpy as np

    from benchmarks.decode import HOW, ids_of
    from models.generate import decoder

    model = decoder("llama", "float16", layers=layers, bits=bits)
    vocabulary = model.graph.output[-2].type.tensor_type.shape.dim[2].dim_value
    plan = fuser.compile(model, state="auto", device="cuda")
    ids: Any = ids_of(batch, length + 1, vocabulary)
    state = plan.state(batch=batch, capacity=length + RUNS + SETTLING + 8)
    state.run({"input_ids": ids[:, :-1], **HOW})
    drawn: Any = state.run({"input_ids": np.ascontiguousarray(ids[:, -1:]), **HOW})["next_ids"]
    assert isinstance(state.memo, tuple)
    count = len(state.memo[0].time_kernels(state, 1))

    def run() -> None:
        nonlocal drawn
        for _ in range(RUNS):
            drawn = state.run_device({"input_ids": drawn, **HOW})["next_ids"]

    return run, count


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?", help="an ONNX file")
    parser.add_argument("--case", metavar="NAME", help="a model of benchmarks.cuda")
    parser.add_argument("--decode", type=int, metavar="LAYERS", help="a decode step")
    parser.add_argument("--batch", type=int, default=1, help="sequences of a decode step")
    parser.add_argument("--bits", type=int, choices=(0, 4, 8), default=0, help="of its weights")
    parser.add_argument("--length", type=int, default=1024, help="tokens cached")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--most", type=int, default=12, help="kernels to show one by one")
    options = parser.parse_args()
    if options.decode:
        run, count = decode(options.decode, options.batch, options.length, options.bits)
        label = f"decode step, {options.decode} layers, {options.batch} x {options.length}"
        show(label, runs_of(events_of(run), count), options.most)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model, feeds = options.model, None
        if options.case:
            from benchmarks import cuda

            model, feeds = cuda.write_model(options.case, folder), cuda.CASES[options.case].feeds()
        if model is None:
            parser.error("name a model, a case or --decode")
        dims = {name: int(size) for name, size in (item.split("=") for item in options.dim)}
        with fuser.compile(str(model), device="cuda", dims=dims or None) as plan:
            given = feeds if feeds is not None else plan.random_feeds()
            plan.run(given)
            found = events_of(lambda: plan.profile_device(given, iterations=RUNS, warmup=1))
            show(Path(str(model)).name, runs_of(found, plan.launches), options.most)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
