"""DistCollective nodes: collectives that a model has itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from fuser.errors import InvalidModelError, UnsupportedError
from fuser.frontends.onnx.model import open_model
from fuser.frontends.onnx.sharding.compile import divided
from fuser.graph.evaluate import evaluate
from fuser.graph.ops.collective import PERFORM
from fuser.graph.passes import run_passes
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.options import CompileOptions
from fuser.runtime.collectives import Threads


def _model(ranks: int, shape: tuple[int, ...] = (6, 2), **attributes: Any) -> ModelProto:
    """y = DistCollective(2 x) + 1."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node(
            "DistCollective", ["twice"], ["met"], domain="trt", nb_rank=ranks, name="/meet",
            **attributes,
        ),
        helper.make_node("Relu", ["met"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("trt", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def _run(model: ModelProto, feeds: list[np.ndarray]) -> list[np.ndarray]:
    _, sharded, _, _ = divided(open_model(model), len(feeds), {})
    plans = [
        compile_graph(run_passes(sharded(r).graph), CompileOptions(device="cpu", threads=1))
        for r in range(len(feeds))
    ]
    found: list[np.ndarray] = Threads(len(feeds)).run(
        lambda comm: plans[comm.rank].join(comm).run({"x": feeds[comm.rank]})["y"]
    )
    return found


FEEDS = [np.random.default_rng(rank).random((6, 2), np.float32) for rank in range(3)]
SUM = FEEDS[0] * 2 + FEEDS[1] * 2 + FEEDS[2] * 2


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"collective_operation": "all_reduce", "reduce_op": "sum"}, [SUM] * 3),
        ({"collective_operation": "ALL_REDUCE", "reduce_op": "AVG"}, [SUM / np.float32(3)] * 3),
        (
            {"collective_operation": "all_reduce", "reduce_op": "max"},
            [2 * np.max(FEEDS, axis=0)] * 3,
        ),
        ({"collective_operation": "all_gather"}, [2 * np.concatenate(FEEDS)] * 3),
        ({"collective_operation": "reduce_scatter", "reduce_op": "sum"}, np.split(SUM, 3)),
        ({"collective_operation": "broadcast", "root": 1}, [2 * FEEDS[1]] * 3),
    ],
    ids=lambda item: "-".join(map(str, item.values())) if isinstance(item, dict) else "",
)
def test_ranks_meet(attributes: dict[str, Any], expected: list[np.ndarray]) -> None:
    found = _run(_model(3, **attributes), FEEDS)
    for mine, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2.0**-22)


@pytest.mark.parametrize(
    ("error", "words", "attributes"),
    [
        (InvalidModelError, "reduce_op", {"collective_operation": "all_reduce"}),
        (InvalidModelError, "root 7", {"collective_operation": "broadcast", "root": 7}),
        (UnsupportedError, "all_to_all", {"collective_operation": "all_to_all"}),
        (
            UnsupportedError, "take part",
            {"collective_operation": "all_gather", "groups": [0, 2]},
        ),
        (
            InvalidModelError, "are no ranks",
            {"collective_operation": "all_gather", "groups": [0, 0, 2]},
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(
    error: type[Exception], words: str, attributes: dict[str, Any]
) -> None:
    with pytest.raises(error, match=words) as caught:
        divided(open_model(_model(3, **attributes)), 3, {})
    assert "/meet" in str(caught.value)


def test_a_graph_alone_has_no_ranks() -> None:
    _, sharded, _, _ = divided(open_model(_model(3, collective_operation="all_gather")), 3, {})
    assert PERFORM.get() is None
    with pytest.raises(Exception, match="needs the other ranks"):
        evaluate(sharded(0).graph, {"x": FEEDS[0]})
