"""What tests of the command line share: small models, and what an error looks like."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from models import example_feeds

Fuser = Callable[..., tuple[int, str, str]]


def input_name(path: Path) -> str:
    return str(onnx.load(path).graph.input[0].name)


def feeds_of(path: Path, **sizes: int) -> dict[str, np.ndarray[Any, Any]]:
    return example_feeds(onnx.load(path), sizes)


def one_node(op: str, name: str, domain: str = "") -> onnx.NodeProto:
    return helper.make_node(op, [name], [f"{name}_{op}"], name=f"{name}_{op}_node", domain=domain)


def write_model(
    path: Path, nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto] | None = None
) -> Path:
    """A model from x: float32 [n, 4] to the last node's output."""
    graph = helper.make_graph(
        nodes,
        "handmade",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["n", 4])],
        initializers or [],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    return path


def assert_one_line(result: tuple[int, str, str], code: int, *words: str) -> None:
    """One line on stderr that says it all, nothing on stdout, no traceback."""
    assert result[0] == code, result
    assert result[1] == ""
    lines = result[2].splitlines()
    assert len(lines) == 1, result[2]
    assert lines[0].startswith("error: ")
    assert "Traceback" not in lines[0]
    for word in words:
        assert word in lines[0]


def in_a_process(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m fuser` with these arguments and environment variables."""
    return subprocess.run(
        [sys.executable, "-m", "fuser", *map(str, arguments)], capture_output=True, text=True,
        env={**os.environ, **variables},
    )  # fmt: skip
