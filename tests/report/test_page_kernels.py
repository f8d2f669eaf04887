"""What a page says of kernels: names, equal ones together, rooflines, commands, the path."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fuser.cli.main import run
from fuser.report import charts
from fuser.report.page import page
from fuser.report.panels import command
from fuser.report.record import Record
from fuser.report.trace import trace
from models import build, save
from scripts.report_pictures import IMAGES, first_screen, stacked


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.onnx, two convolutions by Winograd with three kernels each, and its report.json."""
    folder = tmp_path_factory.mktemp("page")
    save(build("conv_block"), folder / "model.onnx")
    args = ["run", str(folder / "model.onnx"), "--numerics", "fast", "--device", "cpu", "--profile",
            "--iterations", "1", "--no-measure",
            "--report", str(folder / "report.json")]  # fmt: skip
    assert run(args) == 0
    return folder


@pytest.fixture(scope="module")
def data(folder: Path) -> dict[str, Any]:
    """The report, with times in whole microseconds and rooflines of half as many."""
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    for at, one in enumerate(found["launches"]):
        one |= {"time_us": 10.0 + at, "roofline_us": 5.0}
    return found


def changed(data: dict[str, Any], **each: Any) -> Record:
    """The report with other values for all kernels."""
    return Record(data | {"launches": [one | each for one in data["launches"]]})


def test_every_row_has_a_name_and_a_panel_of_its_own(data: dict[str, Any]) -> None:
    text = page(Record(data))
    table = text.split('id="all"')[1].split("</table>")[0]
    rows = re.findall(r"<tr><td.*?</tr>", table, re.DOTALL)
    names = [re.findall(r'<a href="#(k\d+)">(.*?)</a>', row) for row in rows]
    assert len({row[0][1] for row in names}) == len(rows)
    linked = dict(link for row in names for link in row)
    assert linked == {f"k{at}": f"conv_{at // 3}.{at % 3 + 1}" for at in range(6)}
    for id, name in linked.items():
        assert re.search(rf'<section class="kernel" id="{id}".*?<h3[^>]*>{name}</h3>', text)
    (both,) = [row for row in rows if "x 2" in row]
    assert "conv_0.2" in both and "conv_1.2" in both and "25.0 µs" in both
    assert "/conv{1,2}/Conv" in both


def test_the_critical_path_and_the_trace_have_the_names_of_rows(data: dict[str, Any]) -> None:
    """Three kernels of one region are three names everywhere."""
    record, path = Record(data), data["critical_path"]
    own = [one.own for one in record.launches]
    assert own == [f"conv_{at // 3}.{at % 3 + 1}" for at in range(6)]
    told = {one["node"]: one["name"] for one in (*path["kernels"], *path["off"])}
    assert told == dict(enumerate(own))
    spans = [event for event in trace(record)["traceEvents"] if event["ph"] == "X"]
    assert [one["name"] for one in spans if one["tid"] == 1] == own
    assert [one["name"] for one in spans if one["tid"] == 0][1:] == own


def test_algorithms_are_named(data: dict[str, Any]) -> None:
    text = page(changed(data, algorithm="split k 4"))
    assert text.count("<dt>computed by</dt><dd>split k 4</dd>") == 6
    assert "conv_0.1</a>, split k 4<small>" in text and "</a> x 2, split k 4<small>" in text
    assert "computed by" not in page(changed(data, algorithm=""))


def test_no_kernel_is_drawn_above_its_roofline_without_a_word(data: dict[str, Any]) -> None:
    """Shares end at 100 %; rings and a sentence name the kernels and how they compute."""
    moved = {"read": 1000, "written": 1000}
    below = changed(data, flops=10**6, dram_bytes=moved)
    above = changed(data, flops=10**6, dram_bytes=moved, roofline_us=1000.0)
    for record, words in ((below, False), (above, True)):
        text = page(record)
        assert ("Faster than their roofline" in text) == words
        assert ('class="above"' in charts.roofline(record)) == words
        shares = [float(x) for x in re.findall(r">([\d.]+) %<", text)]
        assert shares and max(shares) <= 100
        for tops, ats in re.findall(r'cy="([\d.]+)" r="3".*?cy="([\d.]+)"', text):
            assert float(ats) >= float(tops)
    assert "conv_0.1</a>, winograd" in page(above)


def test_kernels_that_need_fewer_operations_are_named(data: dict[str, Any]) -> None:
    """At 5 µs and a peak of 2e11 a second, more than 10^6 operations are above the line."""
    target = data["target"] | {"flops_f32": 2e11, "flops_f16": 1e11}
    moved = {"read": 1000, "written": 1000}
    for flops, words in ((10**6, False), (2 * 10**6, True)):
        record = Record(changed(data, flops=flops, dram_bytes=moved).data | {"target": target})
        text = page(record)
        assert ("may be above the lines: " in text) == words
        assert ('lines: <a href="#k0">conv_0.1</a>, winograd; ' in text) == words


def test_the_command_explains_the_kernel(
    data: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record(data)
    text = command(record, record.launches[4])
    assert text in page(record).replace("&#x27;", "'")
    name, *args = shlex.split(text)
    args[args.index(data["model"])] = str(folder / "model.onnx")
    assert (name, run(args)) == ("fuser", 0)
    assert "conv_1: /conv2/Conv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"precision": "bf16 (avx512_bf16)"}, "--precision bf16"),
        ({"numerics": "strict, batch invariant"}, "--numerics strict --batch-invariant"),
        ({"dims": {"batch": 2, "n": 3}}, "--dim batch=2 --dim n=3"),
        ({"forced": {"pin": [["a", "b c"]], "forbid": []}}, "--pin 'a,b c'"),
        ({"model": "my model.onnx"}, "explain 'my model.onnx' --kernel conv_0 "),
    ],
)
def test_the_command_has_the_options_of_the_report(
    data: dict[str, Any], change: dict[str, Any], wanted: str
) -> None:
    record = Record(data | change)
    assert wanted in command(record, record.launches[0])


def test_the_command_names_a_target_that_is_elsewhere(data: dict[str, Any]) -> None:
    gpu = data["target"] | {"name": "cuda", "arch": "sm_90a"}
    launches = [one | {"time_us": None} for one in data["launches"]]
    elsewhere = Record(data | {"launches": launches, "target": gpu})
    assert command(elsewhere, elsewhere.launches[0]).endswith("--target sm_90a")
    here = Record(data | {"target": gpu})
    assert command(here, here.launches[0]).endswith("--device cuda")


def test_the_critical_path_is_marked(data: dict[str, Any]) -> None:
    """Nothing is marked where all kernels wait for one another."""
    every = page(Record(data))
    assert "6 kernels that wait for one another" in every and 'class="path"' not in every
    found = [{"node": at, "name": "k", "time_us": 10.0 + at} for at in range(6)]
    path = {"kernels": found[:4], "off": [one | {"overlap_us": 7.0} for one in found[4:]],
            "us": 46.0, "total_us": 75.0, "data_us": 40.0, "overlap_us": 14.0}  # fmt: skip
    text = page(Record(data | {"critical_path": path}))
    assert text.count('class="path"') == 4
    assert "46.0 µs of 75.0 µs" in text and "14.0 µs at most" in text and "took 40.0 µs" in text
    assert "conv_1.2</a> 14.0\u00a0µs, 7.00\u00a0µs of it could overlap" in text


def test_the_first_section_tells_the_slowest_and_what_fusion_saved(data: dict[str, Any]) -> None:
    latency = {"median": 0.08, "p90": 0.09, "p99": 0.09, "iterations": 3}
    alone = {
        "latency_ms": latency | {"median": 0.16}, "note": "",
        "launches": [{"name": f"u{at}", "kind": "sort", "nodes": [], "time_us": 20.0}
                     for at in range(500)],
    }  # fmt: skip
    record = Record(data | {"latency_ms": latency, "unfused": alone})
    first = page(record).split('id="summary-title"')[1].split("</section>")[0]
    assert "2.00x faster" in first and "500 kernels without fusion, 10.0 ms" in first
    assert first.index("Where the time goes") < first.index('class="verdicts"')
    assert '<li><a href="#k1">conv_0.2, winograd x 2</a>, /conv{1,2}/Conv' in first.replace(
        "\u00a0", " "
    )
    assert first.count("<rect") < 50, "many kernels of one kind are one mark"
    assert "other (sort)" in first


def test_pictures_of_the_docs_are_files_of_their_own(data: dict[str, Any]) -> None:
    latency = {"median": 0.08, "p90": 0.09, "p99": 0.09, "iterations": 3}
    record = Record(data | {"latency_ms": latency})
    texts = [path.read_text() for path in sorted(IMAGES.glob("report-*.svg"))]
    assert len(texts) == 5 and max(map(len, texts)) < 60_000
    drawn = first_screen(record)
    for text in (*texts, drawn, stacked([charts.timeline(record)])):
        root = ElementTree.fromstring(text)
        kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert kinds <= {"svg", "style", "rect", "g", "text", "line", "path", "circle", "polyline"}
        assert not re.search(r"href|url\(|@import", text)
    assert "1. conv_0.2, winograd x 2, /conv{1,2}/Conv" in drawn and "--conv: #" in drawn
