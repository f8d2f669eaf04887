"""A sample of the corpus of hostile models: none ends in an error that is not fuser's own, in a
signal, or far over the limit on bytes. `python -m tests.malformed` runs as many as wanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.malformed.__main__ import BEYOND, LIMIT
from tests.malformed.bases import few
from tests.malformed.corpus import Spoilt, corpus, spoil
from tests.malformed.corruptions import CORRUPTIONS
from tests.malformed.entries import ENTRIES, Child, Result

SAMPLE = 48


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


def check(result: Result, name: str) -> None:
    assert not result.is_raw and result.outcome != "slow", (name, result)
    assert result.megabytes <= LIMIT / (1 << 20) + BEYOND, (name, result)


SPOILT = list(corpus(few(), 7, SAMPLE))


@pytest.mark.parametrize("spoilt", SPOILT, ids=lambda spoilt: spoilt.name)
def test_spoilt(spoilt: Spoilt, child: Child, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(spoilt.data)
    entry = list(ENTRIES)[SPOILT.index(spoilt) % len(ENTRIES)]
    check(child.ask(entry, path, LIMIT, 30), f"{spoilt.name} [{entry}]")


def test_there_are_enough_kinds() -> None:
    bases = few()
    made = {(op, kind) for op in bases for kind in CORRUPTIONS if spoil(bases, op, kind, 0)}
    assert len(made) >= 400 and {kind for _, kind in made} == set(CORRUPTIONS)


def test_a_seed_draws_the_same_models() -> None:
    first, again = (list(corpus(few(), 3, 30)) for _ in range(2))
    assert first == again and first != list(corpus(few(), 4, 30))


@pytest.mark.parametrize("op", few())
def test_what_is_not_spoilt_is_valid(op: str, child: Child, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(few()[op].SerializeToString())
    result = child.ask("session", path, LIMIT, 30)
    if op != "Multinomial":  # which the host lacks
        assert result.outcome == "ran", result


def test_a_process_that_dies_is_noticed(tmp_path: Path) -> None:
    """What the corpus reports of a signal, a raw error and too much memory."""
    assert Result("raw: ValueError", 0, 0).is_raw and Result("died", 0, 0).is_raw
    with pytest.raises(AssertionError):
        check(Result("ran", 1000, 1), "large")
    with pytest.raises(AssertionError):
        check(Result("slow", 0, 30), "slow")
    child = Child()
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    assert child.ask("no such entry", path, LIMIT, 30).outcome == "raw: KeyError"
    assert child.process is not None
    child.process.kill()
    child.process.wait()
    assert child.ask("cli", path, LIMIT, 30).outcome == "died"
    child.close()


def test_shapes_that_no_array_has_are_errors_of_fuser(child: Child, tmp_path: Path) -> None:
    """Negative and huge sizes, and too many axes, wherever a model can write them."""
    big = 2**62
    inputs = {"small": [1], "empty": [0, 1], "deep": [1] * 70, "many": [1] * 40}
    made = {
        "negative": ("ConstantOfShape", None, [-5, 3]), "two": ("Reshape", "small", [-2, -2]),
        "stretched": ("Expand", "small", [-3]), "a zero": ("ConstantOfShape", None, [big, big, 0]),
        "beside a zero": ("Expand", "empty", [big, big, 0]), "pad": ("Pad", "empty", [0, big] * 2),
        "tile": ("Tile", "empty", [1, big]), "rank": ("Relu", "deep", None),
        "axes": ("Unsqueeze", "small", list(range(80))), "long": ("Reshape", "small", [1] * 80),
        "one more": ("Unsqueeze", "many", list(range(30))), "both": ("Expand", "many", [2] * 65),
    }  # fmt: skip
    for name, (op, shape, operand) in made.items():
        names = [n for n, held in (("x", shape), ("s", operand)) if held is not None]
        infos = [helper.make_tensor_value_info("x", 1, inputs[shape])] if shape else []
        weights = [helper.make_tensor("s", 7, [len(operand)], operand)] if operand else []
        graph = helper.make_graph(
            [helper.make_node(op, names, ["y"])], "g", infos,
            [helper.make_tensor_value_info("y", 1, None)], weights,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        for entry in ENTRIES:
            result = child.ask(entry, path, LIMIT, 30)
            assert result.outcome.startswith("refused"), (name, entry, result)


def test_text_that_is_not_utf8_is_an_error_of_fuser(child: Child, tmp_path: Path) -> None:
    """In each place where a model has text, one after the other."""
    marks = "producer domain graph node operator input output key value string attribute dim doc"
    weight = helper.make_tensor("Wstring", 8, [1], [b"Mstring"])
    node = helper.make_node(
        "Moperator", ["Minput"], ["Moutput"], name="Mnode", domain="Mdomain", doc_string="Mdoc",
        Mattribute=weight,
    )  # fmt: skip
    relu = helper.make_node("Relu", ["Minput"], ["Moutput"])
    info = helper.make_tensor_value_info("Minput", 1, ["Mdim"])
    graph = helper.make_graph([relu, node], "Mgraph", [info], [info], [weight])
    model = helper.make_model(graph, producer_name="Mproducer", ir_version=10)
    helper.set_model_props(model, {"Mkey": "Mvalue"})
    data = model.SerializeToString()
    path = tmp_path / "m.onnx"
    for mark in marks.split():
        old = f"M{mark}".encode()
        assert old in data, mark
        path.write_bytes(data.replace(old, b"\xff" * len(old)))
        for entry in ENTRIES:
            result = child.ask(entry, path, LIMIT, 30)
            assert result.outcome.startswith("refused") and "UTF-8" in result.text, (mark, result)


def test_scans_of_no_rows(child: Child) -> None:
    from onnx.parser import parse_model

    import fuser

    x = np.zeros((0, 2), np.float32)
    text = """<ir_version: 10, opset_import: ["": 22]>
        g (float[2] i, float[0, 2] x, float[2, 0] w) => (float[2] y, float[0, 2] p, float[2, 0] q) {
            y, p = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) =>
                (float[2] t, float[2] r) { t = Add(s, e)  r = Mul(e, e) }> (i, x)
            z, q = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                scan_input_directions = [1], body = c (float[2] s, float[2] e) =>
                (float[2] t, float[2] r) { t = Add(s, e)  r = Mul(e, e) }> (i, w) }"""
    found = fuser.compile(parse_model(text), device="cpu").run(
        {"i": np.ones(2, np.float32), "x": x, "w": x.T.copy()}
    )
    assert found["y"].tolist() == [1, 1] and found["p"].shape == (0, 2)
    assert found["q"].shape == (2, 0)
