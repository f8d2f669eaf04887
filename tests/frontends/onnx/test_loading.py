"""Broken, missing and hostile model files give one clear error of the right class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.base.limits import Limits
from fuser.cli.main import run
from fuser.errors import (
    FuserError,
    InvalidModelError,
    SecurityError,
    ShapeError,
    UnsupportedError,
    UnsupportedOpError,
    UsageError,
)
from fuser.frontends.onnx.importer import import_onnx, load_model, signature
from fuser.graph.evaluate import evaluate

F32 = TensorProto.FLOAT


def model(*nodes: onnx.NodeProto, **options: Any) -> onnx.ModelProto:
    """x f32[2, 3] -> y f32, with the given nodes."""
    graph = helper.make_graph(
        nodes,
        "g",
        options.pop("inputs", [helper.make_tensor_value_info("x", F32, [2, 3])]),
        [helper.make_tensor_value_info("y", F32, None)],
        **options,
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, opset_imports=imports)


def relu() -> onnx.ModelProto:
    return model(helper.make_node("Relu", ["x"], ["y"]))


def with_weight(folder: Path, location: str) -> Path:
    """A model file whose weight lives in `location`."""
    weight = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    proto = model(helper.make_node("Add", ["x", "w"], ["y"], "add"), initializer=[weight])
    tensor = proto.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location)
    (folder / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def fails(kind: type[FuserError], message: str, source: Any, **options: Any) -> None:
    with pytest.raises(kind, match=message) as caught:
        import_onnx(source, **options)
    assert type(caught.value) is kind
    assert "Traceback" not in str(caught.value)


def test_path_bytes_proto_and_text_read_the_same(tmp_path: Path) -> None:
    proto = relu()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    text = tmp_path / "m.onnxtxt"
    text.write_text(onnx.printer.to_text(proto))
    x = np.array([[-1, 0, 2], [3, -4, 5]], np.float32)
    for source in (path, str(path), path.read_bytes(), proto, text):
        np.testing.assert_array_equal(evaluate(import_onnx(source), {"x": x})["y"], x.clip(0))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    fails(UsageError, "no such file", tmp_path / "none.onnx")
    fails(UsageError, "a folder", tmp_path)


@pytest.mark.parametrize("data", [b"", b"not a model at all", b"\x00\x01\x02" * 99])
def test_not_onnx(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    fails(InvalidModelError, "ONNX model", path)
    fails(InvalidModelError, "ONNX model", data)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    proto = relu()
    del proto.opset_import[1:]
    data = proto.SerializeToString()
    for length in range(len(data)):
        with pytest.raises((InvalidModelError, UnsupportedError)):
            import_onnx(data[:length])


def test_broken_text(tmp_path: Path) -> None:
    path = tmp_path / "m.onnxtxt"
    path.write_text("<ir_version: 8> this is not a graph")
    fails(InvalidModelError, "not ONNX text", path)


def test_specification_violations() -> None:
    fails(InvalidModelError, "breaks the ONNX specification", model())
    fails(
        InvalidModelError,
        "breaks the ONNX specification",
        model(helper.make_node("Relu", ["missing"], ["y"])),
    )


def test_weight_with_too_little_data() -> None:
    proto = model(helper.make_node("Add", ["x", "w"], ["y"]), initializer=[
        TensorProto(name="w", data_type=F32, dims=[2, 3], raw_data=b"1234")
    ])  # fmt: skip
    fails(InvalidModelError, "the tensor w has broken data", proto)


# external data -----------------------------------------------------------------------------------


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    graph = import_onnx(with_weight(tmp_path, "w.bin"))
    assert evaluate(graph, {"x": np.zeros((2, 3), np.float32)})["y"].tolist() == [[1] * 3] * 2


def test_external_data_missing(tmp_path: Path) -> None:
    path = with_weight(tmp_path, "w.bin")
    (tmp_path / "w.bin").unlink()
    fails(InvalidModelError, "external data file w.bin of w is missing", path)


def test_external_data_cut_short(tmp_path: Path) -> None:
    path = with_weight(tmp_path, "w.bin")
    (tmp_path / "w.bin").write_bytes(b"1234")
    with pytest.raises(InvalidModelError):
        import_onnx(path)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "sub/../../secret.bin"])
def test_external_data_outside_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    fails(SecurityError, "outside of the model's folder", with_weight(folder, location))


def test_external_data_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    path = with_weight(folder, "link.bin")
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    fails(SecurityError, "outside of the model's folder", path)


def hub(cache: Path, location: str, target: str) -> Path:
    """A model in the layout of a Hugging Face cache: a link, beside a link of its weights."""
    repository = cache / "models--tests--add"
    snapshot, blobs = repository / "snapshots" / "abc123" / "onnx", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    made = with_weight(blobs, location)
    made.rename(blobs / "f00d")
    (blobs / "w.bin").rename(blobs / "beef")
    (snapshot / "model.onnx").symlink_to("../../../blobs/f00d")
    (snapshot / "model.onnx_data").symlink_to(target)
    return snapshot / "model.onnx"


def test_the_layout_of_a_hugging_face_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub(tmp_path, "model.onnx_data", "../../../blobs/beef")
    x = np.ones((2, 3), np.float32)
    (y,) = fuser.InferenceSession(path, device="cpu").run(None, {"x": x})
    np.testing.assert_array_equal(y, 2 * x)
    monkeypatch.chdir(path.parent)
    np.testing.assert_array_equal(fuser.compile("model.onnx", device="cpu")(x), 2 * x)
    # a blob that many repositories share
    blob, shared = tmp_path / "models--tests--add" / "blobs" / "beef", tmp_path / "blobs" / "be"
    shared.mkdir(parents=True)
    blob.rename(shared / "beef")
    blob.symlink_to("../../blobs/be/beef")
    np.testing.assert_array_equal(fuser.compile("model.onnx", device="cpu")(x), 2 * x)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("model.onnx_data", "../../../../secret.bin"),
        ("model.onnx_data", "../../../refs/main"),
        ("../../../blobs/beef", "../../../blobs/beef"),
    ],
)
def test_a_cache_is_no_way_out(location: str, target: str, tmp_path: Path) -> None:
    path = hub(tmp_path, location, target)
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    refs = tmp_path / "models--tests--add" / "refs"
    refs.mkdir()
    (refs / "main").write_bytes(bytes(24))
    fails(SecurityError, "outside of the model's folder", path)


def test_blobs_that_are_a_link_are_no_cache(tmp_path: Path) -> None:
    path = hub(tmp_path, "model.onnx_data", "../../../blobs/beef")
    blobs = tmp_path / "models--tests--add" / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    fails(SecurityError, "outside of the model's folder", path)


def test_folders_that_the_caller_allows(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    store = tmp_path / "store"
    store.mkdir()
    path = with_weight(tmp_path / "model", "w.bin")
    (tmp_path / "model" / "w.bin").rename(store / "w.bin")
    (tmp_path / "model" / "w.bin").symlink_to(store / "w.bin")
    fails(SecurityError, "Limits.data_folders=", path)
    x = np.ones((2, 3), np.float32)
    limits = Limits(data_folders=(store,))
    np.testing.assert_array_equal(fuser.compile(path, device="cpu", limits=limits)(x), 2 * x)
    session = fuser.InferenceSession(path, device="cpu", limits=limits)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x)
    options = ["run", str(path), "--device", "cpu", "--iterations", "0"]
    assert run(options) == 3
    assert run([*options, "--data-folder", str(store)]) == 0


def test_external_data_that_is_cut_short(tmp_path: Path) -> None:
    path = with_weight(tmp_path, "w.bin")
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data.add(key="length", value="25")
    path.write_bytes(proto.SerializeToString())
    fails(InvalidModelError, "25 bytes at 0 of a file of 24", path)


def test_bytes_cannot_have_external_data(tmp_path: Path) -> None:
    data = with_weight(tmp_path, "w.bin").read_bytes()
    fails(InvalidModelError, "keeps its data in another file; pass the path", data)


# what cannot be compiled -------------------------------------------------------------------------


def test_every_unsupported_node_is_listed_once() -> None:
    proto = model(
        helper.make_node("Mystery", ["x"], ["a"], "first", domain="custom"),
        helper.make_node("Relu", ["a"], ["b"], "fine"),
        helper.make_node("RandomNormalLike", ["b"], ["c"], "second"),
        helper.make_node("NonZero", ["x"], ["d"], "third"),
        helper.make_node("Cast", ["d"], ["e"], "cast", to=F32),
        helper.make_node("MatMul", ["c", "e"], ["y"], "end"),
    )
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(proto)
    message = str(caught.value)
    assert message.startswith("3 nodes are not supported")
    for part in ("Mystery (domain custom, opset 1) first", "second", "NonZero", "third"):
        assert message.count(part) == 1
    assert "fine" not in message and caught.value.exit_code == 4


def test_dead_nodes_do_not_matter() -> None:
    proto = relu()
    proto.graph.node.append(helper.make_node("NonZero", ["x"], ["unused"]))
    assert [node.op for node in import_onnx(proto).nodes].count("max") == 1


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([helper.make_tensor_value_info("x", TensorProto.STRING, [2])], "STRING is not supported"),
        ([helper.make_tensor_value_info("x", F32, None)], "no known rank"),
        ([helper.make_tensor_sequence_value_info("x", F32, [2])], "sequence_type, not a tensor"),
    ],
)
def test_unsupported_inputs(inputs: list[onnx.ValueInfoProto], message: str) -> None:
    proto = model(helper.make_node("Identity", ["x"], ["y"]), inputs=inputs)
    with pytest.raises(UnsupportedError, match=message):
        import_onnx(proto)


def test_shapes_that_do_not_fit_name_the_node() -> None:
    w = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    proto = model(helper.make_node("MatMul", ["x", "w"], ["y"], "/fc"), initializer=[w])
    fails(ShapeError, "contract dims of .*MatMul node /fc", proto)


def test_unknown_dims_list_the_known() -> None:
    shape = ["batch", "seq + 1"]
    proto = model(
        helper.make_node("Relu", ["x"], ["y"]),
        inputs=[helper.make_tensor_value_info("x", F32, shape)],
    )
    fails(UsageError, "no symbolic dim heads; it has: batch, seq", proto, dims={"heads": 2})
    fails(UsageError, "batch cannot be -1", proto, dims={"batch": -1})
    assert str(signature(load_model(proto))["x"]) == "f32[batch, seq + 1]"
    graph = import_onnx(proto, {"seq": 4})
    assert str(graph.inputs[0].type) == "f32[batch, 5]" and graph.symbols() == {"batch"}


def test_newer_opset() -> None:
    proto = relu()
    proto.opset_import[0].version = 9999
    with pytest.raises((UnsupportedError, InvalidModelError)):
        import_onnx(proto)


@pytest.mark.parametrize("declared", ["float[3,4,1]", "float[12]", "float[3,5]", "float[3,n]"])
def test_a_declared_shape_that_is_not_the_computed_one_is_noted(
    declared: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        f" g (float[3,4] x) => ({declared} y) <float[7] t> {{ t = Neg (x) y = Neg (t) }}"
    )
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with caplog.at_level("WARNING", "fuser"):
        found = fuser.compile(model, device="cpu").run({"x": x})["y"]
    np.testing.assert_array_equal(found, x)
    assert ("is declared as" in caplog.text) == (declared != "float[3,n]")


def test_a_declared_dtype_that_is_not_the_computed_one_is_refused() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (int64[3] y) { y = Neg (x) }'
    )
    with pytest.raises(InvalidModelError, match="another dtype"):
        fuser.compile(model, device="cpu")
