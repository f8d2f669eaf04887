"""Programs written for ONNX Runtime print the same on fuser: they run unedited, and their import is
answered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from fuser.base.imports import answers

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x: float32 [batch, 3] -> scores [batch, 4] of no declared shape, labels [batch]."""
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18], producer_name: "tests", model_version: 3>
        classify (float[batch, 3] x, float[1] scale) => (float scores, int64[batch] labels)
        <float[1] scale = {0.5}, float[4] bias = {0.0, 0.1, 0.2, 0.3},
         float[3, 4] weight = {1, 2, -1, 0, 0.5, -2, 1, 3, -1, 1, 2, -0.5}> {
            product = MatMul(x, weight)
            scaled = Mul(product, scale)
            shifted = Add(scaled, bias)
            scores = Softmax<axis = 1>(shifted)
            labels = ArgMax<axis = 1, keepdims = 0>(scores)
        }""")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    entry = proto.metadata_props.add()
    entry.key, entry.value = "labels", "a b c d"
    path = tmp_path_factory.mktemp("model") / "classify.onnx"
    onnx.save(proto, path)
    onnx.save(regression(), path.parent / "regression.onnx")
    return path


def regression() -> onnx.ModelProto:
    """A logistic regression as converters of scikit-learn write it: labels, and a dict of
    probabilities for each row."""
    ml = "ai.onnx.ml"
    nodes = [
        helper.make_node(
            "LinearClassifier", ["X"], ["label", "scores"], domain=ml, classlabels_ints=[0, 1, 2],
            coefficients=[0.4, -1, 0.3, 0.8, -0.2, 1, 0.5, -0.6, 0.1, 0.2, -0.9, 1],
            intercepts=[0.1, 0.2, 0.3], multi_class=1, post_transform="LOGISTIC",
        ),
        helper.make_node("Normalizer", ["scores"], ["odds"], domain=ml, norm="L1"),
        helper.make_node("Cast", ["label"], ["output_label"], to=onnx.TensorProto.INT64),
        helper.make_node(
            "ZipMap", ["odds"], ["output_probability"], domain=ml, classlabels_int64s=[0, 1, 2]
        ),
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    row = onnx.TypeProto()
    row.map_type.key_type = onnx.TensorProto.INT64
    row.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(1, []))
    outputs = [
        info("output_label", onnx.TensorProto.INT64, [None]),
        helper.make_value_info("output_probability", helper.make_sequence_type_proto(row)),
    ]
    inputs = [info("X", onnx.TensorProto.FLOAT, [None, 4])]
    graph = helper.make_graph(nodes, "regression", inputs, outputs)
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid(ml, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def printed(
    program: str, arguments: list[str], ours: bool, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:  # fmt: skip
    path = PROGRAMS / f"{program}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    if ours:
        answers(("onnxruntime", "fuser.onnxruntime")).bind(names)
    capsys.readouterr()
    exec(compile(path.read_text(), str(path), "exec"), names)
    return capsys.readouterr().out


@pytest.mark.parametrize("program", NAMES)
def test_a_program_prints_the_same(
    program: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip("onnxruntime")
    if program == "dlpack":
        pytest.importorskip("torch")
    arguments = [str(model), str(tmp_path)]
    found = printed(program, arguments, True, capsys, monkeypatch)
    assert found == printed(program, arguments, False, capsys, monkeypatch)
    assert len(found.splitlines()) > 3


def test_a_script_from_the_shell(model: Path) -> None:
    command = [sys.executable, "-m", "fuser.onnxruntime", str(PROGRAMS / "mistakes.py"), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines()[0] == "a wrong type is told: True"
