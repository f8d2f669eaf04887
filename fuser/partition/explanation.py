"""What `fuser explain` says of a partition, as data: its regions, and what each refusal costs.

Bytes are those that cross the boundaries of kernels (`Region.bytes`), flops those of
`cost.total_flops`. Seconds are predicted by the roofline of cost.py: work at the units' rate or
bytes at the memory's, whichever takes longer, and a launch. What a refusal would save is an upper
bound: what the two kernels take, less the least that one with the work of both would.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuser.base.target import Target
from fuser.graph.sizes import by_example
from fuser.partition import cost
from fuser.partition.lift import lift
from fuser.partition.region import Partition, Refusal, Region

SMALL = 0.01
"""Share of a run below which refused fusions are listed together."""


@dataclass(frozen=True)
class RegionRow:
    """One region: its ONNX nodes in order (primitives, if it has none), the bytes it moves, the
    operations it does and the time predicted (0 without a target)."""

    id: int
    name: str
    kind: str
    nodes: tuple[str, ...]
    bytes: int
    flops: int
    seconds: float


@dataclass(frozen=True)
class RefusalRow:
    """One fusion that was refused: the regions and ONNX nodes at both ends of the value between
    them, why, the bytes and the time that it would save at most, and what a person can do to lift
    it ("" where that is nothing).

    Of several values between two regions each has its part of the time, by its bytes.
    """

    producer: str
    consumer: str
    value: str
    sources: tuple[str, ...]
    readers: tuple[str, ...]
    code: str
    reason: str
    bytes: int
    seconds: float
    lift: str


@dataclass(frozen=True)
class Explanation:
    """The regions of a partition in order, and its refusals, those of most time first.
    packed_bytes: what is not read because weights stay packed."""

    regions: tuple[RegionRow, ...]
    refusals: tuple[RefusalRow, ...]
    packed_bytes: int

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.regions)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.regions)

    @property
    def groups(self) -> list[RefusalGroup]:
        """The refusals by code, those of most time first."""
        return refusal_groups(self.refusals, {row.name: row.seconds for row in self.regions})

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the part of `fuser explain --json` that the partition decides."""
        return {
            "kernels": len(self.regions),
            "bytes": self.bytes,
            "seconds": self.seconds,
            "packed_bytes": self.packed_bytes,
            "regions": [_plain(row) for row in self.regions],
            "refusals": [_plain(row) for row in self.refusals],
        }


def _plain(row: RegionRow | RefusalRow) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(row).items()}


@by_example
def explanation(cut: Partition, moved: Mapping[int, int] | None = None) -> Explanation:
    """What there is to say of a partition. moved: the bytes of each region's kernels, by its id,
    where these are known; else its tensors count whole."""
    bytes_of = {region.id: region.bytes() for region in cut.regions} if moved is None else moved
    rows = tuple(
        RegionRow(
            region.id, region.name, region.kind,
            region.origin or tuple(dict.fromkeys(node.op for node in region.nodes)),
            bytes_of[region.id], cost.total_flops(region.nodes),
            cost.seconds(cut.target, region.nodes, bytes_of[region.id]) if cut.target else 0.0,
        )
        for region in cut.regions
    )  # fmt: skip
    saved = _saved(cut.refusals, cut.regions, rows, cut.target) if cut.target else {}
    refused = [
        RefusalRow(
            item.producer, item.consumer, item.value, item.sources, item.readers, item.code,
            item.reason, item.bytes_lost, saved.get(number, 0.0), lift(item),
        )
        for number, item in enumerate(cut.refusals)
    ]  # fmt: skip
    refused.sort(key=lambda row: (-row.seconds, -row.bytes))
    return Explanation(rows, tuple(refused), sum(r.saved_bytes() for r in cut.regions))


def _saved(
    refusals: Sequence[Refusal], regions: Sequence[Region], rows: Sequence[RegionRow],
    target: Target,
) -> dict[int, float]:  # fmt: skip
    """The seconds that each refusal, by its place, costs at most: two kernels less one with the
    work of both and fewer bytes."""
    between: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for number, item in enumerate(refusals):
        pair = between.setdefault((item.producer, item.consumer), [])
        pair.append((number, item.bytes_lost))
    work = {region.name: cost.work_seconds(target, region.nodes) for region in regions}
    known = {row.name: row for row in rows}
    found: dict[int, float] = {}
    for (one, other), lost in between.items():
        if one not in known or other not in known:
            continue
        total = sum(count for _, count in lost)
        apart = known[one].seconds + known[other].seconds
        moved = max(0, known[one].bytes + known[other].bytes - total)
        gain = max(0.0, apart - cost.kernel_seconds(target, work[one] + work[other], moved))
        for number, count in lost:
            found[number] = gain * (count / total if total else 1 / len(lost))
    return found


@dataclass(frozen=True)
class RefusalGroup:
    """Fusions refused with one code, those of most time first, and the seconds that all of them
    would save at most: no more than all their kernels but the longest take."""

    code: str
    rows: tuple[RefusalRow, ...]
    seconds: float

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def reason(self) -> str:
        """That of most of them."""
        return Counter(row.reason for row in self.rows).most_common(1)[0][0]


def refusal_groups(rows: Iterable[RefusalRow], times: Mapping[str, float]) -> list[RefusalGroup]:
    """Refusals by code, those of most time first. times: seconds of each region, by its name."""
    table: dict[str, list[RefusalRow]] = {}
    for row in rows:
        table.setdefault(row.code, []).append(row)
    found = []
    for code, same in table.items():
        ends = {name for row in same for name in (row.producer, row.consumer)}
        known = [times[name] for name in ends if name in times]
        most = sum(known) - max(known) if len(known) == len(ends) else math.inf
        seconds = min(most, sum(row.seconds for row in same))
        order = sorted(same, key=lambda row: (-row.seconds, -row.bytes))
        found.append(RefusalGroup(code, tuple(order), seconds))
    return sorted(found, key=lambda group: (-group.seconds, -group.bytes))


def folded(
    groups: Iterable[RefusalGroup], seconds: float
) -> tuple[list[RefusalGroup], list[RefusalGroup]]:
    """The groups that are worth reading, and those that would save less than SMALL of a run that
    takes so many seconds."""
    shown: list[RefusalGroup] = []
    small: list[RefusalGroup] = []
    for group in groups:
        (small if group.seconds < SMALL * seconds else shown).append(group)
    return shown, small
