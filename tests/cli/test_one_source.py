"""Every command takes bytes, operations and times of a model from the same place."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fuser.graph.units import byte_size
from models import TINY, build, save
from tests.cli.command import Fuser

MODELS = ("mlp", "softmax", "layernorm", "attention", "conv_block", "bert", "gpt2", "vit",
          "tiny_llama", "resnet50")  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_doors_agree(fuser: Fuser, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.onnx"
    save(build(name, **TINY.get(name, {})), path)

    def told(*words: str) -> Mapping[str, Any]:
        code, out, err = fuser(words[0], path, "--device", "cpu", "--json", *words[1:])
        assert code == 0, err
        found: Mapping[str, Any] = json.loads(out)
        return found

    run = told("run", "--iterations", "1")
    report = told("report", "--iterations", "1")
    profile = told("profile", "--no-counters", "--iterations", "1")
    alone = told("run", "--no-fusion", "--iterations", "0")
    explained = told("explain")
    for other in (report, profile):
        for key in ("kernels", "boundary_bytes", "dram_bytes", "dram_bytes_cold", "device"):
            assert other[key] == run[key], key
        assert list(map(_figures, other["launches"])) == list(map(_figures, run["launches"]))
    assert run["kernels"]["before"] == alone["kernels"]["after"] == len(alone["launches"])
    for key in ("boundary_bytes", "dram_bytes", "dram_bytes_cold"):
        assert run[key]["before"] == alone[key]["after"]
        for found in (run, alone):
            assert found[key]["floor"] <= min(found[key]["before"], found[key]["after"])
    moved: Counter[int] = Counter()
    for launch in run["launches"]:
        moved[launch["region"]] += sum(launch["boundary_bytes"].values())
    assert {row["id"]: row["bytes"] for row in explained["regions"]} == dict(moved)
    assert explained["bytes"] == run["boundary_bytes"]["after"]
    flops = {launch["region"]: 0 for launch in run["launches"]}
    for launch in run["launches"]:
        flops[launch["region"]] += launch["flops"]
    assert {row["id"]: row["flops"] for row in explained["regions"]} == flops
    refusals = explained["refusals"]
    assert sorted(map(_refusal, refusals)) == sorted(map(_refusal, report["details"]["refusals"]))
    words = fuser("explain", path, "--device", "cpu")[1]
    (head,) = re.findall(r"regions?, (.*),", words.splitlines()[1])
    assert head == byte_size(explained["bytes"])


@pytest.mark.parametrize("name", ["mlp", "conv_block", "tiny_llama"])
def test_doors_agree_on_a_pin(fuser: Fuser, tmp_path: Path, name: str) -> None:
    """What it changed are the figures of the plans without and with it."""
    path = tmp_path / f"{name}.onnx"
    save(build(name, **TINY.get(name, {})), path)

    def told(*words: str) -> Mapping[str, Any]:
        code, out, err = fuser(words[0], path, "--device", "cpu", "--json", *words[1:])
        assert code == 0, err
        found: Mapping[str, Any] = json.loads(out)
        return found

    free, explained = told("run", "--iterations", "0"), told("explain")
    assert free["forced"] is None and explained["forced"] is None
    pairs = [one["nodes"][:2] for one in free["launches"] if len(one["nodes"]) > 1]
    wish = [word for one, other in pairs for word in ("--forbid", f"{one},{other}")]
    forced, why = told("run", "--iterations", "0", *wish), told("explain", *wish)
    report = told("report", "--iterations", "0", *wish)
    change = forced["forced"]
    assert change == why["forced"] == report["forced"]
    assert change["kernels"] == {
        "unforced": len(free["launches"]), "forced": len(forced["launches"])
    }  # fmt: skip
    assert change["kernels"]["forced"] > change["kernels"]["unforced"]
    moved = {way: plan["boundary_bytes"]["after"] for way, plan in _ways(free, forced)}
    assert change["bytes"] == moved == {way: plan["bytes"] for way, plan in _ways(explained, why)}
    assert change["seconds"] == {way: plan["seconds"] for way, plan in _ways(explained, why)}
    assert change["seconds"]["forced"] == report["details"]["seconds"]


def _ways(free: Mapping[str, Any], forced: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [("unforced", free), ("forced", forced)]


def _figures(launch: Mapping[str, Any]) -> list[Any]:
    keys = ("name", "boundary_bytes", "reread_bytes", "dram_bytes", "flops", "roofline_us")
    return [launch[key] for key in keys]


def _refusal(row: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = ("producer", "consumer", "code", "bytes", "seconds")
    return tuple(row[key] for key in keys)
