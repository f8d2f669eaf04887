"""Models that need the host: detectors, results whose shape depends on data, strings, operators of
a caller; by `fuser.compile(host="allow")`, the command line and a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.cli.main import run
from fuser.errors import FeedError, UnsupportedOpError, UsageError
from fuser.frontends.onnx.host_operators import non_max_suppression
from fuser.frontends.onnx.hosted import HostedPlan

Array = np.ndarray[Any, Any]
F32, I64 = TensorProto.FLOAT, TensorProto.INT64
BOXES, CLASSES = 64, 3


def text_model(text: str, domains: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21{domains}]> {text}')


def finish(
    nodes: list[onnx.NodeProto], weights: dict[str, Array], outputs: list[tuple[str, int, list]]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("image", F32, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info(*output) for output in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def head(rng: np.random.Generator, channels: int) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """Two convolutions from an image to `channels` numbers for each of 8 x 8 places."""
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((channels, 8, 3, 3)).astype(np.float32) / 8,
    }
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4, strides=[2, 2]),
    ]
    return nodes, weights


def ssd(rng: np.random.Generator) -> onnx.ModelProto:
    """Anchors with offsets, softmax over classes, NMS; boxes, classes and scores that are kept."""
    nodes, weights = head(rng, 4 + CLASSES)
    weights |= {
        "anchors": rng.uniform(0, 1, (1, BOXES, 4)).astype(np.float32),
        "flat": np.array([0, 4 + CLASSES, BOXES]), "parts": np.array([4, CLASSES]),
        "most": np.array([5]), "overlap": np.array([0.4], np.float32),
        "least": np.array([0.35], np.float32), "box": np.array(2), "one": np.array([1]),
    }  # fmt: skip
    n = helper.make_node
    nodes += [
        n("Reshape", ["c2", "flat"], ["rows"]),
        n("Transpose", ["rows"], ["places"], perm=[0, 2, 1]),
        n("Split", ["places", "parts"], ["offsets", "logits"], axis=2),
        n("Tanh", ["offsets"], ["moved"]),
        n("Add", ["moved", "anchors"], ["boxes"]),
        n("Softmax", ["logits"], ["odds"], axis=2),
        n("Transpose", ["odds"], ["scores"], perm=[0, 2, 1]),
        n("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"], "nms"),
        n("Gather", ["kept", "box"], ["at"], axis=1),
        n("Squeeze", ["boxes"], ["flat_boxes"], "sq"),
        n("Gather", ["flat_boxes", "at"], ["detected"]),
    ]
    return finish(nodes, weights, [("kept", I64, ["k", 3]), ("detected", F32, ["k", 4])])


def yolo(rng: np.random.Generator) -> onnx.ModelProto:
    """Centres and sizes, sigmoid scores, NMS without a least score; rows of a box and its class."""
    nodes, weights = head(rng, 4 + CLASSES)
    weights |= {
        "flat": np.array([0, 4 + CLASSES, BOXES]), "parts": np.array([4, CLASSES]),
        "most": np.array(4), "overlap": np.array(0.5, np.float32),
        "pick": np.array([0, 2]), "last": np.array([-1]),
    }  # fmt: skip
    n = helper.make_node
    nodes += [
        n("Reshape", ["c2", "flat"], ["rows"]),
        n("Sigmoid", ["rows"], ["squashed"]),
        n("Split", ["squashed", "parts"], ["sizes", "scores"], axis=1),
        n("Transpose", ["sizes"], ["boxes"], perm=[0, 2, 1]),
        n("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["kept"], "nms",
          center_point_box=1),
        n("Gather", ["kept", "pick"], ["pairs"], axis=1),
        n("GatherND", ["boxes", "pairs"], ["detected"]),
        n("GatherND", ["scores", "kept"], ["odds"]),
        n("Unsqueeze", ["odds", "last"], ["column"]),
        n("Concat", ["detected", "column"], ["y"], axis=1),
    ]  # fmt: skip
    return finish(nodes, weights, [("y", F32, ["k", 5])])


DETECTORS = {"ssd": ssd, "yolo": yolo}


@pytest.fixture(scope="module")
def detectors() -> dict[str, onnx.ModelProto]:
    return {name: make(np.random.default_rng(5)) for name, make in DETECTORS.items()}


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_runs_with_the_host(name: str, detectors: dict[str, onnx.ModelProto]) -> None:
    ort = pytest.importorskip("onnxruntime")
    proto = detectors[name]
    image = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    with pytest.raises(UnsupportedOpError, match=r'NonMaxSuppression.*host="allow".*--host allow'):
        fuser.compile(proto, device="cpu")
    plan = fuser.compile(proto, device="cpu", host="allow")
    assert isinstance(plan, HostedPlan)
    found = plan.run({"image": image})
    session = ort.InferenceSession(proto.SerializeToString())
    for want, (key, have) in zip(session.run(None, {"image": image}), found.items(), strict=True):
        assert len(want) > 3, "the detector sees something"
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5, err_msg=key)
    assert plan.fallbacks == ("NonMaxSuppression (nms)",)
    report = plan.report()
    assert report.fallbacks == ("NonMaxSuppression (nms) runs on the host",)
    assert 0 < report.kernels.after == plan.launches < report.kernels.before


def test_the_command_line_runs_a_detector(
    detectors: dict[str, onnx.ModelProto], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "yolo.onnx"
    onnx.save(detectors["yolo"], path)
    assert run(["run", str(path), "--device", "cpu"]) == 4
    assert "--host allow" in capfd.readouterr().err
    image = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    np.savez(tmp_path / "f.npz", image=image)
    out = tmp_path / "out.npz"
    feeds = ["-i", str(tmp_path / "f.npz"), "-o", str(out), "--compare", "reference", "--json"]
    options = ["--device", "cpu", "--host", "allow", "--iterations", "1", *feeds]
    assert run(["run", str(path), *options]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["fallbacks"] == ["NonMaxSuppression (nms) runs on the host"]
    assert report["compare"]["ok"]
    (want,) = fuser.InferenceSession(detectors["yolo"], device="cpu").run(None, {"image": image})
    np.testing.assert_array_equal(np.load(out)["y"], want)
    assert run(["run", str(path), "--device", "cpu", "--host", "allow"]) == 0
    assert "NonMaxSuppression (nms) runs on the host" in capfd.readouterr().out


def test_results_whose_shape_depends_on_data() -> None:
    proto = text_model("""m (float[n, 4] x) => (float[k] y) {
        twice = Add(x, x)
        at = NonZero(twice)
        where = Transpose<perm = [1, 0]>(at)
        kept = GatherND(twice, where)
        y = Exp(kept)
    }""")
    plan = fuser.compile(proto, device="cpu", host="allow")
    for n in (3, 7):
        x = np.maximum(np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32), 0)
        np.testing.assert_allclose(plan(x), np.exp(2 * x[x != 0]), rtol=1e-5)
    assert plan.fallbacks[0].startswith("NonZero")


def test_what_has_kernels_stays_a_plan() -> None:
    proto = text_model("m (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert isinstance(fuser.compile(proto, device="cpu", host="allow"), fuser.Plan)
    with pytest.raises(UsageError, match="host="):
        fuser.compile(proto, device="cpu", host="maybe")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="dynamic=True"):
        fuser.compile(proto, host="allow", dynamic=True)  # type: ignore[call-overload]


def test_strings_and_random_numbers() -> None:
    joined = text_model("m (string[n] a, string[n] b) => (string[n] y) { y = StringConcat(a, b) }")
    plan = fuser.compile(joined, device="cpu", host="allow")
    for b in (np.array(["1", "2"]), np.array(["1", "2"], object), ["1", "2"]):
        assert plan.run({"a": np.array(["x", "y"]), "b": b})["y"].tolist() == ["x1", "y2"]
    with pytest.raises(UsageError, match=r"tensor\(string\)"):
        plan.random_feeds()
    noisy = text_model("""m (float[3] x) => (float[3] y) {
        noise = RandomNormal<shape = [3], seed = 7.0>()
        y = Add(x, noise)
    }""")
    session = fuser.InferenceSession(noisy, device="cpu")
    (y,) = session.run(None, {"x": np.zeros(3, np.float32)})
    assert len(set(y.tolist())) == 3 and session.fallbacks[0].startswith("RandomNormal")


def test_operators_of_a_caller() -> None:
    text = """m (float[n] x) => (float[n] y, int64 count) {
        up = Exp(x)
        scaled, count = tests.host.Scale<factor = 3.0>(up)
        y = Neg(scaled)
    }"""
    proto = text_model(text, domains=', "tests.host" : 1')
    with pytest.raises(UnsupportedOpError, match="register_host_op"):
        fuser.InferenceSession(proto, device="cpu").run(None, {"x": np.zeros(2, np.float32)})
    fuser.register_host_op(
        "tests.host", "Scale", lambda x, factor: (np.float32(factor) * x, np.int64(x.size))
    )
    x = np.linspace(0, 1, 5, dtype=np.float32)
    for model in (
        fuser.compile(proto, device="cpu", host="allow"),
        fuser.compile(proto, device="cpu", host="allow", fusion=False),
    ):
        y, count = model(x)
        np.testing.assert_allclose(y, -3 * np.exp(x), rtol=1e-6)
        assert count == 5 and [note.split()[0] for note in model.fallbacks] == ["Scale"]
    with pytest.raises(UsageError, match="another domain"):
        fuser.register_host_op("", "Relu", abs)


@pytest.mark.parametrize("scalar", [True, False])
@pytest.mark.parametrize("centred", [0, 1])
def test_the_forms_of_non_max_suppression(scalar: bool, centred: int) -> None:
    """Operands may be scalars; flipped corners are corners; a box without area overlaps nothing."""
    ort = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(3)
    boxes = rng.uniform(0, 1, (2, 20, 4)).astype(np.float32)
    boxes[0, 3, 2:] = boxes[0, 3, :2]
    scores = rng.uniform(0, 1, (2, 2, 20)).astype(np.float32)
    scores[:, :, 7] = scores[:, :, 2]
    operands = {"most": np.int64(6), "overlap": np.float32(0.3), "least": np.float32(0.2)}
    given = {k: np.array(v if scalar else [v]) for k, v in operands.items()}
    feeds = {"boxes": boxes, "scores": scores, **given}
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    node = helper.make_node("NonMaxSuppression", list(feeds), ["y"], center_point_box=centred)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", I64, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    (have,) = fuser.InferenceSession(proto, device="cpu").run(None, feeds)
    np.testing.assert_array_equal(have, want)
    assert non_max_suppression(boxes, scores).shape == (0, 3)


def test_feeds_of_a_model_on_the_host_are_checked() -> None:
    text = """m (float[n, 2] x, string[n] s) => (int64[2, k] y, string[n] t) {
        y = NonZero(x)
        t = StringConcat(s, s)
    }"""
    session = fuser.InferenceSession(text_model(text), device="cpu")
    good = {"x": np.eye(2, dtype=np.float32), "s": ["a", "b"]}
    assert session.run(["t"], good)[0].tolist() == ["aa", "bb"]
    for wrong, told in (
        ({**good, "xs": good["x"]}, "did you mean 'x'"),
        ({**good, "x": np.eye(2)}, "float64"),
        ({**good, "x": np.ones((2, 3), np.float32)}, r"f32\[2, 2\]|axis 1"),
        ({"x": good["x"]}, "missing feeds: s"),
    ):
        with pytest.raises(FeedError, match=told):
            session.run(None, wrong)


def test_outputs_may_have_no_type() -> None:
    proto = text_model("m (float[n, 2] x) => (y) { y = Relu(x) }")
    assert not proto.graph.output[0].HasField("type")
    session = fuser.InferenceSession(proto, device="cpu")
    assert session.run(None, {"x": -np.ones((1, 2), np.float32)})[0].tolist() == [[0, 0]]
    (info,) = session.get_outputs()
    assert (info.shape, info.type) == (["n", 2], "tensor(float)")


def test_strings_are_written_to_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    proto = text_model("m (string[n] s) => (string[n] y) { y = StringConcat(s, s) }")
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "f.npz", s=np.array(["a", "bc"]))
    np.savez(tmp_path / "e.npz", y=np.array(["aa", "bcb"]))
    ends = ["-i", str(tmp_path / "f.npz"), "-o", str(tmp_path / "out.npz"), "--device", "cpu"]
    assert run(["run", str(tmp_path / "m.onnx"), "--host", "allow", *ends]) == 0
    assert np.load(tmp_path / "out.npz")["y"].tolist() == ["aa", "bcbc"]
    expected = ["--expect", str(tmp_path / "e.npz")]
    assert run(["run", str(tmp_path / "m.onnx"), "--host", "allow", *ends, *expected]) == 1
    told = capfd.readouterr().out
    assert "y: not equal" in told and "n = 2" in told
