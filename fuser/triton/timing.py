"""How long a function takes, on the current device."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from fuser.errors import UsageError

MODES: dict[str, Callable[[Sequence[float]], Any]] = {
    "min": min, "max": max, "mean": lambda times: math.fsum(times) / len(times),
    "median": lambda times: _quantile(sorted(times), 0.5), "all": list,
}  # fmt: skip
MOST_RUNS = 1000


def summary(times: Sequence[float], quantiles: Sequence[float] | None, return_mode: str) -> Any:
    """The quantiles of some times, or their min, max, mean or median, or all of them."""
    if return_mode not in MODES:
        raise UsageError(f"return_mode {return_mode!r}", hint=f"one of {', '.join(MODES)}")
    if quantiles is None:
        return MODES[return_mode](times)
    found = [_quantile(sorted(times), q) for q in quantiles]
    return found[0] if len(found) == 1 else found


def _quantile(times: Sequence[float], q: float) -> float:
    if not 0 <= q <= 1:
        raise ValueError("Quantiles must be in the range [0, 1]")
    place = q * (len(times) - 1)
    low, high = math.floor(place), math.ceil(place)
    return times[low] + (times[high] - times[low]) * (place - low)


def measure(
    device: Any,
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    limit: float = math.inf,
) -> Any:
    """Milliseconds of a call of fn; the caches of the device are emptied before each.

    device: the driver of the device, driver.py. warmup, rep: milliseconds to warm up and to measure
    for, emptying caches included. grad_to_none: tensors whose gradients are dropped before a run.
    return_mode: mean, median, min, max or all. limit: of milliseconds; three calls that each take
    longer are all that is measured.
    """
    fn()
    clock = _DeviceClock() if device.on_gpu else _HostClock()
    device.synchronize()
    cache = device.get_empty_cache_for_benchmark()
    start = time.perf_counter()
    first = clock.times(fn, 3, lambda: device.clear_cache(cache))
    if min(first) > limit:
        return summary(first, quantiles, return_mode)
    # with the emptying of caches, which can take a thousand times as long as fn
    once = 1e3 * (time.perf_counter() - start) / 3
    for _ in range(min(MOST_RUNS, int(warmup / once))):
        fn()

    def before() -> None:
        for tensor in grad_to_none or ():
            tensor.grad = None
        device.clear_cache(cache)

    times = clock.times(fn, max(1, min(MOST_RUNS, int(rep / once))), before)
    return summary(times, quantiles, return_mode)


def measure_in_graph(
    device: Any,
    fn: Callable[[], Any],
    rep: float = 20,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds of a call of fn within a CUDA graph of many; on CPUs as measure."""
    if not device.on_gpu:
        return measure(device, fn, 1, rep, grad_to_none, quantiles, return_mode)
    torch: Any = importlib.import_module("torch")
    with torch.cuda.stream(torch.cuda.Stream()):
        fn()
        for tensor in grad_to_none or ():
            tensor.grad = None
        once = max(_DeviceClock().times(fn, 5)[-1], 1e-4)
        count = max(1, min(MOST_RUNS, int(rep / once)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                fn()
        torch.cuda.synchronize()
        times = [spent / count for spent in _DeviceClock().times(graph.replay, 10)]
    return summary(times, quantiles, return_mode)


class _HostClock:
    def times(
        self, fn: Callable[[], Any], count: int, before: Callable[[], None] | None = None
    ) -> list[float]:
        found = []
        for _ in range(count):
            if before is not None:
                before()
            start = time.perf_counter()
            fn()
            found.append(1e3 * (time.perf_counter() - start))
        return found


class _DeviceClock:
    """By CUDA events."""

    def times(
        self, fn: Callable[[], Any], count: int, before: Callable[[], None] | None = None
    ) -> list[float]:
        torch: Any = importlib.import_module("torch")
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(count)
        ]
        for start, stop in events:
            if before is not None:
                before()
            start.record()
            fn()
            stop.record()
        torch.cuda.synchronize()
        return [float(start.elapsed_time(stop)) for start, stop in events]
