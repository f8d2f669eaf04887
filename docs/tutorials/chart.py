"""Line charts as SVG, without a plotting library.

svg = line_chart("vector add", "elements", "GB/s", {"fuser": [(4096, 1.5), (8192, 2.5)]})
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 80
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df", "#9a6700", "#57606a")
STYLE = "font-family:sans-serif;font-size:12px;fill:#24292f"


def line_chart(
    title: str, across: str, up: str, lines: Mapping[str, Points], logarithmic: bool = True
) -> str:
    """A chart of named lines of (x, y) points.

    across, up: what the axes count. logarithmic: whether x is shown by its logarithm; y begins at
    0. Raises ValueError where there is no point, or one that cannot be shown.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError("a chart needs a point")
    if any(not math.isfinite(x) or not math.isfinite(y) or y < 0 for x, y in points):
        raise ValueError("points are finite, and not below 0")
    if logarithmic and any(x <= 0 for x, _ in points):
        raise ValueError("a logarithmic axis shows numbers above 0 only")
    xs = sorted({x for x, _ in points})
    ticks = y_ticks(max(y for _, y in points))

    def scaled(x: float) -> float:
        return math.log(x) if logarithmic else x

    first, last = scaled(xs[0]), scaled(xs[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        share = (scaled(x) - first) / (last - first) if last > first else 0.5
        return (
            LEFT + share * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / ticks[-1] * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, title, "middle", "font-size:15px"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 38, across, "middle"),
        _text(LEFT, TOP - 10, up, "middle"),
    ]
    for tick in ticks:
        y = place(xs[0], tick)[1]
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#d0d7de"/>'
        )
        parts.append(_text(LEFT - 8, y + 4, f"{tick:g}", "end"))
    for x in xs[:: math.ceil(len(xs) / 9)]:
        parts.append(_text(place(x, 0)[0], HEIGHT - BOTTOM + 18, _short(x), "middle"))
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        ends = [place(x, y) for x, y in sorted(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in ends]
        at = LEFT + number * (WIDTH - LEFT - RIGHT) / len(lines)
        parts.append(
            f'<rect x="{at:.1f}" y="{HEIGHT - 26}" width="14" height="4" fill="{colour}"/>'
        )
        parts.append(_text(at + 20, HEIGHT - 20, name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def y_ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(most / 4))
    step = next(unit * power for unit in (1, 2, 2.5, 5, 10) if unit * power * 5 >= most)
    return [n * step for n in range(math.ceil(most / step - 1e-9) + 1)]


def _short(number: float) -> str:
    """A number for an axis: 2^20 for large powers of 2."""
    whole = int(number)
    if whole == number and whole >= 1 << 15 and not whole & (whole - 1):
        return f"2^{whole.bit_length() - 1}"
    return f"{number:g}"


def _text(x: float, y: float, words: str, anchor: str, style: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{STYLE};{style}">'
        f"{escape(words)}</text>"
    )
