"""A model on several devices: a plan a rank, each in a process of its own, run as one.

A `ShardedPlan` is used as a `Plan` is. It is saved as a folder: the plan file of every rank, which
is a plan like any other, and `sharding.json`, which says how their tensors make up the model's.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fuser.base.forks import new_lock
from fuser.base.target import Target
from fuser.dtypes import BY_NAME
from fuser.errors import InvalidModelError, UsageError
from fuser.graph.sharding.layout import Layout, Split, join, normal, part
from fuser.graph.units import byte_size, counted
from fuser.runtime.container import reading
from fuser.runtime.deferred import Deferred
from fuser.runtime.feeds import check_feeds
from fuser.runtime.inputs import Hints, random_feeds
from fuser.runtime.latency import Latency
from fuser.runtime.plan import latency_of
from fuser.runtime.plan_report import Report
from fuser.runtime.program import Exchange, Program, TensorSpec, exchanges_of
from fuser.runtime.ranks import Ranks
from fuser.runtime.shown import Shown, Summary, specs_shown
from fuser.runtime.store import load_programs, save_program

NOTE = "sharding.json"
VERSION = 1


@dataclass(frozen=True)
class Tensor:
    """An input or output of the model, and how ranks divide it."""

    spec: TensorSpec
    layout: Layout


class ShardedPlan(Shown):
    """The plans of all ranks, run as one plan; ranks on GPUs have GPU `devices[rank]` each.

        plan = fuser.compile("model.onnx", devices=2)
        outputs = plan.run({"x": array})           # whole arrays in, whole arrays out

    programs: of the ranks, in order; on a CPU `threads` is for each. report: of the first rank.
    Raises DeviceError where a rank does not start.
    """

    def __init__(
        self, programs: Sequence[Program], inputs: Sequence[Tensor], outputs: Sequence[Tensor], *,
        threads: int | None = None, devices: Sequence[int] = (),
        report: Report | Deferred[Report] | None = None, hints: Hints | None = None,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.programs = tuple(programs)
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._reported, self._hints = report, dict(hints or {})
        self._lock = new_lock()
        check_alike(programs)
        chosen = list(devices) or list(range(len(programs)))
        if folder is not None:
            plans = _plan_files(folder, len(programs))
            self._ranks = Ranks(plans, programs, threads, chosen)
        else:
            with tempfile.TemporaryDirectory(prefix="fuser-ranks-") as path:
                plans = self._save(Path(path))
                self._ranks = Ranks(plans, programs, threads, chosen)

    @property
    def ranks(self) -> int:
        """How many processes run the plan, one a device."""
        return len(self.programs)

    @property
    def target(self) -> Target:
        """What the kernels are compiled for, the same on each rank."""
        return self.programs[0].target

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each whole input, in the model's order."""
        return tuple(item.spec for item in self._inputs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each whole output, in the model's order."""
        return tuple(item.spec for item in self._outputs)

    @property
    def launches(self) -> int:
        """Kernels and collectives that a run launches on each rank."""
        return len(self.programs[0].launches)

    @property
    def collectives(self) -> tuple[Exchange, ...]:
        """Those of a run, in order."""
        return exchanges_of(self.programs[0].launches)

    @property
    def device_name(self) -> str:
        """The number of ranks, and the device of the first."""
        return f"{self.ranks} x {self._ranks.answers[0]['device']}"

    @property
    def peak_memory_bytes(self) -> int:
        """Of the rank that needs most."""
        return max(int(answer["peak_memory_bytes"]) for answer in self._ranks.answers)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run on arrays by input name; new output arrays by name. Raises FeedError, or DeviceError
        where a rank is lost."""
        arrays = check_feeds(self.inputs, feeds)
        with self._lock:
            self._feed(arrays)
            self._ranks.ask({"do": "run"})
            return {
                item.spec.name: join([outputs[number] for outputs in self._ranks.outputs],
                                     item.layout).reshape(item.spec.shape).copy()
                for number, item in enumerate(self._outputs)
            }  # fmt: skip

    def run_ranks(self, feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, np.ndarray]]:
        """Run on the parts that each rank is to have, and get those that it made: for models whose
        nodes are collectives themselves. Raises as `run`."""
        if len(feeds) != self.ranks:
            raise UsageError(f"feeds for {len(feeds)} of {self.ranks} ranks")
        with self._lock:
            for program, views, given in zip(self.programs, self._ranks.inputs, feeds, strict=True):
                for view, array in zip(views, check_feeds(program.inputs, given), strict=True):
                    view[...] = array
            self._ranks.ask({"do": "run"})
            names = [item.spec.name for item in self._outputs]
            return [
                dict(zip(names, [array.copy() for array in arrays], strict=True))
                for arrays in self._ranks.outputs
            ]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on arrays in input order, or by name. One output comes back as itself, several as a
        tuple. Raises FeedError."""
        names = [spec.name for spec in self.inputs]
        if len(arrays) > len(names):
            raise UsageError(f"{len(arrays)} arrays for {len(names)} inputs", hint=f"{names}")
        results = tuple(self.run({**dict(zip(names, arrays, strict=False)), **named}).values())
        return results[0] if len(results) == 1 else results

    def _feed(self, arrays: Sequence[np.ndarray]) -> None:
        for number, (item, array) in enumerate(zip(self._inputs, arrays, strict=True)):
            for rank, views in enumerate(self._ranks.inputs):
                views[number][...] = part(array, item.layout, rank)

    def random_feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Seeded inputs that make sense: indices within their table, masks 0 or 1."""
        return random_feeds(self.inputs, self._hints, seed)

    def profile(
        self, feeds: Mapping[str, Any] | None = None, *, iterations: int = 30, warmup: int = 5
    ) -> Latency:
        """Time whole runs, with the data where the ranks have it: of each run the slowest rank's
        time. Seeded random feeds unless given."""
        if iterations < 1:
            raise UsageError(f"cannot time {iterations} iterations", hint="use 1 or more")
        arrays = check_feeds(self.inputs, self.random_feeds() if feeds is None else feeds)
        with self._lock:
            self._feed(arrays)
            order = {"do": "time", "iterations": iterations, "warmup": warmup}
            answers = self._ranks.ask(order)
        times = np.max([answer["seconds"] for answer in answers], axis=0)
        return latency_of([float(t) for t in times])

    def profile_kernels(
        self, feeds: Mapping[str, Any] | None = None, *, iterations: int = 10
    ) -> list[tuple[str, float]]:
        """(kernel, median milliseconds) of each launch of the first rank, in order; the time of a
        collective has the wait for the other ranks in it."""
        arrays = check_feeds(self.inputs, self.random_feeds() if feeds is None else feeds)
        with self._lock:
            self._feed(arrays)
            runs = self._ranks.ask({"do": "kernels", "runs": max(2, iterations + 1)})[0]["seconds"]
        medians = np.median(np.array(runs[1:]).reshape(len(runs) - 1, -1), axis=0) * 1e3
        names = [launch.name for launch in self.programs[0].launches]
        return [(name, float(t)) for name, t in zip(names, medians, strict=True)]

    @property
    def _report(self) -> Report | None:
        found = self._reported
        return found.get() if isinstance(found, Deferred) else found

    def report(self) -> Report:
        """What fusion saved on the first rank. Raises UsageError for a plan that was not made from
        a model."""
        report = self._report
        if report is None:
            raise UsageError("this plan has no report", hint="fuser.compile makes plans that do")
        memory = self.peak_memory_bytes
        device = f"{self.ranks} x {report.device}"
        return replace(report, device=device, peak_memory_bytes=memory)

    def save(self, path: Path | str) -> None:
        """Write a folder for `ShardedPlan.load`: native code for these devices. Raises UsageError
        where it cannot be written."""
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
            self._save(Path(path))
        except OSError as error:
            raise UsageError(f"cannot write the plan {path}: {error.strerror}") from error

    def _save(self, folder: Path) -> list[Path]:
        plans = _plan_files(folder, self.ranks)
        for number, (plan, program) in enumerate(zip(plans, self.programs, strict=True)):
            save_program(program, plan, None if number else self._report)
        ends = {"inputs": self._inputs, "outputs": self._outputs}
        note = {
            "version": VERSION, "ranks": self.ranks,
            **{name: [_record(item) for item in items] for name, items in ends.items()},
        }  # fmt: skip
        (folder / NOTE).write_text(json.dumps(note, indent=1) + "\n")
        return plans

    @classmethod
    def load(
        cls, path: Path | str, *, threads: int | None = None, devices: Sequence[int] = ()
    ) -> ShardedPlan:
        """A saved plan, ready to run; trust it as you trust a program. Raises UsageError,
        InvalidModelError or DeviceError."""
        folder = Path(path)
        try:
            text = (folder / NOTE).read_text()
        except OSError as error:
            raise UsageError(f"cannot read the plan {path}: {error.strerror}") from error
        with reading(folder):
            note = json.loads(text)
            if note["version"] != VERSION:
                raise InvalidModelError(
                    f"the plan is of version {note['version']}, this reads {VERSION}",
                    where=str(folder), hint="compile the model again",
                )  # fmt: skip
            count = int(note["ranks"])
            if not 1 <= count <= MOST_RANKS:
                raise ValueError(f"{count} ranks")
            inputs, outputs = (
                [_tensor(item, count) for item in note[name]] for name in ("inputs", "outputs")
            )
            loaded = [load_programs(file)[0] for file in _plan_files(folder, count)]
            programs = [saved.program for saved in loaded]
            for program in programs:
                for items, specs in ((inputs, program.inputs), (outputs, program.outputs)):
                    if [(item.spec.name, item.layout.local) for item in items] != [
                        (spec.name, spec.shape) for spec in specs
                    ]:
                        raise ValueError("the plans of the ranks are of another model")
            return cls(programs, inputs, outputs, threads=threads, devices=devices,
                       report=loaded[0].report, folder=folder)  # fmt: skip

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks."""
        return self._ranks.pids

    def close(self) -> None:
        """End the ranks; running the plan afterwards is an error."""
        self._ranks.close()

    def __enter__(self) -> ShardedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ranks"):
            self._ranks.close()

    def _summary(self) -> Summary:
        program, met = self.programs[0], counted(len(self.collectives), "collective")
        facts = [
            ("device", self.device_name), ("kernels of a rank", str(self.launches)),
            ("collectives", met), ("memory", byte_size(self.peak_memory_bytes)),
        ]  # fmt: skip
        return Summary(
            program.name, specs_shown(self.inputs), specs_shown(self.outputs), facts,
            [self.device_name, counted(self.launches, "kernel"), met],
        )  # fmt: skip


MOST_RANKS = 1024


def check_alike(programs: Sequence[Program]) -> None:
    """Raise InvalidModelError unless all ranks exchange the same in the same order: they would wait
    for each other for ever."""
    first = exchanges_of(programs[0].launches)
    for rank, program in enumerate(programs):
        if exchanges_of(program.launches) != first:
            raise InvalidModelError(f"rank {rank} exchanges other data than rank 0")
    for exchange in first:
        if sorted(rank for group in exchange.groups for rank in group) != [*range(len(programs))]:
            raise InvalidModelError(
                f"{exchange.kind} goes among the ranks {exchange.groups}, and there are "
                f"{len(programs)}"
            )


def _plan_files(folder: Path, ranks: int) -> list[Path]:
    return [folder / f"rank{rank}.plan" for rank in range(ranks)]


def _record(item: Tensor) -> dict[str, Any]:
    axes = [[[size, s and [s.count, *s.places]] for size, s in axis] for axis in item.layout.axes]
    spec = item.spec
    return {"name": spec.name, "dtype": spec.dtype.name, "shape": spec.shape, "axes": axes}


def _tensor(record: Mapping[str, Any], ranks: int) -> Tensor:
    """The inverse of `_record`. Raises KeyError, TypeError or ValueError."""
    axes = []
    for axis in record["axes"]:
        factors = []
        for size, split in axis:
            found = None if split is None else Split(int(split[0]), tuple(map(int, split[1:])))
            if found and (
                len(found.places) != ranks or found.count < 1 or size % found.count
                or not all(0 <= place < found.count for place in found.places)
            ):  # fmt: skip
                raise ValueError(f"an axis is divided as {split}")
            factors.append((int(size), found))
        axes.append(normal(factors))
    spec = TensorSpec(record["name"], BY_NAME[record["dtype"]], tuple(map(int, record["shape"])))
    layout = Layout(tuple(axes))
    if layout.shape != spec.shape:
        raise ValueError(f"{spec} is divided as {layout}")
    return Tensor(spec, layout)


def is_sharded(path: Path | str) -> bool:
    """Whether a path is a folder that `ShardedPlan.save` wrote."""
    return os.path.isfile(os.path.join(path, NOTE))
