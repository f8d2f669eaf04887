"""Regions and refusals as rows and as plain text, for `fuser explain`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fuser.partition import cost
from fuser.partition.region import Partition, Refusal, Region


@dataclass(frozen=True)
class RegionRow:
    """One region: its ONNX nodes in order, the bytes it moves and the operations it does."""

    id: int
    kind: str
    nodes: tuple[str, ...]
    bytes: int
    flops: int


@dataclass(frozen=True)
class RefusalRow:
    """Fusions refused with one code between two kinds of region; reason: that of the first."""

    producer: str
    consumer: str
    code: str
    reason: str
    count: int
    bytes_lost: int


def region_flops(region: Region) -> int:
    """Operations of a region, nodes that it computes again included; a multiply-add is two."""
    return sum(cost.flops(node) for node in region.nodes)


def region_rows(partition: Partition) -> list[RegionRow]:
    return [
        RegionRow(
            region.id,
            region.kind,
            region.origin or tuple(dict.fromkeys(node.op for node in region.nodes)),
            region.bytes(),
            region_flops(region),
        )
        for region in partition.regions
    ]


def refusal_rows(refusals: Iterable[Refusal]) -> list[RefusalRow]:
    """Refusals of one code and pair of kinds added up, with the first reason; the dearest first."""
    table: dict[tuple[str, str, str], list[Refusal]] = {}
    for refusal in refusals:
        kinds = (refusal.producer.rsplit("_", 1)[0], refusal.consumer.rsplit("_", 1)[0])
        table.setdefault((*kinds, refusal.code), []).append(refusal)
    rows = [
        RefusalRow(*key, same[0].reason, len(same), sum(r.bytes_lost for r in same))
        for key, same in table.items()
    ]
    return sorted(rows, key=lambda row: -row.bytes_lost)


def explain(partition: Partition, width: int = 60) -> str:
    """The regions of a partition and the fusions it refused, as text of one item a line."""
    lines = [f"{len(partition.regions)} regions", ""]
    lines.append(f"{'id':>4}  {'kind':<12} {'bytes':>9} {'flops':>9}  nodes")
    for row in region_rows(partition):
        names = _shorten(row.nodes, width)
        lines.append(
            f"{row.id:>4}  {row.kind:<12} {amount(row.bytes):>9} {amount(row.flops):>9}  {names}"
        )
    rows = refusal_rows(partition.refusals)
    saved = sum(region.saved_bytes() for region in partition.regions)
    if saved:
        lines += ["", f"{amount(saved)} bytes less to read: weights stay packed"]
    lines += ["", f"{len(partition.refusals)} fusions refused"]
    if rows:
        lines += ["", f"{'count':>5}  {'lost':>9}  {'code':<18} between, and why"]
    for refusal in rows:
        lines.append(
            f"{refusal.count:>5}  {amount(refusal.bytes_lost):>9}  {refusal.code:<18} "
            f"{refusal.producer} -> {refusal.consumer}: {refusal.reason}"
        )
    return "\n".join(lines) + "\n"


def amount(number: int) -> str:
    """A count with a decimal prefix: 1.5M."""
    value = float(number)
    for prefix in ("", "K", "M", "G", "T"):
        if value < 1000:
            return f"{value:.0f}" if not prefix else f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:.3g}P"


def _shorten(names: tuple[str, ...], width: int) -> str:
    """The names as far as they fit, and how many more there are."""
    text = ""
    for i, name in enumerate(names):
        more = f"{text}, {name}" if text else name
        if text and len(more) > width:
            return f"{text}, ... {len(names) - i} more"
        text = more
    return text
