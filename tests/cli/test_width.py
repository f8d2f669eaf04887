"""Every command prints lines that fit, piped and in a terminal, and numbers in one style."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from fuser import Plan
from models import TINY, build, save
from tests.cli.command import Fuser
from tests.cli.widths import (
    AT,
    FEW,
    commands,
    processes,
    too_long,
    without_escapes,
    written,
)

OTHER_UNITS = re.compile(
    r"\d ?us\b|\d ?K\b|\d[kKMGT]i?B\b|\bKB\b|[KMGT]iB\b|\d (?:bytes|seconds|MFLOPs)\b|\d[KMG]\b"
)
"""Spellings that are not those of fuser/graph/units.py."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models of several kinds, and one of names that no line has room for."""
    folder = tmp_path_factory.mktemp("models")
    save(build("bert", **{**TINY["bert"], "layers": 3}), folder / "bert.onnx")
    save(build("conv_block", **TINY["conv_block"]), folder / "conv_block.onnx")
    long = [f"{'encoder/' * 20}layer.{i}/output" for i in range(4)]
    nodes = [
        helper.make_node(op, [value], [result], name=f"/{result}/{op}")
        for op, value, result in zip(("Exp", "Softmax", "Neg"), long, long[1:], strict=False)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch" * 30, 33])
        for name in (long[0], long[-1])
    ]
    graph = helper.make_graph(nodes, "long" * 40, ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), folder / f"{'long' * 40}.onnx")
    return {path.stem[:10]: path for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "columns"), [("bert", 80), ("longlonglo", 80), ("conv_block", 80), ("bert", 140)]
)
def test_lines_fit_and_numbers_have_one_style(
    fuser: Fuser, models: dict[str, Path], tmp_path: Path, name: str, columns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Without a terminal the width is 80; COLUMNS says another, as a terminal would."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns != 80:
        monkeypatch.setenv("COLUMNS", str(columns))
    longest = 0
    dim = "sequence" if (name, columns) == ("bert", 80) else ""
    for command in commands(models[name], tmp_path, dim):
        code, out, err = fuser(*command)
        assert code == 0 and out, (command, err)
        lines = out.splitlines()
        assert not too_long(out, columns) and not too_long(err, 0), command
        assert "\x1b" not in out and not [line for line in lines if line != line.rstrip()]
        other = [line for line in lines if OTHER_UNITS.search(line)]
        assert not other, command
        longest = max(longest, *map(len, lines))
    assert columns == 80 or longest > 80  # wider where there is room
    page = (tmp_path / "page.html").read_text()
    text = re.sub(r"(?s)<(script|style|pre)\b.*?</\1>|<[^>]*>", " ", page)
    assert "µs" in text and not OTHER_UNITS.search(text)
    plan = Plan.load(tmp_path / "a.plan")
    for shown in (plan, plan.report()):
        html = re.sub("<[^>]*>", " ", shown._repr_html_())
        assert " B" in html or "kB" in html
        assert not OTHER_UNITS.search(html) and not OTHER_UNITS.search(repr(shown))


@pytest.mark.parametrize("columns", [80, 140])
def test_a_terminal_has_its_width_and_colours(models: dict[str, Path], columns: int) -> None:
    variables = {} if columns == 80 else {"NO_COLOR": "1"}
    told = written(columns, "profile", models["bert"], *AT, *FEW, "--no-counters", **variables)
    lines = without_escapes(told)
    assert max(map(len, lines)) <= columns
    assert (max(map(len, lines)) > 80) == (columns > 80) and not too_long(told, columns)
    assert ("\x1b[1mkernel" in told) == (columns == 80) and ("\x1b" in told) == (columns == 80)


def test_servers_and_the_models_command_fit_a_terminal(
    models: dict[str, Path], tmp_path: Path
) -> None:
    assert written(0, "compile", models["conv_block"], *AT, "-o", tmp_path / "a.plan")
    for module, words in processes(models["conv_block"], "conv_block", tmp_path):
        told = written(80, *words, module=module)
        assert told.strip() and not too_long(told, 80), words


def test_a_terminal_wraps_an_error(tmp_path: Path) -> None:
    at = "/".join(["a folder"] * 20)
    for columns in (0, 80):
        told = written(columns, "inspect", tmp_path / at, code=2)
        assert told.startswith("error: ") and not too_long(told, columns)
        assert (told.count("\n") == 1) == (not columns)


def test_what_is_too_long_is_found() -> None:
    """Columns are counted, not letters; what a line is begun anew with counts by itself."""
    wide = "\u7a93" * 3
    assert too_long(f"abc\n\x1b[1mabcd\x1b[0m\nabcde\n{wide}", 4) == ["abcde", wide]
    assert too_long("abcd\r    \rabcd\nfuser compile: as long as it is", 4) == []
    assert too_long("ab\r\nabcde\r\n", 4) == ["abcde"]
    note = "note: " + "a" * 80
    assert too_long(note, 0) == [] and too_long(note, 80) == [note]
    assert too_long("a" * 81, 0) == ["a" * 81]


def test_equal_kernels_are_one_row_of_their_own_names(
    fuser: Fuser, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three layers are listed; ungrouped, every row has another name and its own layer's nodes."""
    monkeypatch.setattr("fuser.base.config.start_logs", lambda topics: None)  # of the process
    at = (models["bert"], *AT, *FEW, "--no-counters", "--report", tmp_path / "report.json")
    lines = fuser("profile", *at)[1].splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("kernel "))
    (row,) = [i for i, line in enumerate(lines) if "layer.{0-2}/intermediate" in line if i > head]
    assert re.match(r"contraction_\d+ +3 ", lines[row - 1])
    lines = fuser("profile", *at, "-v")[1].splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("kernel "))
    rows = [i for i, line in enumerate(lines) if re.match(r"[a-z]+_\d+ ", line) if i > head]
    names = [lines[i].split()[0] for i in rows]
    launches = launches_of(tmp_path / "report.json")
    assert sorted(names) == sorted(f"{kind}_{region}" for kind, region, _ in launches)
    nodes = {f"{kind}_{region}": found for kind, region, found in launches}
    for i, name in zip(rows, names, strict=True):
        shown = lines[i + 1].strip()
        assert nodes[name][0].startswith(shown.split("…")[0].strip()), (name, shown)
        layers = set(re.findall(r"layer\.(\d)", shown))
        assert layers <= set(re.findall(r"layer\.(\d)", " ".join(nodes[name])))


def launches_of(report: Path) -> list[tuple[str, int, list[str]]]:
    """Kind, region and nodes of each launch in a report file."""
    found = json.loads(report.read_text())["launches"]
    return [(one["kind"], one["region"], one["nodes"]) for one in found]
