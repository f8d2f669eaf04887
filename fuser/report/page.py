"""A report as one HTML page: a function of the report's JSON, without network or other files.

Drawings are SVG that Python lays out; everything can be read without JavaScript, which adds
sorting, zooming and keys. The page is at most LIMIT bytes: the texts of kernels share what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

from fuser.graph.units import byte_size, counted, duration, microseconds, milliseconds, operations
from fuser.partition.explanation import RefusalGroup
from fuser.report import charts, drawing
from fuser.report.breakdown import sentence
from fuser.report.difference import difference
from fuser.report.markup import (
    escaped,
    fewer,
    percent,
    table,
    tag,
    together,
)
from fuser.report.panels import end, only, panels, texts
from fuser.report.partition_text import folded_text
from fuser.report.record import Record
from fuser.report.refused import refused
from fuser.report.verdict import of_record

LIMIT = 1_000_000
"""Bytes of a page."""
MOST_REFUSALS, MOST_EDGES, MOST_LIFTS = 50, 3, 3
"""Of one reason."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(record: Record, other: Record | None = None) -> str:
    """The HTML of a report, beside another one where there is one: `other` came before."""
    found = panels(record)
    drawn = drawing.graph(record)
    frame = _page(record, other, found, drawn)
    used = len(frame.encode()) + sum(len(part.encode()) for part in found.values())
    if used > LIMIT * 0.95 and drawn:
        frame = _page(record, other, found, "")
        used -= len(drawn.encode())
    inside = texts(record, found, LIMIT - used - 1000)
    filled = "\n".join(f"{panel}{inside[at]}</section>" for at, panel in found.items())
    return frame.replace("<!-- kernels -->", filled, 1)


def _page(record: Record, other: Record | None, shown: Mapping[int, str], drawn: str) -> str:
    """The page without what it says of single kernels. Links lead to those that have panels."""
    sections = {
        "summary": ("Summary", _summary(record)),
        "change": ("Change", difference(other, record) if other else ""),
        "time": ("Time", _time(record)),
        "bytes": ("Bytes moved", _bytes(record)),
        "graph": ("Graph", _graph(record, drawn)),
        "kernels": ("Kernels", _kernels(record)),
        "refusals": ("Refused fusions", _refusals(record)),
    }
    parts = {id: part for id, part in sections.items() if part[1]}
    links = "".join(tag("a", name, href=f"#{id}") for id, (name, _) in parts.items())
    body = "\n".join(
        tag("section", tag("h2", name, id=f"{id}-title"), text, id=id,
            aria_labelledby=f"{id}-title")
        for id, (name, text) in parts.items()
    )  # fmt: skip
    return only(_frame(record, links, body), shown)


def _frame(record: Record, links: str, body: str) -> str:
    folder = resources.files("fuser.report")
    style, script = (folder.joinpath(name).read_text() for name in ("page.css", "page.js"))
    title = escaped(record.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escaped(POLICY)}">
<title>{title} · fuser</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#summary">Skip to the report</a>
<header><h1>{title}</h1><p>{escaped(_setting(record))}</p></header>
<nav aria-label="Parts of the report">{links}</nav>
<main>
{body}
<!-- kernels -->
</main>
<script>
{script}</script>
</body>
</html>
"""


def _note(text: str) -> str:
    return tag("p", escaped(text), class_="note")


def _setting(record: Record) -> str:
    data = record.data
    dims = ", ".join(f"{name} = {size}" for name, size in (data.get("dims") or {}).items())
    threads = counted(data["threads"], "thread") if data.get("threads") else ""
    precision = data.get("precision", "model")
    rounded = "" if precision == "model" else f"precision {precision}"
    return " · ".join(part for part in (dims, threads, rounded) if part)


def _summary(record: Record) -> str:
    cards = [
        (saved.label.capitalize(), f"{saved.before} → {saved.after}",
         "; ".join(filter(None, (saved.ratio, saved.note))))
        for saved in record.savings
    ]  # fmt: skip
    if record.is_measured:
        cards.append(
            ("Kernels together", microseconds(record.total),
             f"roofline {microseconds(record.total_roofline)}, "
             f"{percent(record.total_roofline, record.total)} of it")
        )  # fmt: skip
    else:
        cards.append(("Roofline", microseconds(record.total_roofline), "not measured"))
    if latency := record.data.get("latency_ms"):
        cards.append(
            ("A run", milliseconds(latency["median"]),
             f"median of {latency['iterations']}, p90 {milliseconds(latency['p90'])}")
        )  # fmt: skip
    cards.append(
        ("Memory", byte_size(record.data["peak_memory_bytes"]),
         f"compiled in {duration(record.data['compile_s'])}")
    )  # fmt: skip
    shown = "".join(
        tag("div", tag("dt", escaped(name)), tag("dd", tag("b", escaped(value)), together(more)))
        for name, value, more in cards
    )
    unfused = (record.data.get("unfused") or {}).get("note")
    notes = "".join(map(_note, (*(record.data.get("fallbacks") or ()), *filter(None, [unfused]))))
    return tag("dl", shown, class_="cards") + notes + _fused(record)


def _fused(record: Record) -> str:
    """The kernels of a run without and with fusion, one above the other on one scale."""
    if not record.unfused or not record.is_measured:
        return ""
    whole = max(record.total, sum(one.shown_time for one in record.unfused))
    return "".join((
        tag("h3", "Without fusion, with fusion"),
        _note("Kernels in the order of a run, the width is the measured time, on one scale."),
        charts.strip(record.unfused, whole, f"{counted(len(record.unfused), 'kernel')} without"),
        charts.strip(record.launches, whole, f"{counted(len(record.launches), 'kernel')} with",
                     axis=True),
    ))  # fmt: skip


def _legend(record: Record) -> str:
    kinds = dict.fromkeys(one.kind for one in record.launches)
    marks = "".join(
        tag("li", tag("i", class_=f"k-{kind}", aria_hidden="true"), escaped(kind)) for kind in kinds
    )
    return tag("ul", marks, class_="legend", aria_label="Kinds of kernels")


def _where(record: Record) -> str:
    """The parts of a run, as a bar and in words."""
    if not record.parts:
        return ""
    said = "".join(
        tag("li", tag("a", together(one.sentence(record.total)), href=f"#k{one.kernel.at}"))
        for one in of_record(record)
    )
    words = tag("p", together(sentence(record.parts)), class_="note")
    return charts.bar(record.parts) + words + (tag("ol", said) if said else "")


def _time(record: Record) -> str:
    said = (
        "Kernels in the order of a run; the width is the measured time. The bar below each is its"
        " roofline: the least time that its bytes of memory and its operations take, as far as it"
        " is less."
        if record.is_measured
        else "Not measured: the width is the roofline, the least time that a kernel's bytes and"
        " operations take."
        " The report was made without a run."
    )
    parts = [_where(record), _note(said), charts.timeline(record), _legend(record)]
    if chart := charts.roofline(record):
        parts += [
            tag("h3", "Roofline"),
            _note(
                "A circle is a kernel as it ran, its area the share of the time; the dot above is"
                " what memory or arithmetic allow with the predicted bytes. Kernels without"
                " arithmetic, or whose bytes all stay in the cache, are not shown."
            ),
            chart,
        ]
    return "".join(parts)


def _bytes(record: Record) -> str:
    rows = []
    for name, traffic in (("through memory", record.boundary), ("DRAM, predicted", record.dram)):
        for label, key in (("a kernel each", "before"), ("fused", "after"), ("floor", "floor")):
            text = byte_size(traffic[key])
            if key != "before":
                text += f"  ({fewer(traffic['before'], traffic[key])})"
            rows.append((f"{name}: {label}", float(traffic[key]), text, f"bytes {key}"))
    said = (
        "Through memory: distinct bytes that kernels read and write, kernel by kernel. DRAM: what"
        " of them crosses to memory, by a model of the last cache. Before: a kernel for every"
        " operator. Floor: inputs, weights and outputs once."
    )
    return _note(said) + charts.bars(rows, "Bytes before and after fusion, and the floor")


def _graph(record: Record, drawn: str) -> str:
    if not record.nodes:
        return _note("The report has no graph: fuser report MODEL --html writes one.")
    if not drawn:
        return _note(f"The graph of {counted(len(record.nodes), 'node')} is too large for a page.")
    said = (
        "A box is a region, which is one kernel; inside are the model's nodes. Lines are the"
        " tensors that go through memory. Choose a region to see its kernel."
    )
    if len(record.nodes) > drawing.MOST_NODES:
        said += f" The {len(record.nodes):,} nodes are too many to be drawn."
    parts = [_note(said)]
    nowhere = [node["name"] for node in record.nodes if node["name"] not in record.homes]
    if nowhere:
        named = ", ".join(nowhere[:8]) + (", ..." if len(nowhere) > 8 else "")
        parts.append(_note(f"In no kernel, for there is nothing left to do: {named}"))
    parts.append(
        tag(
            "div", drawn, class_="drawing", tabindex="0", role="region", aria_label="Graph, scrolls"
        )
    )
    return "".join(parts)


def _kernels(record: Record) -> str:
    rows = []
    for one in record.dearest:
        share = 100 * one.shown_time / record.total if record.total else 0.0
        bar = tag("span", style=f"width:{share:.1f}%", class_=f"share k-{one.kind}")
        rows.append((
            str(one.at), tag("a", escaped(one.label), href=f"#{one.id}"), escaped(one.kind),
            "–" if one.time is None else microseconds(one.time),
            f"{share:.1f} %{bar}", microseconds(one.roofline),
            "–" if one.time is None else percent(one.roofline, one.time),
            byte_size(one.read + one.written), byte_size(one.dram), operations(one.flops),
        ))  # fmt: skip
    more = len(record.launches) - len(rows)
    note = _note(f"The {len(rows)} kernels that take longest; {more:,} more.") if more else ""
    head = ("#", "kernel", "kind", "time", "share", "roofline", "of the time", "through memory",
            "DRAM", "operations")  # fmt: skip
    return note + table(head, rows, caption="The kernels of a run, in order",
                        numbers=(0, 3, 4, 5, 6, 7, 8, 9), id="all")  # fmt: skip


def _refusals(record: Record) -> str:
    if not record.refusals:
        return _note("None, or the report does not hold them.")
    shown, small = refused(record)
    said = (
        "Kernels that are not one, by reason: what all fusions refused for it would save at most,"
        " no more than what the kernels take."
    )
    parts = [_note(said), _refusal_table(record, shown) if shown else ""]
    if small:
        text = folded_text(small, bool(shown))
        together = microseconds(sum(group.seconds for group in small) * 1e6)
        head = tag("summary", escaped(f"{text}: {together} together"))
        parts.append(tag("details", head, _refusal_table(record, small)))
    return "".join(parts)


def _refusal_table(record: Record, groups: Sequence[RefusalGroup]) -> str:
    head = ["why", "time at most", "bytes", "times", "between"]
    rows = []
    for group in groups:
        lifts = [lift for lift in dict.fromkeys(row.lift for row in group.rows) if lift]
        rows.append([
            f"{tag('code', escaped(group.code))} {escaped(group.reason)}",
            duration(group.seconds), byte_size(group.bytes), str(len(group.rows)),
            _edges(record, group), "<br>".join(tag("code", escaped(x)) for x in lifts[:MOST_LIFTS]),
        ])  # fmt: skip
    if any(row[-1] for row in rows):
        head.append("what lifts it")
    return table(
        head, [row[: len(head)] for row in rows], numbers=(1, 2, 3),
        caption="Refused fusions by reason",
    )  # fmt: skip


def _edges(record: Record, group: RefusalGroup) -> str:
    """The fusions of a group; of many those of most time, and the others behind a fold."""
    items = []
    for row in group.rows[:MOST_REFUSALS]:
        ends = " → ".join(end(record, name) for name in (row.producer, row.consumer))
        why = "" if row.reason == group.reason else f": {row.reason}"
        items.append(f"{ends} {escaped(duration(row.seconds) + why)}")
    if len(group.rows) > MOST_REFUSALS:
        items.append(f"{len(group.rows) - MOST_REFUSALS} more: fuser explain -v lists them")
    first, rest = items[:MOST_EDGES], items[MOST_EDGES:]
    more = tag("details", tag("summary", f"{len(rest)} more"), "<br>".join(rest)) if rest else ""
    return "<br>".join(first) + more
