"""`fuser explain`: regions, refusals, pins, schedules."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx

from tests.cli.command import Fuser, assert_one_line


def test_explain_lists_regions_and_refusals(fuser: Fuser, bert: Path) -> None:
    code, out, err = fuser("explain", bert, "--device", "cpu", "--dim", "sequence=16")
    assert (code, err) == (0, "")
    for word in ("attention", "contraction", "refused", "second-anchor", "sequence = 16"):
        assert word in out


def test_explain_as_json(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    """The sizes are those of the feeds, the figures those of the report; docs list every key."""
    np.savez(tmp_path / "feeds.npz", x=np.zeros((3, 24), np.float32))
    at = ("--device", "cpu", "-i", tmp_path / "feeds.npz", "--json")
    code, out, err = fuser("explain", mlp, *at)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["dims"] == {"batch": 3} and found["kernels"] == len(found["regions"]) == 3
    readers = [edge["readers"] for edge in found["refusals"]]
    assert readers == [["/layers.1/MatMul"], ["/layers.2/MatMul"]]
    assert all(edge["seconds"] > 0 and edge["lift"] == "" for edge in found["refusals"])
    times = [edge["seconds"] for edge in found["refusals"]]
    assert times == sorted(times, reverse=True)
    report = json.loads(fuser("run", mlp, *at, "--iterations", "0")[1])
    for key in ("nodes", "flops"):
        assert [r[key] for r in found["regions"]] == [r[key] for r in report["launches"]], key
    documented = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    section = documented.split("## Why the regions")[1].split("\n## ")[0]
    rows = [*found, *found["regions"][0], *found["refusals"][0]]
    assert not [key for key in rows if not re.search(rf"\b{key}\b", section)]


def test_pinned_and_forbidden_nodes(fuser: Fuser, mlp: Path) -> None:
    """The plan changes, its results do not, and the report says what changed; so does a stored
    plan, which is another one than without."""
    names = ("--forbid", "/layers.0/MatMul,/Relu", "--forbid", "/layers.1/MatMul,/Relu")
    at = ("--device", "cpu", "--compare", "reference", "--iterations", "0")
    free = json.loads(fuser("run", mlp, *at, "--json")[1])
    for _ in range(2):
        code, out, _ = fuser("run", mlp, *at, "--json", *names)
        found = json.loads(out)
        assert code == 0 and found["compare"]["ok"]
        assert found["kernels"]["after"] == free["kernels"]["after"] + 1
        assert found["forced"]["kernels"] == {"unforced": 3, "forced": 4}
        assert found["forced"]["forbid"] == [name.split(",") for name in names[1::2]]
    assert free["forced"] is None
    code, out, _ = fuser("explain", mlp, "--device", "cpu", *names)
    out = " ".join(out.split())
    assert code == 0 and "3 -> 4 kernels, " in out and "4 regions, " in out
    assert "to lift it: leave out --forbid of '/layers.0/MatMul' and '/Relu'" in out
    result = fuser("explain", mlp, "--device", "cpu", "--pin", "/layers.0/MatMul,/layers.1/MatMul")
    assert_one_line(result, 2, "cannot be one kernel: ", "second-anchor")
    result = fuser("run", mlp, "--device", "cpu", "--pin", "/layers.0/MatMul,Relu")
    assert_one_line(result, 2, "no node 'Relu' to pin; did you mean '/Relu'")
    assert_one_line(fuser("run", mlp, "--pin", "a"), 2, "no pair")
    assert_one_line(fuser("run", mlp, "--no-fusion", "--pin", "a,b"), 2, "--no-fusion")


def test_why_a_kernel_has_its_schedule(fuser: Fuser, mlp: Path) -> None:
    """By region, symbol and node; the rule and its answer, the limits, every key in the docs."""
    at = ("--device", "cpu", "--dim", "batch=9")
    report = json.loads(fuser("run", mlp, *at, "--json", "--iterations", "0")[1])
    symbol, schedule = (report["launches"][0][key] for key in ("name", "schedule"))
    texts = [
        fuser("explain", mlp, *at, "--kernel", name, "--json")
        for name in ("contraction_0", "0", symbol, "/layers.0/MatMul")
    ]
    assert texts[0][0] == 0 and len({out for _, out, _ in texts}) == 1, texts[0][2]
    (kernel,) = json.loads(texts[0][1])["kernels"]
    assert kernel["schedule"] == schedule == kernel["candidates"][0]["schedule"]
    rule = kernel["rules"][0]
    assert rule["function"] == "fuser.tilegen.rules.cpu.matmul.dot_schedule"
    assert (rule["arguments"]["m"], rule["arguments"]["k"]) == ("9", "24")
    assert kernel["reason"] and kernel["rules"][-1]["answer"] == schedule
    costs = [item["cost"] for item in kernel["candidates"] if item["cost"] is not None]
    assert min(costs) > 0 and len(costs) > 1
    documented = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    section = documented.split("### One kernel")[1].split("\n## ")[0]
    keys = [*kernel, *rule, *kernel["candidates"][0]]
    assert not [key for key in keys if not re.search(rf"\b{key}\b", section)]
    code, out, _ = fuser("explain", mlp, *at, "--kernel", "0")
    assert code == 0 and "dot_schedule: " in out and "nothing is remembered" in out
    assert "(the rules' choice)" in out and "limit      programs: " in out
    assert "mechanism " not in out  # of a GPU's kernel
    on_gpu = ("--target", "sm_80", "--dim", "batch=9", "--kernel", "0")
    code, out, _ = fuser("explain", mlp, *on_gpu)
    assert code == 0 and "  mechanism  warp specialisation: no, sm_80 has no wgmma" in out
    (kernel,) = json.loads(fuser("explain", mlp, *on_gpu, "--json")[1])["kernels"]
    assert {item["mechanism"]: item["applied"] for item in kernel["mechanisms"]} == {
        "matrix unit": True, "warp specialisation": False, "launch overlap": False,
    }  # fmt: skip
    result = fuser("explain", mlp, *at, "--kernel", "layers.0/MatMu")
    assert_one_line(result, 2, "no kernel 'layers.0/MatMu'; did you mean '/layers.0/MatMul'")


def test_explain_of_feeds_that_do_not_fit(fuser: Fuser, mlp: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "feeds.npz", x=np.zeros((3, 23), np.float32))
    result = fuser("explain", mlp, "--device", "cpu", "-i", tmp_path / "feeds.npz")
    assert_one_line(result, 2, "x")


def test_rewrites_are_named_by_their_nodes(fuser: Fuser, tmp_path: Path) -> None:
    path = tmp_path / "divide.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 22]> g (float[8] x) => (float[8] y)'
            " { c = Constant <value = float {41.0}> ()  y = Div(x, c) }"
        ),
        path,
    )
    for numerics, named in (("fast", True), ("model", False)):
        _, out, _ = fuser("explain", path, "--device", "cpu", "--numerics", numerics)
        assert ("divide_by_constant (fast): y" in out) is named
