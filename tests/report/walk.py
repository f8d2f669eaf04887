"""What reports of ten models say, held against each other and against runs without fusion.

    python -m tests.report.walk                            # in the sizes of the tests, on the CPU
    python -m tests.report.walk --device cuda --whole      # as large as they are
    python -m tests.report.walk bert resnet50 --whole

For each model a line, and one for each thing that is wrong:

- the plan without fusion launches and moves what `--no-fusion` does; no floor is above a plan;
- a saving below zero is told only where the fused plan is slower, with what to do;
- the bar of the page adds up to the measured run within 3 %;
- no kernel is shown above its roofline, and one that was measured to be faster is named;
- rows, anchors and kernels have names of their own; the page is small and asks for nothing.

Exits with 1 if anything is wrong. Times are of this machine at this time: `alone` is the median of
a run of --no-fusion over what the report has for it, and `one by one` the kernels over the run.
"""

from __future__ import annotations

import html
import io
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from fuser.cli.main import run
from fuser.graph.units import byte_size, milliseconds
from fuser.report.groups import groups
from fuser.report.page import LIMIT, page
from fuser.report.record import Record
from fuser.report.summary import overview
from fuser.runtime.savings import ADVICE
from models import TINY, build, save
from tests.cli.widths import MODELS

KINDS_OF_BYTES = ("boundary_bytes", "dram_bytes", "dram_bytes_cold")
MAX_GAP = 0.03
"""Largest difference between the bar's parts and the run, as a share."""
MICROSECONDS = {"s": 1e6, "ms": 1e3, "µs": 1.0, "ns": 1e-3}


def report_of(path: Path, device: str, iterations: int, *more: str) -> Record:
    """What `fuser report --json` prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = run([
            "report", str(path), "--device", device, "--iterations", str(iterations), "--json",
            *more,
        ])  # fmt: skip
    assert code == 0, f"fuser report {path.name} {' '.join(more)} ended with {code}"
    return Record(json.loads(out.getvalue()))


def wrong(record: Record, alone: Record) -> Iterator[str]:
    """What is wrong with a report. alone: that of the plan without fusion."""
    data = record.data
    kernels = data["kernels"]["before"]
    if kernels != len(alone.launches) or kernels != alone.data["kernels"]["after"]:
        yield f"{kernels} kernels without fusion, --no-fusion launches {len(alone.launches)}"
    for kind in KINDS_OF_BYTES:
        found, other = data[kind], alone.data[kind]
        if found["before"] != other["after"]:
            yield f"{kind} without fusion {found['before']:,}, of --no-fusion {other['after']:,}"
        for each in (found, other):
            if each["floor"] > min(each["before"], each["after"]):
                yield f"{kind}: the floor {each['floor']:,} is above {each}"
    yield from _negative(record)
    yield from _names(record)
    yield from wrong_page(record, page(record))


def _negative(record: Record) -> Iterator[str]:
    told = [str(one) for one in record.savings if re.search(r"x (more|slower)\b", one.ratio)]
    losses = [line for line in told if not line.endswith("in turns)")]
    if losses and not record.slower:
        yield f"a loss is told and the fused plan is not slower: {'; '.join(losses)}"
    words = " ".join(overview(record).split())
    if record.slower and ADVICE.split(":")[0] not in words:
        yield "the fused plan is slower, and nothing says what to do"


def _names(record: Record) -> Iterator[str]:
    for what, names in (
        ("kernels", [one.own for one in record.launches]),
        ("rows", [group.title for group in groups(record)]),
        ("rows", [group.title for group in groups(record, apart=True)]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                yield f"{count} {what} are called {name}"


def wrong_page(record: Record, text: str) -> Iterator[str]:
    """What is wrong with the page of a report."""
    if (size := len(text.encode())) > LIMIT:
        yield f"the page has {size:,} bytes"
    if found := re.search(r"https?:|url\(|@import|\ssrc=", text):
        yield f"the page asks for {text[found.start() : found.start() + 60]!r}"
    for name, count in Counter(re.findall(r'\sid="([^"]*)"', text)).items():
        if count > 1:
            yield f"{count} parts of the page have the anchor {name}"
    table = re.search(r'<table id="all">.*?</table>', text, re.DOTALL)
    rows = re.findall(r'<td><a href="#k\d+">(.*?)</a>', table[0] if table else "")
    if len(rows) != len(groups(record)):
        yield f"the page has {len(rows)} rows of {len(groups(record))} groups of kernels"
    for name, count in Counter(rows).items():
        if count > 1:
            yield f"{count} rows of the page are called {html.unescape(name)}"
    if record.parts:
        run_us, told = record.data["latency_ms"]["median"] * 1e3, bar(text)
        if abs(told - run_us) > MAX_GAP * run_us:
            yield f"the bar adds up to {told:,.1f} µs, the run took {run_us:,.1f} µs"
    elif record.data.get("latency_ms"):
        yield "the page has no bar"
    for share in map(float, re.findall(r"([\d.]+)\s%</td>", text)):
        if share > 100:
            yield f"a kernel is shown at {share} %"
    for one in record.launches:
        named = f'href="#{one.id}"' in text.partition("Faster than their roofline")[2][:4000]
        if one.is_above and not named and above(record) <= 8:
            yield f"{one.own} is faster than its roofline, and the page does not say so"


def bar(text: str) -> float:
    """Microseconds of all parts of the page's bar "Where ... go", as it says them."""
    found = re.search(r"<title>Where [^<]* go</title>(.*?)</svg>", text, re.DOTALL)
    assert found, "the page has no bar"
    parts = re.findall(r"<title>[^<]*: ([\d.,]+)\s(\w*s), [^<]* of the run</title>", found[1])
    return sum(float(size.replace(",", "")) * MICROSECONDS[unit] for size, unit in parts)


def above(record: Record) -> int:
    """Kernels that were measured to be faster than their roofline."""
    return sum(one.is_above for one in record.launches)


def line(name: str, record: Record, alone: Record) -> str:
    """What a person reads of a report."""
    data, own = record.data, record.data["latency_ms"]["median"]
    unfused = (data.get("unfused") or {}).get("latency_ms")
    times = "time of the other plan predicted"
    if unfused:
        again = alone.data["latency_ms"]["median"] / unfused["median"]
        times = f"{milliseconds(unfused['median'])} -> {milliseconds(own)}, alone {again:.2f}"
    moved = [
        "{} {} -> {} (floor {})".format(
            label, *(byte_size(data[kind][key]) for key in ("before", "after", "floor"))
        )
        for label, kind in (("memory", "boundary_bytes"), ("DRAM", "dram_bytes"))
    ]
    told = "; ".join(f"{one.label} {one.ratio}" for one in record.savings if one.ratio)
    over = f"{above(record)} kernels above the roofline"
    if above(record):
        worst = max(record.launches, key=lambda one: one.roofline / (one.time or 1e9))
        times_as_fast = worst.roofline / (worst.time or 1e9)
        over += f" (most: {worst.own} {worst.algorithm} {times_as_fast:.2f} times as fast)"
    return (
        f"{name}: kernels {data['kernels']['before']} -> {data['kernels']['after']};"
        f" {'; '.join(moved)}; {times}; told: {told}; slower {record.slower};"
        f" bar / run {bar(page(record)) / (own * 1e3):.3f},"
        f" one by one {record.total / (own * 1e3):.2f}; {over};"
        f" {len({one.own for one in record.launches})} names of {len(record.launches)} kernels;"
        f" page {byte_size(len(page(record).encode()))}"
    )


def example(name: str, whole: bool) -> Any:
    return build(name, **({} if whole else TINY.get(name, {})))


@click.command(help=__doc__.replace("\n    python", "\n\b\n    python", 1) if __doc__ else "")
@click.argument("names", nargs=-1, type=click.Choice(MODELS))
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
@click.option("--whole", is_flag=True, help="Models in their own sizes.")
@click.option("--iterations", type=click.IntRange(min=5), default=10, show_default=True)
def main(names: Sequence[str], device: str, whole: bool, iterations: int) -> None:
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names or MODELS:
            started = time.monotonic()
            path = Path(folder) / f"{name}.onnx"
            save(example(name, whole), path)
            try:
                record = report_of(path, device, iterations)
                alone = report_of(path, device, iterations, "--no-fusion")
                told, found = line(name, record, alone), list(wrong(record, alone))
            except AssertionError as error:
                told, found = name, [str(error)]
            failures += len(found)
            click.echo(f"{told}; {time.monotonic() - started:.0f} s")
            for text in found:
                click.echo(f"    WRONG: {text}")
            path.unlink()
    click.echo(f"{failures} wrong")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
