"""Models that cannot be read, compiled or held: one line and an exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.cli.command import Fuser, assert_one_line, one_node, write_model


@pytest.mark.parametrize("command", ["run", "explain", "dump", "bench", "profile"])
def test_missing_file(fuser: Fuser, tmp_path: Path, command: str) -> None:
    assert_one_line(fuser(command, tmp_path / "absent.onnx"), 2, "absent.onnx", "no such file")


def test_folder_for_a_file(fuser: Fuser, tmp_path: Path) -> None:
    assert_one_line(fuser("run", tmp_path), 2, "folder")


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\necho no model\n", b"\x00" * 100])
def test_not_onnx(fuser: Fuser, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.onnx"
    path.write_bytes(content)
    assert_one_line(fuser("run", path, "--device", "cpu"), 3, "notes.onnx", "ONNX")


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_truncated_file(fuser: Fuser, mlp: Path, tmp_path: Path, share: float) -> None:
    data = mlp.read_bytes()
    path = tmp_path / "short.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    assert_one_line(fuser("run", path, "--device", "cpu"), 3, "short.onnx")


def test_unsupported_ops_are_all_listed(fuser: Fuser, tmp_path: Path) -> None:
    nodes = [
        one_node("Frobnicate", "x", "com.example"),
        helper.make_node("Relu", ["x_Frobnicate"], ["r"]),
        one_node("Defenestrate", "r", "com.example"),
    ]
    path = write_model(tmp_path / "custom.onnx", nodes)
    assert_one_line(
        fuser("run", path, "--device", "cpu"),
        4,
        "2 nodes", "Frobnicate", "x_Frobnicate_node", "Defenestrate", "r_Defenestrate_node",
    )  # fmt: skip


def test_invalid_graph(fuser: Fuser, tmp_path: Path) -> None:
    path = write_model(tmp_path / "dangling.onnx", [helper.make_node("Add", ["x", "w"], ["y"])])
    assert_one_line(fuser("run", path, "--device", "cpu"), 3, "dangling.onnx")


def test_shapes_that_do_not_fit(fuser: Fuser, tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((5, 4), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    path = write_model(tmp_path / "shapes.onnx", nodes, [weight])
    assert_one_line(fuser("run", path, "--device", "cpu"), 3, "product")


def external(path: Path, location: str) -> Path:
    """A model y = x + w with the data of w at `location`."""
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, location)
    weight.ClearField("raw_data")
    return write_model(path, [helper.make_node("Add", ["x", "w"], ["y"])], [weight])


def test_external_data(fuser: Fuser, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ones = np.ones(4, np.float32).tobytes()
    (tmp_path / "outside.bin").write_bytes(ones)
    (folder / "inside.bin").write_bytes(ones)
    assert fuser("run", external(folder / "good.onnx", "inside.bin"), "--device", "cpu")[0] == 0
    for name, location, word in (
        ("absent.onnx", "absent.bin", "missing"),
        ("parent.onnx", "../outside.bin", "outside"),
        ("absolute.onnx", str(tmp_path / "outside.bin"), "outside"),
    ):
        result = fuser("run", external(folder / name, location), "--device", "cpu")
        assert_one_line(result, 3, name, word)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    result = fuser("run", external(folder / "link.onnx", "link.bin"), "--device", "cpu")
    assert_one_line(result, 3, "link.onnx", "outside")


def wide(path: Path) -> Path:
    """[n, 4] @ [4, 2**16] @ [2**16, 4]: half a megabyte between the products for every two rows."""
    rng = np.random.default_rng(0)
    up, down = rng.standard_normal((2, 4, 1 << 16), np.float32) / 256
    weights = [numpy_helper.from_array(up, "up"), numpy_helper.from_array(down.T.copy(), "down")]
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("MatMul", ["h", "down"], ["y"]),
    ]
    return write_model(path, nodes, weights)


@pytest.mark.parametrize(
    ("device", "rows"), [("cpu", 1 << 24), pytest.param("cuda", 1 << 21, marks=pytest.mark.cuda)]
)
def test_out_of_memory(fuser: Fuser, tmp_path: Path, device: str, rows: int) -> None:
    path = wide(tmp_path / "wide.onnx")
    result = fuser("run", path, "--device", device, "--dim", f"n={rows}", "--iterations", "1")
    assert_one_line(result, 6, "memory")
