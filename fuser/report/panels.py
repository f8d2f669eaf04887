"""What a page says of single kernels: facts, nodes, refusals, tile program and generated code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fuser.base.target import TARGETS
from fuser.graph.units import byte_size, duration, microseconds, operations
from fuser.partition.explanation import RefusalRow
from fuser.report.markup import escaped, percent, tag
from fuser.report.record import Launch, Record
from fuser.report.refused import refusal_rows
from fuser.tilegen.schedule import settings

MOST_TEXT = 40_000
"""Bytes of one text of a kernel."""
MOST_PANELS = 300_000
"""Bytes of all panels, without the texts of kernels."""
MOST_NAMES, MOST_OPEN, MOST_REFUSALS = 200, 8, 6
_LINK = re.compile(r' href="#k(\d+)"')


def panels(record: Record) -> dict[int, str]:
    """The panels of the kernels that take longest, as many as there is room for. `texts` and
    the end of the element are to be added."""
    found: dict[int, str] = {}
    space, refusals = MOST_PANELS, refusal_rows(record)
    for one in sorted(record.dearest, key=lambda one: -one.shown_time):
        panel = _panel(record, one, refusals)
        space -= len(panel.encode())
        if space < 0:
            break
        found[one.at] = panel
    order = sorted(found)
    for at, before, after in zip(order, [None, *order], [*order[1:], None], strict=False):
        moves = [tag("a", "close", href="#none", aria_label="Close this kernel")]
        for name, to in (("previous", before), ("next", after)):
            moves += [tag("a", name, href=f"#k{to}")] if to is not None else []
        nav = tag("nav", *moves, aria_label="Kernels")
        found[at] = only(found[at].replace("<nav></nav>", nav, 1), found)
    return {at: found[at] for at in order}


def _panel(record: Record, one: Launch, refusals: Sequence[RefusalRow]) -> str:
    facts = [
        ("symbol", one.name), *((("computed by", one.algorithm),) if one.algorithm else ()),
        ("time", "not measured" if one.time is None else microseconds(one.time)),
        ("share", percent(one.shown_time, record.total)),
        ("roofline", microseconds(one.roofline)),
        *((("reached", _reached(one)),) if one.time is not None else ()),
        ("reads", byte_size(one.read)), ("writes", byte_size(one.written)),
        ("DRAM, predicted", byte_size(one.dram)),
        ("operations", f"{operations(one.flops)}"),
        *((f"measured {name}", f"{value:,g}") for name, value in one.counters.items()),
        *settings(one.schedule, record.device).items(),
    ]  # fmt: skip
    listed = "".join(tag("dt", escaped(name)) + tag("dd", escaped(value)) for name, value in facts)
    known = {node["name"] for node in record.nodes}
    nodes = [name for name in one.nodes if name in known or not known]  # no constants
    own = [name for name in nodes if record.homes[name] == one.region]
    shared = [name for name in nodes if record.homes[name] != one.region]
    facts_of = tag("dl", listed, class_="facts")
    parts = [
        facts_of,
        _siblings(record, one),
        _command(record, one),
        _refused(record, one, refusals),
        _names("Nodes", own),
    ]
    parts.append(_names("Nodes of other kernels that it has a part of", shared))
    head = tag("h3", escaped(one.own), id=f"{one.id}-title", tabindex="-1")
    start = f'<section class="kernel" id="{one.id}" aria-labelledby="{one.id}-title">'
    return f"{start}<nav></nav>{head}{''.join(parts)}"


def _reached(one: Launch) -> str:
    share = percent(one.reached, 1.0)
    return f"{share}, faster than the roofline" if one.is_above else share


def _siblings(record: Record, one: Launch) -> str:
    """The other kernels of its region."""
    others = [other for other in record.launches if other.region == one.region and other != one]
    links = ", ".join(tag("a", escaped(other.own), href=f"#{other.id}") for other in others)
    return tag("p", f"Other kernels of the region: {links}") if others else ""


def _command(record: Record, one: Launch) -> str:
    """The command that explains this kernel in a terminal."""
    return tag("h4", "In a terminal") + tag("pre", escaped(command(record, one)), class_="command")


def command(record: Record, one: Launch) -> str:
    """The command that says why a kernel is as it is."""
    data = record.data
    parts = ["fuser", "explain", data["model"], "--kernel", one.label]
    for name, size in data["dims"].items():
        parts += ["--dim", f"{name}={size}"]
    for name, usual in (("precision", "model"), ("numerics", "model")):
        text = data.get(name) or usual
        word = re.split(r"[ ,]", text)[0]
        parts += [f"--{name}", word] if word != usual else []
        parts += ["--batch-invariant"] if "batch invariant" in text else []
    for name in ("pin", "forbid"):
        for pair in (data.get("forced") or {}).get(name) or ():
            parts += [f"--{name}", ",".join(pair)]
    if record.target is not None:
        name, arch = record.target.name, record.target.arch
        named = [name for name, target in TARGETS.items() if target.arch == arch]
        elsewhere = named and not record.is_measured
        parts += ["--target", named[0]] if elsewhere else ["--device", name]
    return shlex.join(parts)


def _names(title: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = len(names) - MOST_NAMES
    listed = "".join(tag("li", escaped(name)) for name in names[:MOST_NAMES])
    listed += tag("li", f"{more} more") if more > 0 else ""
    head = tag("summary", f"{escaped(title)} ({len(names)})")
    few = {"open": ""} if len(names) <= MOST_OPEN else {}
    return tag("details", head, tag("ul", listed), class_="nodes", **few)


def _refused(record: Record, one: Launch, refusals: Sequence[RefusalRow]) -> str:
    """The refusals at a kernel's ends."""
    found = [row for row in refusals if one.label in (row.producer, row.consumer)]
    lines = "".join(
        tag("li", " → ".join(end(record, name) for name in (row.producer, row.consumer)),
            escaped(f": {row.reason} ({duration(row.seconds)} at most,"
                    f" {byte_size(row.bytes)})"), escaped(f". {row.lift}" if row.lift else ""))
        for row in found[:MOST_REFUSALS]
    )  # fmt: skip
    return tag("h4", "Refused fusions at its ends") + tag("ul", lines) if found else ""


def texts(record: Record, panels: Mapping[int, Any], space: int) -> dict[int, str]:
    """The texts of the kernels that have panels, cut so that they take at most that many bytes."""
    items = {at: record.texts[at] for at in panels if at < len(record.texts)}
    # Kernels of equal code share the panel of the first, or, if that has none, of the next.
    firsts: dict[int, int] = {}
    for at, item in items.items():
        firsts.setdefault(item.get("same", at), at)
    held = {
        (at, key): escaped(_lines(record.texts[first].get(key) or "", MOST_TEXT))
        for first, at in firsts.items() for key in ("tile", "code")
    }  # fmt: skip
    space -= 400 * len(panels)  # what stands around them
    most = _share([len(text.encode()) for text in held.values()], max(space, 0))
    found = dict.fromkeys(panels, "")
    for at, item in items.items():
        own = item.get("same", at)
        if firsts[own] != at:
            label = escaped(record.launches[firsts[own]].own)
            first = tag("a", label, href=f"#k{firsts[own]}")
            found[at] = tag("p", "Tile program and code are those of ", first, class_="note")
            continue
        region, source = record.launches[at].region, record.texts[own]
        stages = (("tile", "Tile program", "tile"), ("code", "Generated code", source.get("stage")))
        for key, title, stage in stages:
            if source.get(key):
                shown = _lines(held[at, key], most)
                if left := source[key].count("\n") - shown.count("\n"):
                    shown += (
                        f"\n... {left} lines more: fuser dump --stage {stage} --region {region}"
                    )
                found[at] += tag("details", tag("summary", title), tag("pre", shown, tabindex="0"))
    return found


def _share(sizes: Sequence[int], space: int) -> int:
    """The most that each of the sizes may have, so that all fit."""
    left = space
    for done, size in enumerate(sorted(sizes)):
        part = left // (len(sizes) - done)
        if size > part:
            return part
        left -= size
    return max(sizes, default=0)


def _lines(text: str, most: int) -> str:
    """The first lines, that many bytes at most."""
    data = text.encode()
    if len(data) <= most:
        return text
    return data[:most].decode(errors="ignore").rpartition("\n")[0]


def end(record: Record, region: str) -> str:
    """A region's name, as a link to its kernel."""
    at = region.rsplit("_", 1)[-1]
    found = next((one for one in record.launches if str(one.region) == at), None)
    return tag("a", escaped(region), href=f"#{found.id}") if found else escaped(region)


def only(text: str, panels: Mapping[int, Any]) -> str:
    """The markup without links to kernels that have no panel."""
    return _LINK.sub(lambda found: found[0] if int(found[1]) in panels else "", text)
