"""What `plan.report()` gives: what fusion saved, what ran, and how fast. docs/report.md defines
every number; the functions that find them are in `fuser/report/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fuser.errors import UsageError
from fuser.graph.network import new_network
from fuser.graph.numerics import Rewritten
from fuser.graph.units import byte_size, duration, milliseconds
from fuser.runtime.critical_path import CriticalPath, critical_path
from fuser.runtime.latency import Latency
from fuser.runtime.program import Dependence
from fuser.runtime.savings import NO_TRAFFIC, Saved, Saving, Traffic, savings
from fuser.runtime.shown import Shown, Summary

if TYPE_CHECKING:
    import networkx as nx

SCHEMA = 2


@dataclass(frozen=True)
class Bytes:
    """What one kernel moves in a run."""

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        return self.read + self.written


@dataclass(frozen=True)
class KernelReport:
    """One launch. docs/report.md defines the numbers.

    name: the symbol that profilers show. region: the id of its region, whose kernels in a row (a
    workspace and its sum) share it. nodes: what it computes, by the names in the model. boundary:
    distinct bytes through memory. reread: bytes that blocks fetch again, from the cache. dram: of
    the boundary what crosses to memory, in the steady state. roofline_us: the least time.
    flops: what its operators ask for; algorithm: how else it computes ("winograd", "split k 4"),
    which roofline_us is of. time_us: measured, where it was; share: of the sum of all. counters:
    measured, by name.
    """

    name: str
    region: int
    kind: str
    nodes: tuple[str, ...]
    boundary: Bytes
    reread: int
    dram: Bytes
    flops: int
    roofline_us: float
    schedule: dict[str, Any] = field(default_factory=dict)
    programs: int = 1
    """Of its grid: what runs side by side at most."""
    time_us: float | None = None
    share: float | None = None
    counters: dict[str, float] | None = None
    algorithm: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the keys in the order of the schema."""
        return {
            "name": self.name,
            "region": self.region,
            "kind": self.kind,
            "nodes": list(self.nodes),
            "boundary_bytes": asdict(self.boundary),
            "reread_bytes": self.reread,
            "dram_bytes": asdict(self.dram),
            "flops": self.flops,
            "algorithm": self.algorithm,
            "roofline_us": self.roofline_us,
            "programs": self.programs,
            "time_us": self.time_us,
            "share": self.share,
            "counters": self.counters,
            "schedule": self.schedule,
        }

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> KernelReport:
        """The inverse of `dataclasses.asdict`. Raises KeyError or TypeError."""
        parts = {name: Bytes(**record[name]) for name in ("boundary", "dram")}
        return KernelReport(**{**record, **parts, "nodes": tuple(record["nodes"])})


@dataclass(frozen=True)
class Device:
    """What the rooflines are of: rates a second, bytes of the last cache (0: unknown)."""

    name: str
    arch: str
    units: int
    flops_f32: float
    flops_f16: float
    bandwidth: float
    cache_bytes: int


@dataclass(frozen=True)
class RegionReport:
    """One region as schema 1 has it: its kernel's traffic and work, and the schedule that was
    chosen."""

    id: int
    kind: str
    nodes: tuple[str, ...]
    bytes: int
    flops: int
    schedule: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Profiled:
    """How kernels were measured. iterations: runs; times are those of the one whose sum is the
    median. kernels_us: that sum. device_us: of a run on a GPU, with its data in place. counters:
    what read them; missing: why nothing did."""

    iterations: int
    kernels_us: float
    device_us: float | None = None
    counters: str | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Tuned:
    """A kernel whose schedule was measured: what the rules chose, what is used, how many times as
    fast that is, among how many candidates, and whether this was remembered from another compile.
    """

    kernel: str
    rule: dict[str, Any]
    chosen: dict[str, Any]
    gain: float
    candidates: int
    remembered: bool

    @property
    def changed(self) -> bool:
        return self.rule != self.chosen

    def __str__(self) -> str:
        when = "remembered" if self.remembered else f"of {self.candidates} candidates"
        if not self.changed:
            return f"{self.kernel}: the rules' schedule is kept ({when})"
        names = [*dict.fromkeys((*self.rule, *self.chosen))]
        moves = [
            f"{name} {self.rule.get(name, '-')} -> {self.chosen.get(name, '-')}"
            for name in names
            if self.rule.get(name) != self.chosen.get(name)
        ]
        return f"{self.kernel}: {', '.join(moves)}, {self.gain:.2f} times as fast ({when})"


@dataclass(frozen=True)
class Comparison:
    """The plan's outputs beside a reference. max_rel is the greatest ||out - ref|| / ||ref|| of the
    outputs; max_abs the greatest difference of one element; differs: a line for each output that is
    not as expected, or that one of the two does not have; compared: how many both have."""

    max_abs: float
    max_rel: float
    ok: bool
    reference: str = ""
    differs: tuple[str, ...] = ()
    compared: int = 0


@dataclass(frozen=True)
class Timed:
    """A kernel of the plan without fusion, and microseconds it took."""

    name: str
    kind: str
    nodes: tuple[str, ...]
    time_us: float


@dataclass(frozen=True)
class Unfused:
    """A run of the plan without fusion, in turns with the fused one. launches: empty where its
    kernels were not timed. note: why it was not run."""

    latency_ms: Latency | None = None
    launches: tuple[Timed, ...] = ()
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        launches = [{**asdict(launch), "nodes": list(launch.nodes)} for launch in self.launches]
        table = asdict(self)
        return {"latency_ms": table["latency_ms"], "launches": launches, "note": self.note}


@dataclass(repr=False)
class Report(Shown):
    """What `plan.report()` gives. `to_dict` is the JSON of `fuser run --report`.

    bytes and regions are schema 1's: whole tensors, each once a region. boundary: distinct bytes
    through memory, kernel by kernel. dram, dram_cold: what of them crosses to memory when the plan
    runs again and again, and when nothing is in the cache. launches: the kernels in order.
    """

    model: str
    device: str
    kernels: Saving
    bytes: Traffic
    compile_s: float
    cache_hits: int
    peak_memory_bytes: int
    regions: tuple[RegionReport, ...]
    fallbacks: tuple[str, ...] = ()
    dims: dict[str, int] = field(default_factory=dict)
    values: tuple[str, ...] = ()
    """Inputs whose values the plan was compiled for."""
    precision: str = "model"
    """What matmuls round their operands to, and on what instruction (pipeline/precision.py)."""
    numerics: str = "model"
    """Which rewrites might change numbers (graph/numerics.py)."""
    rewrites: tuple[Rewritten, ...] = ()
    """Those that the plan contains and that are not exact."""
    tuned: tuple[Tuned, ...] = ()
    """Kernels with measured schedules (pipeline/tuning.py)."""
    latency_ms: Latency | None = None
    compare: Comparison | None = None
    target: Device | None = None
    threads: int | None = None
    """Of a plan on a CPU."""
    boundary: Traffic = NO_TRAFFIC
    dram: Traffic = NO_TRAFFIC
    dram_cold: Traffic = NO_TRAFFIC
    launches: tuple[KernelReport, ...] = ()
    forced: dict[str, Any] | None = None
    """What pins and forbidden pairs changed: kernels, bytes and seconds predicted by the
    partitioner, "unforced" and "forced"."""
    unfused: Unfused | None = None
    """The plan without fusion, where it was run beside this one."""
    peer: dict[str, Any] | None = None
    """A peer that ran beside the plan: its name, and the kernels it has."""
    profile: Profiled | None = None
    dependences: tuple[Dependence, ...] | None = None
    """Which launches wait for which; None where that is not known."""

    def to_networkx(self) -> nx.DiGraph[int]:
        """See `fuser.runtime.plan.Plan.to_networkx`."""
        if self.dependences is None:
            raise UsageError(
                "it is not known which kernels wait for which: an earlier release saved the plan",
                hint="compile the model again",
            )
        made = new_network(self.model)
        names = kernel_names((one.kind, one.region) for one in self.launches)
        for place, one in enumerate(self.launches):
            measured = one.time_us is not None
            made.add_node(
                place, name=names[place], symbol=one.name, kind=one.kind,
                sources=one.nodes, bytes=one.boundary.total, flops=one.flops, measured=measured,
                time_us=one.time_us if measured else one.roofline_us,
            )  # fmt: skip
        for item in self.dependences:
            made.add_edge(item.source, item.target, kind=item.kind, bytes=item.bytes)
        return made

    def critical_path(self, *, reuse: bool = True) -> CriticalPath | None:
        """The chain of kernels that bounds a run (fuser/runtime/critical_path.py); None where that
        is not known: without networkx, and of a plan that an earlier release saved."""
        try:
            return critical_path(self.to_networkx(), reuse=reuse)
        except UsageError:
            return None

    def savings(self) -> list[Saved]:
        """What fusion saved, a line each."""
        return savings(self.kernels, self.boundary, self.dram, self.latency_ms, self.unfused_ms)

    @property
    def unfused_ms(self) -> Latency | None:
        """The latency of the plan without fusion, where it was run."""
        return self.unfused.latency_ms if self.unfused else None

    def to_dict(self, schema: int = SCHEMA) -> dict[str, Any]:
        """Plain data, the keys in the order of the schema, 1 or 2; what was not measured is None.
        Raises UsageError for another schema."""
        if schema == 1:
            return self._schema_1()
        if schema != SCHEMA:
            raise UsageError(f"the report has no schema {schema}", hint="there are 1 and 2")
        table = asdict(self)
        return {
            "schema": SCHEMA,
            **{key: table[key] for key in ("model", "device", "target", "dims", "threads")},
            **{key: table[key] for key in ("precision", "numerics", "rewrites", "kernels")},
            "boundary_bytes": _three(self.boundary),
            "dram_bytes": _three(self.dram),
            "dram_bytes_cold": _three(self.dram_cold),
            "packed_bytes": self.bytes.packed,
            "latency_ms": table["latency_ms"],
            "unfused": self.unfused and self.unfused.to_dict(),
            **{key: table[key] for key in ("compile_s", "cache_hits")},
            "peak_memory_bytes": self.peak_memory_bytes,
            "tuned": table["tuned"],
            "fallbacks": list(self.fallbacks),
            "forced": self.forced,
            "profile": table["profile"],
            "launches": [launch.to_dict() for launch in self.launches],
            "critical_path": None if (path := self.critical_path()) is None else path.to_dict(),
            "compare": self._compared(),
            "peer": self.peer,
        }

    def _schema_1(self) -> dict[str, Any]:
        table = asdict(self)
        return {
            "schema": 1,
            **{key: table[key] for key in ("model", "device", "kernels", "bytes", "latency_ms")},
            **{key: table[key] for key in ("compile_s", "cache_hits", "peak_memory_bytes")},
            "precision": self.precision,
            "tuned": table["tuned"],
            "fallbacks": list(self.fallbacks),
            "regions": [asdict(region) | {"nodes": list(region.nodes)} for region in self.regions],
            "compare": self._compared(),
        }

    def _compared(self) -> dict[str, Any] | None:
        if self.compare is None:
            return None
        return {
            **{key: getattr(self.compare, key) for key in ("max_abs", "max_rel", "ok")},
            "differs": list(self.compare.differs),
        }

    def _summary(self) -> Summary:
        saved = self.savings()
        facts = [
            ("device", self.device), *((item.label, str(item)) for item in saved),
            ("peak memory", byte_size(self.peak_memory_bytes)), ("precision", self.precision),
            ("numerics", self.numerics),
            ("compiled in", duration(self.compile_s)),
            *((name, str(size)) for name, size in self.dims.items()),
            *(("fallback", text) for text in self.fallbacks),
        ]  # fmt: skip
        if self.latency_ms is not None:
            facts.append(("latency", milliseconds(self.latency_ms.median)))
        short = [self.device, *(f"{one.label} {one.before} -> {one.after}" for one in saved)]
        return Summary(self.model, [], [], facts, short)

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Report:
        """The inverse of `dataclasses.asdict`, of a report without measurements. Raises KeyError or
        TypeError."""
        parts = {
            "kernels": Saving(**record["kernels"]),
            "bytes": Traffic(**record["bytes"]),
            "regions": tuple(
                RegionReport(**{**region, "nodes": tuple(region["nodes"])})
                for region in record["regions"]
            ),
            "fallbacks": tuple(record["fallbacks"]),
            "values": tuple(record["values"]),
            "tuned": tuple(Tuned(**item) for item in record["tuned"]),
            "rewrites": tuple(
                Rewritten(item["rule"], item["kind"], tuple(item["nodes"]))
                for item in record.get("rewrites", ())
            ),
            "target": record["target"] and Device(**record["target"]),
            **{name: Traffic(**record[name]) for name in ("boundary", "dram", "dram_cold")},
            "launches": tuple(map(KernelReport.from_record, record["launches"])),
        }
        return Report(**{**record, **parts})


def _three(traffic: Traffic) -> dict[str, int]:
    return {"before": traffic.before, "after": traffic.after, "floor": traffic.floor}


def kernel_names(kernels: Iterable[tuple[str, int]]) -> list[str]:
    """A name for each kernel, given as kind and region, that no other has: its region, and a number
    where a region has several kernels."""
    found = list(kernels)
    sizes, seen = Counter(region for _, region in found), Counter[int]()
    names = []
    for kind, region in found:
        seen[region] += 1
        part = f".{seen[region]}" if sizes[region] > 1 else ""
        names.append(f"{kind}_{region}{part}")
    return names
