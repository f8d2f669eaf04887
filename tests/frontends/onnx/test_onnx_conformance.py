"""The node tests of the onnx package: the graph, before and after its passes, gives their outputs.

1,884 cases come with onnx 1.23. Those that need strings, sequences, random numbers or shapes that
depend on data are refused with UnsupportedError; everything that imports must be right. Cases whose
axes, shapes or counts are inputs are tried once more with those as weights: a graph has static
ranks and shapes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from fuser.errors import UnsupportedError
from fuser.frontends.onnx.importer import import_onnx, narrow_types
from fuser.frontends.onnx.importer.narrow import narrow_of, to_codes
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.graph.passes import run_passes

Array = np.ndarray[Any, Any]

PASSING = 1464
PASSING_WITH_WEIGHTS = 1746
"""How many cases pass with onnx 1.23: as they are, and with integer inputs as weights too."""


def array_of(item: Any) -> Array:
    """The array of a tensor; what is narrower than a byte, or a float of 8 bits, as its codes."""
    array = onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item
    array = np.asarray(array)
    return array if narrow_of(array) is None else to_codes(array)


def is_numeric(case: TestCase) -> bool:
    """Whether all inputs are tensors of numbers; the others are refused anyway."""
    types = [info.type for info in case.model.graph.input]
    return all(
        type.HasField("tensor_type") and type.tensor_type.elem_type != onnx.TensorProto.STRING
        for type in types
    )


def read_feeds(case: TestCase) -> list[dict[str, Array]]:
    names = [info.name for info in case.model.graph.input]
    return [
        {name: np.asarray(array_of(item)) for name, item in zip(names, inputs, strict=True)}
        for inputs, _ in case.data_sets
    ]


def with_weights(model: onnx.ModelProto, feeds: dict[str, Array]) -> onnx.ModelProto:
    """The model with its integer, boolean and scalar inputs as initializers."""
    narrow = narrow_types(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name)
        for name, array in feeds.items()
        if (array.dtype.kind in "iub" or array.ndim == 0) and name not in narrow
    )
    return copy


def check_outputs(case: TestCase, graph: Graph, feeds: list[dict[str, Array]]) -> None:
    wanted = {value.name for value in graph.inputs}
    for arrays, (_, outputs) in zip(feeds, case.data_sets, strict=True):
        found = evaluate(graph, {k: v for k, v in arrays.items() if k in wanted})
        for name, item in zip(graph.output_names, outputs, strict=True):
            expected = np.asarray(array_of(item))
            actual = found[name]
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
            half = actual.dtype.itemsize == 2 and actual.dtype.kind not in "iub"
            np.testing.assert_allclose(
                actual.astype(np.float64),
                expected.astype(np.float64),
                rtol=max(case.rtol, 1e-2 if half else 1e-3),
                atol=max(case.atol, 2e-3 if half else 1e-6),
            )


def run_case(case: TestCase, weights: bool) -> bool:
    """Whether the case could be imported; raises if an output is wrong."""
    feeds = read_feeds(case)
    try:
        graph = import_onnx(with_weights(case.model, feeds[0]) if weights else case.model)
    except UnsupportedError:
        return False
    graph.verify()
    check_outputs(case, graph, feeds)
    check_outputs(case, run_passes(graph, verify=True), feeds)
    return True


@pytest.mark.filterwarnings("ignore")
def test_node_cases() -> None:
    tally: Counter[str] = Counter()
    failures = []
    # Loading builds every case: some of them divide by zero on purpose.
    for case in filter(is_numeric, load_model_tests(kind="node")):
        try:
            if run_case(case, weights=False):
                tally["as they are"] += 1
            elif run_case(case, weights=True):
                tally["with weights"] += 1
        except Exception as error:  # all cases are tried, and all failures shown
            failures.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
    if onnx.__version__.startswith("1.23"):
        assert tally["as they are"] >= PASSING, tally
        assert tally.total() >= PASSING_WITH_WEIGHTS, tally
