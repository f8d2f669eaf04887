"""The Plan: a compiled model, ready to run. Immutable and safe to use from many threads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from fuser.base.target import Target
from fuser.errors import UsageError
from fuser.graph.units import byte_size, counted
from fuser.runtime.container import reading
from fuser.runtime.deferred import Deferred
from fuser.runtime.devices import Device, choose
from fuser.runtime.feeds import check_feeds
from fuser.runtime.inputs import Hints, random_feeds
from fuser.runtime.nvtx import mark, marking
from fuser.runtime.program import Program, Steady, TensorSpec
from fuser.runtime.shown import Shown, Summary, specs_shown
from fuser.runtime.store import load_programs, program_file, save_program

if TYPE_CHECKING:
    import networkx as nx

    from fuser.runtime.binding import Binding
    from fuser.runtime.collectives import Communicator
    from fuser.runtime.cuda import CudaExecutor
    from fuser.runtime.device_tensors import DeviceArray, HostArray
    from fuser.runtime.latency import Latency
    from fuser.runtime.nccl import NcclRank
    from fuser.runtime.plan_report import Report


class Executor(Protocol):
    """What a device offers a plan."""

    @property
    def device_name(self) -> str: ...
    @property
    def peak_memory_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def threads(self) -> int | None: ...
    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]: ...
    def at(self, fixed: Mapping[int, int]) -> Steady: ...
    def time_replays(
        self, inputs: Sequence[np.ndarray], iterations: int, warmup: int
    ) -> list[float]: ...
    def time_kernels(self, inputs: Sequence[np.ndarray]) -> list[float]: ...
    def join(self, comm: Any) -> None: ...
    def close(self) -> None: ...


class Plan(Shown):
    """A compiled model on a device: what `fuser.compile` and `Plan.load` give.

        plan = Plan(program, threads=4)          # cpu; device=0 chooses among GPUs
        outputs = plan.run({"x": array})
        y = plan(array)

    report: what `plan.report()` gives; the compiler supplies it, or how to work it out. hints:
    ranges of the inputs, for random feeds. like: a plan of the same kernels at other sizes, to
    share code.
    Raises DeviceError, OutOfMemoryError or CompileError where the device refuses the program.
    """

    def __init__(
        self,
        program: Program,
        *,
        threads: int | None = None,
        device: int = 0,
        report: Report | Deferred[Report] | None = None,
        hints: Hints | None = None,
        like: Plan | None = None,
    ) -> None:
        self.program = program
        self._threads, self._device = threads, device
        self._executor: Executor | None = _executor(program, threads, device, like)
        self._reported = report
        self._hints: Hints = hints or {}
        mark(self._executor, ("run", "run_at", "run_into"), program.name)

    @property
    def target(self) -> Target:
        """What the kernels are compiled for."""
        return self.program.target

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input, in the model's order."""
        return self.program.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each output, in the model's order."""
        return self.program.outputs

    @property
    def launches(self) -> int:
        """Kernels a run launches."""
        return len(self.program.launches)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._executor is None

    @property
    def executor(self) -> Executor:
        """The device's half of the plan. Raises UsageError once the plan is closed."""
        if self._executor is None:
            raise UsageError("the plan is closed", hint="compile the model again")
        return self._executor

    @property
    def device_name(self) -> str:
        """The processor or GPU that it runs on."""
        return self.executor.device_name

    @property
    def peak_memory_bytes(self) -> int:
        """All the memory a run touches: values between kernels, constants, inputs, outputs."""
        return self.executor.peak_memory_bytes

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run on arrays by input name; new output arrays by name. Raises FeedError."""
        arrays = check_feeds(self.program.inputs, feeds)
        results = self.executor.run(arrays)
        return {spec.name: a for spec, a in zip(self.program.outputs, results, strict=True)}

    def run_device(
        self, feeds: Mapping[str, Any], *, stream: int | None = None
    ) -> dict[str, DeviceArray | HostArray]:
        """Run on arrays where they are, and leave the outputs there, for other libraries to read
        without a copy: `torch.from_dlpack(plan.run_device({"x": x})["y"])`, CuPy, JAX.

        On a GPU feeds are arrays in its memory (DLPack or `__cuda_array_interface__`), row-major
        and aligned to 16 bytes. Without a stream the run is over when this returns. With one (a
        CUstream; 0: the default stream) it is only put there: leave the feeds alone until the
        stream has passed; who reads the outputs by DLPack waits. Feeds in host memory are as for
        `run`, on a GPU as well, where they are copied.
        Raises FeedError, or UsageError for a stream on a CPU.
        """
        if self.target.is_cuda:
            return {**cast("CudaExecutor", self.executor).run_device(feeds, stream)}
        if stream is not None:
            raise UsageError("this plan is for a CPU, which has no streams")
        from fuser.runtime.device_tensors import HostArray  # a load should not wait for it

        types = {spec.name: spec.dtype for spec in self.program.outputs}
        return {name: HostArray(a, types[name]) for name, a in self.run(feeds).items()}

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on arrays in input order, or by name. One output comes back as itself, several as a
        tuple. Raises FeedError."""
        names = [spec.name for spec in self.program.inputs]
        if len(arrays) > len(names):
            raise UsageError(
                f"{len(arrays)} arrays for {len(names)} inputs", hint=f"the inputs are {names}"
            )
        feeds = dict(zip(names, arrays, strict=False))
        twice = [name for name in named if name in feeds]
        if twice:
            raise UsageError(f"input {twice[0]!r} is given by position and by name")
        results = tuple(self.run({**feeds, **named}).values())
        return results[0] if len(results) == 1 else results

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Binding:
        """The plan on tensors of the GPU, by name, read and written where they are.

            bound = plan.bind({"x": x}, {"y": y})     # torch, CuPy, JAX, ...: DLPack
            bound.run(torch.cuda.current_stream().cuda_stream)

        Tensors must have the model's dtypes and shapes, be row-major and aligned to 16 bytes; an
        output must share memory with nothing else. Raises FeedError, or UsageError on a CPU.
        """
        if not self.target.is_cuda:
            raise UsageError("this plan is for a CPU", hint="plan.run takes arrays of the host")
        binding = cast("CudaExecutor", self.executor).bind(inputs, outputs)
        mark(binding, ("run",), self.program.name)
        return binding

    def join(self, comm: Communicator | NcclRank) -> Plan:
        """Make the plan a rank among others: what its collectives go over, an `NcclRank` on a GPU.
        Raises DeviceError where they cannot."""
        self.executor.join(comm)
        return self

    @property
    def workspace_bytes(self) -> int:
        """What values between kernels take."""
        return self.executor.workspace_bytes

    def run_at(
        self, sources: Sequence[int], targets: Sequence[int], stream: int = 0, workspace: int = 0
    ) -> None:
        """Put a run on a stream (a CUstream handle) and return at once: from inputs to outputs at
        these addresses of the GPU, in the order of `inputs` and `outputs`. workspace: an address
        of `workspace_bytes`, aligned to 256 bytes, for values between kernels; without it the plan
        has memory of its own for them, for as long as it lives.

        Nothing is checked: all must be row-major, of the plan's dtypes and shapes, aligned to 16
        bytes, apart from one another, and stay until the run is over. Raises UsageError on a CPU.
        """
        if not self.target.is_cuda:
            raise UsageError("this plan is for a CPU", hint="plan.run takes arrays of the host")
        cast("CudaExecutor", self.executor).run_at(sources, targets, stream, workspace)

    def at(self, fixed: Mapping[int, int]) -> Steady:
        """A function that runs the plan at addresses of its device: of the inputs that are not
        fixed, and of the outputs, in order. fixed: by the number of the input, its address.

        Its second argument is the stream, as for `run_at`, and as little is checked. On a CPU it
        returns when the run is over, inputs must be aligned as their items and outputs to 64 bytes.
        On a GPU one more address, behind the outputs, is a workspace as for `run_at`.
        """
        return marking(self.executor.at(fixed), f"fuser run {self.program.name}")

    def random_feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Seeded inputs that make sense: indices within their table, masks 0 or 1."""
        return random_feeds(self.program.inputs, self._hints, seed)

    def profile(
        self,
        feeds: Mapping[str, Any] | None = None,
        *,
        iterations: int = 30,
        warmup: int = 5,
    ) -> Latency:
        """Time whole runs, from host arrays to host arrays; seeded random feeds unless given."""
        _check_iterations(iterations)
        arrays = self._arrays(feeds)
        executor = self.executor
        for _ in range(warmup):
            executor.run(arrays)
        times = []
        for _ in range(iterations):
            start = time.perf_counter()
            executor.run(arrays)
            times.append(time.perf_counter() - start)
        return latency_of(times)

    def profile_device(
        self,
        feeds: Mapping[str, Any] | None = None,
        *,
        iterations: int = 30,
        warmup: int = 5,
    ) -> Latency:
        """Time the kernels alone, by the device's clock, with the data in place: what a peer that
        keeps its data on the device is compared with. On a CPU that is a whole run."""
        _check_iterations(iterations)
        return latency_of(self.executor.time_replays(self._arrays(feeds), iterations, warmup))

    def profile_kernels(
        self, feeds: Mapping[str, Any] | None = None, *, iterations: int = 10
    ) -> list[tuple[str, float]]:
        """Where the time of a run goes: (kernel, median milliseconds) of each launch, in order.

        On a GPU by its clock, with the data in place: events between the launches, which cost each
        about a microsecond and keep neighbours from overlapping, so that the sum is more than
        `profile_device` says. On a CPU by the threads' clock, from one launch to the next. Names
        are those that `fuser dump` prints. feeds: seeded random ones unless given;
        iterations: runs that the median is of, after one that is not counted. Raises FeedError.
        """
        arrays = self._arrays(feeds)
        runs = [self.executor.time_kernels(arrays) for _ in range(max(2, iterations + 1))][1:]
        medians = np.median(np.array(runs).reshape(len(runs), -1), axis=0) * 1e3
        names = [launch.name for launch in self.program.launches]
        return [(name, float(t)) for name, t in zip(names, medians, strict=True)]

    def _arrays(self, feeds: Mapping[str, Any] | None) -> list[np.ndarray]:
        if feeds is None:
            feeds = self.random_feeds()
        return check_feeds(self.program.inputs, feeds)

    @property
    def _report(self) -> Report | None:
        found = self._reported
        return found.get() if isinstance(found, Deferred) else found

    def report(self) -> Report:
        """What fusion saved, worked out when it is asked for first. Raises UsageError for a plan
        that was not made from a model."""
        report = self._report
        if report is None:
            raise UsageError("this plan has no report", hint="fuser.compile makes plans that do")
        from fuser.runtime.launch_graph import dependences  # a load should not wait for it

        memory, threads = self.peak_memory_bytes, self.executor.threads
        waits = dependences(self.program)
        return replace(report, peak_memory_bytes=memory, threads=threads, dependences=waits)

    def to_networkx(self, times: Sequence[tuple[str, float]] | None = None) -> nx.DiGraph[int]:
        """The kernels that a run launches as a networkx DiGraph, to compute with.

            graph = plan.to_networkx(plan.profile_kernels())
            fuser.runtime.critical_path.critical_path(graph)

        A node is a place in the order of launches, and carries name (as tables have it), symbol (as
        profilers show it), kind, bytes (through memory), flops, sources (the model's nodes that it
        computes), time_us and measured: whether that is of `times`, or the roofline. An edge is of
        a kind. data: the later kernel reads `bytes` that the earlier one wrote. reuse: it writes
        where the earlier one read or wrote something else, as values share memory. Raises
        UsageError for a plan that was not made from a model, of a file that an earlier release
        wrote, and without networkx.
        """
        report = self.report()
        if times is not None:
            kernels = zip(report.launches, times, strict=True)
            report.launches = tuple(replace(one, time_us=ms * 1e3) for one, (_, ms) in kernels)
        return report.to_networkx()

    def save(self, path: Path | str) -> None:
        """Write the compiled program to a file for `Plan.load`; it holds native code for this
        device. Raises UsageError."""
        save_program(self.program, path, self._report)

    @classmethod
    def load(
        cls, path: Path | str, *, threads: int | None = None, device: Device | int = "auto",
        weights: Path | str | None = None,
    ) -> Plan:  # fmt: skip
        """A saved plan, ready to run on a device of the same kind; trust it as you trust a program.
        Of several targets in the file the best that runs here is taken. device: "auto", "cpu",
        "cuda", "cuda:1", or the number of a GPU. The weights stay in the file, which is mapped:
        replace it, never write into it. weights: where the model's file is, of a plan whose weights
        are in that and not where the plan says. Raises UsageError, InvalidModelError or
        DeviceError."""
        return _loaded(path, threads, device, {}, weights)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle is the saved plan: it is loaded on a device of the same kind."""
        data = b"".join(program_file([(self.program, self._report)]))
        return _restore, (data, self._threads, self._device, dict(self._hints))

    def __copy__(self) -> Plan:
        return self  # it does not change

    def __deepcopy__(self, memo: Any) -> Plan:
        return self

    def close(self) -> None:
        """Free device memory and code; running the plan afterwards is an error."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _summary(self) -> Summary:
        program, kernels = self.program, counted(self.launches, "kernel")
        where = f"{program.target.name} ({program.target.arch})"
        facts = [("device", where), ("kernels", f"{self.launches:,}")]
        if not self.is_closed:
            facts[0] = ("device", self.device_name)
            facts.append(("memory", byte_size(self.peak_memory_bytes)))
        state = ["closed"] if self.is_closed else []
        return Summary(
            program.name, specs_shown(program.inputs), specs_shown(program.outputs),
            [*facts, *(("state", text) for text in state)], [program.target.name, kernels, *state],
        )  # fmt: skip


def _restore(data: bytes, threads: int | None, device: int, hints: Hints) -> Plan:
    """A plan from its pickle."""
    return _loaded(data, threads, device, hints)


def _loaded(
    file: Path | str | bytes, threads: int | None, device: Device | int, hints: Hints,
    weights: Path | str | None = None,
) -> Plan:  # fmt: skip
    ordinal = 0

    def best(targets: Sequence[Target]) -> int:
        nonlocal ordinal
        place, ordinal = choose(targets, device)
        return place

    (chosen,) = load_programs(file, weights=weights, choose=best)
    with reading(file):  # numbers and names that only a device asks for
        return Plan(
            chosen.program, threads=threads, device=ordinal, report=chosen.report, hints=hints
        )


def _check_iterations(iterations: int) -> None:
    if iterations < 1:
        raise UsageError(f"cannot time {iterations} iterations", hint="use 1 or more")


def latency_of(seconds: Sequence[float]) -> Latency:
    """What is told of times of runs."""
    from fuser.runtime.latency import Latency

    median, p90, p99 = np.percentile(np.array(seconds) * 1e3, [50, 90, 99])
    return Latency(float(median), float(p90), float(p99), len(seconds))


def _executor(
    program: Program, threads: int | None, device: int, like: Plan | None = None
) -> Executor:
    if program.target.is_cuda:
        from fuser.runtime.cuda import CudaExecutor

        same = like._executor if like is not None else None  # None once that plan is closed
        return CudaExecutor(program, device, same if isinstance(same, CudaExecutor) else None)
    from fuser.runtime.cpu import CpuExecutor

    other = like._executor if like is not None else None
    return CpuExecutor(program, threads, other if isinstance(other, CpuExecutor) else None)
