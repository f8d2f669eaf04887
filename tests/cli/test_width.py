"""Every command prints lines that fit, piped and in a terminal, and numbers in one style."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from fuser import Plan
from models import TINY, build, save
from tests.cli.command import Fuser

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
OTHER_UNITS = re.compile(
    r"\d ?us\b|\d ?K\b|\d[kKMGT]i?B\b|\bKB\b|[KMGT]iB\b|\d (?:bytes|seconds|MFLOPs)\b|\d[KMG]\b"
)
"""Spellings that are not those of fuser/graph/units.py."""
AT = ("--device", "cpu")
FEW = ("--iterations", "1")


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


def commands(model: Path, folder: Path) -> Iterator[tuple[str | Path, ...]]:
    """Command lines in order: later ones read what earlier ones write."""
    plan, report, before = folder / "a.plan", folder / "report.json", folder / "before.json"
    yield "run", model, *AT, *FEW, "--profile", "--compare", "reference", "-o", folder / "out.npz"
    yield "run", model, *AT, *FEW, "--expect", folder / "out.npz", "--report", folder / "run.json"
    yield "profile", model, *AT, *FEW, "--report", report
    yield "profile", model, *AT, *FEW, "--no-fusion", "--report", before
    yield "report", report
    yield "report", before, report
    yield "report", model, *AT, *FEW, "--html", folder / "page.html"
    yield "explain", model, *AT
    yield "explain", model, *AT, "--kernel", "0"
    yield "compile", model, *AT, "-o", plan
    yield "inspect", plan
    yield "inspect", plan, "--verbose"
    yield "inspect", model
    yield "run", plan, *FEW
    yield ("bench", model, *AT, *FEW, "--warmup", "0", "--duration", "0", "--against",
           "onnxruntime", "--csv", folder / "bench.csv")  # fmt: skip
    yield "cache", "info"
    yield ("doctor",)
    yield "explain", model, *AT, "--dynamic"


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
    for command in commands(models[name], tmp_path):
        code, out, err = fuser(*command)
        assert code == 0 and out, (command, err)
        lines = out.splitlines()
        assert not [line for line in lines if len(line) > columns], command
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


def in_a_terminal(columns: int, *arguments: str | Path, **variables: str) -> str:
    """What `python -m fuser` writes into a terminal of that many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-m", "fuser", *map(str, arguments)], stdin=theirs, stdout=theirs,
        stderr=subprocess.DEVNULL, env={**plain, "TERM": "xterm", **variables},
    )  # fmt: skip
    os.close(theirs)
    read = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        read += part
    os.close(ours)
    assert child.wait() == 0
    return read.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 140])
def test_a_terminal_has_its_width_and_colours(models: dict[str, Path], columns: int) -> None:
    variables = {} if columns == 80 else {"NO_COLOR": "1"}
    told = in_a_terminal(
        columns, "profile", models["bert"], *AT, *FEW, "--no-counters", **variables
    )
    lines = COLOUR.sub("", told).splitlines()
    assert max(map(len, lines)) <= columns
    assert (max(map(len, lines)) > 80) == (columns > 80)
    assert ("\x1b[1mkernel" in told) == (columns == 80) and ("\x1b" in told) == (columns == 80)


def test_equal_kernels_are_one_row_of_their_own_names(
    fuser: Fuser, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three layers are listed; ungrouped, every row has another name and its own layer's nodes."""
    monkeypatch.setattr("fuser.config.start_logs", lambda topics: None)  # of the process
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
