"""`fuser.compile(model, host="allow")` of a model that no plan can be: kernels, and the host."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fuser.base.config import within
from fuser.base.limits import Limits, check_bytes
from fuser.dtypes import from_numpy
from fuser.errors import UnsupportedError, UsageError
from fuser.frontends.onnx.host_operators import evaluator
from fuser.frontends.onnx.importer import load_model
from fuser.frontends.onnx.importer.types import is_supported
from fuser.frontends.onnx.model import DEFAULT_SIZES, Model, compile
from fuser.frontends.onnx.node_args import TensorInfo, tensor_info
from fuser.frontends.onnx.runner import Runner, Running
from fuser.frontends.onnx.values import numpy_type
from fuser.graph.ir import TensorType
from fuser.pipeline.devices import Device, choose_target
from fuser.pipeline.fusion import Fusing, Fusion
from fuser.pipeline.options import CompileOptions, Progress, quiet
from fuser.pipeline.precision import Precision
from fuser.report.report import KernelReport, RegionReport, Report, Saving, Traffic
from fuser.runtime.inputs import random_feeds
from fuser.runtime.latency import Latency
from fuser.runtime.plan import Plan

if TYPE_CHECKING:
    from onnx import ModelProto

Host = Literal["error", "allow"]


class HostedPlan(Running):
    """A model whose operators without kernels run on the host; what lies between is compiled.

    Feeds may have any sizes; kernels are compiled when it runs. `fallbacks` names what ran on the
    host. dims: sizes for `random_feeds`; values: feeds that every run gets.
    """

    def __init__(
        self, proto: ModelProto, *, name: str = "model", device: Device = "auto",
        dims: Mapping[str, int] | None = None, values: Mapping[str, np.ndarray] | None = None,
        threads: int | None = None, fusion: Fusing = True, precision: Precision = "model",
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self.target = choose_target(device, threads)
        self.name, self._limits, self._values = name, limits, dict(values or {})
        held = {*self._values, *(tensor.name for tensor in proto.graph.initializer)}
        self._proto = proto
        self._infos = [info for info in proto.graph.input if info.name not in held]
        self.inputs = tuple(tensor_info(info) for info in self._infos)
        self.dims = _bound(self.inputs, dims or {})
        self._ran: dict[str, int] = {}
        with within(limits):
            options = CompileOptions(
                device=device, threads=threads, fusion=fusion, precision=precision
            )
            self._runner = Runner(proto, None, options, True)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run on arrays by input name; arrays (lists for sequences) by output name. Raises
        FeedError, and what compiling raises."""
        with within(self._limits):
            found = dict(self._runner.run({**self._values, **feeds}))
        self._ran = _sizes(self.inputs, feeds)
        return found

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on arrays in input order, or by name. One output comes back as itself, several as a
        tuple."""
        names = [spec.name for spec in self.inputs]
        if len(arrays) > len(names):
            raise UsageError(f"{len(arrays)} arrays for {len(names)} inputs", hint=f"{names}")
        results = tuple(self.run({**dict(zip(names, arrays, strict=False)), **named}).values())
        return results[0] if len(results) == 1 else results

    @property
    def launches(self) -> int:
        """Kernels of all those plans."""
        return sum(plan.launches for plan in self.plans)

    def random_feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Seeded inputs at `dims`. Raises UsageError where an input is not of numbers,
        OutOfMemoryError for more bytes than the limits allow."""
        types = {}
        for info, proto in zip(self.inputs, self._infos, strict=True):
            elem_type = proto.type.tensor_type.elem_type
            if not is_supported(elem_type):
                raise UsageError(f"there are no random inputs for {info.name}: {info.type}")
            sizes = (self.dims.get(d, 1) if isinstance(d, str) else d for d in info.shape)
            shape = tuple(1 if size is None else size for size in sizes)
            types[info.name] = TensorType(from_numpy(numpy_type(elem_type)), shape)
        with within(self._limits):
            check_bytes(sum(type.bytes for type in types.values()), "the inputs together")
        return random_feeds(types, {}, seed)

    def reference(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by the host alone, in the model's own dtypes."""
        names = [output.name for output in self._proto.graph.output]
        results: Any = evaluator(self._proto).run(None, {**self._values, **feeds})
        return dict(zip(names, results, strict=True))

    def profile(
        self, feeds: Mapping[str, Any] | None = None, *, iterations: int = 30, warmup: int = 5
    ) -> Latency:
        """Time whole runs; seeded random feeds unless given."""
        if iterations < 1:
            raise UsageError(f"cannot time {iterations} iterations", hint="use 1 or more")
        given = self.random_feeds() if feeds is None else feeds
        times = []
        for i in range(-warmup, iterations):
            start = time.perf_counter()
            self.run(given)
            if i >= 0:
                times.append(time.perf_counter() - start)
        median, p90, p99 = np.percentile(np.array(times) * 1e3, [50, 90, 99])
        return Latency(float(median), float(p90), float(p99), len(times))

    def report(self) -> Report:
        """What fusion saved in the parts that are compiled, of all sizes that ran so far, and what
        the host ran. Raises UsageError before a run: nothing is compiled then."""
        parts = [plan.report() for plan in self.plans]
        if not (parts or self.fallbacks):
            raise UsageError("nothing ran yet", hint="run it first: kernels are made then")
        regions, launches = _renumbered(parts)
        notes = [note for part in parts for note in part.fallbacks]
        return Report(
            model=self.name,
            device=parts[0].device if parts else "the host",
            kernels=Saving(_sum(parts, "kernels.before"), _sum(parts, "kernels.after")),
            bytes=Traffic(
                *(_sum(parts, f"bytes.{name}") for name in ("before", "after", "floor", "packed"))
            ),
            compile_s=sum(part.compile_s for part in parts),
            cache_hits=_sum(parts, "cache_hits"),
            peak_memory_bytes=_sum(parts, "peak_memory_bytes"),
            regions=regions,
            fallbacks=(*notes, *(f"{note} runs on the host" for note in self.fallbacks)),
            dims=self._ran,
            precision=parts[0].precision if parts else "model",
            tuned=tuple(item for part in parts for item in part.tuned),
            target=parts[0].target if parts else None,
            threads=parts[0].threads if parts else None,
            numerics=parts[0].numerics if parts else "model",
            rewrites=tuple(item for part in parts for item in part.rewrites),
            launches=launches,
            boundary=_added(parts, "boundary"),
            dram=_added(parts, "dram"),
            dram_cold=_added(parts, "dram_cold"),
        )

    def close(self) -> None:
        """Free memory and code of the plans."""
        for plan in self.plans:
            plan.close()

    def __repr__(self) -> str:
        return f"<HostedPlan {self.name}, on the host so far: {', '.join(self.fallbacks) or '-'}>"


def compile_on_host(
    source: str | Path | bytes | ModelProto | Model, *, host: Host, progress: Progress = quiet,
    tune: bool = False, **options: Any,
) -> Plan | HostedPlan:  # fmt: skip
    """`compile` of a model; where that is unsupported and the host allowed, a HostedPlan. Raises
    UsageError for another word than "error" and "allow", and what `compile` raises."""
    if host not in ("error", "allow"):
        raise UsageError(f"host={host!r} means nothing", hint='use "error" or "allow"')
    try:
        return compile(source, progress=progress, tune=tune, **options)
    except UnsupportedError:
        if host == "error":
            raise
    if isinstance(options.get("fusion"), Fusion):
        raise UsageError("pins and forbidden pairs are for models without operators on the host")
    with within(options.get("limits")):
        progress("cutting the graph for the host")
        proto = source.proto if isinstance(source, Model) else load_model(source)
        name = Path(source).name if isinstance(source, str | Path) else proto.graph.name or "model"
        return HostedPlan(proto, name=name, **options)


def _bound(inputs: Sequence[TensorInfo], dims: Mapping[str, int]) -> dict[str, int]:
    """The size of every symbolic dim: as given, else 1 for an outermost axis and the first of
    DEFAULT_SIZES for others. Raises UsageError for unknown names."""
    bound: dict[str, int] = {}
    for info in inputs:
        for axis, dim in enumerate(info.shape):
            if isinstance(dim, str):
                bound.setdefault(dim, DEFAULT_SIZES[0] if axis else 1)
    unknown = [name for name in dims if name not in bound]
    if unknown:
        raise UsageError(f"unknown dim {unknown[0]!r}", hint=f"the symbolic dims are {list(bound)}")
    return {**bound, **dims}


def _sizes(inputs: Sequence[TensorInfo], feeds: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the symbolic dims in these feeds."""
    return {
        dim: size
        for info in inputs
        if info.shape
        for dim, size in zip(info.shape, np.shape(feeds[info.name]), strict=False)
        if isinstance(dim, str)
    }


def _renumbered(
    parts: Sequence[Report],
) -> tuple[tuple[RegionReport, ...], tuple[KernelReport, ...]]:
    """The regions and launches of all parts. Each part counts its regions from 0."""
    regions: list[RegionReport] = []
    launches: list[KernelReport] = []
    for part in parts:
        own = {region.id: len(regions) + at for at, region in enumerate(part.regions)}
        regions += [dataclasses.replace(item, id=own[item.id]) for item in part.regions]
        launches += [dataclasses.replace(item, region=own[item.region]) for item in part.launches]
    return tuple(regions), tuple(launches)


def _added(parts: Sequence[Report], name: str) -> Traffic:
    return Traffic(*(_sum(parts, f"{name}.{at}") for at in ("before", "after", "floor")))


def _sum(parts: Sequence[Report], path: str) -> int:
    total = 0
    for part in parts:
        value: Any = part
        for name in path.split("."):
            value = getattr(value, name)
        total += value
    return total
