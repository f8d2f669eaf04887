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


@pytest.mark.parametrize(
    ("operators", "words"),
    [
        (("com.example", "Frobnicate"), "fuser.register_host_op('com.example', 'Frobnicate', fun"),
        (("com.microsoft", "Sampling"), "fuser.register_host_op('com.microsoft', 'Sampling', func"),
        (("ai.onnx.ml", "LinearRegressor"), "fuser run --host allow"),
    ],
)
def test_what_runs_an_operator_without_a_kernel_is_what_the_error_says(
    fuser: Fuser, tmp_path: Path, operators: tuple[str, str], words: str
) -> None:
    domain, name = operators
    node = helper.make_node(name, ["x"], ["y"], domain=domain)
    if name == "LinearRegressor":
        node.attribute.extend([
            helper.make_attribute("coefficients", [1.0, 2.0, 3.0, 4.0]),
            helper.make_attribute("targets", 1),
        ])  # fmt: skip
    path = write_model(tmp_path / "custom.onnx", [node])
    model = onnx.load(path)
    model.opset_import.extend([helper.make_opsetid(domain, 1)] if domain != "com.example" else [])
    path.write_bytes(model.SerializeToString())
    code, out, err = fuser("run", path, "--device", "cpu")
    assert_one_line((code, out, err), 4, words)
    by_option = "--host allow" in err
    code, out, err = fuser("run", path, "--device", "cpu", "--host", "allow")
    assert (code == 0) == by_option, err  # advice holds


def test_advice_about_an_operator_of_a_caller_holds(tmp_path: Path) -> None:
    import fuser as package
    from fuser.errors import UnsupportedOpError

    path = write_model(tmp_path / "custom.onnx", [one_node("Thrice", "x", "com.example")])
    with pytest.raises(UnsupportedOpError) as found:
        package.compile(path, device="cpu", dims={"n": 2})
    exec(found.value.hint.split("in Python, ")[1].split(", then")[0],
         {"fuser": package, "function": lambda x: 3 * x})  # fmt: skip
    x = np.ones((2, 4), np.float32)
    plan = package.compile(path, device="cpu", dims={"n": 2}, host="allow")
    assert (plan.run({"x": x})["x_Thrice"] == 3).all()
    with pytest.raises(UnsupportedOpError, match="run --host allow"):  # it is known there now
        package.compile(path, device="cpu", dims={"n": 2})


def test_sentences_of_invalid_models_are_whole(fuser: Fuser, tmp_path: Path) -> None:
    broken = {
        "order": [helper.make_node("Relu", ["h"], ["y"], name="late"), one_node("Relu", "h")],
        "attribute": [helper.make_node("Cast", ["x"], ["y"], name="to_what")],
        "unknown": [helper.make_node("Relu", ["x"], ["y"], bogus=1)],
    }
    said = {
        "order": "however input 'h' of Relu node late is not output of any previous nodes (at",
        "attribute": "Required attribute 'to' is missing (Cast node to_what) (at",
        "unknown": "Unrecognized attribute: bogus for operator Relu (Relu node) (at",
    }
    for name, nodes in broken.items():
        path = write_model(tmp_path / f"{name}.onnx", nodes)
        assert_one_line(fuser("run", path, "--device", "cpu"), 3, said[name])
    text = tmp_path / "broken.onnxtxt"
    text.write_text("<ir_version: 8>\ng (float[2] x) => (float[2] y) { y = Relu(x }")
    assert_one_line(
        fuser("run", text, "--device", "cpu"), 3, "line: 2", "Expected character ) not found (at"
    )


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
