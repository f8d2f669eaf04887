"""Plan files whose manifest was changed and whose checksum was mended: loaded, or refused as what
they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import fuser
from fuser.cli.main import run
from fuser.errors import FuserError
from fuser.runtime.container import read_file
from models import build, save

from .damage import whole

LOAD: dict[str, Any] = {
    "fixed": fuser.Plan.load, "reference": fuser.Plan.load, "open": fuser.DynamicPlan.load,
}  # fmt: skip
NUMBERS = (-1, 0, 1, 3, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"))
OTHERS = (None, True, "", "x", "arena", [], [1], [[]], {}, {"x": 1})


def places(item: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a manifest; of long lists the first and the last entry."""
    if path:
        yield path
    if isinstance(item, dict):
        for key, value in item.items():
            yield from places(value, (*path, key))
    elif isinstance(item, list):
        for index in dict.fromkeys([0, len(item) - 1] if item else []):
            yield from places(item[index], (*path, index))


def changed(manifest: dict[str, Any], path: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    def fresh() -> tuple[dict[str, Any], Any]:
        made = copy.deepcopy(manifest)
        inner: Any = made
        for step in path[:-1]:
            inner = inner[step]
        return made, inner

    made, inner = fresh()
    old = inner.pop(path[-1])
    yield "removed", made
    for new in (*NUMBERS, *OTHERS):
        made, inner = fresh()
        inner[path[-1]] = new
        yield repr(new), made
    made, inner = fresh()
    if isinstance(inner, dict):
        inner["another"] = old
    else:
        inner.insert(path[-1], old)
    yield "twice", made


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plans")
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[{0}, 8] x) => (float[{0}, 4] y, float[{0}, 8] z) {{
            w = Constant <value = float[8, 4] {{{1}}}> ()
            p = MatMul (x, w) y = Softmax (p) z = Identity (x)
        }}"""
    numbers = ", ".join(["0.5"] * 32)
    fixed = fuser.compile(parser.parse_model(text.format(5, numbers)), device="cpu")
    fixed.save(folder / "fixed.plan")
    opened = fuser.compile(
        parser.parse_model(text.format("n", numbers)), device="cpu", dynamic=True
    )
    opened.run({"x": np.ones((3, 8), np.float32)})
    opened.save(folder / "open.plan")
    save(build("mlp", inputs=160, hidden=128), folder / "mlp.onnx")
    made = ["compile", str(folder / "mlp.onnx"), "--weights", "reference", "--device", "cpu"]
    assert run([*made, "-o", str(folder / "reference.plan")]) == 0
    return {kind: folder / f"{kind}.plan" for kind in LOAD}


@pytest.mark.parametrize("kind", LOAD)
def test_changed_manifests(kind: str, plans: dict[str, Path]) -> None:
    data = plans[kind].read_bytes()
    manifest = read_file(data, data[5:6].decode()).manifest
    path = plans[kind].with_name("changed.plan")  # beside the model of "reference"
    outcomes = {"loaded": 0, "refused": 0}
    wrong: list[str] = []
    found, step = list(places(manifest)), 5
    if kind == "reference":  # the rest is as in "fixed"; nearly all of this is sealed
        found = [place for place in found if {"model", "views", "constants"} & set(place)]
        step = 1
    for number, place in enumerate(found):
        every = list(changed(manifest, place))
        for what, made in every[number % step :: step]:
            path.write_bytes(whole(data, made))
            try:
                LOAD[kind](path, threads=1).close()
                outcomes["loaded"] += 1
            except FuserError:
                outcomes["refused"] += 1
            except Exception as error:
                wrong.append(f"{place} {what}: {error!r}")
    assert not wrong
    assert outcomes["loaded"] > 10 and outcomes["refused"] > 10
