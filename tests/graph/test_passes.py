"""Each pass: what it rewrites (golden), and that the graph still computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuser.errors import ShapeError, UsageError, VerifyError
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.numerics import Numerics, using
from fuser.graph.ops.registry import check_types
from fuser.graph.passes import PASSES, run_passes
from fuser.graph.passes.bind import bind
from fuser.graph.passes.dce import remove_dead_nodes
from fuser.graph.text import parse_graph, print_graph
from models import TINY, example_feeds
from models import build as build_model
from tests.golden import Golden

Array = np.ndarray[Any, Any]
RUN = {step.name: step.run for step in PASSES}
MODELS = [name for name in TINY if name not in ("minilm", "tiny_llama")]


def random_feeds(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    feeds = {}
    for value in graph.inputs:
        array = rng.standard_normal(value.shape) * 3
        feeds[value.name] = array.astype(value.dtype.numpy)
    return feeds


def same_results(before: Graph, after: Graph, feeds: dict[str, Array], rtol: float) -> None:
    wanted, found = (evaluate(graph, feeds, float64=True) for graph in (before, after))
    assert list(wanted) == list(found)
    for name, array in wanted.items():
        assert array.dtype == found[name].dtype and array.shape == found[name].shape
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", ["dce", "cse", "fold_constants", "canonicalise", "fold_affine"])
def test_golden(name: str, golden: Golden, rng: np.random.Generator) -> None:
    numerics = Numerics("fast" if name == "fold_affine" else "model")

    def transform(text: str) -> str:
        before, given = parse_graph(text), parse_graph(text)
        given.numerics = numerics
        check_types(before)
        after = remove_dead_nodes(RUN[name](given))
        after.verify()
        check_types(after)
        same_results(before, after, random_feeds(before, rng), 1e-6)
        after.numerics = before.numerics
        return print_graph(after)

    golden.check(f"graph/{name}.test", transform)


@pytest.mark.parametrize("name", MODELS)
def test_every_pass_preserves_models(name: str) -> None:
    model = build_model(name, **TINY[name])
    graph = import_onnx(model)
    feeds = example_feeds(model, {"batch": 2, "sequence": 7})
    original = import_onnx(model)
    for step in PASSES:
        graph = step.run(graph)
        graph.verify()
        check_types(graph)
        same_results(original, graph, feeds, 1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_passes_settle(name: str) -> None:
    once = run_passes(import_onnx(build_model(name, **TINY[name])), verify=True)
    count = len(once.nodes)
    assert len(run_passes(once).nodes) == count


def test_softmax_and_norms_have_one_spelling() -> None:
    """Operators and their decompositions in ONNX end as the same primitives."""
    for name in ("softmax", "layernorm"):
        texts = []
        for decomposed in (False, True):
            model = build_model(name, **TINY[name], decomposed=decomposed, batch=2)
            with using("fast"):  # divisions by a deviation become products
                graph = run_passes(import_onnx(model))
            texts.append(sorted(node.op for node in graph.nodes))
        assert texts[0] == texts[1], name


def test_batch_normalization_disappears() -> None:
    with using("fast"):
        graph = run_passes(import_onnx(build_model("resnet50", **TINY["resnet50"], batch=1)))
    ops = [node.op for node in graph.nodes]
    # One bias a convolution, the residual adds, and the bias of the classifier.
    assert "sub" not in ops and ops.count("mul") <= 1


# bind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["attention", "bert", "gpt2", "llama"])
def test_bind_agrees_with_import(name: str) -> None:
    model = build_model(name, **TINY[name])
    symbolic = import_onnx(model)
    for sizes in ({"batch": 2, "sequence": 7}, {"batch": 1, "sequence": 1}):
        dims = {key: sizes[key] for key in symbolic.symbols()}
        bound = bind(symbolic, dims)
        assert not bound.symbols()
        bound.verify()
        check_types(bound)
        feeds = example_feeds(model, sizes)
        same_results(bound, import_onnx(model, dims), feeds, 1e-9)
        assert all(
            isinstance(dim, int)
            for node in bound.source
            for type in (*node.inputs, *node.outputs)
            for dim in type.shape
        )


def test_bind_checks_names_and_sizes() -> None:
    graph = import_onnx(build_model("mlp", **TINY["mlp"]))
    with pytest.raises(UsageError, match="no symbolic dim rows; it has: batch"):
        bind(graph, {"rows": 2})
    text = """graph @g(%x: f32[n, 3]) {
  %y = reshape(%x) {shape = (6,)} : f32[6]
  return %y as y
}"""
    assert bind(parse_graph(text), {"n": 2}).outputs[0].shape == (6,)
    with pytest.raises(ShapeError):
        bind(parse_graph(text), {"n": 4})


# failures ----------------------------------------------------------------------------------------


def test_verify_finds_wrong_types() -> None:
    graph = parse_graph("graph @g(%x: f32[2]) {\n  %y = neg(%x) : f32[2]\n  return %y as y\n}")
    graph.nodes[0].output.type = TensorType(graph.inputs[0].dtype, (3,))
    with pytest.raises(VerifyError, match="the results should be"):
        run_passes(graph, verify=True)


def test_an_index_out_of_range_is_left_to_run_time() -> None:
    table = numpy_helper.from_array(np.ones((3, 2), np.float32), "table")
    index = numpy_helper.from_array(np.array([0, 9]), "index")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["rows"]),
         helper.make_node("Add", ["x", "rows"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
        [table, index],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert isinstance(model, onnx.ModelProto)
    ops = [node.op for node in run_passes(import_onnx(model)).nodes]
    assert "gather" in ops
