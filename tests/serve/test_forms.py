"""What requests say of their tensors is read once, and what it is said of is theirs alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fuser.serve import protocol
from fuser.serve.models import Model
from fuser.serve.opening import open_model
from fuser.serve.tensors import RequestError
from models import TINY, build, save


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("forms") / "mlp.onnx"
    save(build("mlp", **TINY["mlp"]), path)
    return open_model(path, device="cpu", threads=1)


def request(array: np.ndarray, **fields: object) -> tuple[bytes, int]:
    item = {
        "name": "x", "datatype": "FP32", "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }  # fmt: skip
    text = json.dumps({"inputs": [item], **fields}).encode()
    return text + array.tobytes(), len(text)


def test_equal_json_is_parsed_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol._kept_form.cache_clear()
    parsed: list[bytes] = []
    parse = protocol._parse
    monkeypatch.setattr(protocol, "_parse", lambda text: parsed.append(text) or parse(text))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 24), np.float32) for _ in range(5)]
    found = [protocol.read_request(model, *request(array)) for array in arrays]
    assert len(parsed) == 1
    for one, array in zip(found, arrays, strict=True):
        assert one.feeds["x"].tobytes() == array.tobytes() and one.outputs == {"y": False}
    # Another shape, another id, another output form: each is read as what it is.
    other = protocol.read_request(model, *request(np.ones((3, 24), np.float32), id="a"))
    assert other.feeds["x"].shape == (3, 24) and other.id == "a"
    wanted = {"parameters": {"binary_data_output": True}}
    assert protocol.read_request(model, *request(arrays[0], **wanted)).outputs == {"y": True}
    assert len(parsed) == 3


def test_another_model_has_its_own(model: Model, tmp_path: Path) -> None:
    save(build("mlp", inputs=7, hidden=32), tmp_path / "mlp.onnx")
    other = open_model(tmp_path / "mlp.onnx", device="cpu", threads=1)
    body, length = request(np.ones((2, 24), np.float32))
    assert protocol.read_request(model, body, length).feeds["x"].shape == (2, 24)
    with pytest.raises(RequestError, match=r"has shape \[-1, 7\]"):
        protocol.read_request(other, body, length)


def test_errors_stay_errors(model: Model) -> None:
    """The body is another one each time, whatever the JSON said before."""
    good, length = request(np.ones((2, 24), np.float32))
    assert protocol.read_request(model, good, length).feeds["x"].shape == (2, 24)
    for _ in range(2):
        with pytest.raises(RequestError, match="does not fit the body"):
            protocol.read_request(model, good[:-1], length)
        with pytest.raises(RequestError, match="1 bytes follow"):
            protocol.read_request(model, good + b"\0", length)
    bad, length = request(np.ones((2, 24), np.float32), id=3)
    for _ in range(2):
        with pytest.raises(RequestError, match="id is no string"):
            protocol.read_request(model, bad, length)


def test_what_is_kept_is_bounded(model: Model) -> None:
    protocol._kept_form.cache_clear()
    for number in range(protocol.MOST_FORMS + 20):
        protocol.read_request(model, *request(np.ones((1, 24), np.float32), id=str(number)))
    long = request(np.ones((1, 24), np.float32), id="x" * protocol.MOST_KEPT)
    assert len(protocol.read_request(model, *long).id) == protocol.MOST_KEPT
    assert protocol._kept_form.cache_info().currsize == protocol.MOST_FORMS
