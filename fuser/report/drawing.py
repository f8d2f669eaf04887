"""The model's graph with the regions drawn over it: a box a region, its nodes inside, the tensors
that kernels hand on between them. A click on a region leads to its kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuser.graph.units import byte_size, microseconds
from fuser.report.charts import LETTER, about, kind_class, svg
from fuser.report.layout import Layout, Point, place
from fuser.report.markup import escaped, percent, tag, titled
from fuser.report.record import Launch, Record

NODE_HEIGHT, PADDING, HEAD = 22.0, 12.0, 42.0
MOST_NODES = 1500
"""Nodes that are drawn; a larger model has its regions drawn without their nodes."""


@dataclass(frozen=True)
class _Region:
    """A box: the kernel that it stands for, what is written at its top, and the nodes inside."""

    launch: Launch
    launches: int
    head: str
    foot: str
    inside: Layout
    nodes: Mapping[str, str]
    """Name and operator of the nodes."""
    width: float
    height: float


def graph(record: Record) -> str:
    """The drawing, or "" for a report without details."""
    regions = _regions(record)
    if not record.tensors or not regions:
        return ""
    sizes: dict[str, tuple[float, float]] = {}
    ends: dict[str, str] = {}
    for tensor in record.tensors:
        if tensor["input"] is not None and tensor["readers"]:
            ends[f"in {tensor['input']}"] = f"{tensor['input']}  {tensor['type']}"
    for key, text in ends.items():
        sizes[key] = (LETTER * len(text) + 20, NODE_HEIGHT)
    for at, region in regions.items():
        sizes[str(at)] = (region.width, region.height)
    edges: list[tuple[str, str]] = []
    carried: dict[str, list[Any]] = {}
    for tensor in record.tensors:
        start = f"in {tensor['input']}" if tensor["writer"] is None else str(tensor["writer"])
        to = [str(reader) for reader in tensor["readers"] if reader != tensor["writer"]]
        for name in tensor["outputs"]:
            text = f"{name}  {tensor['type']}"
            ends[f"out {name}"], sizes[f"out {name}"] = (
                text, (LETTER * len(text) + 20, NODE_HEIGHT),
            )  # fmt: skip
            to.append(f"out {name}")
        edges += [(start, end) for end in to]
        if to:
            carried.setdefault(start, []).append((tensor, to))
    layout = place(sizes, edges, gap=18, row_gap=30)
    parts = [_edges(layout, start, carried[start], regions) for start in carried]
    parts += [
        tag("g", titled(text), tag("rect", x=box.x, y=box.y, width=box.width, height=box.height,
                                   rx=11.0),
            tag("text", escaped(text), x=box.x + box.width / 2, y=box.y + 15), class_="end")
        for key, text in ends.items() if (box := layout.boxes.get(key))
    ]  # fmt: skip
    for at, region in regions.items():
        parts.append(_box(region, layout.boxes[str(at)].x, layout.boxes[str(at)].y, record.total))
    label = f"The graph of {record.data['model']}: {len(regions)} regions"
    body = tag("g", *parts, transform="translate(10 10)")
    drawing = svg(layout.width + 20, layout.height + 20, label, body, id="drawing")
    # In pixels, so that text has the size of text; the page scrolls and zooms it.
    size = f'<svg width="{layout.width + 20:.0f}" height="{layout.height + 20:.0f}"'
    return drawing.replace("<svg", size, 1)


def _regions(record: Record) -> dict[int, _Region]:
    kernels: dict[int, list[Launch]] = {}
    for one in record.launches:
        kernels.setdefault(one.region, []).append(one)
    members: dict[int, list[Any]] = {}
    drawn = record.nodes if len(record.nodes) <= MOST_NODES else []
    for node in drawn:
        if (home := record.homes.get(node["name"])) is not None:
            members.setdefault(home, []).append(node)
    found = {}
    for at, launches in kernels.items():
        nodes = members.get(at, [])
        sizes = {node["name"]: (LETTER * len(node["op"]) + 16, NODE_HEIGHT) for node in nodes}
        links = [(other, node["name"]) for node in nodes for other in node["reads"]]
        inside = place(sizes, links, gap=8, row_gap=14)
        time = sum(one.shown_time for one in launches)
        head = launches[0].label
        foot = f"{microseconds(time)} · {percent(time, record.total)}"
        written = sum(one.read + one.written for one in launches)
        foot += f" · {byte_size(written)}"
        if len(launches) > 1:
            foot += f" · {len(launches)} kernels"
        width = max(inside.width, LETTER * 1.06 * len(head), LETTER * len(foot)) + 2 * PADDING
        height = HEAD + (inside.height + PADDING if nodes else 0) + 6
        found[at] = _Region(
            launches[0], len(launches), head, foot, inside,
            {node["name"]: node["op"] for node in nodes}, width, height,
        )  # fmt: skip
    return found


def _box(region: _Region, x: float, y: float, total: float) -> str:
    one = region.launch
    left, top = (region.width - region.inside.width) / 2, HEAD
    parts = [
        titled(about(one, total)),
        tag("rect", width=region.width, height=region.height, rx=5.0, class_="region"),
        tag("text", escaped(region.head), x=PADDING, y=18.0, class_="head"),
        tag("text", escaped(region.foot), x=PADDING, y=33.0, class_="foot"),
    ]
    wires = "".join(_path(points, left, top) for points in region.inside.routes.values())
    if wires:
        parts.append(tag("path", d=wires, class_="wire"))
    for name, box in region.inside.boxes.items():
        parts.append(
            tag("g", titled(f"{region.nodes[name]} {name}"),
                tag("rect", x=left + box.x, y=top + box.y, width=box.width, height=box.height,
                    rx=3.0),
                tag("text", escaped(region.nodes[name]), x=left + box.x + box.width / 2,
                    y=top + box.y + 15), class_="node")
        )  # fmt: skip
    return tag(
        "a", *parts, href=f"#{one.id}", class_=kind_class(one.kind),
        transform=f"translate({x:.1f} {y:.1f})",
        aria_label=f"{about(one, total)}; nodes: {_counted(region.nodes.values())}",
    )  # fmt: skip


def _counted(operators: Any) -> str:
    found = Counter(operators)
    return ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in found.items()) or "none"


def _edges(
    layout: Layout, start: str, tensors: Sequence[Any], regions: Mapping[int, _Region]
) -> str:
    """Where the tensors of a box go, as one path: what several edges share is drawn once."""

    def called(name: str) -> str:
        return regions[int(name)].head if name.isdigit() and int(name) in regions else name

    pieces: dict[str, None] = {}
    for _, ends in tensors:
        for end in ends:
            points = layout.routes.get((start, end))
            if points is not None:
                for place_, point in enumerate(points[1:]):
                    pieces[_path([points[place_], point], 0, 0)] = None
    said = "; ".join(
        f"{tensor['type']}, {byte_size(tensor['bytes'])}, to {', '.join(map(called, ends))}"
        for tensor, ends in tensors
    )
    return tag("path", titled(f"{called(start)}: {said}"), d="".join(pieces), class_="flow")


def _path(points: Sequence[Point], left: float, top: float) -> str:
    """A line through points, bent so that it leaves and arrives vertically."""
    (x, y), rest = points[0], points[1:]
    text = f"M{x + left:.0f} {y + top:.0f}"
    for to_x, to_y in rest:
        if round(to_x) == round(x):
            text += f"V{to_y + top:.0f}"
        else:
            middle = (y + to_y) / 2 + top
            text += f"C{x + left:.0f} {middle:.0f} {to_x + left:.0f} {middle:.0f}"
            text += f" {to_x + left:.0f} {to_y + top:.0f}"
        x, y = to_x, to_y
    return text
