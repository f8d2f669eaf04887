"""What `fuser explain` says of a partition, as data: its regions, and what each refusal costs.

Bytes are those that cross the boundaries of kernels (`Region.bytes`), flops those of
`cost.total_flops`. Seconds are predicted by the roofline of cost.py: work at the units' rate or
bytes at the memory's, whichever takes longer, and a launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fuser.graph.sizes import by_example
from fuser.partition import cost
from fuser.partition.lift import lift
from fuser.partition.options import Pair
from fuser.partition.region import Partition, Refusal, Region, kind_of
from fuser.target import Target


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
    them, why, the bytes and the time that it would save, and what would lift it.

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

    @property
    def kinds(self) -> tuple[str, str]:
        """The kinds of the two regions."""
        return kind_of(self.producer), kind_of(self.consumer)


@dataclass(frozen=True)
class Explanation:
    """The regions of a partition in order, and its refusals, those of most bytes first.
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
def explanation(cut: Partition) -> Explanation:
    """What there is to say of a partition."""
    regions = {region.name: region for region in cut.regions}
    rows = tuple(
        RegionRow(
            region.id, region.name, region.kind,
            region.origin or tuple(dict.fromkeys(node.op for node in region.nodes)),
            region.bytes(), cost.total_flops(region.nodes),
            cost.seconds(cut.target, region.nodes, region.bytes()) if cut.target else 0.0,
        )
        for region in cut.regions
    )  # fmt: skip
    saved = _saved(cut.refusals, regions, cut.target) if cut.target else {}
    refused = [
        RefusalRow(
            item.producer, item.consumer, item.value, item.sources, item.readers, item.code,
            item.reason, item.bytes_lost, saved.get(number, 0.0), lift(item),
        )
        for number, item in enumerate(cut.refusals)
    ]  # fmt: skip
    refused.sort(key=lambda row: -row.bytes)
    return Explanation(rows, tuple(refused), sum(r.saved_bytes() for r in cut.regions))


def change(
    free: Partition, forced: Partition, pin: Iterable[Pair], forbid: Iterable[Pair]
) -> dict[str, Any]:
    """What pins and forbidden pairs made of a partition: kernels, bytes and seconds without and
    with them, as plain data."""
    found = {"unforced": explanation(free), "forced": explanation(forced)}
    return {
        "pin": [list(pair) for pair in pin],
        "forbid": [list(pair) for pair in forbid],
        "kernels": {way: len(each.regions) for way, each in found.items()},
        "bytes": {way: each.bytes for way, each in found.items()},
        "seconds": {way: each.seconds for way, each in found.items()},
    }


def _saved(
    refusals: Iterable[Refusal], regions: Mapping[str, Region], target: Target
) -> dict[int, float]:
    """The seconds that each refusal, by its place, costs: two kernels less one with the work of
    both and fewer bytes."""
    between: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for number, item in enumerate(refusals):
        pair = between.setdefault((item.producer, item.consumer), [])
        pair.append((number, item.bytes_lost))
    work = {name: cost.work_seconds(target, region.nodes) for name, region in regions.items()}
    moved = {name: region.bytes() for name, region in regions.items()}
    found: dict[int, float] = {}
    for (one, other), lost in between.items():
        if one not in regions or other not in regions:
            continue
        total = sum(count for _, count in lost)
        apart = sum(cost.kernel_seconds(target, work[name], moved[name]) for name in (one, other))
        together = max(0, moved[one] + moved[other] - total)
        gain = apart - cost.kernel_seconds(target, work[one] + work[other], together)
        for number, count in lost:
            found[number] = gain * (count / total if total else 1 / len(lost))
    return found


@dataclass(frozen=True)
class RefusalKind:
    """Fusions refused with one code between two kinds of region, those of most bytes first."""

    producer: str
    consumer: str
    code: str
    rows: tuple[RefusalRow, ...]

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)


def refusal_kinds(rows: Iterable[RefusalRow]) -> list[RefusalKind]:
    """Refusals by code and kinds of the regions, those of most bytes first."""
    table: dict[tuple[str, str, str], list[RefusalRow]] = {}
    for row in rows:
        table.setdefault((*row.kinds, row.code), []).append(row)
    found = [RefusalKind(*key, tuple(same)) for key, same in table.items()]
    return sorted(found, key=lambda kind: -kind.bytes)
