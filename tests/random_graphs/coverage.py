"""What the drawn graphs reach in the partitioner, the schedule rules and the emitters.

`Recorder` notes for each graph the functions called while it is partitioned and emitted, and what
came out: kinds of regions, refusals, layouts, tile ops, schedules. `report` lists each with the
graphs, of 100,000, that reach it, those below `LEAST` first. What could be reached is read from the
source (`known`), so that what never was is listed as well.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, get_args

import fuser
from fuser.base.target import Target
from fuser.partition.region import Kind, Partition
from fuser.tilegen import ops
from fuser.tilegen.program import TileProgram

LEAST = 50
"""Graphs of 100,000 that should reach each item."""
SOURCE = Path(fuser.__file__).parent
WATCHED = ("partition", "tilegen/emit", "tilegen/passes")
PREFIX = "COVERAGE "

OPEN = "symbolic sizes: tests/test_dynamic_graphs.py"
ROUNDED = "products that round their operands, a choice of the caller: tests/test_precision.py"
LARGE = "a schedule for millions of elements: tests of tilegen and of the benchmarks' sizes"
TEXT = "text and figures of `fuser explain` and the report"
FORCED = "pairs of nodes that the caller joins or keeps apart: tests/partition/test_forced.py"
NOT_DRAWN: Mapping[str, str] = {
    **dict.fromkeys(
        ("partition/text.py", "partition/explanation.py", "partition/lift.py"), TEXT),
    "partition/cost.py total_flops": TEXT,
    **dict.fromkeys(
        (f"partition/region.py {name}" for name in
         ("origin", "traffic", "spare_bytes", "decoded", "saved_bytes", "bytes")), TEXT),
    **dict.fromkeys(
        ("partition/forced.py", "partition/grouping.py pinned", "partition/grouping.py parted",
         "partition/grouping.py is_pinned", "partition/grouping.py _is_split",
         "partition/grouping.py _with_virtual", "partition/passes/copy_pinned.py",
         "refusal forbidden", "refusal reserved"), FORCED),
    "refusal placed": "noted, and another reason is always given (refuse.py)",
    "region host": "operators without kernels, which no primitive is",
    "partition/dag.py is_convex": "a check of the tests of the partition",
    "partition/storage.py _reads_whole": ROUNDED,
    "partition/ungroup.py": "fused regions that are no kernel fail here: tests/partition",
    "tilegen/emit/space.py number": ROUNDED,
    "tilegen/passes/fold.py decide_symbolic": OPEN,
    "tilegen/emit/primitives.py _dims": OPEN,
    "tilegen/passes/masks.py is_in_bounds": "asked by back ends",
    **dict.fromkeys(
        (f"tilegen/rules/gpu/{name}" for name in
         ("stream_k.py cut_of", "stream_k.py cut_cost", "ping_pong.py ping_pong_schedule",
          "ping_pong.py wave_of")), LARGE),
}  # fmt: skip
"""What the drawing leaves to other tests: a file, or an item, and why."""


def watched_files() -> list[Path]:
    files = [path for folder in WATCHED for path in sorted((SOURCE / folder).glob("*.py"))]
    return [*files, *sorted((SOURCE / "tilegen" / "rules").rglob("*.py"))]


def known() -> list[str]:
    """Every item that a graph could reach, by the source."""
    items = [f"region {kind}" for kind in get_args(Kind)]
    items += [f"tile op {op.opcode}" for op in vars(ops).values()
              if isinstance(op, type) and getattr(op, "opcode", "")]  # fmt: skip
    refusals, functions = set(), []
    for path in watched_files():
        name = str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                functions.append(f"{name} {node.name}")
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Misfit":
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    refusals.add(f"refusal {code.value}")
    return [*items, *sorted(refusals), *dict.fromkeys(functions)]


class Recorder:
    """Counts, for each item, the graphs that reached it."""

    def __init__(self) -> None:
        self.graphs = 0
        self.counts: Counter[str] = Counter()
        self._found: set[str] = set()
        self._names: dict[CodeType, str | None] = {}
        self._files = {
            str(path): str(path.relative_to(SOURCE)) for path in watched_files()
        }  # fmt: skip

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Note the functions that are called inside."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        try:
            name = self._names[code]
        except KeyError:
            file = self._files.get(code.co_filename)
            name = f"{file} {code.co_name}" if file and code.co_name[0] != "<" else None
            self._names[code] = name
        if name is not None:
            self._found.add(name)

    def made(self, cut: Partition, programs: list[TileProgram], target: Target) -> None:
        """Note what came out for one target."""
        found = self._found
        side = "cuda" if target.is_cuda else "cpu"
        for region in cut.regions:
            found.add(f"region {region.kind}")
            found.update(f"fact {key}" for key in region.facts)
            found.add(f"anchors {region.kind} {min(len(region.anchors), 3)}")
        found.update(f"refusal {refusal.code}" for refusal in cut.refusals)
        for value, order in cut.layouts.items():
            last = order == (0, *range(2, value.type.rank), 1)
            found.add(f"layout {'channels last' if last else 'turned'}")
        found.update(f"copy {dtype}" for dtype in cut.copies.values())
        if cut.narrow:
            found.add("copy alone")
        for program in programs:
            found.update(f"tile op {op.opcode}" for op in program.kernel.walk())
            schedule, kind = program.kernel.schedule, f"{program.region.kind} {side}"
            always = {*(f"block_{name}" for name, _ in schedule.blocks), "warps"}
            names = (
                schedule.to_dict().keys() - always - ({"stages"} if schedule.stages == 1 else set())
            )
            found.update(f"schedule {kind} {name}" for name in sorted(names))

    def next_graph(self) -> None:
        """What was noted belongs to one graph; begin another."""
        self.graphs += 1
        self.counts.update(self._found)
        self._found.clear()

    def dump(self) -> str:
        """One line for the parent process."""
        return PREFIX + json.dumps({"graphs": self.graphs, "counts": self.counts})


def merged(lines: list[str]) -> tuple[int, Counter[str]]:
    """The graphs and counts of several recorders' lines."""
    graphs, counts = 0, Counter[str]()
    for line in lines:
        record = json.loads(line.removeprefix(PREFIX))
        graphs += record["graphs"]
        counts.update(record["counts"])
    return graphs, counts


def excused(item: str) -> str:
    """Why an item need not be drawn; empty if it must."""
    file = item.split(" ")[0]
    return NOT_DRAWN.get(item, "") or NOT_DRAWN.get(file, "")


def report(graphs: int, counts: Mapping[str, int]) -> str:
    """Each item with its count of 100,000 graphs, the rare ones first."""
    items = dict.fromkeys([*known(), *sorted(counts)])
    share = {item: round(counts.get(item, 0) * 100_000 / max(graphs, 1)) for item in items}
    rare = [item for item in items if share[item] < LEAST and not excused(item)]
    rest = [item for item in items if item not in set(rare) and not excused(item)]
    lines = [f"coverage of {graphs} graphs: {len(rest)} items reached by {LEAST} of 100,000 or "
             f"more, {len(rare)} by fewer"]  # fmt: skip
    lines += [f"  RARE {share[item]:6d}  {item}" for item in sorted(rare, key=share.__getitem__)]
    lines += [f"       {share[item]:6d}  {item}" for item in sorted(rest, key=share.__getitem__)]
    left = [item for item in items if excused(item)]
    lines += [f"  LEFT OUT {item}: {excused(item)}" for item in left]
    return "\n".join(lines)


RECORDER: list[Recorder] = []
"""The one of this process, if it records."""
