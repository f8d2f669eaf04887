"""The report: what fusion saved, what ran, and how fast. Schema 1.

Definitions (the same in the CLI, the API and JSON), all per run at the run's shapes:
  kernels.before  kernels if every imported compute node ran alone; constants, shape arithmetic and
                  pure views (Reshape and the like) are not counted
  kernels.after   kernels the plan launches
  bytes.before    sum over those nodes of the bytes of their distinct inputs and outputs
  bytes.after     the same over the plan's kernels
  bytes.floor     model inputs, weights used and outputs, each once
  bytes.packed    what kernels do not read because weights are codes of few bits: the bytes of the
                  dequantised weights less those of the codes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fuser.graph.ir import Graph, SourceNode, Value
from fuser.runtime.latency import Latency
from fuser.runtime.shown import Shown, Summary

SCHEMA = 1


@dataclass(frozen=True)
class Saving:
    """A count before and after fusion."""

    before: int
    after: int


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between kernels and memory in one run."""

    before: int
    after: int
    floor: int
    packed: int = 0


@dataclass(frozen=True)
class RegionReport:
    """One region: its kernel's traffic and work, and the schedule that was chosen."""

    id: int
    kind: str
    nodes: tuple[str, ...]
    bytes: int
    flops: int
    schedule: dict[str, Any] = field(default_factory=dict)


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
    not as expected, or that one of the two has not."""

    max_abs: float
    max_rel: float
    ok: bool
    reference: str = ""
    differs: tuple[str, ...] = ()


@dataclass(repr=False)
class Report(Shown):
    """What `plan.report()` gives. `to_dict` is the JSON of `fuser run --report`."""

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
    tuned: tuple[Tuned, ...] = ()
    """Kernels with measured schedules (pipeline/tuning.py)."""
    latency_ms: Latency | None = None
    compare: Comparison | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the keys in the order of the schema; what was not measured is None."""
        table = asdict(self)
        compare = self.compare and {
            **{key: getattr(self.compare, key) for key in ("max_abs", "max_rel", "ok")},
            "differs": list(self.compare.differs),
        }
        return {
            "schema": SCHEMA,
            **{key: table[key] for key in ("model", "device", "kernels", "bytes", "latency_ms")},
            **{key: table[key] for key in ("compile_s", "cache_hits", "peak_memory_bytes")},
            "precision": self.precision,
            "tuned": [asdict(item) for item in self.tuned],
            "fallbacks": list(self.fallbacks),
            "regions": [asdict(region) | {"nodes": list(region.nodes)} for region in self.regions],
            "compare": compare,
        }

    def _summary(self) -> Summary:
        kernels, traffic = self.kernels, self.bytes
        saved = f"{kernels.before} -> {kernels.after}"
        moved = f"{traffic.before:,} -> {traffic.after:,} (floor {traffic.floor:,})"
        facts = [
            ("device", self.device), ("kernels", saved), ("bytes moved", moved),
            ("memory", f"{self.peak_memory_bytes:,} bytes"), ("precision", self.precision),
            ("compiled in", f"{self.compile_s:.2f} s"),
            *((name, str(size)) for name, size in self.dims.items()),
            *(("fallback", text) for text in self.fallbacks),
        ]  # fmt: skip
        if self.latency_ms is not None:
            facts.append(("latency", f"{self.latency_ms.median:.3f} ms"))
        short = [self.device, f"kernels {saved}", f"bytes {moved}"]
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
        }
        return Report(**{**record, **parts})


def nodes_before(graph: Graph) -> list[SourceNode]:
    """The imported nodes that would each be a kernel."""
    return [node for node in graph.source if node.kind == "compute"]


def bytes_before(graph: Graph) -> int:
    """Traffic if every compute node ran alone."""
    return sum(
        tensor.bytes for node in nodes_before(graph) for tensor in (*node.inputs, *node.outputs)
    )


def bytes_floor(graph: Graph, constants: Sequence[Value]) -> int:
    """Inputs, `constants` (the weights that kernels read) and outputs, each once."""
    once = dict.fromkeys((*graph.inputs, *constants, *graph.outputs))
    return sum(value.type.bytes for value in once)
