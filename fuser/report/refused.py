"""Refused fusions of a report: what each would save at most, beside what its kernels took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from fuser.partition.explanation import RefusalGroup, RefusalRow, folded, refusal_groups
from fuser.report.record import Record


def refused(record: Record) -> tuple[list[RefusalGroup], list[RefusalGroup]]:
    """The refusals of a report by code, those of most time first: what is worth reading, and what
    would save less than a hundredth of the run."""
    times = _region_times(record)
    groups = refusal_groups(refusal_rows(record), {n: t for n, (t, _) in times.items()})
    whole = record.total * 1e-6 if record.is_measured else record.predicted_seconds
    return folded(groups, whole)


def refusal_rows(record: Record) -> list[RefusalRow]:
    """The refusals, those of most time first: of kernels that were measured no more than what they
    took less the least that one of them would take alone, without what it hands to the other."""
    rows = [
        RefusalRow(
            item["producer"], item["consumer"], "", (), (), item["code"], item["reason"],
            item["bytes"], item["seconds"], item["lift"],
        )
        for item in record.refusals
    ]  # fmt: skip
    if record.is_measured:
        rows = list(_bounded(rows, record))
    return sorted(rows, key=lambda row: (-row.seconds, -row.bytes))


def _region_times(record: Record) -> dict[str, tuple[float, float]]:
    """Seconds of the kernels and of their rooflines, for each region that was measured."""
    found: dict[str, tuple[float, float]] = {}
    for one in record.launches if record.is_measured else ():
        taken, least = found.get(one.label, (0.0, 0.0))
        found[one.label] = (taken + one.shown_time * 1e-6, least + one.roofline * 1e-6)
    return found


def _bounded(rows: list[RefusalRow], record: Record) -> Iterable[RefusalRow]:
    times = _region_times(record)
    bandwidth = (record.data.get("target") or {}).get("bandwidth")
    pairs: dict[tuple[str, str], list[RefusalRow]] = defaultdict(list)
    for row in rows:
        pairs[row.producer, row.consumer].append(row)
    for pair, same in pairs.items():
        known = [times[name] for name in pair if name in times]
        if len(known) == len(pair):
            handed = sum(row.bytes for row in same) / bandwidth if bandwidth else 0.0
            least = max(0.0, max(least for _, least in known) - handed)
            most = max(0.0, sum(taken for taken, _ in known) - least)
            told = sum(row.seconds for row in same)
            share = most / told if told > most else 1.0
            same = [replace(row, seconds=row.seconds * share) for row in same]
        yield from same
