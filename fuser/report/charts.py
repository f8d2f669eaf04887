"""The charts of a page, as SVG: kernels over time, the roofline, bytes before and after."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from fuser.graph.units import byte_size, counted, microseconds, operations
from fuser.report.breakdown import Part
from fuser.report.markup import (
    escaped,
    percent,
    tag,
    titled,
)
from fuser.report.record import Launch, Record

WIDTH = 960.0
LETTER = 6.3
"""About the width of a letter of a label."""
BAND = 6.0
MOST_STRIP = 400
"""Kernels that a strip shows one by one; of more, neighbours of one kind are one."""
KINDS = ("contraction", "conv", "attention", "reduce", "map", "gather", "window", "collective")
"""Kinds of kernels that have a colour; others share one."""


def kind_class(kind: str) -> str:
    """The class of a kind's colour; "" is what is no kernel."""
    return f"k-{kind if kind in KINDS else 'other' if kind else 'idle'}"


def svg(width: float, height: float, label: str, *inner: str, id: str | None = None) -> str:
    """A drawing that scales with the page. label: what it shows, for those who cannot see it."""
    return tag(
        "svg", titled(label), *inner,
        viewBox=f"0 0 {width:.0f} {height:.0f}", role="group", aria_label=label, id=id,
    )  # fmt: skip


def linked(one: Launch, *inner: str, said: str, here: bool = True) -> str:
    """Marks that lead to the part of the page about a kernel, if it is `here`. The tables hold the
    same links, so that the keyboard need not pass these."""
    if not here:
        return tag("g", titled(said), *inner, class_=kind_class(one.kind))
    return tag(
        "a", titled(said), *inner, href=f"#{one.id}", class_=kind_class(one.kind), tabindex="-1"
    )  # fmt: skip


def about(one: Launch, total: float) -> str:
    """A kernel in a line."""
    measured = "not measured" if one.time is None else microseconds(one.time)
    return (
        f"{one.own}: {measured}, {percent(one.shown_time, total)} of the run;"
        f" roofline {microseconds(one.roofline)}"
    )


def _box(x: float, y: float, width: float, height: float) -> list[str]:
    """A bar: a band of its colour, and below it a tint on which text can be read. Neighbours are
    apart where they are wide enough."""
    width = width - 1 if width > 4 else max(width, 0.4)
    return [
        tag("rect", x=x, y=y, width=width, height=BAND, class_="roof"),
        tag("rect", x=x, y=y + BAND, width=width, height=height - BAND, class_="bar"),
    ]


def ticks(most: float, count: int = 8) -> list[float]:
    """Round numbers from 0 to `most`, about `count` of them."""
    if most <= 0:
        return [0.0]
    raw = most / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= raw * 0.999)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]


def strip(
    launches: Sequence[Launch], whole: float, label: str, axis: bool = False, here: bool = False
) -> str:
    """Kernels one after the other. whole: microseconds of the whole width; axis: with a scale;
    here: whether they are those that the page tells of."""
    per_us, marks, x = WIDTH / whole, [], 0.0
    many = len(launches) > MOST_STRIP
    for (kind, _), found in itertools.groupby(
        launches, lambda one: (one.kind, None if many else one.at)
    ):
        same = list(found)
        time = sum(one.shown_time for one in same)
        width = time * per_us
        bar = tag("rect", x=x, y=18.0, width=width - 1 if width > 4 else max(width, 0.4),
                  height=22.0, class_="roof")  # fmt: skip
        x += width
        if here and not many:
            marks.append(linked(same[0], bar, said=f"{same[0].own}: {microseconds(time)}"))
            continue
        said = counted(len(same), "kernel") if many else ", ".join(same[0].nodes[:3])
        said = f"{said or same[0].name}: {microseconds(time)}"
        marks.append(tag("g", titled(said), bar, class_=kind_class(kind)))
    total = f"{label}, {microseconds(sum(one.shown_time for one in launches))}"
    marks.append(tag("text", escaped(total), x=0.0, y=13.0))
    if axis:
        marks.append(_axis(whole, 42.0))
    return svg(WIDTH, 64 if axis else 46, total, *marks)


def bar(parts: Sequence[Part]) -> str:
    """Where the time of a run goes: one bar, as wide as the run."""
    whole = sum(part.us for part in parts) or 1.0
    marks, x = [], 0.0
    for part in parts:
        width = WIDTH * part.us / whole
        inner = _box(x, 4.0, width, 32.0)
        if width > LETTER * len(part.label) + 8:
            inner.append(tag("text", escaped(part.label), x=x + 5, y=27.0))
        said = f"{part.label}: {microseconds(part.us)}, {percent(part.us, whole)} of the run"
        marks.append(tag("g", titled(said), *inner, class_=kind_class(part.kind)))
        x += width
    marks.append(_axis(whole, 38.0))
    return svg(WIDTH, 60, f"Where {microseconds(whole)} go", *marks)


def _axis(whole: float, y: float) -> str:
    """Microseconds under a picture of the width WIDTH, from y on."""
    per_us = WIDTH / whole
    marks = "".join(
        tag("line", x1=at * per_us, x2=at * per_us, y1=y, y2=y + 5)
        + tag("text", escaped(microseconds(at, tick=True)), x=at * per_us, y=y + 18,
              text_anchor="start" if not at else "end" if at * per_us > WIDTH - 20 else "middle")
        for at in ticks(whole)
    )  # fmt: skip
    return tag("g", marks, class_="axis")


def timeline(record: Record, scale: float | None = None, here: bool = True) -> str:
    """The kernels of a run one after the other, each above its roofline time. scale: microseconds
    of the whole width. here: whether the page is about this report."""
    whole = scale or max(record.total, record.total_roofline) or 1.0
    per_us = WIDTH / whole
    on, off = record.critical
    marks, x = [], 0.0
    for told, group in itertools.groupby(record.launches, set(record.dearest).__contains__):
        if not told:  # too many to be told of one by one
            others = list(group)
            width = sum(one.shown_time for one in others) * per_us
            said = titled(f"{len(others)} short kernels")
            marks.append(tag("g", said, *_box(x, 4.0, width, 40.0), class_="k-other"))
            x += width
            continue
        for one in group:
            width = max(one.shown_time * per_us, 0.4)
            bar = _box(x, 4.0, width, 40.0)
            if width > LETTER * len(one.own) + 8:
                bar.append(tag("text", escaped(one.own), x=x + 5, y=30.0))
            low = min(max(one.roofline * per_us, 0.4), width)
            bar.append(tag("rect", x=x, y=48.0, width=low, height=14.0, class_="roof"))
            if here and off and one in on:
                bar.append(tag("line", x1=x, x2=x + width, y1=1.5, y2=1.5, class_="path"))
            marks.append(linked(one, *bar, said=about(one, record.total), here=here))
            x += width
    label = f"{counted(len(record.launches), 'kernel')} over {microseconds(record.total)}"
    return svg(WIDTH, 90, label, *marks, _axis(whole, 66.0))


def roofline(record: Record) -> str:
    """Operations a second over operations a byte of memory: each kernel as measured, joined to what
    the roofline allows. "" without a target or kernels that compute."""
    target = record.data.get("target")
    shown = [
        one for one in record.dearest if one.flops and one.dram and one.roofline and one.shown_time
    ]
    rates = ("bandwidth", "flops_f32", "flops_f16")
    if not shown or not target or not all(target[rate] for rate in rates):
        return ""
    peak = max(target["flops_f32"], target["flops_f16"])
    xs = [one.flops / one.dram for one in shown]
    ys = [one.flops / max(one.shown_time, one.roofline) * 1e6 for one in shown]
    ys += [one.flops / one.roofline * 1e6 for one in shown]
    left, right = _decades([*xs, target["flops_f32"] / target["bandwidth"]])
    low, high = _decades([*ys, peak])
    height, margin = 360.0, 58.0

    def to_x(value: float) -> float:
        return margin + (math.log10(value) - left) / (right - left) * (WIDTH - margin - 8)

    def to_y(value: float) -> float:
        return 8 + (high - math.log10(value)) / (high - low) * (height - 48)

    lines = []
    for power in range(left, right + 1):
        x = to_x(10.0**power)
        lines.append(tag("line", x1=x, x2=x, y1=8.0, y2=height - 40))
        text = operations(10.0**power, tick=True) if power >= 0 else f"{10.0**power:g}"
        anchor = "middle" if power < right else "end"
        lines.append(tag("text", text, x=x, y=height - 24, text_anchor=anchor))
    for power in range(low, high + 1):
        y = to_y(10.0**power)
        lines.append(tag("line", x1=margin, x2=WIDTH - 8, y1=y, y2=y))
        lines.append(
            tag(
                "text", operations(10.0**power, tick=True), x=margin - 6, y=y + 4, text_anchor="end"
            )
        )
    names = [tag("text", "operations a byte of memory", x=WIDTH / 2, y=height - 6,
                 text_anchor="middle"),
             tag("text", "operations a second", x=margin, y=20.0, dx="6")]  # fmt: skip
    roofs = []
    for name in ("flops_f32", "flops_f16"):
        rate = target[name]
        corner = rate / target["bandwidth"]
        points = [(10.0**left, 10.0**left * target["bandwidth"]), (corner, rate)]
        start = max(10.0**left, 10.0**low / target["bandwidth"])
        points[0] = (start, start * target["bandwidth"])
        points.append((10.0**right, rate))
        path = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in points)
        roofs.append(tag("polyline", points=path, class_="roofline"))
        if name == "flops_f32" or rate != target["flops_f32"]:
            kind = {"flops_f32": "float32", "flops_f16": "float16"}[name]
            label = f"{kind} {operations(rate, 'FLOP/s')}"
            roofs.append(tag("text", label, x=WIDTH - 12, y=to_y(rate) - 5, text_anchor="end"))
    marks = []
    for one in sorted(shown, key=lambda one: -one.shown_time):
        x = to_x(one.flops / one.dram)
        top = to_y(one.flops / one.roofline * 1e6)
        at = to_y(one.flops / max(one.shown_time, one.roofline) * 1e6)
        radius = 3 + 14 * math.sqrt(one.shown_time / record.total)
        marks.append(linked(
            one,
            tag("line", x1=x, x2=x, y1=at, y2=top, class_="gap"),
            tag("circle", cx=x, cy=top, r=3.0, class_="roof"),
            tag("circle", cx=x, cy=at, r=radius, class_="above" if one.is_above else "bar"),
            said=f"{about(one, record.total)}; {operations(one.flops, 'FLOP')},"
            f" {byte_size(one.dram)} of DRAM"
            + (f"; {one.algorithm}" if one.algorithm else "")
            + ("; faster than its roofline, drawn at it" if one.is_above else ""),
        ))  # fmt: skip
    label = f"Roofline of {len(shown)} kernels"
    axes = tag("g", *lines, *names, class_="axis")
    return svg(WIDTH, height, label, axes, *marks, tag("g", *roofs, class_="axis"))


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """The powers of ten around positive values, at least one apart."""
    logs = [math.log10(value) for value in values]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    return low, max(high, low + 1)


def bars(rows: Sequence[tuple[str, float, str, str]], label: str, row: float = 30) -> str:
    """Horizontal bars: (name, value, text at its end, class)."""
    most = max((value for _, value, _, _ in rows), default=0.0) or 1.0
    left, right = 230.0, 200.0
    marks = []
    for at, (name, value, text, kind) in enumerate(rows):
        y = at * row
        width = max(value / most * (WIDTH - left - right), 1.0)
        marks += [
            tag("text", escaped(name), x=left - 10, y=y + row / 2 + 4, text_anchor="end"),
            tag("rect", x=left, y=y + 5, width=width, height=row - 10, class_=kind),
            tag("text", escaped(text), x=left + width + 8, y=y + row / 2 + 4),
        ]
    return svg(WIDTH, row * len(rows), label, *marks)
