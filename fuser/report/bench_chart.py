"""What `fuser bench` found as a picture: a bar for each engine, with its spread, as an SVG file.

The file stands alone: it has its own colours, for a light and a dark background, and no script.
"""

from __future__ import annotations

from fuser.graph.units import duration, milliseconds
from fuser.report.bench import Bench, Case, Row
from fuser.report.charts import ticks
from fuser.report.markup import escaped, tag, titled

WIDTH, MARGIN = 760.0, 20.0
LEFT, RIGHT = 130.0, 210.0
"""Width left beside the bars for names and numbers."""
HEAD, TITLE, ROW, AXIS = 78.0, 30.0, 34.0, 40.0
"""Heights: of the head, a case's title, an engine, and the numbers below."""
MOST_LETTERS = 90

STYLE = """
svg { color-scheme: light dark; font: 13px system-ui, sans-serif; }
.back { fill: #ffffff; } text { fill: #16191d; } .quiet { fill: #535b66; }
.title { font-size: 16px; font-weight: 600; } .case { font-weight: 600; }
line { stroke: #d5dae0; } .spread { stroke: #16191d; stroke-width: 2; }
.own { fill: #2166ac; } .peer { fill: #8a929c; }
@media (prefers-color-scheme: dark) {
  .back { fill: #14171b; } text { fill: #e8ebee; } .quiet { fill: #a4adb8; }
  line { stroke: #363d46; } .spread { stroke: #e8ebee; }
  .own { fill: #5ba3ea; } .peer { fill: #6b7480; }
}
"""


def chart_of(bench: Bench) -> str:
    """The medians as bars, p90 and the fastest run as marks on them; each case has a scale of its
    own, as batches differ too much for one."""
    y = HEAD
    parts = []
    for case in bench.cases:
        parts.append(tag("g", *_case(case), transform=f"translate(0 {y:.0f})"))
        y += TITLE + ROW * len(case.rows) + AXIS
    head = [
        tag("style", STYLE),
        titled(f"Latency of {bench.model}"),
        tag("rect", width=WIDTH, height=y, class_="back"),
        tag("text", escaped(_cut(bench.model, 60)), x=MARGIN, y=28.0, class_="title"),
        tag("text", escaped(_cut(bench.device, MOST_LETTERS)), x=MARGIN, y=48.0, class_="quiet"),
        tag("text", "Whole runs. Bar: median; line: from the fastest run to p90.", x=MARGIN, y=67.0,
            class_="quiet"),
    ]  # fmt: skip
    size = {"width": f"{WIDTH:.0f}", "height": f"{y:.0f}"}
    return tag(
        "svg", *head, *parts, xmlns="http://www.w3.org/2000/svg", **size,
        viewBox=f"0 0 {WIDTH:.0f} {y:.0f}", role="img",
    ) + "\n"  # fmt: skip


def _case(case: Case) -> list[str]:
    most = max(max(row.measured.latency_ms.p50, row.measured.latency_ms.p90) for row in case.rows)
    per_ms = (WIDTH - LEFT - RIGHT) / max(most, 1e-9)
    bottom = TITLE + ROW * len(case.rows)
    label = ", ".join(f"{name} = {size}" for name, size in case.dims.items())
    if ratios := [one.sentence for one in case.rows[0].against]:
        label = ": ".join(filter(None, (label, f"fuser {', '.join(ratios)}")))
    parts = [tag("text", escaped(_cut(label, MOST_LETTERS)), x=MARGIN, y=18.0, class_="case")]
    for at in ticks(most, 5):
        x = LEFT + at * per_ms
        parts.append(tag("line", x1=x, x2=x, y1=TITLE, y2=bottom + 4))
        text = duration(at / 1e3, tick=True) if at else "0"
        parts.append(tag("text", text, x=x, y=bottom + 20, text_anchor="middle", class_="quiet"))
    for place, row in enumerate(case.rows):
        parts += _bar(row, TITLE + ROW * place, per_ms, own=place == 0)
    return parts


def _bar(row: Row, y: float, per_ms: float, own: bool) -> list[str]:
    times = row.measured.latency_ms
    middle = y + ROW / 2
    ends = [LEFT + max(value, 0.0) * per_ms for value in (times.min, times.p90)]
    said = f"{milliseconds(times.p50)}, p90 {milliseconds(times.p90)}"
    return [
        tag("text", escaped(_cut(row.engine, 16)), x=LEFT - 10, y=middle + 5, text_anchor="end"),
        tag("rect", titled(f"{row.engine} {row.version}: p50 {milliseconds(times.p50)},"
                           f" p90 {milliseconds(times.p90)}, fastest {milliseconds(times.min)}"),
            x=LEFT, y=y + 6, width=max(times.p50 * per_ms, 1.0), height=ROW - 12,
            class_="own" if own else "peer"),
        tag("line", x1=ends[0], x2=ends[1], y1=middle, y2=middle, class_="spread"),
        *(tag("line", x1=x, x2=x, y1=middle - 5, y2=middle + 5, class_="spread") for x in ends),
        tag("text", escaped(said), x=max(ends[1], LEFT + times.p50 * per_ms) + 8, y=middle + 5),
    ]  # fmt: skip


def _cut(text: str, most: int) -> str:
    """In the middle, where it is too long."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]} … {text[1 - most // 2 :]}"
