"""One report for a terminal: what fusion saved, where the time goes, the costliest kernels."""

from __future__ import annotations

from fuser.graph.units import byte_size, microseconds
from fuser.report.breakdown import sentence
from fuser.report.kernel_table import kernel_table
from fuser.report.record import Record
from fuser.report.verdict import of_record
from fuser.runtime.savings import ADVICE
from fuser.runtime.terminal import paragraphs, table

MOST_LINES = 12
"""Kernels that are shown unless all are asked for."""


def overview(record: Record, verbose: bool = False) -> str:
    """The whole text. verbose: all kernels."""
    facts = [("report", record.title), *((one.label, str(one)) for one in record.savings)]
    if record.slower:
        facts.append(("advice", ADVICE))
    if note := record.unfused_note:
        facts.append(("unfused", note))
    if not record.is_measured:
        facts.append(("roofline", f"{microseconds(record.total_roofline)}, nothing was measured"))
    facts.append(("peak memory", byte_size(record.data["peak_memory_bytes"])))
    kernels = kernel_table(record, verbose=verbose, most=None if verbose else MOST_LINES)
    parts = [table(facts, labels=True, paint=True), where_time_goes(record), kernels]
    return "\n\n".join(filter(None, parts))


def where_time_goes(record: Record) -> str:
    """Where the time of a run goes, and what bounds the costliest kernels; "" where no run was
    timed kernel by kernel."""
    if not record.parts:
        return ""
    found = [one.sentence(record.total) for one in of_record(record)]
    return paragraphs("\n".join([sentence(record.parts), "", *found]))
