"""`fuser report`: the page, the trace, the annotated model, two reports beside each other."""

from __future__ import annotations

import functools
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from fuser.cli.main import run
from fuser.errors import UsageError
from fuser.frontends.onnx.model import open_model
from fuser.pipeline.compiler import partition_source
from fuser.pipeline.options import CompileOptions
from fuser.report.difference import pairs
from fuser.report.page import LIMIT, page
from fuser.report.record import MALFORMED, Record, homes
from fuser.report.refused import refusal_rows
from fuser.report.trace import Stages, trace
from models import TINY, build, example_feeds, save

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.onnx, a transformer, and what `fuser report` writes of it: report.json, page.html,
    run.trace, annotated.onnx; unfused.json, a report with a kernel for each operator."""
    folder = tmp_path_factory.mktemp("report")
    model, dims = folder / "model.onnx", {"batch": 1, "sequence": 8}
    save(build("bert", **{**TINY["bert"], "layers": 1}), model)
    out = io.StringIO()
    with redirect_stdout(out):
        code = run([
            "report", str(model), "--json", "--dim", "sequence=8", "--iterations", "2",
            "--html", str(folder / "page.html"), "--trace", str(folder / "run.trace"),
            "--annotate", str(folder / "annotated.onnx"),
        ])  # fmt: skip
    assert code == 0
    (folder / "report.json").write_text(out.getvalue())
    data = json.loads(out.getvalue())
    cut = partition_source(open_model(model), CompileOptions(device="cpu", fusion=False), dims=dims)
    apart = [
        data["launches"][0] | {"region": item.id, "kind": item.kind, "nodes": list(item.origin)}
        for item in cut.regions
    ]
    (folder / "unfused.json").write_text(json.dumps(data | {"launches": apart}))
    return folder


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    return Record.read(folder / "report.json")


class Anchors(HTMLParser):
    """The ids of a page, where its links lead, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "id" in found:
            assert found["id"] not in self.ids, "an id is given twice"
            self.ids.add(found["id"] or "")
        self.links |= {found["href"] or ""} if "href" in found else set()
        self.loaded += [name for name in ("src", "srcset", "data", "xlink:href") if name in found]
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"


def checked(text: str) -> Anchors:
    """The anchors of a page that is whole, small, and asks nothing of a network."""
    assert len(text.encode()) <= LIMIT
    assert not re.search(r"https?:|url\(|@import", text)
    found = Anchors(text)
    assert not found.open and not found.loaded
    assert {link[1:] for link in found.links} <= found.ids | {"none"}
    assert all(link.startswith("#") for link in found.links)
    return found


def test_the_page_is_whole_and_needs_no_network(folder: Path, record: Record) -> None:
    text = (folder / "page.html").read_text()
    found = checked(text)
    assert text == page(record), "the page is no function of the report's JSON"
    assert {one.id for one in record.launches} <= found.ids
    for node in record.nodes:
        assert node["name"] in text, "every node is in a kernel, or said to be in none"
    for item in record.refusals:
        assert item["reason"].split("'")[0] in text
    assert "kernel @" in text and ".text" in text, "tile programs and assembly"


def test_each_node_that_runs_is_in_one_region(record: Record) -> None:
    assert record.is_measured and record.nodes and record.tensors and record.refusals
    places = [name for one in record.launches for name in one.nodes]
    assert set(record.homes) == set(places)
    assert set(places) <= {node["name"] for node in record.nodes}, "constants are not computed"
    compute = {node["name"] for node in record.nodes if node["kind"] == "compute"}
    assert compute <= set(record.homes)


def test_names_of_a_model_are_text_of_the_page(record: Record) -> None:
    evil = '</title><script>alert("1")</script><!-- kernels -->'
    data = json.loads(json.dumps(record.data).replace("/embeddings/Add_1", json.dumps(evil)[1:-1]))
    text = page(Record(data | {"model": evil}))
    checked(text)
    assert text.count("<script>") == 1 and "alert(&quot;1" in text


@pytest.mark.parametrize("launches, letters", [(700, 10), (40, 200_000)])
def test_large_reports_fit_a_page(record: Record, launches: int, letters: int) -> None:
    """Many kernels, and kernels with much code."""
    data = dict(record.data)
    one = data["launches"][0]
    data["launches"] = [one | {"region": at, "nodes": [f"n{at}" * 9]} for at in range(launches)]
    line = "add <8 x float>\n"
    texts = [{"tile": line * (letters // 16), "code": f"ends {at}", "stage": "asm"}
             for at in range(launches)]  # fmt: skip
    nodes = [{"name": f"n{at}" * 9, "op": "Add", "kind": "compute", "reads": []}
             for at in range(launches)]  # fmt: skip
    data["details"] = data["details"] | {"texts": texts, "nodes": nodes}
    text = page(Record(data))
    found = checked(text)
    assert sum(name.startswith("k") and name[1:].isdigit() for name in found.ids) >= 40
    if letters > 10:
        assert "lines more: fuser dump --stage tile --region 3" in text
        assert len(text.encode()) > LIMIT * 0.8, "the room that there is was not used"


def test_a_refusal_saves_no_more_than_its_kernels_took(record: Record) -> None:
    """Kernels of 2 µs with rooflines of 1.5: 2.5 µs and the time of the bytes between them at most,
    whatever was predicted."""
    launches = [one | {"time_us": 2.0, "roofline_us": 1.5} for one in record.data["launches"]]
    data = record.data | {"launches": launches}
    one = record.refusals[0] | {"seconds": 1.0, "bytes": 1000}
    target = record.data["target"] | {"bandwidth": 1e10}  # 0.1 µs for 1000 bytes
    for refusals, wanted in (([one], [2.6e-6]), ([one, one], [1.35e-6] * 2),
                             ([one | {"seconds": 1e-6}], [1e-6]),
                             ([one | {"producer": "map_77"}], [1.0])):  # fmt: skip
        told = data | {"target": target, "details": record.data["details"] | {"refusals": refusals}}
        assert [row.seconds for row in refusal_rows(Record(told))] == pytest.approx(wanted)
    times = {row.label: row.shown_time * 1e-6 for row in record.launches}
    for row in refusal_rows(record):
        assert row.seconds <= sum(times[name] for name in (row.producer, row.consumer))


def test_refusals_of_little_are_folded(record: Record) -> None:
    """Three that count for nothing beside one of a tenth of the run."""
    one, total = record.refusals[0], record.total * 1e-6
    ends = sorted(record.launches, key=lambda launch: -launch.shown_time)[:2]
    big = one | {"producer": ends[0].label, "consumer": ends[1].label}
    refusals = [
        one | {"code": "tiny", "reason": "small a", "seconds": 1e-4 * total},
        big | {"code": "large", "reason": "big", "seconds": 0.02 * total, "lift": "--pin a,b: x"},
        *[one | {"code": "less", "reason": "small b", "seconds": 2e-4 * total}] * 2,
    ]
    text = page(Record(record.data | {"details": record.data["details"] | {"refusals": refusals}}))
    checked(text)
    section = text.split('id="refusals-title"')[1].split("</section>")[0]
    before, fold = section.split("<details><summary>and 3 more below 1 % of the run: ")
    assert "big" in before and "--pin a,b: x" in before and "small" not in before
    assert fold.index("small b") < fold.index("small a")
    few = [item for item in refusals if item["code"] != "large"]
    text = page(Record(record.data | {"details": record.data["details"] | {"refusals": few}}))
    assert "<summary>3 below 1 % of the run: " in text and "what lifts it" not in text


def test_reports_that_were_not_measured_say_so(record: Record) -> None:
    launches = [one | {"time_us": None} for one in record.data["launches"]]
    plain = {key: value for key, value in record.data.items() if key != "details"}
    text = page(Record(plain | {"launches": launches, "latency_ms": None, "target": None}))
    checked(text)
    assert "Not measured" in text and "has no graph" in text


def test_files_that_are_no_reports_are_errors(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "other.json"
    for text in ("no json", "[1]", "{}", '{"schema": 1}', json.dumps({"schema": 2})):
        other.write_text(text)
        with pytest.raises(UsageError, match=r"other\.json"):
            Record.read(other)
    assert run(["report", str(other), str(folder / "report.json")]) == 2
    assert run(["report", str(folder / "report.json"), "--annotate", str(tmp_path / "x")]) == 2


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and the first places of every list in a JSON value."""
    if path:
        yield path
    inner = data.items() if isinstance(data, dict) else enumerate(data[:2])
    for key, value in inner if isinstance(data, dict | list) else ():
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))
        else:
            yield (*path, key)


@pytest.mark.parametrize("wrong", [None, "text", -1, 0, []])
def test_a_broken_report_is_an_error_or_a_page(record: Record, wrong: Any) -> None:
    """Each part of a report is left out (None), or is something else."""
    whole = json.loads(json.dumps(record.data))
    whole["launches"] = whole["launches"][:2]
    details = whole["details"]
    for name in ("nodes", "tensors", "refusals", "texts"):
        details[name] = details[name][:2]
    one = {"node": 1, "name": "k", "time_us": 2.0}
    whole["critical_path"] |= {"kernels": [one], "off": [one | {"node": 0, "overlap_us": 1.0}]}
    whole["forced"] = {"pin": [["a", "b"]], "forbid": []}
    Record(whole).check()
    refused = 0
    for path in places(whole):
        data = json.loads(json.dumps(whole))
        at = functools.reduce(lambda inner, key: inner[key], path[:-1], data)
        if wrong is None:
            del at[path[-1]]
        else:
            at[path[-1]] = wrong
        found = Record(data)
        try:
            found.check()
        except MALFORMED:
            refused += 1
        else:
            page(found)
            trace(found)
    assert refused > 20


def test_two_reports_are_compared(folder: Path, record: Record) -> None:
    before = Record.read(folder / "unfused.json")
    found = pairs(before, record)
    for at, launches in enumerate((before.launches, record.launches)):
        sides = [one for pair in found for one in (pair.before, pair.after)[at]]
        assert sorted(sides, key=lambda one: one.at) == list(launches), "each once"
    attention = next(one for one in record.launches if one.kind == "attention")
    pair = next(pair for pair in found if attention in pair.after)
    assert pair.after == (attention,) and len(pair.before) > 2
    text = page(record, before)
    checked(text)
    assert "Change" in text
    same = pairs(record, record)
    assert all(pair.before == pair.after and len(pair.before) == 1 for pair in same)
    out = io.StringIO()
    with redirect_stdout(out):
        run(["report", str(folder / "unfused.json"), str(folder / "report.json")])
    assert re.search(rf"kernels +{len(before.launches)} +{len(record.launches)} +-", out.getvalue())


def test_homes_of_nodes() -> None:
    """What several regions have goes to its neighbours, else to the smallest, else to the first."""
    regions = {0: ("a", "s"), 1: ("s", "b", "c"), 2: ("t", "u", "v"), 3: ("t", "w")}
    assert homes(regions, {"b": ["s"], "c": ["s"]})["s"] == 1
    assert homes(regions, {})["s"] == 0
    assert homes(regions, {})["t"] == 3
    assert homes(regions, {"u": ["t"], "v": ["t"]})["t"] == 2


def spans(events: list[dict[str, Any]], process: int, thread: int) -> Iterator[dict[str, Any]]:
    return (e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (process, thread))


def test_the_trace_nests_and_its_sums_match(folder: Path, record: Record) -> None:
    events = json.loads((folder / "run.trace").read_text())["traceEvents"]
    for process in (1, 2):
        whole, *inside = spans(events, process, 0)
        assert inside
        at = whole["ts"]
        for span in inside:
            assert span["ts"] >= at - 1e-6, "events of a track overlap"
            at = span["ts"] + span["dur"]
        assert at <= whole["ts"] + whole["dur"] + 1e-6
    run_span, *kernels = spans(events, 2, 0)
    assert [span["name"] for span in kernels] == [one.own for one in record.launches]
    times = [one["time_us"] for one in record.data["launches"]]
    assert [span["dur"] for span in kernels] == times
    assert run_span["dur"] == pytest.approx(sum(times))
    stages = [span["name"] for span in spans(events, 1, 0)]
    assert {"importing the graph", "partitioning", "building the plan"} <= set(stages)
    roofs = list(spans(events, 2, 1))
    assert [span["ts"] for span in roofs] == [span["ts"] for span in kernels]
    assert all(a["dur"] <= b["dur"] for a, b in zip(roofs, kernels, strict=True))


def test_run_writes_a_trace_as_well(folder: Path, tmp_path: Path) -> None:
    written = tmp_path / "run.trace"
    with redirect_stdout(io.StringIO()):
        assert run(["run", str(folder / "model.onnx"), "--dim", "sequence=8", "--iterations", "1",
                    "--trace", str(written)]) == 0  # fmt: skip
    events = json.loads(written.read_text())["traceEvents"]
    whole, *kernels = spans(events, 2, 0)
    assert kernels and whole["dur"] == pytest.approx(sum(span["dur"] for span in kernels))
    assert list(spans(events, 1, 0)), "the compile has stages"


def test_a_trace_of_no_stages(record: Record) -> None:
    events = trace(record, Stages().spans)["traceEvents"]
    assert {event["pid"] for event in events} == {2}


def test_onnx_runtime_runs_the_annotated_model(folder: Path, record: Record) -> None:
    paths = [folder / "model.onnx", folder / "annotated.onnx"]
    model, annotated = map(onnx.load, paths)
    onnx.checker.check_model(annotated)
    found = {node.name: {entry.key: entry.value for entry in node.metadata_props}
             for node in annotated.graph.node}  # fmt: skip
    nodes = {node.name for node in model.graph.node}
    for one in record.launches:
        for name in nodes.intersection(one.nodes):
            assert one.label in found[name]["fuser.kernels"].split(", ")
            assert found[name]["namespace"] in found[name]["fuser.kernels"].split(", ")
    assert {table["namespace"] for table in found.values() if table} == {
        one.label for one in record.launches
    }
    for node in annotated.graph.node:
        del node.metadata_props[:]
    assert annotated == model, "something else was changed"
    feeds = example_feeds(model, {"batch": 1, "sequence": 8})
    one, other = (onnxruntime.InferenceSession(path).run(None, feeds) for path in paths)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_nodes_of_functions_get_namespaces() -> None:
    """A function of the model is one node of it, an operator's own body is not in it."""
    from fuser.frontends.onnx.annotate import annotate

    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 18, "own": 1]>
        g (float[4] x) => (float[4] y) { [celu] y = Celu (x) }
    """)
    homes = {"celu.Div": "map_0", "celu.Elu": "map_0", "w": "map_0"}
    assert annotate(model, homes, {name: ["map_0"] for name in homes}) == ["w"]
    assert model.graph.node[0].metadata_props[0].value == "map_0"


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_chromium_shows_the_page_without_requests_or_errors(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    shown = subprocess.run(
        [CHROMIUM or "", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-extensions",
         f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
         f"--log-net-log={log}", "--virtual-time-budget=2000", "--dump-dom",
         f"file://{folder / 'page.html'}#k1"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert not re.findall(r".*CONSOLE.*", shown.stderr)
    assert 'class="k-contraction chosen"' in shown.stdout, "the page's script did not run"
    events = json.loads(log.read_text())["events"]
    asked = [event["params"] for event in events if "initiator" in event.get("params", {})]
    # The browser's own requests have no origin.
    assert not [params for params in asked if params["initiator"] != "not an origin"]


@pytest.mark.slow
def test_the_page_of_bert_base_fits(tmp_path: Path) -> None:
    model = tmp_path / "bert.onnx"
    save(build("bert"), model)
    html = tmp_path / "bert.html"
    assert run(["report", str(model), "--html", str(html), "--iterations", "1"]) == 0
    found = checked(html.read_text())
    assert {f"k{at}" for at in range(86)} <= found.ids
