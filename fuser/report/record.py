"""A report as a page reads it: the JSON of schema 2, checked and with its kernels as records."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from fuser.errors import UsageError
from fuser.report.breakdown import Part, breakdown
from fuser.runtime.latency import Latency
from fuser.runtime.plan_report import Device, kernel_names
from fuser.runtime.savings import Saved, Saving, Traffic, is_slower, savings

MOST_SHOWN = 200
THREE = ("before", "after", "floor")
TIMES = ("median", "p90", "p99", "iterations")
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


_NAMES, _NUMBER, _MAYBE = "list of names", (int, float), (int, float, type(None))
FIELDS: dict[str, Any] = {
    "kernels.before": int, "kernels.after": int, "peak_memory_bytes": int, "compile_s": _NUMBER,
    "launches.*.name": str, "launches.*.kind": str, "launches.*.nodes": _NAMES,
    "launches.*.time_us": _MAYBE, "launches.*.schedule": dict, "launches.*.region": int,
    "launches.*.programs": int, "launches.*.algorithm?": str,
    "launches.*.flops": int, "launches.*.roofline_us": _NUMBER,
    **{f"launches.*.{key}_bytes.{way}": int
       for key in ("boundary", "dram") for way in ("read", "written")},
    **{f"{key}_bytes.{when}": int
       for key in ("boundary", "dram") for when in ("before", "after", "floor")},
    "target?.name": str, "target?.units": int,
    **{f"target?.{key}": _NUMBER for key in ("bandwidth", "flops_f32", "flops_f16")},
    "unfused?.note": str,
    "profile?.device_us?": _NUMBER,
    **{f"{at}latency_ms?.{key}": _NUMBER for at in ("", "unfused?.") for key in TIMES},
    **{f"unfused?.launches.*.{key}": str for key in ("name", "kind")},
    "unfused?.launches.*.nodes": _NAMES, "unfused?.launches.*.time_us": _NUMBER,
    "dims": dict, "fallbacks": _NAMES, "precision": str, "numerics?": str, "model": str,
    **{f"critical_path?.{key}": _NUMBER for key in ("us", "total_us", "data_us", "overlap_us")},
    **{f"critical_path?.{key}.*.node": int for key in ("kernels", "off")},
    "critical_path?.off.*.overlap_us": _NUMBER,
    **{f"forced?.{key}.*": _NAMES for key in ("pin", "forbid")},
    "details?.nodes.*.name": str, "details?.nodes.*.op": str, "details?.nodes.*.kind": str,
    "details?.nodes.*.reads": _NAMES,
    "details?.tensors.*.type": str, "details?.tensors.*.bytes": int,
    "details?.tensors.*.readers": list, "details?.tensors.*.outputs": _NAMES,
    "details?.tensors.*.input": (str, type(None)), "details?.tensors.*.writer": (int, type(None)),
    **{f"details?.refusals.*.{name}": str
       for name in ("producer", "consumer", "code", "reason", "lift")},
    "details?.refusals.*.bytes": _NUMBER, "details?.refusals.*.seconds": _NUMBER,
    "details?.seconds?": _NUMBER,
    "details?.texts.*.tile?": str, "details?.texts.*.code?": str, "details?.texts.*.stage?": str,
    "details?.texts.*.same?": int, "launches.*.counters?": dict, "threads?": int,
}  # fmt: skip
"""What a page reads of the JSON, and its types. A star: each of a list; ?: if it is there."""


def _check(data: Any, path: list[str], kind: Any) -> None:
    """Raise KeyError, TypeError or ValueError unless the value at a path has a type."""
    if not path:
        if kind is _NAMES:
            if not all(isinstance(name, str) for name in list(data)):
                raise TypeError("names that are no text")
        elif not isinstance(data, kind) or isinstance(data, bool):
            raise TypeError(f"{data!r:.40} where another type is meant")
        elif isinstance(data, int | float) and not 0 <= data < math.inf:
            raise ValueError(f"the number {data}")
        return
    head, *rest = path
    if head == "*":
        for item in data:
            _check(item, rest, kind)
    elif not head.endswith("?"):
        _check(data[head], rest, kind)
    elif (found := data.get(head.removesuffix("?"))) is not None:
        _check(found, rest, kind)


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel of the report. Bytes are of one run, times in microseconds; time: None where it was
    not measured. own: a name that no other kernel has, where `name` is the symbol of the code."""

    at: int
    own: str
    name: str
    region: int
    kind: str
    nodes: tuple[str, ...]
    read: int
    written: int
    dram: int
    flops: int
    roofline: float
    time: float | None
    schedule: Mapping[str, Any]
    counters: Mapping[str, float]
    programs: int = 1
    algorithm: str = ""

    @property
    def label(self) -> str:
        """Its region, as `fuser explain` and `fuser dump` call it."""
        return f"{self.kind}_{self.region}"

    @property
    def reached(self) -> float:
        """The least time as a share of the time, 1 at most."""
        return min(1.0, self.roofline / self.time) if self.time else 1.0

    @property
    def is_above(self) -> bool:
        """Whether it was measured to be faster than its roofline."""
        return self.time is not None and self.time < self.roofline

    @property
    def id(self) -> str:
        """The anchor of its part of the page."""
        return f"k{self.at}"

    @property
    def shown_time(self) -> float:
        """The measured time, else the roofline's."""
        return self.roofline if self.time is None else self.time


@dataclass(frozen=True)
class Record:
    """A report: `data` is its JSON. Raises UsageError for what is no report of schema 2."""

    data: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> Record:
        """The report in a JSON file. Raises UsageError."""
        try:
            data = json.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{path} is no JSON: {error}") from error
        record = Record(data)
        try:
            record.check()
        except MALFORMED as error:
            hint = "fuser report MODEL --json and fuser run MODEL --report FILE write them"
            what = f"{path} is no report of schema 2"
            raise UsageError(f"{what}: {type(error).__name__} {error}", hint=hint) from error
        return record

    def check(self) -> None:
        """Raise one of MALFORMED unless all that a page needs is there."""
        if self.data["schema"] != 2:
            raise ValueError(f"its schema is {self.data['schema']}")
        _ = (
            self.title,
            self.savings,
            self.parts,
            self.target,
            self.nodes,
            self.tensors,
            self.texts,
            self.refusals,
        )
        for path, kind in FIELDS.items():
            _check(self.data, path.split("."), kind)
        for at, item in enumerate(self.texts):
            if not 0 <= item.get("same", 0) <= at:
                raise ValueError("a text refers to one that is not there")
        _ = self.critical

    @cached_property
    def critical(self) -> tuple[tuple[Launch, ...], tuple[tuple[Launch, float], ...]]:
        """The kernels of the critical path, and the others with the microseconds of each that could
        overlap with it; empty where it is not known."""
        found = self.data.get("critical_path") or {"kernels": (), "off": ()}
        on = tuple(self.launches[item["node"]] for item in found["kernels"])
        off = ((self.launches[item["node"]], item["overlap_us"]) for item in found["off"])
        return on, tuple(off)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        names = kernel_names((item["kind"], item["region"]) for item in self.data["launches"])
        return tuple(
            Launch(
                at, names[at], item["name"], item["region"], item["kind"], tuple(item["nodes"]),
                item["boundary_bytes"]["read"], item["boundary_bytes"]["written"],
                item["dram_bytes"]["read"] + item["dram_bytes"]["written"],
                item["flops"], item["roofline_us"], item["time_us"], item["schedule"],
                item.get("counters") or {}, item["programs"], item.get("algorithm", ""),
            )
            for at, item in enumerate(self.data["launches"])
        )  # fmt: skip

    @property
    def title(self) -> str:
        return f"{self.data['model']} on {self.data['device']}"

    @property
    def latencies(self) -> tuple[Latency | None, Latency | None]:
        """Latencies of the plan and of the plan without fusion; None where they were not timed."""
        times = [way.get("latency_ms") for way in (self.data, self.data.get("unfused") or {})]
        fused, alone = (item and Latency(**item) for item in times)
        return fused, alone

    @property
    def slower(self) -> bool:
        """Whether the plan was measured to be slower than that without fusion."""
        return is_slower(*self.latencies)

    @property
    def unfused_note(self) -> str:
        """Why the plan without fusion was not run; empty where it was, or is not known."""
        return str((self.data.get("unfused") or {}).get("note", ""))

    @cached_property
    def savings(self) -> list[Saved]:
        """What fusion saved, a line each."""
        counts = self.data["kernels"]
        fused, alone = self.latencies
        memory, dram = (Traffic(*(way[key] for key in THREE)) for way in (self.boundary, self.dram))
        kernels = Saving(counts["before"], counts["after"])
        return savings(kernels, memory, dram, fused, alone)

    @property
    def unfused(self) -> tuple[Launch, ...]:
        """The kernels of the plan without fusion, where they were timed."""
        told = (self.data.get("unfused") or {}).get("launches") or ()
        return tuple(
            Launch(at, item["name"], item["name"], -1, item["kind"], tuple(item["nodes"]), 0, 0, 0,
                   0, 0.0, item["time_us"], {}, {})
            for at, item in enumerate(told)
        )  # fmt: skip

    @cached_property
    def target(self) -> Device | None:
        """The device that rooflines describe; None where nothing was compiled."""
        found = self.data.get("target")
        return Device(**found) if found else None

    @property
    def device(self) -> str:
        """The kind of device, "cpu" or "cuda"; "" where the report does not say."""
        return str((self.data.get("target") or {}).get("name", ""))

    @property
    def boundary(self) -> Mapping[str, int]:
        """Bytes through memory: before, after, floor."""
        return cast("Mapping[str, int]", self.data["boundary_bytes"])

    @property
    def parts(self) -> list[Part]:
        """Where the time of a run goes; empty where none was timed kernel by kernel."""
        latency, profile = self.data.get("latency_ms"), self.data.get("profile")
        if not (latency and profile and self.is_measured):
            return []
        kernels = [(one.kind, one.shown_time) for one in self.launches]
        return breakdown(kernels, latency["median"] * 1e3, profile.get("device_us"))

    @property
    def dram(self) -> Mapping[str, int]:
        return cast("Mapping[str, int]", self.data["dram_bytes"])

    @property
    def is_measured(self) -> bool:
        """Whether every kernel has a measured time."""
        return bool(self.launches) and all(one.time is not None for one in self.launches)

    @cached_property
    def dearest(self) -> tuple[Launch, ...]:
        """The kernels that take longest, at most MOST_SHOWN, in launch order."""
        found = sorted(self.launches, key=lambda one: -one.shown_time)[:MOST_SHOWN]
        return tuple(sorted(found, key=lambda one: one.at))

    @property
    def total(self) -> float:
        """Microseconds of all kernels together."""
        return sum(one.shown_time for one in self.launches)

    @property
    def total_roofline(self) -> float:
        return sum(one.roofline for one in self.launches)

    def _details(self, name: str) -> list[Any]:
        return list((self.data.get("details") or {}).get(name) or ())

    @property
    def nodes(self) -> list[Any]:
        """The model's nodes (pipeline/details.py), none in a report without details."""
        return self._details("nodes")

    @property
    def tensors(self) -> list[Any]:
        return self._details("tensors")

    @property
    def texts(self) -> list[Any]:
        return self._details("texts")

    @property
    def refusals(self) -> list[Any]:
        return self._details("refusals")

    @property
    def predicted_seconds(self) -> float:
        """Seconds of a run as the partitioner predicts them; 0 in a report without details."""
        return float((self.data.get("details") or {}).get("seconds") or 0.0)

    @cached_property
    def homes(self) -> dict[str, int]:
        """The one region that shows each node of the model."""
        regions: dict[int, tuple[str, ...]] = {}
        for one in self.launches:
            regions.setdefault(one.region, one.nodes)
        return homes(regions, {node["name"]: node["reads"] for node in self.nodes})

    @property
    def namespaces(self) -> dict[str, str]:
        """The region of each node, by names."""
        labels = {one.region: one.label for one in self.launches}
        return {name: labels[region] for name, region in self.homes.items()}

    @property
    def regions_of(self) -> dict[str, list[str]]:
        """All regions that have a part of each node."""
        found: dict[str, dict[str, None]] = {}
        for one in self.launches:
            for name in one.nodes:
                found.setdefault(name, {})[one.label] = None
        return {name: list(labels) for name, labels in found.items()}


def homes(regions: Mapping[int, tuple[str, ...]], reads: Mapping[str, list[str]]) -> dict[str, int]:
    """The region that each node is put to. A node that several regions have a part of (they compute
    it again, or read a slice of it) goes where most of its neighbours are that one region alone
    has; else to the smallest, the first of these."""
    found: dict[str, list[int]] = {}
    for region, names in regions.items():
        for name in names:
            found.setdefault(name, []).append(region)
    near: dict[str, list[str]] = {}
    for name, others in reads.items():
        for other in others:
            near.setdefault(name, []).append(other)
            near.setdefault(other, []).append(name)
    sole = {name: places[0] for name, places in found.items() if len(places) == 1}

    def claim(name: str, region: int) -> tuple[int, int]:
        votes = sum(sole.get(other) == region for other in near.get(name, ()))
        return votes, -len(regions[region])

    return {
        name: max(places, key=lambda region: claim(name, region)) for name, places in found.items()
    }
