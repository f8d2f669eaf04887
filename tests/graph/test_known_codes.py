"""Codes of weights are looked for once, however many sizes a model meets."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.frontends.onnx.importer import import_onnx
from fuser.frontends.onnx.model import open_model
from fuser.graph.ir import Graph
from fuser.graph.passes.known_codes import Codes, Kept, Store, fingerprint, remembered
from models.generate import decoder
from tests.test_packed_weights import n_bits, product

module = importlib.import_module("fuser.graph.passes.keep_quantised")  # the function hides it


def imported(model: Any) -> Graph:
    """Before any pass."""
    return import_onnx(model, {})


def weights_of(graph: Graph) -> Any:
    (dot,) = (node for node in graph.nodes if node.op == "dot_general")
    return dot.inputs[1]


def dequantised(graph: Graph) -> Mapping[str, Any]:
    (node,) = (node for node in graph.nodes if node.op == "dequantize")
    return {"attrs": node.attrs, "operands": [value.constant for value in node.inputs]}


@pytest.mark.parametrize(("numbers", "shape"), [
    ("i4", (3, 5)), ("u4", (4, 6)), ("u4", (1, 1)), ("f4e2m1", (7,)), ("u8", (3, 5)), ("i8", (2,)),
])  # fmt: skip
def test_kept_codes_come_back(numbers: str, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    most = 16 if numbers in ("i4", "u4", "f4e2m1") else 256
    codes = draw.integers(0, most, shape).astype(np.int8 if numbers == "i8" else np.uint8)
    before = codes.copy()
    kept = Kept.of(Codes(codes, (np.ones(1, np.float32),), numbers, (1,) * len(shape)))
    found = kept.codes().codes
    assert found.dtype == before.dtype and found.shape == shape
    np.testing.assert_array_equal(found, before)
    if most == 16:
        assert kept.parts.codes.nbytes == -(-codes.size // 2)


def test_what_tells_weights_apart() -> None:
    first = fingerprint(weights_of(imported(n_bits(1, 64, 32, 32, 4, False))))
    assert fingerprint(weights_of(imported(n_bits(5, 64, 32, 32, 4, False)))) == first
    others = [
        n_bits(1, 64, 32, 32, 4, True), n_bits(1, 64, 32, 64, 4, False),
        n_bits(1, 64, 32, 32, 8, False), product(1, "i4", (64, 32), 0, 32),
    ]  # fmt: skip
    assert first not in [fingerprint(weights_of(imported(model))) for model in others]
    changed = n_bits(1, 64, 32, 32, 4, False)
    codes = next(item for item in changed.graph.initializer if item.name == "codes")
    codes.raw_data = bytes([codes.raw_data[0] ^ 1]) + codes.raw_data[1:]
    assert fingerprint(weights_of(imported(changed))) != first


@pytest.mark.parametrize("bits", [4, 8])
def test_a_second_look_finds_the_same(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Store = {}
    model = n_bits(1, 96, 33, 32, bits, True)
    with remembered(store):
        first = dequantised(module.keep_quantised(imported(model)))
        monkeypatch.setattr(module, "_parts", None)  # nobody asks again
        again = dequantised(module.keep_quantised(imported(model)))
    assert len(store) == 1 and first["attrs"] == again["attrs"]
    for a, b in zip(first["operands"], again["operands"], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_weights_without_codes_are_known_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = n_bits(1, 96, 33, 32, 4, False)
    store: Store = {}
    monkeypatch.setattr(module, "LEAST_SAVING", 100)
    with remembered(store):
        graph = imported(model)
        assert module.keep_quantised(graph) is graph
    assert list(store.values()) == [None]


def test_a_decoder_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and steps, of one and of two sequences, are four programs."""
    seen: list[Any] = []
    found = module._parts
    monkeypatch.setattr(module, "_parts", lambda *args: (seen.append(args), found(*args))[1])
    model = open_model(decoder("tiny_llama", "float32", bits=4))
    plan = fuser.compile(model, state="auto", device="cpu", threads=1)
    how = {"temperature": np.float32(0), "seed": np.int64(0)}
    counts = []
    for batch in (1, 2):
        state = plan.state(batch=batch, capacity=16)
        for ids in (np.ones((batch, 4), np.int64), np.ones((batch, 1), np.int64)):
            state.run({"input_ids": ids, **how})
            counts.append(len(seen))
    assert counts[0] > 0 and counts == counts[:1] * 4
