"""A report as one HTML page: a function of the report's JSON, without network or other files.

Drawings are SVG that Python lays out; everything can be read without JavaScript, which adds
sorting, zooming and keys. The page is at most LIMIT bytes: the texts of kernels share what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from fuser.graph.units import byte_size, counted, duration, microseconds, milliseconds, operations
from fuser.partition.explanation import RefusalGroup
from fuser.report import charts, drawing
from fuser.report.breakdown import sentence
from fuser.report.charts import KINDS, kind_class
from fuser.report.difference import difference
from fuser.report.groups import Group, groups
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
from fuser.report.record import Launch, Record
from fuser.report.refused import refused
from fuser.report.verdict import Verdict, of_record

LIMIT = 1_000_000
"""Bytes of a page."""
MOST_REFUSALS, MOST_EDGES, MOST_LIFTS = 50, 3, 3
"""Refusals of one reason that the page has, of these shown at once, and advice."""
MOST_OFF, MOST_ABOVE = 5, 8
"""Kernels off the critical path, and above their roofline, that are named."""
CARDS = {"kernels": "Kernels", "memory": "Bytes through memory", "DRAM": "Bytes of DRAM",
         "time": "Time of a run"}  # fmt: skip
LINES = (("without fusion", "before"), ("with fusion", "after"), ("floor", "floor"))
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
    """The page without its panels of kernels. Links lead to kernels that have a panel."""
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
        (CARDS.get(saved.label, saved.label), f"{saved.before} → {saved.after}",
         "; ".join(filter(None, (saved.ratio, saved.note))))
        for saved in record.savings
    ]  # fmt: skip
    shown = "".join(
        tag("div", tag("dt", escaped(name)), tag("dd", tag("b", together(value)), together(more)))
        for name, value, more in cards
    )
    facts = together(" · ".join(_facts(record)))
    unfused = (record.data.get("unfused") or {}).get("note")
    notes = "".join(map(_note, (*(record.data.get("fallbacks") or ()), *filter(None, [unfused]))))
    parts = [tag("dl", shown, class_="cards"), tag("p", facts, class_="note"), notes]
    return "".join([*parts, _fused(record), _where(record)])


def _facts(record: Record) -> list[str]:
    """Other facts about a run, in a few words each."""
    found, least = [], microseconds(record.total_roofline)
    if latency := record.data.get("latency_ms"):
        median, p90 = (milliseconds(latency[key]) for key in ("median", "p90"))
        found.append(f"a run {median} (median of {latency['iterations']}, p90 {p90})")
    if record.is_measured:
        possible = sum(min(one.roofline, one.shown_time) for one in record.launches)
        found.append(
            f"kernels one by one {microseconds(record.total)}, of which {least} are the least"
            f" possible ({percent(possible, record.total)})"
        )
    else:
        found.append(f"not measured, roofline {least}")
    peak, compiled = byte_size(record.data["peak_memory_bytes"]), duration(record.data["compile_s"])
    return [*found, f"memory {peak}", f"compiled in {compiled}"]


def _fused(record: Record) -> str:
    """The kernels of a run without and with fusion, one above the other on one scale."""
    if not record.unfused or not record.is_measured:
        return ""
    whole = max(record.total, sum(one.shown_time for one in record.unfused)) or 1.0
    return "".join((
        tag("h3", "Without fusion, with fusion"),
        charts.strip(record.unfused, whole,
                     f"{counted(len(record.unfused), 'kernel')} without fusion"),
        charts.strip(record.launches, whole,
                     f"{counted(len(record.launches), 'kernel')} with fusion", axis=True,
                     here=True),
        _legend(record, (*record.unfused, *record.launches)),
    ))  # fmt: skip


def _legend(record: Record, launches: Iterable[Launch]) -> str:
    kinds = dict.fromkeys(one.kind for one in launches)
    told = {kind_class(kind): kind for kind in kinds if kind in KINDS}
    if others := [kind for kind in kinds if kind not in KINDS]:
        told["k-other"] = f"other ({', '.join(others)})"
    marks = "".join(
        tag("li", tag("i", class_=name, aria_hidden="true"), escaped(kind))
        for name, kind in told.items()
    )
    return tag("ul", marks, class_="legend", aria_label="Kinds of kernels")


def _where(record: Record) -> str:
    """The parts of a run, as a bar and in words, and what bounds its slowest kernels."""
    if not record.parts:
        return ""
    parts = [
        tag("h3", "Where the time goes"), charts.bar(record.parts),
        tag("p", together(sentence(record.parts)), class_="note"),
    ]  # fmt: skip
    said = "".join(tag("li", _verdict(record, one)) for one in of_record(record))
    if said:
        parts += [tag("h3", "The slowest kernels, and why"), tag("ol", said, class_="verdicts")]
    return "".join(parts)


def _verdict(record: Record, one: Verdict) -> str:
    """The line on a kernel, whose name is a link."""
    text = together(one.sentence(record.total)).removeprefix(together(one.kernel.label))
    return tag("a", together(one.kernel.label), href=f"#k{one.kernel.at}") + text


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
    parts = [_note(said), charts.timeline(record), _legend(record, record.launches), _path(record)]
    if chart := charts.roofline(record):
        parts += [
            tag("h3", "Roofline"),
            _note(
                "A circle is a kernel as it ran, its area the share of the time; the dot above is"
                " what memory or arithmetic allow with the predicted bytes. Kernels without"
                " arithmetic, or whose bytes all stay in the cache, are not shown."
            ),
            _fewer_operations(record),
            chart,
        ]
    return "".join([*parts, _above(record)])


def _path(record: Record) -> str:
    """Which kernels wait for one another, and what could overlap."""
    on, off = record.critical
    if not on:
        return ""
    found = record.data["critical_path"]
    whole = f"{microseconds(found['us'])} of {microseconds(found['total_us'])}"
    said = f"{counted(len(on), 'kernel')} that wait for one another take {whole}"
    if not off:
        said += ": all of the run. Only faster kernels, or fewer of them, make it faster."
    else:
        said += (
            f"; a line above them marks them. Of the {len(off)} others what could run at the same"
            f" time saves {microseconds(found['overlap_us'])} at most:"
        )
    if found["data_us"] < 0.99 * found["us"]:
        said += f" If no values shared memory, the chain took {microseconds(found['data_us'])}."
    items = [
        tag("li", tag("a", one.own, href=f"#{one.id}"),
            together(f" {microseconds(one.shown_time)}, {microseconds(us)} of it could overlap"))
        for one, us in off[:MOST_OFF]
    ]  # fmt: skip
    if len(off) > MOST_OFF:
        items.append(tag("li", f"{len(off) - MOST_OFF} more"))
    return tag("h3", "Critical path") + _note(said) + (tag("ul", *items) if items else "")


def _above(record: Record) -> str:
    """A note that names the kernels that were faster than their roofline."""
    found = [one for one in record.launches if one.is_above]
    if not found:
        return ""
    said = (
        f"Faster than their roofline, shown as 100 % and as rings: {_named(found)}. A roofline is"
        " of the operations of a kernel's algorithm at the peak rate of the device, and of bytes"
        " that are predicted; a cache may keep more of them."
    )
    return tag("p", said, class_="note")


def _fewer_operations(record: Record) -> str:
    """A note that names kernels which may be above the lines of the roofline plot."""
    target = record.target
    peak = max(target.flops_f32, target.flops_f16) * 1e-6 if target else 0.0
    found = [one for one in record.launches if peak and one.flops > 1.001 * peak * one.roofline > 0]
    if not found:
        return ""
    said = (
        "Operations are those that the nodes ask for. Kernels whose algorithm needs fewer may be"
        f" above the lines: {_named(found)}."
    )
    return tag("p", said, class_="note")


def _named(kernels: Sequence[Launch]) -> str:
    """Links to kernels, with their algorithms."""
    named = [
        tag("a", escaped(one.own), href=f"#{one.id}")
        + escaped(f", {one.algorithm}" if one.algorithm else "")
        for one in kernels[:MOST_ABOVE]
    ]
    left = len(kernels) - MOST_ABOVE
    return "; ".join([*named, *([f"{left} more"] if left > 0 else [])])


def _bytes(record: Record) -> str:
    rows = []
    for name, traffic in (("through memory", record.boundary), ("DRAM, predicted", record.dram)):
        for label, key in LINES:
            text = byte_size(traffic[key])
            if key != "before" and (change := fewer(traffic["before"], traffic[key])):
                text += f"  ({change})"
            rows.append((f"{name}: {label}", float(traffic[key]), text, f"bytes {key}"))
    said = (
        "Through memory: distinct bytes that kernels read and write, kernel by kernel. DRAM: what"
        " of them crosses to memory, by a model of the last cache. Without fusion: the plan that"
        " --no-fusion launches. Floor: inputs, weights and outputs once."
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
    found = groups(record)
    told = {one.at for one in record.dearest}
    shown = [group for group in found if group.launches[0].at in told]
    most = max((group.time for group in shown), default=0.0) or 1.0
    rows = []
    for group in shown:
        one, measured = group.launches[0], record.is_measured
        bar = tag("span", style=f"width:{100 * group.time / most:.1f}%",
                  class_=f"share {kind_class(one.kind)}")  # fmt: skip
        rows.append((
            str(one.at), _row_name(group), escaped(one.kind),
            microseconds(group.time) if measured else "–",
            f"{percent(group.time, record.total)}{bar}", microseconds(group.roofline),
            percent(group.reached, 1.0) if measured else "–",
            byte_size(group.boundary), byte_size(group.dram), operations(group.flops),
        ))  # fmt: skip
    parts = []
    if any(len(group.launches) > 1 for group in shown):
        parts.append(_note("A row of x kernels of equal code has their sums."))
    if more := sum(len(group.launches) for group in found if group not in shown):
        parts.append(_note(f"The {len(told)} kernels that take longest; {more:,} more."))
    head = ("#", "kernel", "kind", "time", "share", "roofline", "reached", "through memory",
            "DRAM", "operations")  # fmt: skip
    return "".join(parts) + table(
        head, rows, caption="The kernels of a run, those that take longest first",
        numbers=(0, 3, 4, 5, 6, 7, 8, 9), id="all",
    )  # fmt: skip


def _row_name(group: Group) -> str:
    """The name of a row's kernels, how they compute, their nodes, and links to all."""
    one, *others = group.launches
    count = f" x {len(group.launches)}" if others else ""
    ways = f", {one.algorithm}" if one.algorithm else ""
    parts = [tag("a", escaped(one.own), href=f"#{one.id}"), escaped(count + ways)]
    parts.append(tag("small", escaped(group.nodes)))
    if others:
        links = ", ".join(tag("a", escaped(each.own), href=f"#{each.id}") for each in others)
        parts.append(tag("details", tag("summary", f"{len(others)} more"), links))
    return "".join(parts)


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
    """The fusions of a group; of many the costliest, and a fold that holds the others."""
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
