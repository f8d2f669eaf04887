"""Graph text prints and parses back to the same graph."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuser import dtypes
from fuser.errors import ParseError, VerifyError
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.dims import symbol
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.ops.registry import build, build_node
from fuser.graph.passes import run_passes
from fuser.graph.text import parse_graph, print_graph
from models import TINY, example_feeds
from models import build as build_model

Array = np.ndarray[Any, Any]


def odd_graph() -> Graph:
    """Everything that the text has to spell: quoting, symbols, special numbers, two results."""
    graph = Graph("odd one")
    x = graph.add_input("data/0", TensorType(dtypes.f32, (symbol("batch-size"), 3)))
    y = graph.add_input("v2", TensorType(dtypes.bf16, (symbol("n") * 4 + 1,)))
    special = graph.constant(np.array([np.nan, np.inf, -np.inf], np.float32))
    stretched = build(graph, "broadcast", special, shape=x.type.shape, axes=(1,))
    total = build(graph, "add", x, stretched, origin=("/a/Add", "with, comma # and hash", ""))
    both = build_node(graph, "sort", total, axis=1, descending=True)
    half = graph.constant(np.asarray(0.5, ml_dtypes.bfloat16))
    padded = build(graph, "pad", y, low=(1,), high=(0,), value=float("-inf"))
    scaled = build(
        graph, "mul", padded, build(graph, "broadcast", half, shape=padded.type.shape, axes=())
    )
    graph.outputs = [*both.outputs, scaled, total, total]
    graph.output_names = ["values", "indices", "padded", "total", "again/0"]
    return graph


def round_trip(graph: Graph) -> Graph:
    table: dict[str, Array] = {}
    text = print_graph(graph, table)
    parsed = parse_graph(text, table)
    assert print_graph(parsed) == text
    return parsed


def test_odd_graph_round_trips() -> None:
    graph = odd_graph()
    parsed = round_trip(graph)
    feeds = {
        "data/0": np.arange(6, dtype=np.float32).reshape(2, 3),
        "v2": np.arange(5).astype(ml_dtypes.bfloat16),
    }
    before, after = evaluate(graph, feeds), evaluate(parsed, feeds)
    assert list(before) == list(after)
    for name, array in before.items():
        assert array.dtype == after[name].dtype
        np.testing.assert_array_equal(array, after[name])
    origins = [node.origin for node in parsed.nodes if node.op == "add"]
    assert origins == [("/a/Add", "with, comma # and hash", "")]


@pytest.mark.parametrize("name", ["attention", "bert", "llama", "resnet50"])
def test_models_round_trip(name: str) -> None:
    model = build_model(name, **TINY[name])
    graph = import_onnx(model)
    feeds = example_feeds(model, {"batch": 2, "sequence": 5})
    for stage in (graph, run_passes(graph)):
        before, after = evaluate(stage, feeds), evaluate(round_trip(stage), feeds)
        for key, array in before.items():
            np.testing.assert_array_equal(array, after[key])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no graph"),
        ("graph g {", "line 1: graph g {"),
        ("graph @g(%x: f32[2]) {\n  %y = neg(%z) : f32[2]\n}", "%z is not defined"),
        ("graph @g(%x: f32[2]) {\n  %y = negs(%x) : f32[2]\n}", "no primitive 'negs'"),
        ("graph @g(%x: f32[2]) {\n  %y = neg(%x)\n}", "the result types"),
        ("graph @g(%x: q7[2]) {\n}", "not a tensor type"),
        ("graph @g() {\n  %w = constant sha256:00 : f32[99]\n}", "not in the side table"),
    ],
)
def test_broken_text(text: str, message: str) -> None:
    with pytest.raises((ParseError, VerifyError)) as caught:
        parse_graph(text)
    assert message in str(caught.value)
