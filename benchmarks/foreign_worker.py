"""One side of benchmarks.foreign: a process in which the packages have fuser or the real Triton."""

from __future__ import annotations

import importlib
import statistics
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.foreign_cases import BY_KEY, Case, Maker

ROUND_SECONDS = 0.05
"""Of one measurement of one side."""


class Prepared:
    """A case with its arguments, ready to be called again and again."""

    def __init__(self, case: Case, function: Callable[..., Any], device: str) -> None:
        self.case, self.function, self.device = case, function, device
        given = case.arguments(Maker(device, 7, case.dtype))
        self.arguments = [self._leaf(item) for item in given]
        self.learned = [
            item for item in self.arguments if isinstance(item, torch.Tensor) and item.requires_grad
        ]
        self.slopes: list[Any] | None = None
        self.graph: Any = None

    def _leaf(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor) and item.is_floating_point() and self.case.learn:
            return item.detach().requires_grad_(True)
        return item

    def forward(self) -> list[Any]:
        """Results that are tensors."""
        # kernels that work in place must find copies, not the leaves
        given = [item * 1 if any(item is leaf for leaf in self.learned) else item
                 for item in self.arguments]  # fmt: skip
        found = self.function(*given, **self.case.options)
        found = found if isinstance(found, tuple | list) else [found]
        return [item for item in found if isinstance(item, torch.Tensor)]

    def call(self) -> list[Any]:
        """Results, and gradients where there are."""
        outputs = self.forward()
        steep = [item for item in outputs if item.requires_grad]
        if not steep or not self.learned:
            return outputs
        if self.slopes is None:
            maker = Maker(self.device, 8)
            self.slopes = [
                maker.normal(*item.shape, dtype=torch.float32).to(item.dtype)
                if item.ndim else torch.ones_like(item) for item in steep
            ]  # fmt: skip
        gradients = torch.autograd.grad(steep, self.learned, self.slopes, allow_unused=True)
        return outputs + [item for item in gradients if item is not None]

    def capture(self) -> str:
        """Make a CUDA graph of the call; why there is none, or nothing."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                self.call()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.call()
        except Exception as error:
            torch.cuda.synchronize()
            return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
        self.graph = graph
        return ""


def _milliseconds(call: Callable[[], Any], device: str) -> tuple[float, float]:
    """A call: between events on the GPU for calls in a row, and by the clock for single calls
    that are waited for. On a CPU both are the clock's."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    wait()
    began = time.perf_counter()
    call()
    wait()
    once = time.perf_counter() - began
    count = max(3, int(ROUND_SECONDS / 2 / max(once, 1e-6)))
    clocks = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        wait()
        clocks.append((time.perf_counter() - began) * 1e3)
    if device == "cpu":
        return min(clocks), min(clocks)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count, statistics.median(clocks)


class Side:
    """What a worker process holds."""

    def __init__(self, name: str, device: str, configs: int, compile_only: bool) -> None:
        self.name, self.device = name, device
        self.prepared: Prepared | None = None
        limit_configs(name, configs, compile_only)

    def prepare(self, key: str, path: str) -> dict[str, Any]:
        """Load the case of a key, call it twice, and write its results to a file."""
        case, self.prepared = BY_KEY[key], None
        wait = torch.cuda.synchronize if self.device == "cuda" else (lambda: None)
        began = time.perf_counter()
        with answered(self.name, case.package):
            module, _, path_of = case.function.partition(":")
            function: Any = importlib.import_module(module)
            for part in path_of.split("."):
                function = getattr(function, part)
            loaded = time.perf_counter()
            self.prepared = Prepared(case, function, self.device)
            wait()
            begun = time.perf_counter()
            results = self.prepared.call()
            wait()
        first = time.perf_counter() - begun
        if path:
            torch.save([item.detach().float().cpu() for item in results], path)
        results = None
        return {"load": loaded - began, "first": first}

    def graph(self) -> dict[str, Any]:
        assert self.prepared is not None
        return {"graph": self.prepared.capture() if self.device == "cuda" else ""}

    def kernels(self) -> dict[str, Any]:
        assert self.prepared is not None
        return {"kernels": kernel_times(self.prepared.call)}

    def measure(self) -> dict[str, Any]:
        assert self.prepared is not None
        found = self.prepared
        device, wall = _milliseconds(found.call, self.device)
        if found.graph is not None:
            device = _milliseconds(found.graph.replay, self.device)[0]
        return {"device": device, "wall": wall}


def kernel_times(call: Callable[[], Any], rounds: int = 5) -> dict[str, float]:
    """Milliseconds of a call on the GPU, by the names of kernels."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name] = found.get(event.name, 0.0) + event.device_time / 1e3 / rounds
    return found


def answered(side: str, package: str) -> Any:
    if side != "fuser":
        return nullcontext()
    import fuser.triton as triton

    return triton.imports(package)


def limit_configs(side: str, count: int, compile_only: bool) -> None:
    """Let autotuners have so many configs at most, spread evenly; 0: all. compile_only: a config
    is called once and not timed."""
    if side == "fuser":
        from fuser.triton.autotuner import Autotuner
    else:
        from triton.runtime.autotuner import Autotuner
    plain = Autotuner.__init__

    def start(self: Any, fn: Any, names: Any, configs: Any, *rest: Any, **named: Any) -> None:
        configs = list(configs or ())
        if count and len(configs) > count:
            configs = [configs[n * len(configs) // count] for n in range(count)]
        plain(self, fn, names, configs, *rest, **named)
        if compile_only:
            self._do_bench = lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]

    Autotuner.__init__ = start


def work(connection: Connection, name: str, device: str, configs: int, compile_only: bool) -> None:
    """Answer requests (a method of Side and its arguments) until None comes."""
    side = Side(name, device, configs, compile_only)
    while (request := connection.recv()) is not None:
        method, arguments = request
        try:
            connection.send(getattr(side, method)(*arguments))
        except Exception as error:
            where = traceback.format_exc().splitlines()[-3:]
            connection.send({"error": f"{type(error).__name__}: {error}"[:600], "where": where})


def compile_one(name: str, device: str, configs: int, key: str) -> dict[str, Any]:
    """Compile a case into the caches: what `prepare` says."""
    try:
        return Side(name, device, configs, True).prepare(key, "")
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:600]}
