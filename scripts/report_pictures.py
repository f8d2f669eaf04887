"""The pictures of docs/reading-a-report.md: python -m scripts.report_pictures [FOLDER]

BERT base, ResNet-50 and two convolutions are compiled and measured here, and parts of their report
pages are written as SVG files into FOLDER (docs/images). Numbers in that page are those of the
pictures: change both together. Prints them.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from contextlib import redirect_stdout
from importlib import resources
from pathlib import Path

from fuser.cli.main import run
from fuser.graph.units import counted
from fuser.report import charts, drawing
from fuser.report.breakdown import sentence
from fuser.report.markup import escaped, tag
from fuser.report.record import Record
from fuser.report.verdict import of_record
from models import build, save

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
MODELS = ("bert", "resnet50")
LINE, LETTERS = 18.0, 150
"""The height of a line of text, and how many letters fit it."""


def report(name: str) -> Record:
    """The report of a model in models/, with its details, measured on this machine's CPU."""
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        save(build(name), path)
        with redirect_stdout(out):
            code = run(["report", str(path), "--device", "cpu", "--iterations", "30", "--json"])
    assert code == 0
    return Record(json.loads(out.getvalue()))


def stacked(parts: Iterable[str]) -> str:
    """Drawings and lines of text, one below the other, as an SVG file of its own."""
    y, inside, width = 8.0, [], 0.0
    for part in parts:
        if not part.startswith("<svg"):
            for line in textwrap.wrap(part, LETTERS, subsequent_indent="   "):
                inside.append(tag("text", escaped(line), x=0.0, y=y + 13))
                y += LINE
            continue
        size = re.search(r'viewBox="0 0 (\d+) (\d+)"', part)
        assert size is not None
        wide, high = map(float, size.groups())
        plain = re.sub(r"<title>.*?</title>", "", part)
        plain = re.sub(r'<a href="#k\d+"|<a ', "<g ", plain).replace("</a>", "</g>")
        plain = re.sub(r"^<svg[^>]*>", "", plain).removesuffix("</svg>")
        inside.append(tag("g", plain, transform=f"translate(0 {y:.0f})"))
        y, width = y + high + 8, max(width, wide)
    back = tag("rect", width="100%", height="100%", style="fill:var(--back)")
    return tag(
        "svg", f"<style>{style()}</style>{back}", tag("g", *inside, transform="translate(12 0)"),
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width + 24:.0f} {y:.0f}",
        width=f"{width + 24:.0f}", height=f"{y:.0f}",
    ) + "\n"  # fmt: skip


def style() -> str:
    """What of the page's style is about drawings."""
    css = resources.files("fuser.report").joinpath("page.css").read_text()
    colours = re.match(r":root \{.*?\n\}\n@media.*?\n\}\n", css, re.DOTALL)
    assert colours is not None
    rules = re.findall(r"^(?:svg|\.k-|\.drawing \.)[^\n]*\}$", css, re.MULTILINE)
    kept = [rule for rule in rules if ":hover" not in rule and "chosen" not in rule]
    return "\n".join([colours[0], *kept]).replace(".drawing ", "")


def first_screen(record: Record) -> str:
    """What the page of a report begins with."""
    whole = max(record.total, sum(one.shown_time for one in record.unfused))
    return stacked([
        record.title,
        *(f"{saved.label}: {saved}".replace("->", "→") for saved in record.savings),
        charts.strip(record.unfused, whole,
                     f"{counted(len(record.unfused), 'kernel')} without fusion"),
        charts.strip(record.launches, whole,
                     f"{counted(len(record.launches), 'kernel')} with fusion", axis=True),
        charts.bar(record.parts), sentence(record.parts),
        *(f"{at}. {one.sentence(record.total)}" for at, one in enumerate(of_record(record), 1)),
    ])  # fmt: skip


def main(folder: Path) -> None:
    for name in MODELS:
        record = report(name)
        pictures = {name: first_screen(record)}
        pictures[f"{name}-roofline"] = stacked([charts.roofline(record)])
        _write(folder, pictures)
        print(record.title, *map(str, record.savings), sentence(record.parts),
              *(one.sentence(record.total) for one in of_record(record)), sep="\n")  # fmt: skip
    graph = drawing.graph(report("conv_block"))
    _write(folder, {"graph": stacked([re.sub(r"^<svg [^>]*?viewBox", "<svg viewBox", graph)])})


def _write(folder: Path, pictures: dict[str, str]) -> None:
    for name, text in pictures.items():
        (folder / f"report-{name}.svg").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
