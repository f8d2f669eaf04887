"""The node tests of the onnx package: the graph, before and after its passes, gives their outputs.

1,884 cases come with onnx 1.23. Those that need strings, sequences, control flow, quantisation or
random numbers are refused with UnsupportedError; everything that imports must be right.
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
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.graph.onnx_import import import_onnx
from fuser.graph.passes import run_passes

Array = np.ndarray[Any, Any]

PASSING = 1051
"""How many cases import and pass with onnx 1.23."""


def array_of(item: Any) -> Array:
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def check_outputs(case: TestCase, graph: Graph) -> None:
    names = [info.name for info in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        feeds = {name: np.asarray(array_of(item)) for name, item in zip(names, inputs, strict=True)}
        found = evaluate(graph, feeds)
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


@pytest.mark.filterwarnings("ignore")
def test_node_cases() -> None:
    tally: Counter[str] = Counter()
    failures = []
    # Loading builds every case: some of them divide by zero on purpose.
    for case in load_model_tests(kind="node"):
        try:
            graph = import_onnx(case.model)
        except UnsupportedError:
            tally["unsupported"] += 1
            continue
        try:
            graph.verify()
            check_outputs(case, graph)
            check_outputs(case, run_passes(graph, verify=True))
            tally["passed"] += 1
        except Exception as error:  # all cases are tried, and all failures shown
            failures.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
    if onnx.__version__.startswith("1.23"):
        assert tally["passed"] >= PASSING, tally
