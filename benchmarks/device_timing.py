"""Timing on the GPU: sides in turns, each a CUDA graph over several sets of tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

L2_BYTES = 60 << 20
ROUND_MS = 3.0
ROUNDS = 5
LEAST_CALLS = 16
LONG_MS = 0.5
"""Calls in a graph, unless one is longer than LONG_MS: so many that what lies between two replays
does not count."""


def count_sets(bytes_of_one: int) -> int:
    """How many sets of tensors so that none is in the L2 when its turn comes again."""
    return min(128, max(2, math.ceil(2.5 * L2_BYTES / max(1, bytes_of_one))))


def capture(calls: Sequence[Callable[[], Any]]) -> Any:
    """The calls as one CUDA graph, repeated to LEAST_CALLS at least; and how many there are."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # workspaces, compilers and autotuners do their work here, and
        for call in calls:  # what a call makes once for its tensors is not part of the graph
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    least = LEAST_CALLS if _elapsed(calls[0], 1) < LONG_MS else 1
    passes = math.ceil(least / len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for call in list(calls) * passes:
            call()
    return graph, passes * len(calls)


def time_sides(sides: Mapping[str, Sequence[Callable[[], Any]]]) -> dict[str, float]:
    """Median milliseconds of a call of each side; they take turns."""
    graphs = {name: capture(calls) for name, calls in sides.items()}
    replays, times = {}, {}
    for name, (graph, _) in graphs.items():
        graph.replay()
        replays[name] = max(1, math.ceil(ROUND_MS / max(1e-4, _elapsed(graph.replay, 1))))
        times[name] = []
    for _, (name, (graph, calls)) in itertools.product(range(ROUNDS), graphs.items()):
        times[name].append(_elapsed(graph.replay, replays[name]) / replays[name] / calls)
    return {name: sorted(found)[ROUNDS // 2] for name, found in times.items()}


def differing_runs(call: Callable[[], Any], output: torch.Tensor, runs: int = 100) -> int:
    """How many of so many replays of a graph of the call, which writes all of `output` each time,
    gave other bits than the first."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[output.element_size()]
    call()
    torch.cuda.synchronize()
    first = output.clone().view(bits)
    count = torch.zeros((), device=output.device, dtype=torch.int64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output.fill_(math.nan if output.is_floating_point() else 0)
        call()
        count.add_((output.view(bits) != first).any())
    for _ in range(runs):
        graph.replay()
    return int(count)


def _elapsed(call: Callable[[], Any], times: int) -> float:
    """Milliseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def copy_bandwidth() -> float:
    """Bytes read and written a second by a large copy on the device, the faster of two kinds."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    times = time_sides(
        {
            "copy engine": [lambda: target.copy_(source)],
            "kernel": [lambda: torch.neg(source, out=target)],
        }
    )
    return 2 * source.numel() * source.element_size() / (min(times.values()) * 1e-3)
